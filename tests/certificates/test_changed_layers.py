"""Layers that other code changes within the step, and what an activation assigns there."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.other_ways import BOUNDED, X, fit, is_step, model_of, moved_by
from helpers.variants import slow_but
from tfdp_layers.models import sums
from tfdp_layers.uses.counted import CountedLayer

kl = keras.layers


class Meddles(kl.Layer):
    """Python of a user's own, in the place of a layer."""

    def __init__(self, what):
        super().__init__()
        self.__dict__["what"] = what

    def call(self, x):
        if is_step(x) and not isinstance(x, keras.KerasTensor):
            self.what()
        return tf.identity(x)


class Steep(tfdp.layers.ClippedDense):
    """A layer of no registered bound."""

    def affine_of_clipped(self, inputs):
        return 1e3 * super().affine_of_clipped(inputs)


def raised(layer, name, value):
    """Sets an attribute, and puts it back."""
    held = getattr(layer, name)
    return lambda: setattr(layer, name, value), lambda: setattr(layer, name, held)


def replaced_method(layer):
    method = "affine_of_clipped"
    return lambda: setattr(layer, method, lambda x: 1e3 * x @ layer.kernel.value), lambda: vars(layer).pop(method)


CHANGES = {
    "gradient": lambda layer: raised(layer, "gradient_clip", 50.0),
    "two clips": lambda layer: raised(layer, "upstream_clip", 50.0),
    "lipschitz": lambda layer: raised(layer, "upstream_clip", 50.0),
    "two clips, method": replaced_method,
    "two clips, class": lambda layer: raised(layer, "__class__", Steep),
    "lipschitz, above": lambda layer: raised(layer, "activation", lambda z: 50.0 * z),
}


def changed_in_the_step(case, **options):
    """A layer in a model in which another one changes it as the step begins, and a last one changes it back."""
    layer = BOUNDED[case.split(",")[0]]()
    if case.endswith("above"):
        last, between = tfdp.layers.LipschitzDense(3, upstream_clip=1.0, use_bias=False), kl.Activation("linear")
        layer = tfdp.layers.LipschitzDense(3, input_clip=1.0, use_bias=False)
        begins, ends = CHANGES[case](between)
        return model_of(
            lambda x: Meddles(ends)(last(between(layer(Meddles(begins)(x))))), (6,), clipped=True, **options
        )
    begins, ends = CHANGES[case](layer)
    return model_of(lambda x: Meddles(ends)(layer(Meddles(begins)(x))), (6,), clipped=True, **options)


@pytest.mark.parametrize("case", slow_but(["gradient", "two clips, class", "lipschitz, above"], CHANGES))
def test_a_layer_that_is_another_one_in_the_step_is_refused_before_anything_is_spent(case):
    model = changed_in_the_step(case)
    with pytest.raises(ValueError, match="was changed within the step"):
        fit(model, X[:, 0])
    assert not model.ledger.releases


@pytest.mark.parametrize("case", slow_but(["two clips"], CHANGES))
def test_unchecked_it_would_move_its_weights_beyond_the_bound(case, monkeypatch):
    """What it is there for."""
    monkeypatch.setattr(sums, "rested_on", lambda model: lambda layer: () if isinstance(layer, CountedLayer) else None)
    model = changed_in_the_step(case)
    if case.endswith("above"):  # another check sees it, too
        with pytest.raises(ValueError, match="gets another tensor in the step"):
            moved_by(model, X[:, 0])
        return
    assert moved_by(model, X[:, 0]) > 1.5 * np.linalg.norm([group.bound for group in model.sensitivities()])


def test_a_layer_that_counts_its_calls_trains_beside_layers_that_are_held():
    class Counts(kl.Layer):
        calls = 0

        def call(self, x):
            self.calls += 1
            return tf.identity(x)

    counts, layer = Counts(), BOUNDED["lipschitz"]()
    assert 0.9 < moved_by(model_of(lambda x: layer(counts(counts(x))), (6,), clipped=True), X[:, 0]) <= 1.0


def test_a_clip_that_code_of_a_layer_raises_before_the_first_step_is_refused():
    """The bound is that of the certificate, whatever runs between it and the step."""
    layer = BOUNDED["two clips"]()

    class Eagerly(kl.Layer):
        def call(self, x):
            if tf.executing_eagerly():
                layer.upstream_clip = 50.0
            return tf.identity(x)

    model = model_of(lambda x: layer(Eagerly()(x)), (6,), clipped=True)
    with pytest.raises(RuntimeError, match=r"a bound, .* was changed while fit runs"):
        fit(model, X[:, 0])
    assert not model.ledger.releases


@pytest.mark.slow
def test_what_an_activation_assigns_is_kept():
    """As in Keras; and so the proof sees what it writes."""
    count, seen = (keras.Variable(np.zeros(()), trainable=False) for _ in range(2))
    counting = BOUNDED["gradient"](activation=lambda z: (count.assign_add(1.0), z)[1])
    model = model_of(counting, (6,), clipped=True)
    fit(model, X[:, 0])
    before = float(count.value)
    fit(model, X[:, 0])
    assert float(count.value) == before + 1.0
    keeping = BOUNDED["gradient"](activation=lambda z: (seen.assign(tf.reduce_sum(z)), z)[1])
    with pytest.raises(ValueError, match="state is written with what depends on records"):
        fit(model_of(keeping, (6,), clipped=True), X[:, 0])
