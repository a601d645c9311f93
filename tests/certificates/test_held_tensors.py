"""Each Lipschitz layer of a step gets the very tensors that the model's graph says, whatever calls its layers."""

from typing import Any

import keras
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.held_models import GENTLE, fit, private, share
from helpers.variants import slow_but
from tfdp_layers.certificates import shapes
from tfdp_layers.models import sums
from tfdp_layers.structure import own_way

kl, tl = keras.layers, tfdp.layers


class InTraining(kl.Layer):
    """Runs something where it is called in training, and passes on what it gets."""

    def __init__(self, function: Any):
        super().__init__()
        self.function = function

    def call(self, x: Any, training: bool | None = None) -> Any:
        if training and not isinstance(x, keras.KerasTensor):
            self.function()
        return x

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def times(outputs: Any) -> Any:
    return outputs if isinstance(outputs, keras.KerasTensor) else 100.0 * outputs


class Called(keras.Sequential):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return times(super().__call__(*args, **kwargs))


class Standardized(keras.Model):
    def _standardize_inputs(self, inputs: Any) -> Any:
        return [times(one) for one in super()._standardize_inputs(inputs)]


class Helped(keras.Sequential):
    """Has methods of its own, and calls its layers as any."""

    def helper(self) -> int:
        return 1

    def get_config(self) -> Any:
        return super().get_config()


def flat(kind: Any = keras.Sequential) -> Any:
    if kind in (keras.Model, Standardized):
        x = keras.Input((4,))
        return kind(x, kl.Flatten()(x))
    return kind([keras.Input((4,)), kl.Flatten()])


def put(thing: Any, name: str) -> None:
    old = getattr(thing, name)
    vars(thing)[name] = lambda *args, **kwargs: times(old(*args, **kwargs))


def surrounded(inner: Any, kind: Any = tfdp.PrivateModel, **options: Any) -> Any:
    x = keras.Input((4,))
    first, last = tl.LipschitzDense(4, input_clip=1.0, **GENTLE), tl.LipschitzDense(2, upstream_clip=1.0)
    return private(x, last(inner(first(x))), kind, **options)


def with_own(name: str, kind: Any = keras.Sequential, of_graph: bool = False) -> Any:
    inner = flat(kind)
    model = surrounded(inner)
    put(inner._functional if of_graph else inner, name)
    return model


CONTAINERS = {
    "call of a Sequential": lambda: with_own("call"),
    "call of a functional model": lambda: with_own("call", keras.Model),
    "call of the graph inside": lambda: with_own("call", of_graph=True),
    "a step of the graph": lambda: with_own("_run_through_graph", keras.Model),
    "__call__ of a class": lambda: surrounded(flat(Called)),
    "inputs of a class": lambda: surrounded(flat(Standardized)),
}


@pytest.mark.parametrize("case", slow_but(["call of a Sequential", "__call__ of a class"], CONTAINERS))
def test_no_norm_is_followed_through_a_model_that_does_more_than_its_graph(case: str) -> None:
    with pytest.raises(ValueError, match=r"\) of its own beside its graph, below puts out records of any norm"):
        CONTAINERS[case]().sensitivities()


@pytest.mark.parametrize("case", slow_but(["call of a functional model"], CONTAINERS))
def test_the_tensors_of_the_step_show_it_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdp_layers.certificates.lipschitz.own_way", lambda container: [])
    with pytest.raises(ValueError, match="gets another tensor in the step"):
        share(CONTAINERS[case]())
    monkeypatch.setattr(sums, "held_shapes", lambda model: lambda layer, call, given: call(*given[0], **given[1]))
    assert share(CONTAINERS[case]()) > 99.0


def test_a_lipschitz_layer_within_such_a_model_says_so() -> None:
    inner = keras.Sequential([keras.Input((4,)), tl.LipschitzDense(4, **GENTLE)], name="inner")
    model = surrounded(inner)
    put(inner, "call")
    with pytest.raises(ValueError, match=r"stands in layer 'inner' .*Take that call\(\) off"):
        model.sensitivities()


def in_the_step(name: str, change: bool = True) -> Any:
    """A model whose step puts something on it, and takes it off again."""
    inner: Any = kl.Flatten() if name == "layer" else flat(keras.Model if name == "functional" else keras.Sequential)
    x = keras.Input((4,))
    first, last = tl.LipschitzDense(4, input_clip=1.0, **GENTLE), tl.LipschitzDense(2, upstream_clip=1.0)
    before: list[Any] = []

    def begin() -> None:
        thing = inner._functional if name == "graph" else inner
        if name == "added":  # a Sequential is mutable
            inner.add(kl.Rescaling(100.0))
        else:
            before.append(vars(thing).get("call"))
            put(thing, "call")

    def end() -> None:
        thing = inner._functional if name == "graph" else inner
        if name == "added":
            inner.pop()
        elif before[-1] is None:
            del vars(thing)["call"]
        else:
            vars(thing)["call"] = before[-1]

    functions = (begin, end) if change else (lambda: None, lambda: None)
    return private(x, InTraining(functions[1])(last(inner(first(InTraining(functions[0])(x))))))


@pytest.mark.parametrize(
    "name", slow_but(["sequential", "layer"], ["sequential", "functional", "graph", "added", "layer"])
)
def test_what_the_step_puts_there_and_takes_off_is_seen(name: str) -> None:
    model = in_the_step(name)
    assert [group.bound for group in model.sensitivities()]
    with pytest.raises(ValueError, match="gets another tensor in the step"):
        share(model)
    assert share(in_the_step(name, change=False)) <= 1.0


class Own(tfdp.PrivateModel):
    def _run_through_graph(self, *args: Any, **kwargs: Any) -> Any:
        return super()._run_through_graph(*args, **kwargs)


class Helping(tfdp.PrivateModel):
    def helper(self) -> int:
        return 1


@pytest.mark.parametrize("name", ["call", "_standardize_inputs", "class"])
def test_a_private_model_is_called_as_its_graph_says(name: str) -> None:
    model = surrounded(flat(), kind=Own if name == "class" else tfdp.PrivateModel)
    if name != "class":
        put(model, name)
    with pytest.raises(ValueError, match=r"has a \w+\(\) of its own, in its class or put on the object"):
        fit(model)
    assert not model.ledger.releases


# What trains as ever


def pool_twice() -> Any:
    pool, a = kl.MaxPooling2D(2), keras.Input((16, 16, 3))
    x = kl.Conv2D(4, 3, padding="same", activation="swish", trainable=False)(pool(a))
    x = pool(tl.LipschitzConv2D(4, 3, padding="same", input_clip=1.0)(x))
    return private(a, tl.LipschitzDense(2, upstream_clip=1.0)(kl.Flatten()(x)))


def relu_twice() -> Any:
    relu, a = kl.ReLU(), keras.Input((4,))
    x = kl.Dense(8, trainable=False, activation="exponential")(relu(a))
    x = relu(tl.LipschitzDense(4, input_clip=1.0)(x))
    return private(a, tl.LipschitzDense(2, upstream_clip=1.0)(x))


def beside_the_graph() -> Any:
    """A layer without weights that stands in the graph, and is called in a Lambda before."""
    relu, a = kl.ReLU(), keras.Input((4,))
    x = tl.LipschitzDense(4, input_clip=1.0)(kl.Lambda(lambda t: relu(t) + 1.0, output_shape=(4,))(a))
    return private(a, tl.LipschitzDense(2, upstream_clip=1.0)(relu(x)))


def several_inputs() -> Any:
    pair = [keras.Input((4,)), keras.Input((4,))]
    inner, a = keras.Model(pair, kl.Add()(pair)), keras.Input((4,))
    parts = [tl.LipschitzDense(4, input_clip=1.0)(a) for _ in range(2)]
    return private(a, tl.LipschitzDense(2, upstream_clip=1.0)(kl.Flatten()(inputs=inner(parts))))


def two_towers() -> Any:
    dense, sort, a = tl.LipschitzDense(4, input_clip=1.0, upstream_clip=1.0), tl.GroupSort(), keras.Input((4,))
    both = kl.Concatenate()([sort(dense(a)), sort(dense(kl.Rescaling(2.0)(a)))])
    return private(a, tl.LipschitzDense(2, upstream_clip=1.0)(both))


def masked() -> Any:
    a = keras.Input((6, 4))
    x = tl.LipschitzDense(4, activation="relu", input_clip=1.0)(kl.Masking()(a))
    return private(a, tl.LipschitzDense(2, upstream_clip=1.0)(kl.Flatten()(kl.Dropout(0.1)(x))))


def without_activation() -> Any:
    first, a = tl.LipschitzDense(4, input_clip=1.0, **GENTLE), keras.Input((4,))
    model = private(a, tl.LipschitzDense(2, upstream_clip=1.0)(first(a)))
    first.activation = None  # linear
    return model


ORDINARY = {
    "a pooling layer twice": pool_twice,
    "relu twice": relu_twice,
    "relu in a Lambda, too": beside_the_graph,
    "a nested model of several inputs": several_inputs,
    "layers of two towers": two_towers,
    "a mask": masked,
    "an activation of None": without_activation,
    "a class with a helper": lambda: surrounded(flat(Helped), kind=Helping),
    "nested twice": lambda: surrounded(keras.Sequential([keras.Input((4,)), flat(keras.Model)])),
    "an eager step": lambda: surrounded(flat(), run_eagerly=True),
    "a compiled step": lambda: surrounded(flat(), jit_compile=True),
}


@pytest.mark.parametrize(
    "case", slow_but(["a pooling layer twice", "a nested model of several inputs", "a class with a helper"], ORDINARY)
)
def test_ordinary_models_train_and_keep_their_bounds(case: str) -> None:
    model = ORDINARY[case]()
    assert share(model) <= 1.0
    fit(model)
    assert len(model.ledger.releases) == 1


def test_kerass_own_classes_have_no_way_of_their_own() -> None:
    for made in (flat(), flat(keras.Model), flat(Helped), surrounded(flat())):
        assert own_way(made) == []


def test_fewer_tensors_than_the_graph_has_are_refused() -> None:
    model = several_inputs()
    add = next(one for one in model._flatten_layers() if isinstance(one, kl.Add))
    held, one = shapes.held_shapes(model), tf.ones((1, 4))
    with pytest.raises(ValueError, match="gets fewer tensors in the step, and 2 of them"):
        held(add, lambda given: given[0], (([one],), {}))
