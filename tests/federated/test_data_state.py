"""What pipelines and other data of one party keep where those of another one read it is in no upload of that one."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.federated import KerasTraining, flat_weights
from tfdp_layers.federated.data_state import DataState

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(8, 4)).astype("float32"), RNG.normal(size=(8, 1)).astype("float32")
ROWS = tf.data.Dataset.from_tensor_slices((X, Y))


class RunningMean(keras.layers.Layer):
    """Keeps a mean of its inputs in a variable."""

    def __init__(self):
        super().__init__()
        self.mean = self.add_weight(shape=(4,), initializer="zeros", trainable=False)

    def call(self, x, training=None):
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, 0))
        return x - self.mean


class Counts(RunningMean):
    """Counts its calls, whatever the records are."""

    def call(self, x, training=None):
        self.mean.assign_add(tf.ones([4]))
        return x + self.mean


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, place):
        return X[4 * place :][:4], Y[4 * place :][:4]


def model_of():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def through(layer, x, **called):
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(4).map(lambda x, y: (layer(x, **called), y))


def upload(model, data):
    return KerasTraining(model, data, None, batch_size=None)


@pytest.mark.parametrize("one", [True, False])
def test_pipelines_through_a_layer_that_keeps_records_are_of_one_party(one):
    layer, first = RunningMean(), model_of()
    data = through(layer, X, training=True)
    for _ in range(2):
        upload(first, data)
    for training in (True, False):  # also a pipeline that merely reads what the first one writes
        with pytest.raises(ValueError, match=r"Map of its pipeline writes a variable.*Give each party"):
            upload(first if one else model_of(), through(layer, -X, training=training))
    upload(model_of(), through(RunningMean(), X, training=True))


def test_validation_data_are_looked_at():
    layer = RunningMean()
    for scale, data in ((1.0, through(layer, X, training=True)), (-1.0, through(layer, X, training=False))):
        if scale > 0:
            KerasTraining(model_of(), X, Y, validation_data=data)
        else:
            with pytest.raises(ValueError, match="shares a variable or a table, in its steps or its data"):
                KerasTraining(model_of(), -X, Y, validation_data=data)


def test_what_a_pipeline_reads_of_another_model_is_each_partys_own():
    def found(scale):
        base = keras.layers.Dense(4)
        theirs = keras.Sequential([keras.Input((4,)), base, keras.layers.Dense(1)])
        theirs.compile("sgd", "mse")
        base.kernel.assign(np.eye(4))
        mine, weights = model_of(), flat_weights(theirs) * 0.0 + 0.1
        trains = KerasTraining(theirs, X * scale, Y, batch_size=4), upload(mine, through(base, X))
        trains[0](weights)
        return trains[1](flat_weights(mine))

    np.testing.assert_array_equal(found(1.0), found(-5.0))


def test_what_a_pipeline_counts_is_each_partys_own():
    model, layer = model_of(), Counts()
    theirs, mine, late = (upload(model, through(layer, x)) for x in (-X, X, X * 1.0))
    weights = flat_weights(model)
    first = mine(weights)
    theirs(weights)
    np.testing.assert_array_equal(late(weights), first)


def table_of(values):
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(values, values), -1)


FLIP, TABLE = keras.layers.RandomFlip(), table_of(tf.constant([0, 1], tf.int64))
GENERATOR = tf.random.Generator.from_seed(1)
KNOWN = {
    "plain": ROWS.shuffle(8).cache().map(lambda x, y: (2.0 * x, y), num_parallel_calls=2).batch(4).prefetch(1),
    "augmented": ROWS.map(lambda x, y: (FLIP(tf.reshape(x, (2, 2, 1)), training=True), y)),
    "drawn": ROWS.map(lambda x, y: (x + GENERATOR.normal([]) + tf.random.normal([]), y)),
    "looked up": ROWS.map(lambda x, y: (x, TABLE.lookup(tf.cast(y, tf.int64)))),
    "shards": tf.data.Dataset.range(2).interleave(lambda part: ROWS.shard(2, part)),
    "counted": ROWS.enumerate(),
    "windows": ROWS.window(4).flat_map(lambda x, y: tf.data.Dataset.zip((x.batch(4), y.batch(4)))),
    "chosen": ROWS.filter(lambda x, y: y[0] > 0.0),
    "arrays": {"x": [X, Y], "weights": None, "texts": ["a", "b"]},
}


@pytest.mark.parametrize("kind", KNOWN)
def test_ordinary_data_keep_nothing_of_their_records(kind):
    found = DataState([KNOWN[kind]])
    assert found.elsewhere is None
    assert not found.written
    assert len(found.variables) == (kind in ("augmented", "drawn"))


def double(x, y):
    return tf.numpy_function(lambda rows: 2.0 * rows, [x], tf.float32), y


QUEUE = tf.queue.FIFOQueue(9, tf.float32)
UNKNOWN = {
    "Batches": Batches(),
    "generator": (one for one in [(X, Y)]),
    "Python code": ROWS.map(double),
    "FlatMap": tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int32)),
    "PyFunc|Python code": tf.data.Dataset.range(2).interleave(lambda part: ROWS.map(double).shard(2, part)),
    "Queue|queue": ROWS.map(lambda x, y: (x + QUEUE.dequeue(), y)),
}


@pytest.mark.parametrize("named", UNKNOWN)
def test_data_that_run_python_or_keep_numbers_elsewhere_are_not_known(named):
    found = DataState([X, UNKNOWN[named]]).elsewhere
    assert any(one in found for one in named.split("|")), found


def test_a_model_is_of_one_party_where_its_data_run_python():
    model, batches = model_of(), Batches()
    for _ in range(2):
        upload(model, batches)
    with pytest.raises(ValueError, match="Python code of its data, a 'Batches', runs in each turn"):
        KerasTraining(model, -X, Y)
    other = model_of()
    KerasTraining(other, X, Y)
    with pytest.raises(ValueError, match="Python code of its data, a 'generator'"):
        upload(other, (one for one in [(X, Y)]))


def test_a_file_that_pipelines_of_two_parties_cache_in_is_refused_and_two_files_are_not(tmp_path):
    def cached(name):
        return ROWS.cache(str(tmp_path / name)).batch(4)

    first = upload(model_of(), cached("one"))
    upload(model_of(), cached("two"))
    with pytest.raises(ValueError, match=r"reads or writes the file '.*one', by .cache.*as that of another party does"):
        upload(model_of(), cached("one"))
    assert first.ledger is None


def pipelines(split, **shuffled):
    """Of two parties, that go through one shuffled data set, or each through its own."""
    whole = [ROWS.shuffle(8, seed=1, **shuffled) for _ in range(2)]
    one, other = (whole[0], whole[0]) if split else whole
    return one.shard(2, 0).batch(2), one.take(0).concatenate(other.shard(2, 1)).batch(2) if split else other.batch(2)


@pytest.mark.parametrize("private", [False, True])
def test_a_shuffle_that_goes_on_from_epoch_to_epoch_is_of_one_party(private):
    """How many epochs one of them made, by which its records decide, was in the other one's upload."""

    def training(data):
        if not private:
            return upload(model_of(), data)
        model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
        data = tfdp.declare_sampling(data.repeat(), tfdp.sampling.Poisson(2), examples=8)
        return KerasTraining(model, data, None, batch_size=None, steps_per_epoch=1)

    for split, shuffled in ((True, {"reshuffle_each_iteration": False}), (False, {})):
        held = [training(data) for data in pipelines(split, **shuffled)]
        assert len(held) == 2
    one, other = pipelines(True)
    first = training(one)
    with pytest.raises(ValueError, match=r"has a step of its data \(_ShuffleDataset\).*draws by a known seed"):
        training(other)
    assert first.ledger is None or private


@pytest.mark.parametrize("first", ["ordinary", "private"])
def test_a_private_models_data_read_no_model_that_another_party_trains(first):
    """They told one record of it 20 times of 20, at 0.9999 stated."""
    theirs = model_of()

    def private(through):
        mine = tfdp.make_private(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
        mine.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
        data = ROWS.repeat().batch(8).map(lambda x, y: (through(x), y))
        data = tfdp.declare_sampling(data, tfdp.sampling.Poisson(8), examples=8)
        return KerasTraining(mine, data, None, batch_size=None, steps_per_epoch=1)

    makes = [lambda: KerasTraining(theirs, X, Y), lambda: private(theirs)]
    held = makes[first == "private"]()
    with pytest.raises(ValueError, match=r"shares '?.* and one of the two trainings is private"):
        makes[first == "ordinary"]()
    del held
    assert private(keras.models.clone_model(theirs))(np.zeros(2, np.float32)).shape == (2,)


def test_what_a_party_gave_is_kept_no_longer_than_the_party():
    model, x = model_of(), np.array(X)
    party, gone = KerasTraining(model, x, Y), weakref.ref(x)
    del party, x
    gc.collect()
    assert gone() is None
    KerasTraining(model, np.array(X), Y)
