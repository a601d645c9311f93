"""Gradients with respect to inputs that a model takes by itself, as of a gradient penalty."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.other_ways import BOUNDED, X, fit, model_of
from helpers.variants import slow_but

kl = keras.layers


def by_a_tape(layer, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    return tape.gradient(y, x)


def twice(layer, x):
    """A derivative of a derivative, of a part of the inputs."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        slope = tf.square(by_a_tape(layer, x[:, ::-1]))
    return tape.gradient(slope, x, unconnected_gradients="zero")


class Slope(kl.Layer):
    """How steep a layer is at its inputs, as gradient penalties and differential equations ask."""

    def __init__(self, layer, way):
        super().__init__()
        self.__dict__["box"] = layer, way

    def call(self, x):
        return tf.reduce_sum(self.box[1](self.box[0], x), axis=-1, keepdims=True) * tf.ones((1, 3))

    def compute_output_shape(self, shape):
        return (shape[0], 3)


SLOPES = [f"{kind}/{way.__name__}" for kind in ("gradient", "two clips") for way in (by_a_tape, twice)]


@pytest.mark.parametrize("case", slow_but(["two clips/by_a_tape"], SLOPES))
def test_a_slope_of_a_layer_that_bounds_itself_is_refused(case):
    """Its gradient with respect to the weights is of the second order, where nothing is clipped."""
    kind, way = case.split("/")

    def outputs(x):
        layer = BOUNDED[kind]()
        return layer(x) + Slope(layer, {"by_a_tape": by_a_tape}.get(way, twice))(x)

    model = model_of(outputs, (6,), clipped=True)
    with pytest.raises(ValueError, match="a gradient with respect to inputs"):
        fit(model, X[:, 0])
    assert not model.ledger.releases


class Curved(kl.Layer):
    """Weights and their slope in one layer."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3))

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x @ self.w)
        return y + tf.reduce_sum(tape.gradient(y, x), axis=-1, keepdims=True)


def sloped(x):
    layer = kl.Dense(3, activation="tanh", use_bias=False)
    return layer(x) + Slope(layer, by_a_tape)(x)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("outputs", "exact"), [(sloped, False), (lambda x: Curved()(x), True)], ids=["around", "within"]
)
def test_a_slope_of_an_ordinary_layer_is_exact_within_one_layer_and_warned_of_else(outputs, exact):
    x = keras.Input((6,))
    plain = keras.Model(x, outputs(x))
    model = tfdp.make_private(plain)
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 0.0, 1e6), "mse")
    rows, y = np.linspace(-1.0, 1.0, 6, dtype="float32")[None], np.ones((1, 3), "float32")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(plain(rows) - y))
    (wanted,) = tape.gradient(loss, [v.value for v in plain.trainable_variables])
    before = np.array(model.trainable_variables[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, rows, y)
    found = before - np.array(model.trainable_variables[0])
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-6) == exact
    assert any("takes a gradient through an ordinary layer" in str(one.message) for one in caught) == (not exact)
