"""Copies of released weights in another shape, layers in tuples, and functions of saved models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

_RNG = np.random.default_rng(0)
IMAGES, Y = _RNG.normal(size=(20, 2, 2, 3)).astype("float32"), _RNG.integers(0, 2, 20)
X = IMAGES.reshape(20, 12)


def compiled(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=4.0), loss=loss)
    return model


def trained(model, x):
    compiled(model).fit(x, Y, batch_size=10, verbose=0)
    return model


@pytest.fixture
def teacher():
    layers = [keras.layers.Flatten(), keras.layers.Dense(4, name="fc", use_bias=False), keras.layers.Dense(2)]
    return trained(tfdp.make_private(keras.Sequential([keras.Input((2, 2, 3)), *layers])), IMAGES)


def test_a_classifier_that_becomes_a_convolution_brings_what_it_cost(teacher):
    """Before, the convolution stated 0 of 10.1."""
    layers = [keras.layers.Conv2D(4, 2, use_bias=False, name="c"), keras.layers.GlobalAveragePooling2D()]
    network = keras.Sequential([keras.Input((2, 2, 3)), *layers])
    network.get_layer("c").set_weights([teacher.get_layer("fc").get_weights()[0].reshape(2, 2, 3, 4)])
    assert tfdp.make_private(network).ledger.updates == teacher.ledger.updates == 2
    head = tfdp.make_private(keras.Sequential([keras.Input((2, 2, 3)), keras.layers.Conv2D(4, 2, use_bias=False)]))
    head.set_weights(network.get_weights())
    assert head.ledger.updates == 2


def test_a_variable_of_another_shape_that_follows_one_is_found_while_it_holds_the_same(teacher):
    """What something else made of released weights is looked for in those that hold it now."""
    kernel = teacher.get_layer("fc").kernel
    before = np.array(kernel)
    kernel.assign(before * 0.5)
    try:
        flat = tfdp.make_private(keras.Sequential([keras.Input((48,)), keras.layers.Dense(1, use_bias=False)]))
        flat.set_weights([(before * 0.5).reshape(48, 1)])
        assert flat.ledger.updates == 2
    finally:
        kernel.assign(before)


def test_the_same_initial_numbers_in_another_shape_cost_nothing(teacher):
    first = keras.initializers.RandomNormal(seed=1)
    for shape, units in [((12,), 4), ((6,), 8)]:
        dense = keras.layers.Dense(units, kernel_initializer=first, name=f"d{units}")
        model = tfdp.make_private(keras.Sequential([keras.Input(shape), dense, keras.layers.Dense(2)]))
        assert model.ledger.updates == 0
        trained(model, X[:, : shape[0]])
        assert model.ledger.updates == 2


class Blocks(keras.layers.Layer):
    def __init__(self, kind, **options):
        super().__init__(**options)
        self.first, self.second = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(4)
        pair = (self.first, self.second)
        self.parts = {"tuple": pair, "nested": (pair,), "list": list(pair), "dict": {"a": pair}}[kind]

    def call(self, inputs):
        return self.second(self.first(inputs))


@pytest.mark.parametrize("kind", ["tuple", "nested", "list", "dict"])
def test_a_layer_may_keep_its_layers_in_any_of_pythons_collections(kind):
    model = tfdp.make_private(keras.Sequential([keras.Input((12,)), Blocks(kind), keras.layers.Dense(2)]))
    assert trained(model, X).ledger.updates == 2


def saved(path):
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(tf.random.normal((12, 4), seed=1))

        @tf.function(input_signature=[tf.TensorSpec((None, 12), tf.float32)])
        def __call__(self, x):
            return {"embedding": tf.nn.relu(x @ self.kernel)}

    module = Module()
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.__call__})
    return keras.layers.TFSMLayer(str(path), call_endpoint="serving_default")


def exported(path):
    keras.Sequential([keras.Input((12,)), keras.layers.Dense(4, activation="relu")]).export(str(path), verbose=False)
    return keras.layers.TFSMLayer(str(path), call_endpoint="serve")


@pytest.mark.parametrize("made", [saved, exported])
def test_a_head_on_a_frozen_saved_model_is_proved_and_trained(made, tmp_path):
    """Before: IndexError, in a graph to whose outputs TensorFlow had added what a gradient needs."""
    layer = made(tmp_path)
    layer.trainable = False
    inputs = keras.Input((12,))
    found = layer(inputs)
    outputs = keras.layers.Dense(2)(found["embedding"] if isinstance(found, dict) else found)
    model = trained(tfdp.make_private(keras.Model(inputs, outputs)), X)
    assert model.ledger.updates == 2
    assert "measured" not in str(model.privacy_statement(1e-3))


def test_a_saved_model_that_would_be_trained_is_told_to_be_frozen(tmp_path):
    inputs = keras.Input((12,))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(2)(exported(tmp_path)(inputs))))
    with pytest.raises(ValueError, match=r"Freeze it: that layer's trainable = False"):
        trained(model, X)
