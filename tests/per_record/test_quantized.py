"""Quantized layers with weights to train (QLoRA, a bias): by what Keras calls in place of their `call`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.per_record.registry import method_of

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)).astype("float32"), RNG.normal(size=(6, 1)).astype("float32")
IDS = RNG.integers(0, 9, size=(6, 4))


def network(first, mode, lora, x):
    """A model whose first layer is quantized; with LoRA its second factor is no zero, as it begins."""
    inputs = keras.Input(x.shape[1:], dtype=x.dtype)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(first(inputs))))
    first.quantize(mode)
    if lora:
        first.enable_lora(2)
        for variable in first.trainable_variables:
            variable.assign(RNG.normal(size=variable.shape))
    return model


QUANTIZED = [
    pytest.param(lambda: keras.layers.Dense(4, activation="tanh"), "int8", True, X, id="QLoRA"),
    pytest.param(lambda: keras.layers.Dense(4, activation="tanh"), "int4", True, X, id="QLoRA, int4"),
    pytest.param(lambda: keras.layers.Dense(4), "int8", False, X, id="a bias"),
    pytest.param(lambda: keras.layers.EinsumDense("ab,bc->ac", 4, bias_axes="c"), "int8", True, X, id="EinsumDense"),
    pytest.param(lambda: keras.layers.Embedding(9, 3), "int8", True, IDS, id="Embedding"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("layer", "mode", "lora", "x"), QUANTIZED)
def test_sums_of_quantized_layers_are_those_of_each_record_alone(layer, mode, lora, x):
    plain = network(layer(), mode, lora, x)
    model = tfdp.make_private(plain)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0, l2_norm_clip=0.5), "mse")
    expected = [np.zeros(v.shape) for v in model.trainable_variables]
    for one in range(len(x)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((plain(x[one : one + 1], training=True) - Y[one]) ** 2)
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        found = [np.asarray(tf.convert_to_tensor(g)) for g in found]
        norm = np.sqrt(sum(np.sum(g**2) for g in found))
        expected = [e + g * min(1.0, 0.5 / norm) for e, g in zip(expected, found, strict=True)]
    sums = model.bounded_gradient_sums(x, Y)
    for found, wanted in zip(sums, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_weights_that_are_overwritten_with_their_gradient_are_refused_by_name():
    model = tfdp.make_private(network(keras.layers.Dense(4, name="coarse"), "float8", False, X))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0, l2_norm_clip=0.5), "mse")
    with pytest.raises(ValueError, match=r"'coarse' .* whose gradient is no gradient but their next value"):
        model.fit(X, Y, batch_size=3, verbose=0)
    model.get_layer("coarse").trainable = False
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0, l2_norm_clip=0.5), "mse")
    assert len(model.bounded_gradient_sums(X, Y)) == 2


@pytest.mark.slow
def test_a_quantized_layer_trains_and_is_called_as_before_afterwards():
    plain = network(keras.layers.Dense(4), "int4", True, X)
    model, layer = tfdp.make_private(plain), plain.layers[1]
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0, l2_norm_clip=0.5), "mse")
    kernel = np.array(layer._kernel)
    model.fit(X, Y, batch_size=3, verbose=0)
    assert model.ledger.updates == 2
    assert method_of(layer) == "quantized_call"
    assert not {"call", "quantized_call"} & vars(layer).keys()
    np.testing.assert_array_equal(layer._kernel, kernel)


def test_a_product_of_other_forms_where_lengths_are_unknown_is_looked_at_with_the_lengths_of_the_data():
    x, layer = keras.Input((None, 4)), keras.layers.EinsumDense("abc,cde->abde", (None, 2, 2), bias_axes="de")
    plain = keras.Model(x, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(layer(x))))
    layer.quantize("int4")
    layer.enable_lora(2)
    model = tfdp.make_private(plain)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0, l2_norm_clip=0.5), "mse")
    data = RNG.normal(size=(6, 5, 4)).astype("float32")
    model.fit(data, Y, batch_size=3, verbose=0, accept_measured=True)
    assert model.ledger.updates == 2
    assert len(model.sensitivities()) == 1
