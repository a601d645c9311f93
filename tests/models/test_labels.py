"""Labels that the loss cannot take are refused in our own words, before anything is spent."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models.fit_arguments import labels_of
from tfdp_layers.models.labels import check_labels, public_classes, warn_of_logits
from tfdp_layers.per_record.losses import PerRecordLoss

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


def test_fractions_are_no_classes_and_the_message_shows_none():
    """Keras cuts them off: ages would be trained as classes."""
    with pytest.raises(ValueError, match="some of y are fractions") as refusal:
        check_labels(classifier(), SPARSE, np.array([0.0, 1.0, 1.7351]))
    assert "7351" not in str(refusal.value)
    check_labels(classifier(), SPARSE, np.array([[0.0], [2.0]]))


def test_what_is_no_class_is_not_looked_at():
    huge = np.array([1e9])
    check_labels(classifier(), "mse", huge)
    check_labels(classifier(outputs=2), SPARSE, huge)
    check_labels(classifier(built=False), SPARSE, huge)
    check_labels(classifier(), SPARSE, [7])  # a list has no shape: the loss itself speaks up


class Source:
    """Records by index."""

    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return np.zeros(2, "float32"), self.labels[index]


def pipeline(labels):
    return tf.data.Dataset.from_tensor_slices((np.zeros((len(labels), 2), "float32"), labels))


KINDS = {
    "pipeline": lambda labels: tfdp.records(pipeline(labels)),
    "shuffled": lambda labels: tfdp.records(pipeline(labels).shuffle(12)),
    "source": lambda labels: tfdp.records(Source(labels)),
    "class": Source,
    "batches": lambda labels: tfdp.PrivateBatches(np.zeros((12, 2)), labels, tfdp.sampling.Poisson(4)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("loss", "units"), [(SPARSE, 3), (keras.losses.BinaryCrossentropy(from_logits=True), 1)])
def test_labels_that_come_with_the_records_are_looked_at_as_arrays_are(kind, loss, units):
    labels = np.arange(12) % 3 if units == 3 else np.arange(12) % 2
    private = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)]))
    private.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss)
    with pytest.raises(
        ValueError, match=r"must lie in 0\.\.2, and|labels from 0 to 1, and some of y lie outside"
    ) as told:
        private.fit(KINDS[kind]((labels + 1).astype("float32")), batch_size=None if kind == "batches" else 4, verbose=0)
    assert "INVALID" not in str(told.value)
    assert private.ledger.steps == 0
    private.fit(KINDS[kind](labels.astype("float32")), batch_size=None if kind == "batches" else 4, verbose=0)
    assert private.ledger.steps == 3


def test_records_by_index_are_read_only_where_their_labels_are_classes():
    class Slow(Source):
        read = 0

        def __getitem__(self, index):
            type(self).read += 1
            return super().__getitem__(index)

    source = tfdp.records(Slow(np.ones(40, "float32")))
    given = tfdp.PrivateBatches(source, sampling=tfdp.sampling.Poisson(4))
    given.begin()  # reads them all, as fit does, to compare them later
    before = Slow.read
    check_labels(classifier(), "mse", lambda: labels_of(given))
    assert Slow.read == before
    check_labels(classifier(), SPARSE, lambda: labels_of(given))
    assert Slow.read == before + 32


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
        ("mse", ONE_HOT, 1, r"shape \(records, 3\).*mean_squared_error takes \(records, 1\)"),
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


@pytest.mark.few(1)
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


# Which label is for which output -----------------------------------------------------------------------------------


def two(loss):
    inputs = keras.Input((2,))
    made = tfdp.PrivateModel(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in ("high", "wide")])
    made.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss, run_eagerly=True)
    return made


ONE = X[:, :1]


@pytest.mark.parametrize(
    ("loss", "labels", "says"),
    [
        ("mse", {"high": ONE, "width": ONE}, r"y names \['width'\].*Give a dict of labels by name"),
        ("mse", ONE, r"y holds 1 arrays, for 2 outputs"),
        ("mse", [ONE, ONE, ONE], r"y holds 3 arrays, for 2 outputs"),
        ("mse", {"high": ONE}, r"no labels for the outputs \['wide'\]"),
        ({"wide": "mse"}, {"high": ONE}, r"no labels for the outputs \['wide'\]"),
        ("mse", None, r"no labels for the outputs \['high', 'wide'\].*model.fit\(x, y\)"),
    ],
)
def test_labels_that_belong_to_no_output_are_refused_and_never_taken_by_their_order(loss, labels, says):
    made = two(loss)
    with pytest.raises(ValueError, match=says):
        made.fit(X, labels, batch_size=4, verbose=0)
    assert made.ledger.steps == 0


@pytest.mark.parametrize("given", [(X, None), ((X, CLASSES), None)])
def test_a_forgotten_y_is_asked_for(given):
    with pytest.raises(ValueError, match=r"no labels for the outputs .*model.fit\(x, y\)"):
        model("mse").fit(*given, batch_size=4, verbose=0)


def test_each_output_gets_its_own_label():
    loss = PerRecordLoss("mse", None, ["b", "a"])
    by_name, by_key = {"a": ONE + 3.0, "b": ONE}, {"p": ONE, "q": ONE + 3.0}
    assert [one[0, 0] for one in loss.labels(by_name, [ONE, ONE])] == [0.0, 3.0]
    assert [one[0, 0] for one in loss.labels(by_key, {"p": ONE, "q": ONE})] == [0.0, 3.0]
    assert [one[0, 0] for one in loss.labels([ONE, ONE + 3.0], [ONE, ONE])] == [0.0, 3.0]
    only = PerRecordLoss({"a": "mse"}, None, ["b", "a"])
    assert only.labels(ONE, [ONE, ONE])[0] is None
    assert only.labels({"a": ONE}, [ONE, ONE])[1] is ONE
    assert PerRecordLoss("mse", None, ["a"]).labels({"any": ONE}, ONE) == [ONE]


@pytest.mark.parametrize("loss", ["binary_crossentropy", keras.losses.BinaryCrossentropy(from_logits=True)])
def test_labels_of_minus_one_are_refused_by_a_binary_crossentropy(loss):
    one_output = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    check_labels(one_output, loss, np.array([0.0, 0.3, 1.0]))
    check_labels(one_output, "mse", np.array([-1.0, 1.0]))
    for bad in ([-1, 1], [0, 2], [1, 2]):
        with pytest.raises(ValueError, match="labels from 0 to 1"):
            check_labels(one_output, loss, np.array(bad))


@pytest.mark.parametrize(
    ("loss", "activation", "warns"),
    [
        ("sparse_categorical_crossentropy", None, True),
        (keras.losses.SparseCategoricalCrossentropy(), None, True),
        (SPARSE, None, False),
        ("sparse_categorical_crossentropy", "softmax", False),
        ("mse", None, False),
    ],
)
def test_a_loss_of_probabilities_over_an_output_without_activation_is_warned_of(loss, activation, warns):
    outputs = keras.layers.Dense(3, activation)(keras.Input((2,)))
    labels = tf.TensorSpec((None, 3) if loss == "mse" else (None,))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_logits(outputs, PerRecordLoss(loss, None, ["out"]), labels)
    assert [("from_logits=True" in str(one.message)) for one in caught] == [True] * warns


@pytest.mark.few(1)
@pytest.mark.parametrize("layers", ["named", "like each other's keys", "one"])
def test_outputs_in_a_dict_go_by_its_keys(layers):
    """As in Keras: whatever the layers are called, and where one tensor is two outputs."""
    inputs = keras.Input((2,))
    names = ("wide", "high") if layers == "like each other's keys" else (None, None)
    outputs = {key: keras.layers.Dense(1, name=name)(inputs) for key, name in zip(("high", "wide"), names, strict=True)}
    if layers == "one":
        outputs["wide"] = outputs["high"]
    made = tfdp.PrivateModel(inputs, outputs)
    loss, weights = {"high": "mse", "wide": "mae"}, {"high": 1.0, "wide": 0.5}
    made.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss, loss_weights=weights)
    y = {"high": X[:, :1], "wide": X[:, 1:]}
    predicted = {key: np.asarray(value) for key, value in made(X).items()}
    expected = (predicted["high"] - y["high"]) ** 2 + 0.5 * np.abs(predicted["wide"] - y["wide"])
    np.testing.assert_allclose(made.per_record_losses(X, y), expected[:, 0], rtol=1e-5)
    made.fit(X, y, batch_size=4, verbose=0)
    with pytest.raises(
        ValueError, match=r"names outputs \['low'\] that the model lacks\. Its outputs: \['high', 'wide'\]"
    ):
        PerRecordLoss({"low": "mse"}, None, made._names_of_outputs())


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ("binary_crossentropy", r"keras\.losses\.BinaryCrossentropy\(from_logits=True\), or activation='sigmoid'"),
        (
            "categorical_crossentropy",
            r"keras\.losses\.CategoricalCrossentropy\(from_logits=True\), or activation='softmax'",
        ),
    ],
)
def test_the_advice_for_a_missing_activation_is_of_that_loss(loss, says):
    outputs = keras.layers.Dense(3)(keras.Input((2,)))
    with pytest.warns(UserWarning, match=says):
        warn_of_logits(outputs, PerRecordLoss(loss, None, ["out"]), np.zeros((4, 3)))
    assert hasattr(keras.losses, "".join(word.capitalize() for word in loss.split("_")))


@pytest.mark.slow
def test_class_numbers_at_one_unit_get_an_advice_that_works():
    """To recode the labels, as for three units, leads to the same error once more."""
    x, y = np.zeros((8, 2), "float32"), np.arange(8) % 2
    for units, loss, fits in ((1, SPARSE, False), (2, SPARSE, True), (1, BINARY, True)):
        model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss)
        if fits:
            model.fit(x, y if units == 2 else y[:, None], batch_size=4, verbose=0)
            continue
        with pytest.raises(ValueError, match=r"give it two units; or one unit.*BinaryCrossentropy"):
            model.fit(x, y, batch_size=4, verbose=0)


BINARY = keras.losses.BinaryCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("loss", "units", "classes"),
    [
        (SPARSE, 3, 3),
        ("sparse_categorical_crossentropy", 2, 2),
        (BINARY, 1, 2),
        ("binary_crossentropy", 1, 2),
        ("binary_focal_crossentropy", 1, 2),
        (BINARY, 3, None),
        ("categorical_crossentropy", 3, None),  # whose labels are rows, as wide as they are
        ("mse", 1, None),
        (lambda y, p: keras.ops.mean(y * p, axis=-1), 1, None),
    ],
)
def test_the_number_of_classes_is_public_where_loss_and_outputs_say_it(loss, units, classes):
    made = model(loss, units)
    assert public_classes(made.outputs, made.compiled_losses) == classes


def test_several_outputs_say_no_number_of_classes():
    assert public_classes(classifier(2).outputs, [SPARSE, SPARSE]) is None
