"""A compiled loss, taken apart into records: their mean is Keras' own value, and no record sees another."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.per_record.losses import PerRecordLoss

RNG = np.random.default_rng(0)
LOGITS, CLASSES = RNG.normal(size=(5, 3)).astype("float32"), RNG.integers(0, 3, 5)
SERIES, TARGETS = RNG.normal(size=(5, 7, 2)).astype("float32"), RNG.normal(size=(5, 7, 2)).astype("float32")


@pytest.mark.parametrize(
    ("loss", "y", "prediction"),
    [
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), CLASSES, LOGITS),
        ("mse", TARGETS, SERIES),
        (keras.losses.MeanAbsoluteError(), TARGETS, SERIES),
        (keras.losses.CategoricalCrossentropy(from_logits=True), np.eye(3, dtype="float32")[CLASSES], LOGITS),
        (keras.losses.BinaryCrossentropy(from_logits=True), (CLASSES > 1)[:, None].astype("float32"), LOGITS[:, :1]),
        (keras.losses.huber, TARGETS, SERIES),
    ],
)
def test_the_mean_over_records_is_keras_own_loss(loss, y, prediction):
    values = PerRecordLoss(loss, None, ["output"])(y, prediction)
    assert values.shape == (5,)
    reference = keras.losses.get(loss) if isinstance(loss, str) else loss
    whole = reference(tf.constant(y), tf.constant(prediction))
    assert float(tf.reduce_mean(values)) == pytest.approx(float(tf.reduce_mean(whole)), rel=1e-5)
    for i in range(5):
        alone = PerRecordLoss(loss, None, ["output"])(y[i : i + 1], prediction[i : i + 1])
        np.testing.assert_allclose(alone[0], values[i], rtol=1e-5)


def test_a_mask_counts_within_its_own_record():
    prediction = tf.constant(SERIES)
    mask = np.ones((5, 7), bool)
    mask[0, 3:] = False
    prediction._keras_mask = tf.constant(mask)
    values = PerRecordLoss("mse", None, ["output"])(TARGETS, prediction)
    expected = ((SERIES - TARGETS) ** 2).mean(-1)
    np.testing.assert_allclose(values[0], expected[0, :3].mean(), rtol=1e-5)
    np.testing.assert_allclose(values[1], expected[1].mean(), rtol=1e-5)  # whatever the mask of record 0


def test_weights_select_before_they_multiply():
    bad = LOGITS.copy()
    bad[2] = np.nan
    weights = np.array([1.0, 2.0, 0.0, 1.0, 1.0], "float32")
    values = PerRecordLoss("mse", None, ["output"])(LOGITS * 0, bad, weights).numpy()
    assert values[2] == 0.0
    assert np.isfinite(values).all()
    assert values[1] == pytest.approx(2 * (LOGITS[1] ** 2).mean(), rel=1e-5)


def test_several_outputs_add_up_with_their_weights():
    loss = PerRecordLoss({"a": "mse", "b": "mae"}, {"a": 1.0, "b": 0.5}, ["a", "b"])
    values = loss({"a": LOGITS, "b": LOGITS}, [LOGITS + 1, LOGITS + 2])
    np.testing.assert_allclose(values, np.full(5, 1 + 0.5 * 2), rtol=1e-5)
    only = PerRecordLoss({"a": "mse"}, None, ["a", "b"])
    np.testing.assert_allclose(only({"a": LOGITS, "b": LOGITS}, [LOGITS + 1, LOGITS + 2]), np.ones(5), rtol=1e-5)


@pytest.mark.parametrize("loss", [{"a": ["mse"], "b": [["mae"]]}, ["mse", ["mae"]], (["mse"], "mae")], ids=str)
@pytest.mark.parametrize("weights", [[1.0, 0.5], {"a": [1.0], "b": 0.5}, [[1], [[0.5]]]], ids=str)
def test_a_list_of_one_is_what_it_holds(loss, weights):
    values = PerRecordLoss(loss, weights, ["a", "b"])({"a": LOGITS, "b": LOGITS}, [LOGITS + 1, LOGITS + 2])
    np.testing.assert_allclose(values, np.full(5, 1 + 0.5 * 2), rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "weights", "names"),
    [
        ({"a": ["mse", "mae"], "b": "mse"}, None, ["a", "b"]),
        (["mse", ["mae", "mse"]], None, ["a", "b"]),
        (["mse", "mae"], None, ["a"]),
        ({"a": {"c": "mse"}, "b": "mse"}, None, ["a", "b"]),
        ("mse", [1.0, [0.5, 0.5]], ["a", "b"]),
        ("mse", [1.0, {"c": 0.5}], ["a", "b"]),
    ],
    ids=str,
)
def test_several_losses_for_one_output_are_refused_with_the_way_to_add_them(loss, weights, names):
    with pytest.raises(ValueError, match=r"An output takes one loss\. Add several in a function"):
        PerRecordLoss(loss, weights, names)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (keras.losses.MeanSquaredError(reduction=None), "reduction=None"),
        (keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), "hides or mixes"),
        ({"c": "mse"}, "that the model lacks"),
        (["mse"], "1 entries for 2 outputs"),
    ],
)
def test_losses_that_cannot_be_taken_apart_are_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        PerRecordLoss(loss, None, ["a", "b"])


def test_no_loss_and_batch_losses_are_refused():
    with pytest.raises(ValueError, match="without a loss"):
        PerRecordLoss(None, None, ["a"])(LOGITS, LOGITS)
    with pytest.raises(ValueError, match="one number for the whole batch"):
        PerRecordLoss(lambda y, p: tf.reduce_mean(p), None, ["a"])(LOGITS, tf.constant(LOGITS))


def test_a_loss_of_unknown_rank_is_refused_with_the_axis_to_name():
    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")

    def fit(loss):
        model = tfdp.make_private(keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss)
        model.fit(x, x[:, :1], batch_size=8, verbose=0)

    squeeze = keras.ops.squeeze
    for loss in (lambda y, p: (squeeze(y) - squeeze(p)) ** 2, lambda y, p: keras.ops.abs(squeeze(y - p))):
        with pytest.raises(
            ValueError, match=r"unknown rank.*hides what each record adds.*squeeze\(..., axis=-1\).*set_shape"
        ):
            fit(loss)
    fit(lambda y, p: (squeeze(y, axis=-1) - squeeze(p, axis=-1)) ** 2)
