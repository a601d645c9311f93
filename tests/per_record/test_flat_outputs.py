"""Outputs of one number a record, (batch,): Keras' own losses are taken record by record, others with true advice."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models.labels import check_label_shapes, check_labels, public_classes
from tfdp_layers.per_record.losses import MEANS, PerRecordLoss, keras_name

RECORDS = 5
RNG = np.random.default_rng(0)
P, Y = RNG.uniform(0.1, 0.9, (2, RECORDS)).astype("float32")
LOSSES = [
    *MEANS,
    keras.losses.Huber(delta=0.2),
    keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
    keras.losses.MeanAbsoluteError(reduction="sum"),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: one if isinstance(one, str) else type(one).__name__)
@pytest.mark.parametrize("labels", [Y, Y[:, None]], ids=["(n,)", "(n, 1)"])
def test_each_record_has_its_own_loss_and_their_mean_is_keras(loss, labels):
    taken = PerRecordLoss(loss, None, ["output"])
    prediction = tf.constant(P)
    with tf.GradientTape() as tape:
        tape.watch(prediction)
        values = taken(labels, prediction)
    assert values.shape == (RECORDS,)
    reached = tape.jacobian(values, prediction).numpy()
    assert not (reached - np.diag(np.diag(reached))).any()
    own = keras.losses.get(loss) if isinstance(loss, str) else loss
    for i in range(RECORDS):
        np.testing.assert_allclose(values[i], own(tf.constant(Y[i : i + 1]), prediction[i : i + 1]), rtol=1e-5)
    if labels is Y:  # Keras' own, of the batch
        np.testing.assert_allclose(np.mean(values), own(tf.constant(Y), prediction), rtol=1e-5)
    weights = np.array([0.5, 2.0, 1.0, 0.0, 1.0], "float32")
    np.testing.assert_allclose(taken(labels, prediction, weights), values * weights, rtol=1e-6)


def flat(activation=None, features=3):
    inputs = keras.Input((features,))
    return keras.Model(inputs, keras.ops.squeeze(keras.layers.Dense(1, activation)(inputs), -1))


def private(loss, activation=None, **options):
    model = tfdp.make_private(flat(activation))
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.0), 1.0, l2_norm_clip=1e6), loss, **options)
    return model


X, TRUTH = RNG.normal(size=(16, 3)).astype("float32"), RNG.integers(0, 2, 16).astype("float32")


def test_records_are_proved_apart_and_add_the_gradients_of_their_losses():
    model = private("mse")
    assert tfdp.check_independence(model, X, TRUTH).proved
    sums = model.bounded_gradient_sums(X[:3], TRUTH[:3])
    for i, one in enumerate(sums):
        alone = [model.bounded_gradient_sums(X[k : k + 1], TRUTH[k : k + 1])[i] for k in range(3)]
        np.testing.assert_allclose(one, sum(alone), rtol=1e-4, atol=1e-5)
    errors = (model(X[:3]) - TRUTH[:3]).numpy()
    np.testing.assert_allclose(sums[0][:, 0], 2 * errors @ X[:3], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:views=2 computes")
@pytest.mark.parametrize(
    "options",
    [
        {"sample_weight": np.linspace(0, 2, 16), "class_weight": {0: 1.0, 1: 2.0}},
        {"unit_ids": np.arange(16) // 2, "records_per_unit": 2},
        {"views": 2, "physical_batch_size": 2},
    ],
    ids=lambda one: ", ".join(one),
)
def test_they_train_with_metrics_of_each_record(options):
    """The rate is 0, so that each metric is that of one model; all records are drawn."""
    model = private("binary_crossentropy", "sigmoid", metrics=["accuracy", "mae", keras.metrics.AUC(name="auc")])
    batch = 8 if "unit_ids" in options else 16
    sampling = tfdp.sampling.Partition(batch)
    logs = model.fit(X, TRUTH, sampling=sampling, verbose=0, **options).history
    predicted = model.predict(X, verbose=0)
    assert predicted.shape == (16,)
    counted = options.get("sample_weight", np.ones(16)) > 0
    np.testing.assert_allclose(logs["accuracy"], ((predicted > 0.5) == TRUTH)[counted].mean(), rtol=1e-5)
    np.testing.assert_allclose(logs["mae"], np.abs(predicted - TRUTH)[counted].mean(), rtol=1e-4)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (
            lambda y, p: keras.ops.mean(keras.ops.square(y - p), axis=-1),
            r"leave keras.ops.mean and sum out.*\[:, None\]",
        ),
        (lambda y, p: keras.losses.mean_squared_error(y, p), r"mean_squared_error\(y\[:, None\], p\[:, None\]\)"),
        (lambda y, p: keras.ops.mean(keras.ops.abs(y[:, None] - p[None]), -1), "Records are not independent"),
        ("kl_divergence", "takes a row of numbers for each"),
        ("sparse_categorical_crossentropy", "takes a row of numbers for each"),
        (keras.losses.Dice(), "takes a row of numbers for each"),
        ("hinge", r"p: keras.ops.maximum\(1 - y \* p, 0\)\.$"),
    ],
)
def test_other_losses_are_refused_with_a_way_out(loss, says):
    model = private(loss)
    with pytest.raises(ValueError, match=says):
        model.fit(X, TRUTH, batch_size=8, verbose=0)
    assert not model.ledger.releases


class Own(keras.losses.MeanSquaredError):
    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def test_a_loss_derived_of_keras_gets_what_keras_would_give_it():
    with pytest.raises(ValueError, match="one number for the whole batch"):
        PerRecordLoss(Own(), None, ["output"])(Y, tf.constant(P))
    for advised in (
        lambda y, p: keras.ops.square(y - p),
        lambda y, p: keras.losses.mean_squared_error(y[:, None], p[:, None]),
    ):
        np.testing.assert_allclose(PerRecordLoss(advised, None, ["output"])(Y, tf.constant(P)), (Y - P) ** 2, rtol=1e-5)


class Squares(keras.losses.CategoricalCrossentropy):
    def call(self, y_true, y_pred):
        return keras.ops.square(y_true - y_pred)


class Hinge(keras.losses.Hinge):
    """Of labels -1 and 1."""

    def call(self, y_true, y_pred):
        return keras.ops.maximum(1 - y_true * y_pred, 0)


@pytest.mark.parametrize("kind", [Squares, Hinge])
def test_a_loss_derived_of_keras_is_what_its_own_call_computes(kind):
    model = private(kind())
    assert tfdp.check_independence(model, X, TRUTH).proved
    check_label_shapes(model.outputs[0], PerRecordLoss(kind(), None, ["output"]), tf.TensorSpec((None,)))
    assert keras_name(kind()) == ""
    for built_in in (kind.__mro__[1](), keras.losses.Dice(), keras.losses.Tversky(), keras.losses.Circle()):
        assert keras_name(built_in)


def test_a_call_that_was_put_on_a_loss_of_keras_is_its_own():
    loss = keras.losses.KLDivergence()
    loss.call = lambda y, p: keras.ops.square(y - p)
    assert keras_name(loss) == ""
    check_label_shapes(flat().outputs[0], PerRecordLoss(loss, None, ["output"]), tf.TensorSpec((None,)))
    np.testing.assert_allclose(PerRecordLoss(loss, None, ["output"])(Y, tf.constant(P)), (Y - P) ** 2, rtol=1e-5)


def test_labels_of_a_flat_output():
    outputs, loss = flat("sigmoid").outputs[0], PerRecordLoss("binary_crossentropy", None, ["output"])
    for shape in [(None,), (None, 1)]:
        check_label_shapes(outputs, loss, tf.TensorSpec(shape))
    for shape in [(None, 3), (None, 1, 1)]:
        with pytest.raises(ValueError, match="the output is one number a record"):
            check_label_shapes(outputs, loss, tf.TensorSpec(shape))
    assert public_classes(outputs, loss.losses) == 2
    for labels in (2 * TRUTH - 1, (2 * TRUTH - 1)[:, None]):
        with pytest.raises(ValueError, match="labels from 0 to 1"):
            check_labels(flat("sigmoid"), "binary_crossentropy", labels)


def test_a_metric_of_ones_own_that_is_one_number_is_refused_with_a_way_out():
    model = private("mse", metrics=[lambda y, p: keras.ops.mean(keras.ops.abs(y - p))])
    with pytest.raises(ValueError, match=r"by leaving keras.ops.mean out\.$"):
        model.fit(X, TRUTH, batch_size=8, verbose=0)
    assert private("mse", metrics=[lambda y, p: keras.ops.abs(y - p)]).fit(X, TRUTH, batch_size=8, verbose=0)


@pytest.mark.parametrize("given", [["accuracy"], "accuracy", {"output": keras.metrics.AUC()}, [1.0, "mae"]], ids=str)
def test_metrics_in_the_place_of_the_weights_of_losses_are_refused_at_compile(given):
    with pytest.raises(ValueError, match=r"loss_weights, the third argument of compile.*metrics=\[\.\.\.\]"):
        tfdp.make_private(flat()).compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", given)
    for numbers in (None, [0.5], 2.0):
        tfdp.make_private(flat()).compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", numbers)


def test_the_way_to_one_loss_a_record_fits_the_output():
    images = tf.ones((4, 3, 3, 1))

    def dice(y, p):
        return 1 - 2 * keras.ops.sum(y * p) / (keras.ops.sum(y) + keras.ops.sum(p))

    with pytest.raises(ValueError, match=r"keras.ops.sum\(\.\.\., axis=\(1, 2, 3\)\)") as refusal:
        PerRecordLoss(dice, None, ["output"])(images, images)
    assert "Cox" not in str(refusal.value)


def test_quantiles_of_flat_labels_are_told_of_their_missing_axis():
    def pinball(y, p):
        quantiles = keras.ops.convert_to_tensor([0.1, 0.5, 0.9])
        return keras.ops.mean(keras.ops.maximum(quantiles * (y - p), (quantiles - 1) * (y - p)), axis=-1)

    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), pinball)
    with pytest.raises(ValueError, match=r"whose last axis is 3: .*Give y\[:, None\]\.$"):
        model.fit(X, TRUTH, batch_size=8, verbose=0)
    model.fit(X, TRUTH[:, None], batch_size=8, verbose=0)
