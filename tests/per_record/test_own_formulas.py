"""Formulas of a caller's own: what they are given, and weights with an axis of one in front."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

X, Y = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32"), np.ones((4, 2), "float32")


class Places(keras.layers.Layer):
    """An embedding of positions that is added to each record, or scales it."""

    def __init__(self, shape, use="offset", **kwargs):
        super().__init__(**kwargs)
        self.shape, self.use = shape, use

    def build(self, shape):
        self.weight = self.add_weight(shape=self.shape, initializer="normal", name="weight")

    def call(self, inputs):
        return inputs + self.weight if self.use == "offset" else inputs * self.weight


@tfdp.per_record_formulas(Places)
def places(layer, record, inputs):
    return getattr(record, layer.use)(layer.weight, inputs)


def model_of(*layers):
    keras.utils.set_random_seed(0)
    model = tfdp.PrivateSequential([keras.Input((5, 3)), *layers, keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", l2_norm_clip=1e6, noise_multiplier=1.0), "mse")
    return model


@pytest.mark.parametrize("use", ["offset", "scale"])
@pytest.mark.parametrize("shape", [(1, 5, 3), (1, 1, 3)])
def test_a_leading_axis_of_one_is_of_no_record(use, shape):
    sums = model_of(Places(shape, use)).bounded_gradient_sums(X, Y)
    without = model_of(Places(shape[1:], use)).bounded_gradient_sums(X, Y)
    for found, expected in zip(sums, without, strict=True):
        np.testing.assert_allclose(np.reshape(found, np.shape(expected)), expected, rtol=1e-5, atol=1e-6)


def test_a_weight_that_would_broadcast_against_other_records_is_refused_by_its_shape():
    with pytest.raises(ValueError, match=r"weight' of shape \(.*more axes than a record of \(5, 3\)"):
        model_of(Places((4, 5, 3))).bounded_gradient_sums(X, Y)


class Own(keras.layers.Dense):
    """Keras gives it `training`, which the call of the class that it extends takes."""


class Masked(keras.layers.Dense):
    def call(self, inputs, training=None, scale=None):
        return super().call(inputs) * (1.0 if scale is None else scale)


@tfdp.per_record_formulas(Own, Masked)
def dense(layer, record, inputs):
    return record.offset(layer.bias, record.product(layer.kernel, inputs))


def test_a_formula_need_not_take_training():
    model, plain = model_of(Own(4)), model_of(keras.layers.Dense(4))
    model.set_weights(plain.get_weights())
    both = (one.bounded_gradient_sums(X, Y) for one in (model, plain))
    for found, expected in zip(*both, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_else_a_formula_does_not_take_is_refused_by_name():
    inputs, layer = keras.Input((3,)), Masked(2)
    model = tfdp.PrivateModel(inputs, layer(inputs, scale=2.0))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    with pytest.raises(ValueError, match=r"\(Masked\) does not take \['scale'\].*Let the formula take them"):
        model.bounded_gradient_sums(X[:, 0], Y)
    plain = tfdp.PrivateModel(inputs, layer(inputs, scale=None))
    plain.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    assert len(plain.bounded_gradient_sums(X[:, 0], Y)) == 2
