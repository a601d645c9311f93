"""Parties whose models share a layer: what one party's records leave in it is in no upload of another one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.federated import KerasTraining, flat_weights

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(8, 4)).astype("float32"), RNG.normal(size=(8, 1)).astype("float32")


class RunningMean(keras.layers.Layer):
    """Keeps a mean of its inputs where Keras does not list it."""

    def __init__(self):
        super().__init__()
        self.mean = tf.Variable(tf.zeros([4]), trainable=False)

    def call(self, x, training=None):
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, 0))
        return x - self.mean


class KeepsLast(keras.layers.Layer):
    """Keeps a number in Python, where its code runs in each step."""

    last = 0.0

    def call(self, x):
        before = self.last
        if tf.executing_eagerly():
            self.last = float(tf.reduce_mean(x))
        return x + before


class Remembers(keras.layers.Layer):
    """Writes a table in evaluation, and looks up in it in training."""

    def __init__(self):
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def compute_output_shape(self, shape):
        return shape

    def call(self, x, training=None):
        if not training:
            self.table.insert(tf.zeros([1], tf.int64), tf.reshape(x[0, 0], [1]))
        return x + tf.reshape(self.table.lookup(tf.zeros([1], tf.int64)), [1, 1])


class Batches(keras.utils.PyDataset):
    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return 2

    def __getitem__(self, place):
        rows = slice(4 * place, 4 * place + 4)
        return self.x[rows], Y[rows]


class Loss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.square(y_true - y_pred)[:, 0]


def generated(x):
    while True:
        yield x, Y


DATA = {
    "arrays": lambda x: {"x": x, "y": Y, "batch_size": 4, "shuffle": False},
    "dataset": lambda x: {"x": tf.data.Dataset.from_tensor_slices((x, Y)).batch(4), "y": None, "batch_size": None},
    "sequence": lambda x: {"x": Batches(x), "y": None, "batch_size": None, "shuffle": False},
    "generator": lambda x: {"x": generated(x), "y": None, "batch_size": None, "steps_per_epoch": 2},
}


def model_of(*layers, loss="mse", optimizer="sgd", **compiled):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, loss, **compiled)
    return model


def private_of(*layers):
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return model


def upload_after(scale, data):
    """What a party makes of given weights after one of scaled records, each with a model around one layer."""
    layer = RunningMean()
    theirs, mine = model_of(layer), model_of(layer)
    weights = flat_weights(mine)
    train = KerasTraining(theirs, **DATA[data](X * scale + scale)), KerasTraining(mine, **DATA[data](X))
    train[0](weights)
    return train[1](weights)


@pytest.mark.filterwarnings("ignore:.*shuffle=True.*:UserWarning")
@pytest.mark.parametrize("data", ["arrays", "dataset"])
def test_what_is_in_a_shared_layer_is_in_no_upload(data):
    np.testing.assert_array_equal(*(upload_after(scale, data) for scale in (1.0, -50.0)))


def test_a_layer_is_of_one_party_where_a_step_cannot_be_traced():
    layer = RunningMean()
    generator, arrays = DATA["generator"](X), DATA["arrays"](-X)
    unknown = KerasTraining(model_of(layer), **generator)
    with pytest.raises(
        ValueError, match=r"shares 'running_mean\w*' with a model .* Python code of its data, a 'generator'"
    ):
        KerasTraining(model_of(layer), **arrays)
    KerasTraining(model_of(layer), **generator)  # the same party
    assert unknown(flat_weights(unknown.model)).shape == (5,)
    other = RunningMean()
    KerasTraining(model_of(other), **arrays)
    with pytest.raises(ValueError, match="Python code of its data"):
        KerasTraining(model_of(other), **generator)


def test_clones_are_of_several_parties_whatever_their_data():
    first, loss = model_of(keras.layers.BatchNormalization()), keras.losses.MeanSquaredError()
    weights = flat_weights(first)
    for data in DATA.values():
        clone = keras.models.clone_model(first)
        clone.compile("sgd", loss)
        training = KerasTraining(clone, **data(X))
        assert training(weights).shape == weights.shape
    np.testing.assert_array_equal(flat_weights(first), weights)  # what clones learn is not in it


@pytest.mark.parametrize("shared", ["loss", "optimizer"])
def test_a_loss_and_an_optimizer_are_of_one_party_where_a_step_cannot_be_traced(shared):
    dense, models = keras.layers.Dense(1), []
    loss, optimizer = (Loss(), "sgd") if shared == "loss" else ("mse", keras.optimizers.SGD(0.1, momentum=0.9))
    for _ in range(3):
        layer = dense if shared == "optimizer" else keras.layers.Dense(1)
        models.append(keras.Sequential([keras.Input((4,)), layer]))
        models[-1].compile(optimizer, loss)
    KerasTraining(models[0], **DATA["arrays"](X))
    KerasTraining(models[1], **DATA["arrays"](-X))  # what they keep is in the graph
    with pytest.raises(ValueError, match="with a model that another party trains, and may keep numbers"):
        KerasTraining(models[2], **DATA["generator"](X))


def test_what_own_code_keeps_in_python_is_of_one_party():
    layer = KeepsLast()
    KerasTraining(model_of(layer, run_eagerly=True), **DATA["arrays"](X))
    with pytest.raises(ValueError, match="runs eagerly, so that the Python code of 'keeps_last"):
        KerasTraining(model_of(layer, run_eagerly=True), **DATA["arrays"](-X))
    ordinary = model_of(keras.layers.BatchNormalization(), run_eagerly=True)
    for scale in (1.0, -1.0):
        KerasTraining(ordinary, **DATA["arrays"](X * scale))


@pytest.mark.parametrize("beside", ["y", "sample_weight", "validation_data"])
def test_the_same_images_with_other_labels_are_another_partys(beside):
    model, given = model_of(KeepsLast(), run_eagerly=True), {"x": X, "y": Y, "validation_data": (X, Y)}
    for _ in range(2):
        KerasTraining(model, **given)
        given["validation_data"] = (X, Y)  # another tuple of the same arrays
    other = (X, -Y) if beside == "validation_data" else np.ones(8, "float32") if beside == "sample_weight" else -Y
    with pytest.raises(ValueError, match="trains another party already"):
        KerasTraining(model, **{**given, beside: other})


def test_a_model_that_runs_eagerly_later_is_refused():
    model = model_of(KeepsLast())
    train = KerasTraining(model, **DATA["arrays"](X))
    model.run_eagerly = True
    with pytest.raises(ValueError, match="now run eagerly"):
        train(flat_weights(model))


def test_what_validation_writes_is_of_one_party():
    layer = Remembers()
    models = [model_of(layer) for _ in range(2)]
    for model, scale in zip(models, (1.0, -1.0), strict=True):
        KerasTraining(model, **DATA["arrays"](X * scale))
    with pytest.raises(ValueError, match=r"operation .*LookupTableInsertV2"):
        KerasTraining(models[0], **DATA["arrays"](X * 2.0), validation_data=(X, Y))


def test_a_frozen_base_is_shared_and_a_trained_one_is_not_where_one_model_is_private():
    base = keras.layers.Dense(4)
    base.build((None, 4))
    base.trainable = False
    KerasTraining(private_of(base), X, Y)
    KerasTraining(private_of(base), -X, Y)
    KerasTraining(model_of(base), 2.0 * X, Y)
    base.trainable = True
    for model_with in (private_of, model_of):
        with pytest.raises(ValueError, match=r"is private: .*Give each party a model of its own"):
            KerasTraining(model_with(base), 3.0 * X, Y)


@pytest.mark.parametrize("named", ["same", "other name", "other file", "no file"])
@pytest.mark.parametrize("kind", ["private", "sequence"])
def test_a_party_that_is_made_anew_may_keep_its_model(kind, named, tmp_path):
    """With data loaded anew it was refused at the second message as another party."""
    model = private_of() if kind == "private" else model_of()

    def message(number):
        path = None if named == "no file" else tmp_path / f"{number if named == 'other file' else 0}.json"
        training = KerasTraining(model, **DATA["arrays" if kind == "private" else "sequence"](X.copy()))
        name = f"a{number}" if named == "other name" else "a"
        ledger = tfdp.accounting.Ledger(path) if path else None
        party = tfdp.federated.Party(
            name, training, tfdp.federated.LargestValues(1.0, 1e3), flat_weights(model), ledger=ledger
        )
        party.turn(tfdp.federated.Update(np.arange(5), np.zeros(5, np.float32)))

    message(0)
    if named == "same":
        message(1)
        message(2)
        with pytest.raises(ValueError, match="Give each party a model of its own"):
            KerasTraining(model, **DATA["arrays" if kind == "private" else "sequence"](-X))(flat_weights(model))
    else:
        with pytest.raises(ValueError, match="Give each party a model of its own"):
            message(1)
