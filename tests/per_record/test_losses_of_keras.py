"""A record's loss is what Keras' own compiled loss gives for it alone, with its masks, weights and options."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileLoss

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.per_record.losses import PerRecordLoss

RECORDS, STEPS, CLASSES = 4, 6, 3
L = keras.losses


def draws(*shape):
    return np.random.default_rng(len(shape)).uniform(0.1, 0.9, (RECORDS, *shape)).astype("float32")


def numbers(*shape, ignored=()):
    """Class numbers; `ignored` of them in half of the places, and in all of record 1."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, CLASSES, (RECORDS, *shape))
    for one in ignored:
        labels = np.where(rng.random(labels.shape) < 0.5, one, labels)
        labels[1] = one
    return labels


PROBABILITIES = draws(STEPS, CLASSES) / draws(STEPS, CLASSES).sum(-1, keepdims=True)
ONE_HOT = np.eye(CLASSES, dtype="float32")[numbers(STEPS)]
IGNORED = numbers(STEPS, ignored=[-1])
IMAGES, VOID = draws(4, 5, CLASSES), numbers(4, 5, ignored=[255])
_ENTRIES = ("MeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredLogarithmicError")
_ENTRIES += ("CosineSimilarity", "Huber", "LogCosh", "CategoricalHinge", "KLDivergence", "Poisson")
_ENTRIES += ("BinaryCrossentropy", "BinaryFocalCrossentropy")

CASES = {
    **{name: (getattr(L, name)(), ONE_HOT, PROBABILITIES) for name in _ENTRIES},
    "sum": (L.MeanSquaredError(reduction="sum"), ONE_HOT, PROBABILITIES),
    "mean": (L.MeanAbsoluteError(reduction="mean"), ONE_HOT, PROBABILITIES),
    "Huber(delta)": (L.Huber(delta=0.2), ONE_HOT, PROBABILITIES),
    "CosineSimilarity(axis)": (L.CosineSimilarity(axis=1), ONE_HOT, PROBABILITIES.copy()),
    "binary, logits, smoothed": (L.BinaryCrossentropy(from_logits=True, label_smoothing=0.1), ONE_HOT, PROBABILITIES),
    "binary focal, balanced": (
        L.BinaryFocalCrossentropy(apply_class_balancing=True, alpha=0.3, gamma=1.5),
        ONE_HOT,
        PROBABILITIES,
    ),
    "categorical": (L.CategoricalCrossentropy(), ONE_HOT, PROBABILITIES),
    "categorical, logits, smoothed": (
        L.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2),
        ONE_HOT,
        PROBABILITIES,
    ),
    "categorical focal": (L.CategoricalFocalCrossentropy(gamma=1.0), ONE_HOT, PROBABILITIES),
    "generalized": (L.CategoricalGeneralizedCrossEntropy(q=0.4), numbers(STEPS), PROBABILITIES),
    "sparse": (L.SparseCategoricalCrossentropy(), numbers(STEPS), PROBABILITIES),
    "sparse, ignored": (L.SparseCategoricalCrossentropy(ignore_class=-1), IGNORED, PROBABILITIES),
    "sparse, ignored, a column": (
        L.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
        IGNORED[..., None],
        PROBABILITIES,
    ),
    "sparse, ignored, sum": (
        L.SparseCategoricalCrossentropy(ignore_class=-1, reduction="sum"),
        IGNORED,
        PROBABILITIES,
    ),
    "a function that ignores": (
        lambda y, p: L.sparse_categorical_crossentropy(y, p, from_logits=True, ignore_class=-1),
        IGNORED,
        PROBABILITIES,
    ),
    "ignored records": (
        L.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
        numbers(ignored=[-1]),
        draws(CLASSES),
    ),
    "ignored pixels": (L.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255), VOID, IMAGES),
    "Dice": (L.Dice(axis=(1, 2, 3)), IMAGES > 0.5, IMAGES),
    "Tversky": (L.Tversky(axis=(1, 2, 3), alpha=0.3, beta=0.7), IMAGES > 0.5, IMAGES),
    "by name": ("mse", ONE_HOT, PROBABILITIES),
    "a column of labels": ("mae", draws(1), draws()),
    "a column of predictions": ("mse", draws(), draws(1)),
    "positions beside a column": (lambda y, p: keras.ops.sum((y - p) ** 2, -1), draws(STEPS), draws(STEPS, 1)),
    "a column beside positions": (lambda y, p: keras.ops.sum((y - p) ** 2, -1), draws(STEPS, 1), draws(STEPS)),
    "CTC": (L.CTC(), numbers(2) + 1, draws(STEPS, CLASSES + 1)),
}
WEIGHTS = {"no weights": None, "weights": np.array([0.5, 2.0, 1.0, 0.0], "float32")}


def masks(prediction):
    """None, one for each position where there are such, and one that leaves out a whole record too."""
    found = [None]
    if prediction.ndim == 3 and prediction.shape[-1] > 1:
        found.append(np.random.default_rng(5).random(prediction.shape[:2]) < 0.6)
        found.append(found[-1] & (np.arange(RECORDS) != 2)[:, None])
    return found


def masked(prediction, mask):
    prediction = tf.constant(prediction)
    if mask is not None:
        prediction._keras_mask = tf.constant(mask)
    return prediction


@pytest.mark.parametrize("weighted", WEIGHTS)
@pytest.mark.parametrize("case", CASES)
def test_a_records_loss_is_keras_own_of_a_batch_of_one(case, weighted):
    loss, y, prediction = CASES[case]
    weights = WEIGHTS[weighted]
    for mask in masks(prediction) if case != "CosineSimilarity(axis)" and case != "CTC" else [None]:
        values = PerRecordLoss(loss, None, ["output"])(y, masked(prediction, mask), weights)
        assert values.shape == (RECORDS,)
        for i in range(RECORDS):
            one = slice(i, i + 1)
            own = CompileLoss(loss)(
                tf.constant(y[one]),
                masked(prediction[one], None if mask is None else mask[one]),
                None if weights is None else tf.constant(weights[one]),
            )
            np.testing.assert_allclose(values[i], own, rtol=1e-5, atol=1e-7)


def test_masks_say_what_counts_where_keras_finds_no_shape():
    """Predictions (batch, positions, 1) with labels (batch, positions): Keras cannot multiply its mask to a batch."""
    mask = np.arange(STEPS) < np.array([[1], [2], [6], [0]])
    y, prediction = draws(STEPS), draws(STEPS, 1) + 1
    squares = (y - prediction[..., 0]) ** 2
    expected = [one[kept].mean() if kept.any() else 0.0 for one, kept in zip(squares, mask, strict=True)]
    for loss in ("mse", L.MeanSquaredError()):
        values = PerRecordLoss(loss, None, ["output"])(y, masked(prediction, mask))
        np.testing.assert_allclose(values, expected, rtol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if "ignore" in case])
def test_what_is_ignored_has_no_loss_and_no_gradient(case):
    loss, y, prediction = CASES[case]
    variable = tf.Variable(prediction)
    with tf.GradientTape() as tape:
        values = PerRecordLoss(loss, None, ["output"])(y, tf.convert_to_tensor(variable))
        total = tf.reduce_sum(values)
    gradient = tape.gradient(total, variable).numpy()
    assert float(values[1]) == 0.0
    assert not gradient[1].any()
    assert np.isfinite(gradient).all()
    assert gradient[0].any() or y[0].size == 1


LENGTH, WORDS = 8, 11


def masked_words(loss):
    model = tfdp.make_private(
        keras.Sequential(
            [keras.Input((LENGTH,), dtype="int32"), keras.layers.Embedding(WORDS, 4), keras.layers.Dense(WORDS)]
        )
    )
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.0), 1.0, l2_norm_clip=1e7), loss)
    return model


def few_words():
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, (12, LENGTH))
    y = np.where(rng.random(x.shape) < 0.3, x, -1)
    y[3] = -1
    return x, y


WORD_LOSS = L.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)


def test_what_a_record_adds_is_the_gradient_of_keras_loss_of_it():
    model, (x, y) = masked_words(WORD_LOSS), few_words()
    for i in range(len(x)):
        one = slice(i, i + 1)
        with tf.GradientTape() as tape:
            own = WORD_LOSS(y[one], model(x[one]))
        gradients = tape.gradient(own, model.trainable_variables)
        sums = model.bounded_gradient_sums(x[one], y[one])
        for a, b in zip(sums, gradients, strict=True):
            np.testing.assert_allclose(a, tf.convert_to_tensor(b), rtol=1e-4, atol=1e-6)


FUNCTION = CASES["a function that ignores"][0]


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(["object"], ["object", "function"]))
def test_that_records_do_not_meet_is_proved_where_a_loss_sets_a_mask(case):
    model, (x, y) = masked_words({"object": WORD_LOSS, "function": FUNCTION}[case]), few_words()
    assert tfdp.check_independence(model, x, y).proved
    sampling = tfdp.sampling.Partition(len(x))
    history = model.fit(x, y, batch_size=len(x), sampling=sampling, verbose=0).history["loss"]
    assert history[0] == pytest.approx(
        np.log(WORDS) * (y >= 0).any(axis=1).mean(), rel=0.05
    )  # over all positions, 0.3 of that


def test_a_mask_that_looks_at_other_records_is_refused():
    def meets(y, p):
        values = keras.ops.mean(keras.ops.square(y - p), -1)
        values._keras_mask = values >= keras.ops.mean(values)
        return values

    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), meets)
    x = draws(3)
    with pytest.raises(ValueError, match="Records are not independent"):
        model.fit(x, draws(2), batch_size=2, verbose=0)
    assert not model.ledger.releases
