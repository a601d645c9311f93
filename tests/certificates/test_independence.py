"""What a record adds is the same whoever else is there: layers and losses that mix records are measured and named."""

import dataclasses
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import CLIPS, MODELS, cnn, compiled, mlp, two_inputs_two_outputs
from helpers.variants import slow_but
from tfdp_layers.certificates.additivity import Gap


@pytest.mark.parametrize("make", slow_but([cnn, two_inputs_two_outputs], MODELS), ids=lambda m: m.__name__)
def test_records_are_independent(make):
    tfdp.check_independence(compiled(make())[0])


def mixing_model(layer):
    inputs = keras.Input((4,))
    hidden = tfdp.layers.ClippedDense(6, **CLIPS)(inputs)
    outputs = tfdp.layers.ClippedDense(3, **CLIPS)(layer(hidden))
    return compiled((tfdp.PrivateModel(inputs, outputs), None, None))[0]


class CentersBatch(keras.layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, axis=0, keepdims=True)


class MixesBackward(keras.layers.Layer):
    """Identity forward; the upstream gradient of each record is averaged with its neighbour's."""

    def call(self, x):
        @tf.custom_gradient
        def identity(v):
            return tf.identity(v), lambda u: 0.5 * (u + tf.roll(u, 1, 0)) * tf.norm(u)

        return identity(x)


class CountsRecords(keras.layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False, name="total")

    def call(self, x):
        self.total.assign_add(tf.reduce_sum(x))
        return x


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (CentersBatch(name="centers"), "'centers'"),
        (keras.layers.Softmax(axis=0, name="over_batch"), "'over_batch'"),
        (keras.layers.UnitNormalization(axis=0, name="unit0"), "'unit0'"),
        (MixesBackward(), "backward pass"),
        (CountsRecords(name="counter"), "counter/total"),
    ],
    ids=lambda v: v.name if isinstance(v, keras.layers.Layer) else "",
)
def test_mixing_is_measured_and_named(layer, message):
    with pytest.raises(ValueError, match=message):
        tfdp.check_independence(mixing_model(layer))


def test_a_dropped_record_is_not_confused_with_a_sum_over_the_batch():
    def mean_loss(y_true, y_pred):
        return tf.reduce_mean(tf.square(y_pred))

    def centred(y_true, y_pred):
        return tf.reduce_sum(tf.square(y_pred - tf.reduce_mean(y_pred, 0)), -1)

    model, x, y = mlp()
    optimizer = tfdp.optimizers.NoisyOptimizer("sgd", 1.0)
    model.compile(optimizer, mean_loss)
    with pytest.raises(ValueError, match="one number for the whole batch"):
        model.fit(x, y, batch_size=4, verbose=0)
    model.compile(optimizer, centred)
    with pytest.raises(ValueError, match="not independent") as refused:
        model.fit(x, y, batch_size=4, verbose=0)
    assert "rounding" not in str(refused.value)


def test_a_loss_whose_gradient_is_rounding_is_told_from_one_that_mixes_records():
    """The cosine similarity of two single numbers is 1 or -1: normalised, what rounding leaves is no sum.

    How much it leaves depends on the processor: some leave next to nothing, and then the sums add up.
    """
    keras.utils.set_random_seed(0)
    model = tfdp.PrivateSequential([keras.Input((5,)), tfdp.layers.ClippedDense(1)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "cosine_similarity")
    x = np.random.default_rng(0).random((20, 5), "float32")
    y, bound = x[:, :1], model.sensitivities()[0].bound
    left = max(float(np.abs(total).max()) for total in model.bounded_gradient_sums(x, y))
    said = ""
    try:
        model.fit(x, y, batch_size=4, verbose=0)
    except ValueError as refused:
        said = str(refused)
    told = re.search(r"rounding of a gradient that is zero.*cosine similarity", said)
    assert told if said else left < 0.01 * len(x) * bound


@pytest.mark.parametrize(("size", "own", "explained", "doubted"), [(9e-6, 1e-4, True, True), (1.0, 2.0, False, False)])
def test_a_gap_is_beside_what_rounding_explains(size, own, explained, doubted):
    gap = Gap("dense", size, max(own, 0.01), own, 1e-3)
    assert gap.explained is explained
    assert bool(gap.doubt) is doubted
    assert not dataclasses.replace(gap, size=math.nan).explained


def test_add_loss_is_refused_and_regularizers_come_after_the_noise():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(tf.reduce_mean(x))
            return x

    class AddsWithinItsBound(tfdp.layers.ClippedDense):
        def call(self, inputs, training=None):
            self.add_loss(tf.reduce_mean(inputs))
            return super().call(inputs, training=training)

    with pytest.raises(ValueError, match="add_loss in \\['adds'\\]"):
        tfdp.check_independence(mixing_model(Adds(name="adds")))
    tfdp.sensitivity_of(AddsWithinItsBound)(tfdp.layers.ClippedDense.sensitivity)
    with pytest.raises(ValueError, match="add_loss in \\['bounded'\\]"):
        tfdp.check_independence(mixing_model(AddsWithinItsBound(4, name="bounded", **CLIPS)))

    model = tfdp.PrivateSequential(
        [keras.Input((4,)), tfdp.layers.ClippedDense(1, kernel_regularizer=keras.regularizers.L2(0.5), **CLIPS)]
    )
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 0.0), "mse")
    x, y = np.zeros((8, 4), "float32"), np.zeros((8, 1), "float32")
    before = model.get_weights()[0]
    model.fit(x, y, batch_size=4, steps_per_epoch=1, verbose=0)
    # SGD of rate 1 on 0.5 w^2 lands at zero: the regularizer is neither clipped nor divided by the batch size.
    assert np.abs(before).max() > 0.1
    np.testing.assert_allclose(model.get_weights()[0], 0.0, atol=1e-6)


def one_output_model(upstream_clip=0.1):
    return tfdp.PrivateSequential(
        [keras.Input((3,)), tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=upstream_clip)]
    )


@pytest.mark.few(5)
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("labels", [False, True], ids=["without labels", "with labels"])
def test_a_batch_of_any_size_shows_what_records_look_like(rows, labels):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    y = np.zeros((rows, 2), "float32") if labels else None
    assert tfdp.check_independence(model, np.zeros((rows, 3), "float32"), y).proved


@pytest.mark.slow
def test_labels_without_an_axis_do_not_mix_records():
    """A function loss that would broadcast (n,) labels against (n, 1) predictions to (n, n)."""

    def squared(y_true, y_pred):
        return tf.square(y_true - y_pred)

    rng = np.random.default_rng(0)
    for seed in range(12):
        keras.utils.set_random_seed(seed)
        model = one_output_model()
        model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), squared)
        x, y = rng.normal(size=(12, 3)).astype("float32"), rng.normal(size=12).astype("float32")
        tfdp.check_independence(model, x, y)
        changed = np.append(-1e3, y[1:]).astype("float32")
        moved = [a - b for a, b in zip(*(model.bounded_gradient_sums(x, t) for t in (y, changed)), strict=True)]
        assert float(tf.linalg.global_norm(moved)) <= 2 * model.sensitivities()[0].bound * (1 + 1e-5)


@pytest.mark.slow
def test_a_loss_between_records_is_refused_also_where_clips_hide_it():
    def pairs(y_true, y_pred):
        return tf.square(tf.reshape(y_true, (-1,)) - y_pred)  # (n,) against (n, 1)

    for seed in range(12):
        keras.utils.set_random_seed(seed)
        model = one_output_model()
        model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), pairs)
        with pytest.raises(ValueError, match="not independent"):
            tfdp.check_independence(model)


def test_a_loss_of_the_weights_is_refused():
    model = one_output_model()

    def penalized(y_true, y_pred):
        return tf.square(y_true - y_pred)[:, 0] + 1000 * tf.reduce_sum(model.layers[0].kernel ** 2)

    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), penalized)
    with pytest.raises(ValueError, match="kernel_regularizer"):
        tfdp.check_independence(model)


def test_augmentation_of_single_records_is_allowed():
    layers = [keras.layers.RandomFlip(), keras.layers.Flatten(), tfdp.layers.ClippedDense(3, **CLIPS)]
    model = compiled((tfdp.PrivateSequential([keras.Input((4, 4, 1)), *layers]), None, None))[0]
    tfdp.check_independence(model)
