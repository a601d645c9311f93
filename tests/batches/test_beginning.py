"""The arrays of a declared pipeline are looked at as those are that `fit` draws from."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting.repeats import warn_of_repeated
from tfdp_layers.batches.beginning import beginning_of
from tfdp_layers.sampling import Partition, Poisson

N, STEPS, B = 200, 16, 20
RNG = np.random.default_rng(0)
SERIES = np.cumsum(RNG.normal(size=(N + STEPS, 3)), axis=0).astype("float32")
TABLE = RNG.normal(1.0, 2.0, size=(N, 6)).astype("float32")
SCALED = ((TABLE - TABLE.mean(0)) / TABLE.std(0)).astype("float32")
COPIED = np.concatenate([TABLE[: N - 60], *[TABLE[:20]] * 3])
Y = (TABLE[:, :1] > 1.0).astype("float32")
SEEN = {
    "copies": (COPIED, "come several times"),
    "windows": (np.stack([SERIES[i : i + STEPS] for i in range(N)]), "Records overlap"),
    "scaled columns": (SCALED, "mean 0 and standard deviation 1"),
    "pairs": (np.stack([TABLE, TABLE[np.roll(np.arange(N), 7)]], 1), "come again in other records"),
}


def slices(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y))


def cut(x, y):
    """The first records, of a table that goes on with others."""
    more = np.random.default_rng(1).normal(size=x.shape).astype("float32")
    return slices(np.concatenate([x, more]), np.concatenate([y, y])).take(N).shuffle(N).batch(B)


def by_index(x, y):
    x, y = tf.constant(x), tf.constant(y)
    return tf.data.Dataset.range(N).shuffle(N).batch(B).map(lambda i: (tf.gather(x, i), tf.gather(y, i)))


def zipped(x, y):
    apart = tf.data.Dataset.from_tensor_slices(x), tf.data.Dataset.from_tensor_slices(y)
    return tf.data.Dataset.zip(*apart).shuffle(N).batch(B)


class Loader(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.order = x, y, np.random.default_rng(2).permutation(N)

    def __len__(self):
        return N // B

    def __getitem__(self, number):
        places = self.order[number * B : (number + 1) * B]
        return self.x[places], self.y[places]


WAYS = {
    "shuffled": lambda x, y: slices(x, y).shuffle(N).batch(B),
    "changed on the way": lambda x, y: slices(x, y).cache().map(lambda x, y: (2.0 * x, y)).shuffle(N).batch(B),
    "numbered": lambda x, y: slices(x, y).enumerate().map(lambda _, record: record).shuffle(N).batch(B),
    "cut": cut,
    "by index": by_index,
    "zipped": zipped,
    "a loader": Loader,
    "a list": lambda x, y: [(x[i : i + B], y[i : i + B]) for i in range(0, N, B)],
}


def poisson(x, y):
    x, y = tf.constant(x), tf.constant(y)

    def drawn(_):
        taken = tf.where(tf.random.uniform([N]) < B / N)[:, 0]
        return tf.gather(x, taken), tf.gather(y, taken)

    return tf.data.Dataset.counter().map(drawn)


def looked_at(dataset, sampling=None):
    """What is said of a pipeline as it is declared, and as its training begins."""
    batches = tfdp.declare_sampling(dataset, Partition(B) if sampling is None else sampling, examples=N)
    warn_of_repeated(batches.footprint(), batches.unit)
    return batches


@pytest.mark.few(8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", SEEN)
def test_what_arrays_show_is_said_of_declared_pipelines(way, what):
    x, word = SEEN[what]
    with pytest.warns(UserWarning, match=word):
        looked_at(WAYS[way](x, Y))


@pytest.mark.parametrize("what", SEEN)
def test_a_draw_in_a_function_shows_what_it_draws_from(what):
    x, word = SEEN[what]
    with pytest.warns(UserWarning, match=word):
        looked_at(poisson(x, Y), Poisson(B))


@pytest.mark.parametrize("way", [*WAYS, "poisson"])
def test_nothing_is_said_of_a_plain_table(way):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = looked_at(WAYS[way](TABLE, Y)) if way in WAYS else looked_at(poisson(TABLE, Y), Poisson(B))
    x, y = batches.arrays()
    assert len(x) == (way != "a loader")  # of which nobody knows what batches give
    assert len(y) == (way not in ("a loader", "by index", "poisson"))
    for found, given in zip((*x, *y), (TABLE, Y), strict=False):
        np.testing.assert_array_equal(found, given)


def test_what_is_cut_off_is_no_record():
    x = np.concatenate([TABLE, TABLE[:60]])
    begun = beginning_of(slices(x, np.concatenate([Y, Y[:60]])).skip(10).take(N - 10).batch(B), N - 10)
    assert begun.whole
    np.testing.assert_array_equal(begun.store.inputs()[0], TABLE[10:])


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records.filter(lambda x, _: x[0] > 0.0).batch(B),
        lambda records: records.batch(5).unbatch().batch(B),
        lambda records: records.batch(5, drop_remainder=True).batch(4),
        lambda records: records,
    ],
)
def test_other_steps_are_not_followed(change):
    assert beginning_of(change(slices(COPIED, Y)), N) is None


def odd(x, y):
    """A loader that keeps more than tables: ids, dates, a text column, what it reads by itself."""

    class Unread:
        shape = (N, 3)

        def __array__(self, *_):
            raise AssertionError("read")

    loader = Loader(x, y)
    loader.ids, loader.lazy = np.array([f"p{i}" for i in range(N)]), Unread()
    loader.days = np.arange(N).astype("datetime64[D]")
    loader.given, loader.missing = x, np.where(np.arange(N)[:, None] == 7, np.nan, np.sin(x.sum(1, keepdims=True)) * x)
    return loader


IDS = np.arange(1000, 1000 + N)
PARTLY = {
    "a loader with ids and more": odd,
    "ids first": lambda x, y: tf.data.Dataset.from_tensor_slices((IDS, x, y)).map(lambda _, *xy: xy).batch(B),
    "labels first": lambda x, y: tf.data.Dataset.from_tensor_slices((y, x)).map(lambda y, x: (x, y)).batch(B),
    "four parts": lambda x, y: tf.data.Dataset.from_tensor_slices((IDS, IDS, x, y)).map(lambda a, b, *xy: xy).batch(B),
    "all columns in one": lambda x, y: (
        tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).map(lambda one: (one["x"], one["y"])).batch(B)
    ),
    "labels that are texts": lambda x, y: (
        tf.data.Dataset.from_tensor_slices((x, np.where(y > 0, "ill", "well")))
        .map(lambda x, y: (x, tf.cast(y == "ill", tf.float32)))
        .batch(B)
    ),
    "a branch that changes": lambda x, y: tf.data.Dataset.zip(
        tf.data.Dataset.from_tensor_slices(x).map(lambda x: x + 1.0), tf.data.Dataset.from_tensor_slices(y)
    ).batch(B),
    "branches of batches": lambda x, y: tf.data.Dataset.zip(
        tf.data.Dataset.from_tensor_slices(x).batch(B), tf.data.Dataset.from_tensor_slices(y).batch(B)
    ),
    "missing numbers": lambda x, y: (
        slices(np.where(x > 3.5, np.nan, x), y).map(lambda x, y: (tf.where(tf.math.is_nan(x), 3.5, x), y)).batch(B)
    ),
}


@pytest.mark.parametrize("how", PARTLY)
def test_a_part_that_nobody_can_look_at_hides_no_other(how):
    with pytest.warns(UserWarning, match="come several times"):
        looked_at(PARTLY[how](COPIED, Y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        looked_at(PARTLY[how](TABLE, Y))


SINGLE = {
    "names of files": lambda: (
        tf.data.Dataset.from_tensor_slices([f"{i}.png" for i in range(N)])
        .map(lambda name: (tf.fill([6], tf.cast(tf.strings.length(name), tf.float32)), tf.zeros([1])))
        .batch(B)
    ),
    "indices of a split": lambda: (
        tf.data.Dataset.from_tensor_slices(RNG.permutation(N))
        .map(lambda i: (tf.gather(tf.constant(TABLE), i), tf.gather(tf.constant(Y), i)))
        .batch(B)
    ),
    "an autoencoder": lambda: tf.data.Dataset.from_tensor_slices(TABLE).map(lambda x: (x, x)).batch(B),
    "a tuple of one": lambda: tf.data.Dataset.from_tensor_slices((TABLE,)).map(lambda x: (x, x[:1])).batch(B),
    "tokens": lambda: (
        tf.data.Dataset.from_tensor_slices(RNG.integers(0, 90, (N, 9))).map(lambda t: (t[:-1], t[1:])).batch(B)
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_pipelines_that_begin_with_one_tensor_are_taken_without_a_word(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = looked_at(SINGLE[name]())
    x, _, weights = next(iter(batches.dataset()))
    assert len(x) == len(weights) == B


def test_a_warning_that_was_made_an_error_is_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="standard deviation 1"):
            looked_at(WAYS["shuffled"](SCALED, Y))


def test_a_look_ends_no_program(monkeypatch):
    def broken(*_):
        raise MemoryError

    monkeypatch.setattr("tfdp_layers.batches.beginning.ArrayStore", broken)
    assert looked_at(WAYS["shuffled"](TABLE, Y)).beginning is None


MORE = np.concatenate([TABLE, RNG.normal(size=(100, 6)).astype("float32")])
CUTS = {
    "behind a shuffle": lambda: (
        slices(MORE, np.ones((N + 100, 1))).shuffle(N, reshuffle_each_iteration=False).skip(100)
    ),
    "of numbers": lambda: (
        tf.data.Dataset.range(N + 100).skip(100).map(lambda i: (tf.gather(tf.constant(MORE), i), [1.0]))
    ),
}


@pytest.mark.parametrize("how", CUTS)
def test_rows_of_which_some_were_cut_off_are_no_records(how):
    batches = looked_at(CUTS[how]().batch(B))
    assert batches._beginning is not None
    assert batches.beginning is None
    assert batches.footprint().sketch is None


def test_a_declared_pipeline_and_its_arrays_are_the_same_records():
    declared = looked_at(WAYS["shuffled"](TABLE, Y))
    given = (TABLE.copy(), Y), (RNG.normal(size=TABLE.shape), RNG.normal(size=Y.shape))
    again, others = (tfdp.PrivateBatches(*one, Poisson(B)) for one in given)
    assert declared.footprint().overlaps(again.footprint())
    assert not declared.footprint().overlaps(others.footprint())
    assert declared.footprint().same_place(declared.footprint())


def model_of(*layers):
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=3.0), "mse")
    return model


def test_statistics_of_the_arrays_in_the_model_are_seen():
    layer = keras.layers.Normalization(mean=TABLE.mean(0), variance=TABLE.var(0))
    with pytest.warns(UserWarning, match="normalization"):
        model_of(layer).fit(looked_at(WAYS["shuffled"](TABLE, Y)), epochs=1, verbose=0)


def test_copies_of_the_arrays_that_decide_are_noted():
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = self.model.evaluate(TABLE.copy(), Y, verbose=0) > 0.0

    model = model_of()
    with pytest.warns(UserWarning, match="training records"):
        model.fit(looked_at(WAYS["shuffled"](TABLE, Y)), epochs=3, verbose=0, callbacks=[Stops()])
    assert "of the training records" in " ".join(str(model.privacy_statement(1e-5)).split())
