"""What a step keeps that no list of Keras' names stays with the party whose records it is of."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.federated import CompiledEpochs, KerasTraining, flat_weights, local_state, step_state

RNG = np.random.default_rng(1)
STEPS, Y = RNG.normal(size=(8, 3, 4)).astype("float32"), RNG.normal(size=(8, 1)).astype("float32")
ROWS = STEPS[:, 0]
TRAIN = {
    "fit": lambda model, x: KerasTraining(model, x, Y, batch_size=4, shuffle=False, epochs=2),
    "compiled": lambda model, x: CompiledEpochs(model, 4, epochs=2).on(x, Y),
}


class RunningMean(keras.layers.Layer):
    """Keeps a mean of its inputs in a variable of TensorFlow's, as layers ported from Keras 2 do."""

    def __init__(self):
        super().__init__()
        self.mean = tf.Variable(tf.zeros([1]), trainable=False)

    def call(self, x, training=None):
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x)[None])
        return x - self.mean


class RunsPython(keras.layers.Layer):
    def call(self, x):
        return x + tf.ensure_shape(tf.numpy_function(lambda rows: np.zeros_like(rows), [x], x.dtype), x.shape)


class LooksUp(keras.layers.Layer):
    """Reads a table, and writes none."""

    def __init__(self):
        super().__init__()
        keys = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([0.0, 1.0]))
        self.table = tf.lookup.StaticHashTable(keys, 0.0)

    def call(self, x):
        return x + self.table.lookup(tf.cast(x > 0.0, tf.int64))


MODELS = {
    "recurrent": lambda: [keras.Input((3, 4), batch_size=4), keras.layers.LSTM(5, stateful=True)],
    "variable": lambda: [keras.Input((4,)), RunningMean()],
    "inside": lambda: [keras.Input((4,)), keras.Sequential([keras.layers.Dense(4), RunningMean()])],
}


def model_of(layers, metrics=()):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([*layers(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=list(metrics))
    return model


def records_for(kind):
    return STEPS if kind == "recurrent" else ROWS


def turns(kind, way, scale, late=False):
    """What a party makes of the same weights in two turns, each after one of another party with scaled records."""
    model, x = model_of(MODELS[kind]), records_for(kind)
    weights, found = flat_weights(model), []
    theirs = TRAIN[way](model, x * scale + scale)
    mine = None if late else TRAIN[way](model, x)
    for _ in range(2):
        theirs(weights)
        mine = mine or TRAIN[way](model, x)  # also where this party comes once the other one has trained
        keras.utils.set_random_seed(5)
        found.append(mine(weights))
    return found


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("way", TRAIN)
@pytest.mark.parametrize("kind", MODELS)
def test_nothing_of_another_partys_records_is_in_an_upload(kind, way):
    one, other = (turns(kind, way, scale, late=scale > 0) for scale in (1.0, -50.0))
    np.testing.assert_array_equal(one, other)
    assert (one[0] != one[1]).any(), "its own state goes on"


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", MODELS)
def test_without_what_the_traced_step_shows_they_are_there(kind, monkeypatch):
    monkeypatch.setattr(local_state, "state_of_step", lambda *_: (step_state.StepState(), None))
    monkeypatch.setattr(local_state, "note_training", lambda *_, **__: None)
    one, other = (turns(kind, "fit", scale) for scale in (1.0, -50.0))
    assert np.abs(np.array(one) - other).max() > 1e-4


def test_a_model_that_may_keep_numbers_elsewhere_is_of_one_party():
    model = model_of(lambda: [keras.Input((4,)), RunsPython()])
    for _ in range(2):
        KerasTraining(model, ROWS, Y)
    with pytest.raises(ValueError, match=r"not its party's own \(its step has the operation .*PyFunc.*Give each party"):
        KerasTraining(model, -ROWS, Y)


def test_a_step_that_cannot_be_traced_is_of_one_party():
    class Eager(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            data[0].numpy()
            return super().train_step(data)

    model = Eager()
    model(ROWS)
    model.compile("sgd", "mse", run_eagerly=True)
    weights = flat_weights(model)
    assert (KerasTraining(model, ROWS, Y)(weights) != weights).any()
    with pytest.raises(ValueError, match=r"could not be traced: AttributeError.*Give each party a model of its own"):
        KerasTraining(model, -ROWS, Y)


ORDINARY = {
    "dropout": lambda: [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()],
    "table": lambda: [keras.Input((4,)), LooksUp()],
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("way", TRAIN)
@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_models_are_shared_and_their_metrics_work(kind, way):
    model = model_of(ORDINARY[kind], metrics=["mae", keras.metrics.RootMeanSquaredError()])
    weights = flat_weights(model)
    for x in (ROWS, -ROWS):
        assert (TRAIN[way](model, x)(weights) != weights).any()
    history = model.fit(ROWS, Y, verbose=0).history
    assert {"loss", "mae", "root_mean_squared_error"} <= set(history)


def test_a_model_is_traced_once_for_all_of_its_parties(monkeypatch):
    traced, before = [], step_state.StepState._look
    monkeypatch.setattr(step_state.StepState, "_look", lambda self, graph: traced.append(graph) or before(self, graph))
    model = model_of(lambda: [keras.Input((4,))])
    for scale in range(3):
        KerasTraining(model, ROWS * scale, Y)
    assert len(traced) == 1


def test_a_private_model_has_its_steps_in_fit_alone():
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with pytest.raises(ValueError, match="Use KerasTraining"):
        CompiledEpochs(model, 4)


def test_what_a_party_takes_along_is_read_without_a_warning(recwarn):
    """NumPy 2 warns of arrays that are made of TensorFlow's variables by `np.array`."""
    model = model_of(MODELS["variable"])
    with KerasTraining(model, ROWS, Y, batch_size=4)._own.turn():
        pass
    assert not [one for one in recwarn if "__array__" in str(one.message)]


class Noise(keras.layers.Layer):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, x, training=None):
        return x + self.draw(tf.shape(x)) if training else x


@pytest.mark.parametrize("draw", [tf.random.normal, lambda shape: tf.random.shuffle(tf.ones(shape))], ids=["n", "s"])
def test_random_numbers_of_a_state_that_no_variable_holds_are_of_one_party(draw):
    """How many epochs one party made was in the other one's upload."""
    model = model_of(lambda: [keras.Input((4,)), Noise(draw)])
    for _ in range(2):
        KerasTraining(model, ROWS, Y)
    with pytest.raises(ValueError, match=r"draws random numbers of a state that no variable holds.*keras.random"):
        KerasTraining(model, -ROWS, Y)
    ordinary = model_of(lambda: [keras.Input((4,)), Noise(keras.random.normal), keras.layers.GaussianNoise(0.1)])
    for scale in (1.0, -1.0):
        KerasTraining(ordinary, scale * ROWS, Y)


def test_the_order_of_compiled_epochs_does_not_depend_on_how_many_records_others_have():
    def upload(rows):
        model = model_of(lambda: [keras.Input((4,))])
        epochs = CompiledEpochs(model, 3, epochs=2)
        theirs, mine = epochs.on(ROWS[:rows], Y[:rows]), epochs.on(-ROWS, Y)
        theirs(flat_weights(model))
        first = mine(flat_weights(model) * 0.0)
        return first, mine(flat_weights(model) * 0.0)

    (one, more), (other, _) = upload(3), upload(8)
    np.testing.assert_array_equal(one, other)
    assert (one != more).any(), "each turn has orders of its own"


def test_what_a_training_looked_at_stays():
    model = model_of(lambda: [keras.Input((4,))])
    held = [keras.callbacks.EarlyStopping("loss")]
    training, epochs = KerasTraining(model, ROWS, Y, callbacks=held), CompiledEpochs(model, 4)
    held.append(keras.callbacks.BackupAndRestore("backup"))
    assert len(training.options["callbacks"]) == 1
    for thing, name in [*((training, one) for one in ("model", "x", "y", "options")), (epochs, "model")]:
        with pytest.raises(AttributeError, match=r"no setter|can't set"):
            setattr(thing, name, None)
    with pytest.raises(TypeError):
        training.options["batch_size"] = 8
    assert training(flat_weights(model)).shape == (5,)


def test_a_model_on_several_devices_is_refused_by_name(monkeypatch):
    model = model_of(lambda: [keras.Input((4,))])

    class MirroredStrategy:
        num_replicas_in_sync = 2

    monkeypatch.setattr(type(model), "distribute_strategy", MirroredStrategy())
    for make in (lambda: KerasTraining(model, ROWS, Y), lambda: CompiledEpochs(model, 4)):
        with pytest.raises(ValueError, match=r"under MirroredStrategy, .*outside of strategy.scope"):
            make()
