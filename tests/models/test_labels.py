"""Labels that the loss cannot take are refused in our own words, before anything is spent."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models.labels import check_labels

SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def classifier(outputs=1, built=True):
    if not built:
        return keras.Sequential([keras.layers.Dense(3)])
    inputs = keras.Input((2,))
    return keras.Model(inputs, [keras.layers.Dense(3)(inputs) for _ in range(outputs)])


@pytest.mark.parametrize("bad", [3, -1, 2**40])
def test_a_class_that_the_model_does_not_have_is_refused_and_the_message_tells_nothing_of_the_records(bad):
    labels = np.array([0, 1, 2, bad])
    with pytest.raises(ValueError, match=r"0\.\.2") as refusal:
        check_labels(classifier(), SPARSE, labels)
    assert "some of y" in str(refusal.value)
    assert str(bad) not in str(refusal.value).replace("3 outputs", "")


@pytest.mark.parametrize("loss", [SPARSE, "sparse_categorical_crossentropy"])
def test_classes_that_the_model_has_are_taken(loss):
    check_labels(classifier(), loss, np.array([0, 1, 2, 2]))
    check_labels(classifier(), loss, np.array([], int))
    with pytest.raises(ValueError, match=r"0\.\.2"):
        check_labels(classifier(), loss, np.array([3]))


def test_what_is_no_class_is_not_looked_at():
    huge = np.array([1e9])
    check_labels(classifier(), "mse", huge)
    check_labels(classifier(outputs=2), SPARSE, huge)
    check_labels(classifier(built=False), SPARSE, huge)
    check_labels(classifier(), SPARSE, [7])  # a list has no shape: the loss itself speaks up


# Shapes ---------------------------------------------------------------------------------------------------------------

X = np.zeros((12, 2), "float32")
CLASSES = np.arange(12) % 3
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]


def model(loss, units=3):
    made = tfdp.PrivateSequential([keras.Input((2,)), tfdp.layers.ClippedDense(units)])
    made.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), loss, run_eagerly=True)
    return made


@pytest.mark.parametrize(
    ("loss", "labels", "units", "says"),
    [
        (SPARSE, ONE_HOT, 3, r"shape \(records, 3\).*one class number.*CategoricalCrossentropy.*argmax"),
        ("sparse_categorical_crossentropy", ONE_HOT[:, :2], 3, r"shape \(records, 2\).*takes \(records,\)"),
        ("categorical_crossentropy", CLASSES, 3, r"shape \(records,\).*a row of 3.*SparseCategoricalCrossentropy"),
        ("categorical_crossentropy", CLASSES[:, None], 3, r"shape \(records, 1\).*SparseCategoricalCrossentropy"),
        (keras.losses.CategoricalCrossentropy(True), ONE_HOT, 4, r"shape \(records, 3\).*takes \(records, 4\)"),
        ("mse", ONE_HOT, 2, r"mean_squared_error takes \(records, 2\), as wide as the output"),
        ("binary_crossentropy", CLASSES, 3, r"takes \(records, 3\)"),
    ],
)
def test_labels_of_another_shape_are_refused_before_anything_is_spent(loss, labels, units, says):
    made = model(loss, units)
    before = made.get_weights()
    for data in ((X, labels), (tfdp.PrivateBatches(X, labels, tfdp.sampling.Poisson(4)), None)):
        with pytest.raises(ValueError, match=says):
            made.fit(*data, batch_size=4 if data[1] is not None else None, verbose=0)
    assert made.ledger.steps == 0
    assert all(np.array_equal(a, b) for a, b in zip(before, made.get_weights(), strict=True))


@pytest.mark.parametrize(
    ("loss", "labels", "units"),
    [
        (SPARSE, CLASSES, 3),
        (SPARSE, CLASSES[:, None], 3),
        ("categorical_crossentropy", ONE_HOT, 3),
        ("binary_crossentropy", CLASSES % 2, 1),
        ("mse", X, 2),
        (lambda y, p: keras.ops.mean((p - y[:, :1]) ** 2, -1), ONE_HOT, 2),
    ],
)
def test_labels_that_the_loss_takes_are_taken(loss, labels, units):
    made = model(loss, units)
    made.fit(X, labels, batch_size=4, verbose=0)
    assert made.ledger.steps == 3
