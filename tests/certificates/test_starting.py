"""Layers that count their calls, or draw what cannot be switched off: calls that are compared start alike."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.certificates.measuring import measure
from tfdp_layers.certificates.synthetic import inputs_like, specs, synthetic_inputs, synthetic_labels
from tfdp_layers.proof.models import traced_sums

kl, ops, random = keras.layers, keras.ops, keras.random
X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


class Own(kl.Layer):
    """Computes with a number that it adds one to at each call, a row that it may write, and a generator."""

    def __init__(self, compute: Any) -> None:
        super().__init__(name="own")
        self.compute, self.seeds = compute, random.SeedGenerator(1)

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
        self.row = self.add_weight(shape=(4,), initializer="zeros", trainable=False, name="row")

    def counted(self) -> Any:
        self.calls.assign_add(1.0)
        return self.calls

    def call(self, x: Any) -> Any:
        return self.compute(self, x)


def stored(layer: Own, row: Any) -> Any:
    layer.row.assign(row)
    return 0.0 * layer.calls


def mean(x: Any) -> Any:
    return ops.mean(x, axis=0, keepdims=True)


def seed_of(seeds: Any) -> Any:
    return tf.cast(tf.math.floormod(seeds.next(), tf.int32.max - 1), tf.int32)


KEEP = {
    "anneals": lambda o, x: x / (0.5 + ops.exp(-0.3 * o.counted())),
    "keeps what it drew": lambda o, x: x + stored(o, random.normal((4,), seed=o.seeds)),
    "one order of features": lambda o, x: random.shuffle(x, axis=1, seed=o.seeds),
    "classes": lambda o, x: x + ops.one_hot(random.categorical(x, 1, seed=o.seeds)[:, 0], 4),
    "gamma": lambda o, x: x * random.gamma(ops.shape(x), ops.exp(x), seed=o.seeds),
    "beta": lambda o, x: x * random.beta(ops.shape(x), 2.0, 2.0, seed=o.seeds),
    "of TensorFlow": lambda o, x: x + tf.random.stateless_normal(tf.shape(x), seed_of(o.seeds)),
    "all of it": lambda o, x: (
        random.shuffle(x * random.gamma(ops.shape(x), 2.0, seed=o.seeds), 1, o.seeds) * o.counted()
    ),
}
MIX = {
    "a mean": lambda o, x: x - mean(x),
    "a mean at some values": lambda o, x: x + ops.where(x > 0.3, mean(x), 0.0),
    "a mean at some calls": lambda o, x: x - ops.where(o.counted() > 0.5, mean(x), 0.0),
    "turned": lambda o, x: ops.roll(x, 1, axis=0) * o.counted(),
    "turned and drawn": lambda o, x: ops.roll(x, 1, axis=0) * random.gamma(ops.shape(x), 2.0, seed=o.seeds),
    "a mean, shuffled": lambda o, x: random.shuffle(x - mean(x), axis=1, seed=o.seeds),
    "a mean times what is drawn": lambda o, x: x + mean(x) * random.gamma(ops.shape(x), 2.0, seed=o.seeds),
    "classes of others": lambda o, x: (
        x + ops.cast(random.categorical(9 * ops.roll(x, 1, axis=0), 1, seed=o.seeds), "float32")
    ),
    "in another order": lambda o, x: random.shuffle(x, axis=0, seed=o.seeds),
    "sums": lambda o, x: ops.cumsum(x, axis=0) * random.gamma(ops.shape(x), 5.0, seed=o.seeds),
    "the largest": lambda o, x: x / (1e-3 + ops.max(ops.abs(x), axis=0)) * random.uniform((4,), 0.5, seed=o.seeds),
    "attention": lambda o, x: random.shuffle(ops.softmax(x @ ops.transpose(x)) @ x, axis=1, seed=o.seeds),
    "stores a mean": lambda o, x: x + stored(o, ops.mean(x, axis=0)),
    "stores a record": lambda o, x: x + stored(o, x[0]),
    "stores, and draws": lambda o, x: random.shuffle(x + stored(o, ops.mean(x, axis=0)), axis=1, seed=o.seeds),
    "counts at some records": lambda o, x: x + 0.0 * o.calls.assign_add(ops.cast(ops.sum(x) > 0, "float32")),
}


def private(compute: Any) -> Any:
    model = tfdp.make_private(
        keras.Sequential([keras.Input((4,)), kl.Dense(4, name="first"), Own(compute), kl.Dense(1)])
    )
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return model


@pytest.mark.few(2)
@pytest.mark.parametrize("name", KEEP)
def test_a_layer_that_keeps_records_apart_is_proved(name: str) -> None:
    model = private(KEEP[name])
    assert tfdp.check_independence(model).proved


@pytest.mark.slow
def test_such_a_layer_trains_and_is_said_to_be_proved() -> None:
    model = private(KEEP["all of it"])
    model.fit(X, X[:, :1], batch_size=8, epochs=1, verbose=0)
    assert "is proved" in str(model.privacy_statement(1e-3))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MIX)
def test_one_that_mixes_them_is_refused_by_each_witness(name: str) -> None:
    model = private(MIX[name])
    with pytest.raises(ValueError, match="not independent"):
        tfdp.check_independence(model)
    x = specs(synthetic_inputs(model, inputs_like(model, None)))
    function = traced_sums(model, x, specs(synthetic_labels(model, synthetic_inputs(model, x), None)))
    for proved in (False, True):  # as if a rule of the proof were wrong
        with pytest.raises(ValueError, match=r"not independent|not be independent|writes state"):
            measure(model, function, None, None, model.sensitivities(), proved)
