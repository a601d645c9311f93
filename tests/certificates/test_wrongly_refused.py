"""Layers that keep records apart, in ways that look otherwise: they train, and each record stays within its bound."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.private_models import private, product
from helpers.variants import slow_but
from tfdp_layers.certificates import interactions

kl = keras.layers
RNG = np.random.default_rng(0)
X, IDS = RNG.normal(size=(32, 3)).astype("float32"), RNG.integers(0, 5, (32, 4))
CLIP = 0.5


class DropPath(kl.Layer):
    """Stochastic depth: a record's rows are dropped together."""

    def __init__(self, name_of_rate: str = "drop_prob", rate: float = 0.5) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)
        self._name_of_rate = name_of_rate
        setattr(self, name_of_rate, rate)

    def call(self, x: Any, training: bool | None = None) -> Any:
        rate = getattr(self, self._name_of_rate)
        keep = rate if self._name_of_rate.startswith("survival") else 1.0 - rate
        if not training:
            return x
        drawn = keras.random.uniform((keras.ops.shape(x)[0], 1), seed=self.seed_generator)
        return x / keep * keras.ops.floor(keep + drawn)


class Positions(kl.Layer):
    """Adds an embedding of positions that is the same for all records, (1, length)."""

    def __init__(self, how: Any = lambda e: e, repeated: bool = False) -> None:
        super().__init__()
        self.table, self.how, self.repeated = kl.Embedding(4, 3), how, repeated

    def call(self, x: Any) -> Any:
        ids = keras.ops.arange(4)[None]
        if self.repeated:
            ids = keras.ops.broadcast_to(ids, (keras.ops.shape(x)[0], 4))
        return x + self.how(self.table(ids))


class Start(kl.Layer):
    """Adds one learned vector, looked up as token 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table = kl.Embedding(1, 3)

    def call(self, x: Any) -> Any:
        return x + self.table(keras.ops.zeros((1,), "int32"))


class Wrapped(kl.Layer):
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.inner = list(layers)

    def call(self, x: Any) -> Any:
        for layer in self.inner:
            x = layer(x)
        return x


class TwoInside(kl.Layer):
    """A layer with weights of its own around one that was unfrozen inside of a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = kl.LayerNormalization()
        self.inner = Wrapped(kl.Dense(3), kl.Dense(3))

    def call(self, x: Any) -> Any:
        return self.inner(self.scale(x))


def of_vectors(*layers: Any) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), *layers, kl.Dense(2)])


def of_tokens(*layers: Any) -> keras.Model:
    return keras.Sequential([keras.Input((4,), dtype="int64"), kl.Embedding(5, 3), *layers, kl.Flatten(), kl.Dense(2)])


def unfrozen_inside(layer: Any, inner: Any) -> keras.Model:
    model = of_vectors(layer)
    layer.trainable = False
    inner().trainable = True
    return model


def partly_frozen() -> keras.Model:
    layer = Wrapped(kl.Dense(3), kl.Dense(3))
    return unfrozen_inside(layer, lambda: layer.inner[1])


def frozen_stack() -> keras.Model:
    stack = keras.Sequential([kl.Dense(3), kl.Dense(3)])
    return unfrozen_inside(stack, lambda: stack.layers[0])


def deeply_frozen() -> keras.Model:
    layer = TwoInside()
    model = of_vectors(layer)
    layer.inner.trainable = False
    layer.inner.inner[1].trainable = True
    return model


ACCEPTED = {
    "drop_prob": lambda: of_vectors(kl.Dense(3), DropPath()),
    "drop_rate": lambda: of_vectors(kl.Dense(3), DropPath("drop_rate")),
    "survival_prob": lambda: of_vectors(kl.Dense(3), DropPath("survival_prob")),
    "given constants": lambda: of_vectors(kl.Normalization(mean=[0.0, 1.0, 2.0], variance=[1.0, 2.0, 3.0])),
    "PReLU of Dense": lambda: of_vectors(kl.Dense(3, activation=kl.PReLU())),
    "PReLU of Conv1D": lambda: of_tokens(kl.Conv1D(2, 2, activation=kl.PReLU(shared_axes=[1]))),
    "norm as activation": lambda: of_vectors(kl.Dense(3, activation=kl.LayerNormalization())),
    "stack as activation": lambda: of_vectors(kl.Dense(3, activation=keras.Sequential([kl.Dense(3), kl.PReLU()]))),
    "positions": lambda: of_tokens(Positions()),
    "one token for all": lambda: of_vectors(Start()),
    "half frozen": partly_frozen,
    "half frozen stack": frozen_stack,
    "frozen deeply": deeply_frozen,
    "spectral Dense": lambda: of_vectors(kl.SpectralNormalization(kl.Dense(3))),
    "spectral Conv1D": lambda: of_tokens(kl.SpectralNormalization(kl.Conv1D(2, 2), power_iterations=2)),
    "spectral EinsumDense": lambda: of_tokens(kl.SpectralNormalization(kl.EinsumDense("abc,cd->abd", (4, 3)))),
}


def records(model: Any) -> np.ndarray:
    shape = model.input_shape
    return X if shape == (None, 3) else IDS.astype(model.inputs[0].dtype)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("make", slow_but(list(ACCEPTED.values())[::12], ACCEPTED.values()), ids=ACCEPTED)
def test_what_keeps_records_apart_trains_and_no_record_exceeds_its_bound(make):
    model = private(make(), clip=CLIP, noise=0.0)
    x = records(model)
    y = RNG.normal(size=(32, 2)).astype("float32") * 1e4
    before = {v.path: np.array(v) for v in model.trainable_variables}
    model.fit(x, y, batch_size=32, verbose=0)
    assert all((before[v.path] != np.array(v)).any() for v in model.trainable_variables if v.path in before)
    assert {id(v) for group in model.sensitivities() for v in group.variables} == {
        id(v) for v in model.trainable_variables
    }
    largest = 0.0
    for i in range(8):
        sums = model.bounded_gradient_sums(x[i : i + 1], y[i : i + 1])
        largest = max(largest, float(tf.linalg.global_norm(sums)))
    assert largest == pytest.approx(CLIP, rel=1e-3)
    assert largest <= CLIP * (1 + 1e-6)


@pytest.mark.parametrize("name", [n for n in ACCEPTED if "prob" not in n and "rate" not in n and "spectral" not in n])
def test_unclipped_sums_are_the_gradient_that_keras_takes(name):
    model = private(ACCEPTED[name](), clip=1e6)
    x, y = tf.constant(records(model)), tf.constant(RNG.normal(size=(32, 2)), tf.float32)
    model(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(product(y, model(x, training=True)))
    expected = tape.gradient(loss, [v.value for v in model.trainable_variables])
    for mine, plain in zip(model.bounded_gradient_sums(x, y), expected, strict=True):
        np.testing.assert_allclose(mine, tf.convert_to_tensor(plain), rtol=1e-3, atol=1e-4)


ONE_FOR_ALL = {
    "first": lambda e: e[0],
    "mean": lambda e: keras.ops.mean(e, axis=0),
    "largest": lambda e: keras.ops.max(e, axis=0),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("repeated", slow_but([False], [False, True]))
@pytest.mark.parametrize("how", ONE_FOR_ALL.values(), ids=ONE_FOR_ALL)
def test_one_row_that_stands_for_all_records_is_refused_also_where_nothing_is_clipped(how, repeated):
    """Its gradient is the whole batch's, and would be clipped as one record's."""
    model = private(of_tokens(Positions(how, repeated)), clip=1e6)
    with pytest.raises(ValueError, match="Records are not independent"):
        model.fit(IDS, np.ones((32, 2), "float32"), batch_size=16, verbose=0)


def test_an_activation_in_a_recurrent_cell_is_refused():
    model = private(of_tokens(kl.LSTM(3, recurrent_activation=kl.PReLU(), return_sequences=True)))
    with pytest.raises(ValueError, match=r"outside its layer|inside a loop"):
        model.fit(IDS, np.ones((32, 2), "float32"), batch_size=16, verbose=0)


class CentersInTraining(kl.Dense):
    def call(self, x: Any, training: bool | None = None) -> Any:
        return super().call(x - keras.ops.mean(x, axis=0, keepdims=True) if training else x)


def test_what_spectral_normalization_wraps_is_measured_in_training():
    model = of_vectors(kl.SpectralNormalization(CentersInTraining(3)))
    with pytest.raises(ValueError, match="Records are not independent"):
        private(model, allow_generic=True).fit(X, np.ones((32, 2), "float32"), batch_size=16, verbose=0)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("shown", [{0}, {0, 1}, {2, 3, 4}])
def test_a_gap_that_no_other_draw_shows_is_rounding(shown, monkeypatch):
    """A saturated softmax leaves the last bit of a record's gradient, times activations of thousands: one fit in many
    of a CNN by the tanh filter was refused.
    """
    own, calls = interactions.parts_and_whole, itertools.count()

    def measured(*args: Any) -> Any:
        together, alone = own(*args)
        return [t + 1.0 for t in together] if next(calls) in shown else together, alone

    monkeypatch.setattr(interactions, "parts_and_whole", measured)
    x, y = RNG.normal(size=(32, 300)), np.ones((32, 2))
    model = tfdp.make_private(keras.Sequential([keras.Input((300,)), kl.Dense(700), kl.Dense(2)]))
    model.compile(tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.0), "mse")  # its loops are not proved
    fit = {"batch_size": 16, "steps_per_epoch": 1, "verbose": 0}
    if len(shown) == 1:
        model.fit(x, y, **fit)
        assert next(calls) == len(interactions.CASES) + 2
    else:
        with pytest.raises(ValueError, match="Records are not independent"):
            model.fit(x, y, **fit)
        assert int(model.optimizer.releases) == 0


class Unknown(kl.Layer):
    """An operation that no rule follows: what is around it is measured."""

    def call(self, x: Any) -> Any:
        return x + tf.raw_ops.Betainc(a=tf.ones_like(x), b=2.0 * tf.ones_like(x), x=tf.sigmoid(x))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mixing", [False, True])
def test_what_a_layer_writes_is_put_back_while_others_are_measured(mixing):
    """SpectralNormalization writes its vectors at each call: with a call more, a batch found other ones."""
    more = [CentersInTraining(2)] if mixing else []
    model = private(of_vectors(kl.SpectralNormalization(kl.Dense(4)), Unknown(), *more), allow_generic=True)
    fit = {"batch_size": 16, "verbose": 0, "accept_measured": True}
    if mixing:
        with pytest.raises(ValueError, match=r"Records are not independent.*'centers_in_training.*' \(CentersInTr"):
            model.fit(X, np.ones((32, 2), "float32"), **fit)
        assert model.ledger.steps == 0
    else:
        model.fit(X, np.ones((32, 2), "float32"), **fit)
        assert model.ledger.entries[0].release.independence.startswith("measured")
