"""Ordinary Keras programs: what is refused names a way out, which is taken here; what was refused wrongly trains."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches.repeats import repeats

kl, ops = keras.layers, keras.ops
X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = np.arange(40) % 3


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.drop, self.out = kl.Dense(5, activation="relu"), kl.Dropout(0.2), kl.Dense(3)

    def call(self, x, training=False):
        return self.out(self.drop(self.hidden(x), training=training))


class Stepping(Subclassed):
    def train_step(self, data):
        raise AssertionError("never called")


def fitted(model, loss, x=X, y=Y, metrics=None, **options):
    model = tfdp.make_private(model)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss, metrics=metrics)
    model.fit(x, y, batch_size=8, verbose=0, **options)
    assert "is proved" in str(model.privacy_statement(1e-3))
    return model


def small(*layers, shape=(4,)):
    return keras.Sequential([keras.Input(shape), *layers])


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [Subclassed, Stepping])
def test_a_model_of_a_class_of_ones_own_trains_as_a_layer(kind):
    model, x = kind(), keras.Input((4,))
    with pytest.raises(ValueError, match=r"tfdp.make_private\(keras.Model\(x, model\(x\)\)\)") as said:
        tfdp.make_private(model)
    assert ("Its train_step() is left out then" in str(said.value)) == (kind is Stepping)
    whole = keras.Model(x, model(x))
    before = model.get_weights()
    fitted(whole, LOSS)
    assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))  # the very same weights


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), r"tfdp.records\(dataset.unbatch\(\)\)"),
        (iter([(X, Y)]), r"__len__ and __getitem__\(index\), which gives one record"),
        (type("Batches", (keras.utils.PyDataset,), {"__len__": lambda s: 1})(), "which gives one record"),
    ],
    ids=["pipeline", "generator", "PyDataset"],
)
def test_what_gives_batches_is_told_how_to_give_records(given, says):
    model = tfdp.make_private(small(kl.Dense(3)))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), LOSS)
    with pytest.raises(ValueError, match=says):
        model.fit(given)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("loss", "fixed", "says"),
    [
        (lambda y, p: ops.mean(ops.square(y - p)), lambda y, p: ops.mean(ops.square(y - p), axis=-1), "axis=-1"),
        (keras.losses.Dice(), keras.losses.Dice(axis=(1,)), r"keras.losses.Dice\(axis=\(1,\)\)"),
        (keras.losses.Tversky(), keras.losses.Tversky(axis=(1,)), r"keras.losses.Tversky\(axis=\(1,\)\)"),
    ],
    ids=["a mean of all", "Dice", "Tversky"],
)
def test_a_loss_of_one_number_is_told_how_to_give_one_for_each_record(loss, fixed, says):
    labels = np.eye(3, dtype="float32")[Y]
    with pytest.raises(ValueError, match=says):
        fitted(small(kl.Dense(3, activation="sigmoid")), loss, y=labels)
    fitted(small(kl.Dense(3, activation="sigmoid")), fixed, y=labels)


def test_refusals_within_a_layers_call_are_said_as_they_are():
    """Keras puts the arguments of the call around an error, and codes for colours in it."""
    model = small(kl.RNN([kl.LSTMCell(2, dropout=0.1)]), shape=(3, 4))
    with pytest.raises(ValueError, match=r"^Layer 'rnn.*Put a keras\.layers\.Dropout") as said:
        fitted(model, "mse", x=np.zeros((40, 3, 4), "float32"), y=np.zeros((40, 2)))
    assert "\x1b" not in str(said.value)


def test_classes_that_a_loss_ignores_are_taken():
    """Of positions that no mask covers, as in a masked language model."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    labels = np.where(np.arange(40 * 4).reshape(40, 4) % 3, -1, 1)
    fitted(small(kl.Reshape((4, 1)), kl.Dense(3)), loss, y=labels)
    with pytest.raises(ValueError, match=r"0\.\.2"):
        fitted(small(kl.Reshape((4, 1)), kl.Dense(3)), loss, y=np.where(labels > 0, 3, -1))


def test_labels_may_have_more_axes_than_outputs():
    """Whether each interval was reached, and whether something happened in it, as in a survival analysis."""

    def loss(y, p):
        at_risk, event = y[..., 0], y[..., 1]
        return ops.mean(at_risk * keras.losses.binary_crossentropy(event[..., None], p[..., None]), axis=-1)

    model = fitted(small(kl.Dense(6, activation="sigmoid")), loss, y=np.ones((40, 6, 2), "float32"))
    assert model.ledger.steps == 5


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("metric", "labels"),
    [
        (keras.metrics.MeanIoU(2), np.ones((40, 4, 1), "int32")),
        (keras.metrics.BinaryIoU([1]), np.ones((40, 4, 1), "float32")),
        (keras.metrics.OneHotMeanIoU(2), np.ones((40, 4, 2), "float32")),
    ],
    ids=["MeanIoU", "BinaryIoU", "OneHotMeanIoU"],
)
def test_intersection_over_union_counts_the_entries_of_each_record(metric, labels):
    layers = kl.Reshape((4, 1)), kl.Dense(labels.shape[-1], activation="sigmoid")
    model = fitted(small(*layers), "mse", y=labels, metrics=[metric])
    logged = model.get_metrics_result()
    assert all(0.0 <= float(value) <= 1.0 for name, value in logged.items() if name != "loss")


def test_windows_of_a_series_are_records_and_repeats_of_them_are_not():
    series, dataset = np.arange(60.0).reshape(20, 3), tf.data.Dataset
    for targets in (None, series[4:, 0]):
        windows = keras.utils.timeseries_dataset_from_array(series, targets, sequence_length=5, batch_size=4).unbatch()
        assert not repeats(windows)
        assert repeats(windows.repeat(2))
    assert repeats(dataset.from_tensors(series[0]).repeat(9))
    assert repeats(dataset.from_tensors(series[0]).repeat(9).enumerate())
    assert repeats(dataset.zip((dataset.from_tensor_slices(series).repeat(2), dataset.range(40))))


@pytest.mark.slow
def test_the_inputs_of_a_feature_space_are_a_dict_like_any_other():
    """Keras holds them in a class of its own, and then warns of every dict that the model is called on."""
    kinds, table = keras.utils.FeatureSpace, {"age": X[:, 0], "ward": np.array(["a", "b"] * 20)}
    space = kinds({"age": kinds.float_rescaled(0.1), "ward": kinds.string_hashed(4)}, output_mode="concat")
    space.adapt(tf.data.Dataset.from_tensor_slices(table))
    model = keras.Model(space.get_inputs(), kl.Dense(1)(space.get_encoded_features()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted(model, "mse", x=tfdp.records(tf.data.Dataset.from_tensor_slices((table, X[:, :1]))), y=None)
    assert not [one for one in caught if "The structure of" in str(one.message)]


@pytest.mark.slow
def test_a_graph_whose_nodes_are_the_records_is_refused_as_mixing():
    """Its layers take as many rows as there are nodes, and fail on any other number, as the measurement has it."""

    class Neighbours(kl.Layer):
        def __init__(self):
            super().__init__()
            self.dense = kl.Dense(3)

        def call(self, given):
            return ops.matmul(given[1], self.dense(given[0]))

    nodes, edges = keras.Input(batch_shape=(40, 4)), keras.Input(batch_shape=(40, 40))
    model = keras.Model([nodes, edges], Neighbours()([Neighbours()([nodes, edges]), edges]))
    with pytest.raises(ValueError, match=r"not independent.*a product of records with each other"):
        fitted(model, LOSS, x=[X, np.eye(40, dtype="float32")])
    rows = keras.Input(batch_shape=(8, 4))
    fitted(keras.Model(rows, kl.Dense(3)(rows)), LOSS)  # which takes any number
