"""Numbers by place, counts or draws of known seeds, that decide about a record bring a warning; others do not."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches.counted import Counted, counted_in

Data = tf.data.Dataset
RNG = np.random.default_rng(0)
X = RNG.random((40, 4, 4, 1)).astype("float32")
Y = np.arange(40, dtype="float32")[:, None]
ROWS, LABELS, COUNTER = Data.from_tensor_slices((X, Y)), Data.from_tensor_slices(Y), Data.counter()
TABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
PLACE = tf.Variable(0, dtype=tf.int64)


@pytest.fixture(autouse=True)
def _no_seed():
    """What the program drew from a seed before is no matter here: none is set."""
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


def seeded(make):
    def made():
        keras.utils.set_random_seed(1)
        return make()

    return made


def last(i, one):
    return one


def flipped(x, y):
    return tf.image.random_flip_left_right(x), y


def by_seeds(one, seed):
    return tf.image.stateless_random_flip_left_right(one[0], seed=seed), one[1]


def by_generator(generator):
    def call(x, y):
        return tf.image.stateless_random_flip_left_right(x, seed=generator.make_seeds(1)[:, 0]), y

    return lambda: ROWS.map(call)


def by_layer(**arguments):
    def made():
        layer = keras.layers.RandomFlip(**arguments)
        return ROWS.map(lambda x, y: (layer(x, training=True), y))

    return made


def row(i):
    return tf.gather(X, i), tf.gather(Y, i)


def counted_by_a_table(x, y):
    key = tf.constant(0, tf.int64)
    count = TABLE.lookup(key)
    TABLE.insert(key, count + 1)
    return count % 5 != 0


CHOSEN = {
    "every fifth left out": lambda: ROWS.enumerate().filter(lambda i, one: i % 5 != 0).map(lambda i, one: one),
    "of what is shuffled": lambda: ROWS.shuffle(40, seed=1).enumerate().filter(lambda i, one: i % 5 != 0),
    "by a map": lambda: ROWS.enumerate().map(lambda i, one: (one, i < 9)).filter(lambda one, some: some),
    "beside a range": lambda: Data.zip((Data.range(40), ROWS)).filter(lambda i, one: i % 5 != 0),
    "beside random numbers": lambda: Data.zip((ROWS, Data.random(seed=1))).filter(lambda one, i: i % 5 != 0),
    "of indices": lambda: Data.range(40).filter(lambda i: i % 5 != 0).map(row),
    "of indices that an array gives": lambda: (
        Data.from_tensor_slices(np.arange(40)).filter(lambda i: i % 5 != 0).map(row)
    ),
    "a seed of its own": lambda: ROWS.filter(lambda x, y: tf.random.uniform([], seed=1) < 0.8),
    "the program's seed": seeded(lambda: ROWS.filter(lambda x, y: tf.random.uniform([]) < 0.8)),
    "within a function": lambda: ROWS.filter(tf.function(lambda x, y: tf.random.uniform([], seed=1) < 0.8)),
    "a variable that counts": lambda: ROWS.filter(lambda x, y: PLACE.assign_add(1) % 5 != 0),
    "a table that counts": lambda: ROWS.filter(counted_by_a_table),
    "the first of each group": lambda: ROWS.shuffle(40, seed=1).group_by_window(
        lambda x, y: tf.cast(y[0] % 2, tf.int64), lambda _, group: group.take(9), window_size=40
    ),
    "the first of what a function shuffles": lambda: Data.range(2).flat_map(
        lambda k: Data.from_tensor_slices((X, Y)).shuffle(9, seed=1).take(5)
    ),
}
HELD = {
    "counts as seeds": lambda: Data.zip((ROWS, (COUNTER, COUNTER))).map(by_seeds),
    "of a range": lambda: ROWS.enumerate().map(lambda i, one: by_seeds(one, (i, i))),
    "its place": lambda: ROWS.enumerate().map(lambda i, one: ({"x": one[0], "place": i}, one[1])),
    "indices": lambda: Data.range(40).map(
        lambda i: (tf.where(i % 2 == 0, tf.gather(X, i), -tf.gather(X, i)), tf.gather(Y, i))
    ),
    "a table by its place modulo 12": lambda: Data.range(40).map(
        lambda i: (row(i)[0], tf.gather(tf.range(12), i % 12))
    ),
    "a branch by an index": lambda: Data.range(40).map(lambda i: tf.cond(i > 4, lambda: row(i), lambda: row(39 - i))),
    "an entry by its place": lambda: ROWS.enumerate().map(lambda i, one: (one[0][i % 4], one[1])),
    "random numbers": lambda: Data.zip((ROWS, Data.random(seed=3).batch(2))).map(by_seeds),
}
DRAWN = {
    "a seed of its own": lambda: ROWS.map(lambda x, y: (tf.image.random_flip_left_right(x, seed=1), y)),
    "the program's seed": seeded(lambda: ROWS.map(flipped)),
    "before others": seeded(lambda: ROWS.map(flipped).prefetch(1).map(lambda x, y: (x / 2.0, y)).shuffle(9)),
    "a generator": by_generator(tf.random.Generator.from_seed(123)),
    "a layer": by_layer(seed=7),
    "a layer, by the program's seed": seeded(by_layer()),
    "within a loop": lambda: ROWS.map(lambda x, y: (tf.map_fn(lambda a: a + tf.random.normal([], seed=1), x), y)),
}


def with_table(x, y):
    made = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [0.0, 5.0]), -1.0)
    return x, made.lookup(tf.cast(y[0] > 3.0 if y.shape.rank else y > 3.0, tf.int32))


FREE = {
    "numbered": lambda: ROWS.enumerate().map(lambda i, one: one),
    "a filter by what they hold": lambda: (
        ROWS.enumerate().filter(lambda i, one: one[1][0] > 3.0).map(lambda i, one: one)
    ),
    "unseeded draws": lambda: ROWS.map(flipped).filter(lambda x, y: tf.random.uniform([]) < 0.8),
    "a generator that nobody knows": by_generator(tf.random.Generator.from_non_deterministic_state()),
    "a layer": by_layer(),
    "unseeded numbers beside": lambda: Data.zip((ROWS, Data.random())).filter(lambda one, i: i % 5 != 0),
    "shuffled by a seed": lambda: ROWS.shuffle(40, seed=1).batch(4).unbatch().cache().prefetch(2),
    "indices": lambda: Data.range(40).map(lambda i: (tf.gather(X, i), tf.gather(Y, i))).filter(lambda x, y: y[0] > 3.0),
    "indices of files": lambda: Data.range(40).map(
        lambda i: tf.strings.length(tf.io.read_file(tf.strings.join(["/etc/", tf.strings.as_string(i)])))
    ),
    "indices for Python code": lambda: Data.range(40).map(lambda i: tf.numpy_function(Y.__getitem__, [i], tf.float32)),
    "an index in a function": lambda: Data.range(40).map(tf.function(row)).filter(lambda x, y: y[0] > 3.0),
    "a branch by what it holds": lambda: Data.range(40).map(
        lambda i: tf.cond(tf.gather(Y, i)[0] > 3.0, lambda: tf.gather(X, i), lambda: -tf.gather(X, i))
    ),
    "indices beside labels": lambda: Data.zip(
        (Data.range(40).map(lambda i: tf.gather(X, i)), Data.from_tensor_slices(Y))
    ),
    "the row of its place": lambda: Data.from_tensor_slices(X).enumerate().map(lambda i, x: (x, tf.gather(Y, i))),
    "draws by what they hold": lambda: ROWS.map(
        lambda x, y: (x + tf.random.stateless_normal((4, 4, 1), tf.cast([y[0], y[0]], tf.int32)), y)
    ),
    "labels beside": lambda: Data.zip((ROWS, Data.range(40).map(lambda i: tf.gather(Y, i)))),
    "a table": lambda: ROWS.map(with_table).filter(lambda x, y: with_table(x, y)[1] > 3.0),
    "windows": lambda: keras.utils.timeseries_dataset_from_array(X, Y, 5, sequence_stride=5).unbatch(),
    "a constant beside": lambda: Data.zip((ROWS, Data.from_tensors(2.0).repeat())).map(
        lambda one, k: (k * one[0], one[1])
    ),
    "files": lambda: Data.zip((Data.range(2).flat_map(lambda k: ROWS.shard(2, k)), ROWS)),
    "groups": lambda: ROWS.group_by_window(lambda x, y: tf.cast(y[0] % 2, tf.int64), lambda _, one: one, 40),
    "branches and loops": lambda: ROWS.map(
        lambda x, y: (tf.cond(y[0] > 2.0, lambda: x, lambda: -x), tf.map_fn(lambda a: 2.0 * a, y))
    ),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", CHOSEN)
def test_whether_a_record_stays_by_its_place_is_said(name):
    with pytest.warns(
        UserWarning, match=r"Which records stay in this pipeline depends on the others: .*nothing is lost"
    ):
        tfdp.records(CHOSEN[name]().map(lambda *one: tf.nest.flatten(one)[0]))


@pytest.mark.parametrize("name", HELD)
def test_what_a_record_holds_by_its_place_is_said(name):
    said = warned(HELD[name])
    assert any("hold depends on the others: their numbers are made of a count" in one for one in said)
    assert not any("not privacy" in one for one in said)


@pytest.mark.parametrize("name", DRAWN)
def test_draws_of_known_seeds_are_said_to_cost_privacy_in_one_warning(name):
    (said,) = warned(DRAWN[name])
    assert "with one person less all behind them get other ones" in said
    assert "the model's own random layers draw from seeds that nobody knows" in said
    assert "not privacy" not in said


@pytest.mark.few(10)
@pytest.mark.parametrize("name", FREE)
def test_other_numbers_bring_no_word_of_places(name):
    assert counted_in(FREE[name]()) == Counted()


def warned(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.records(make())
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("seed", [None, 100_000, 20241126])
def test_whether_a_seed_is_known_cannot_always_be_told(seed):
    """A date is no small number, and Keras draws seeds from a thousand million."""
    flip = flipped if seed is None else by_layer(seed=seed)
    (said,) = warned((lambda: ROWS.map(flipped)) if seed is None else flip)
    assert "depends on the others if their seed is known" in said
    assert "No epsilon covers that where the seed is known" in said


def test_branches_and_loops_of_maps_are_read():
    assert warned(FREE["branches and loops"]) == []


def test_ids_may_be_counted():
    numbered = ROWS.enumerate().map(lambda i, one: ({"x": one[0], "who": i // 4}, one[1]))
    assert counted_in(numbered).counted
    assert counted_in(numbered, "who") == Counted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.records(numbered, unit_ids="who")


@pytest.mark.parametrize("name", ["every fifth left out", "a seed of its own"])
def test_what_it_says_is_so(name):
    """One record less, and others stay."""

    def stay(dataset):
        return {float(one[1][0]) for one in dataset.as_numpy_iterator()}

    def chosen(rows):
        if name == "a seed of its own":
            return rows.filter(lambda x, y: tf.random.uniform([], seed=1) < 0.8)
        return rows.enumerate().filter(lambda i, one: i % 5 != 0).map(lambda i, one: one)

    assert len((stay(chosen(ROWS)) ^ stay(chosen(ROWS.skip(1)))) - {0.0}) > 4
