"""Functions of a pipeline that read other records out of an array that they hold bring a warning; others do not."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches.captured import warn_of_captured

Data = tf.data.Dataset
RNG = np.random.default_rng(0)
N = 80
X = RNG.normal(size=(N, 4)).astype("float32")
Y = np.sign(RNG.normal(size=(N, 1))).astype("float32")
HELD, LABELS, KEPT = tf.constant(X), tf.constant(Y[:, 0]), tf.Variable(X)
ROWS, PLACES = Data.from_tensor_slices((X, Y)), Data.range(N)
NAMES = Data.from_tensor_slices(([f"w{i}" for i in range(N)], np.arange(N)))
INDEX = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.range(N), tf.range(N)), -1)
PARTNERS = tf.constant(RNG.permutation(N))
PAIRS = np.stack([np.arange(N), RNG.permutation(N)], 1)
OFFSETS, TWICE = tf.range(0, 2 * N, 2), tf.concat([HELD, HELD], 0)


def hub(x, y):
    """Beside each record the label of the one that is most like it."""
    other = tf.argsort(tf.norm(HELD - x, axis=1))[1]
    return tf.concat([x, [tf.gather(LABELS, other)]], 0), y


def block(rows, number):
    return tf.ensure_shape(rows, (number, 4))


def drawn():
    return tf.random.uniform((), 0, N, tf.int32)


def mixed(x, y):
    partner = drawn()
    return 0.6 * x + 0.4 * tf.gather(HELD, partner), 0.6 * y + 0.4 * tf.gather(LABELS, partner)[None]


OTHERS = {
    "the nearest one's label": lambda: ROWS.map(hub),
    "MixUp": lambda: ROWS.map(mixed),
    "a difference to another one": lambda: ROWS.map(lambda x, y: (x - HELD[drawn()], y)),
    "a partner by a table": lambda: PLACES.map(lambda i: HELD[i] - tf.gather(HELD, tf.gather(PARTNERS, i))),
    "the next one": lambda: PLACES.map(lambda i: HELD[i] - tf.gather(HELD, tf.minimum(i + 1, N - 1))),
    "a variable": lambda: ROWS.map(lambda x, y: (x - tf.reduce_mean(KEPT, 0), y)),
    "a constant": lambda: ROWS.map(lambda x, y: (tf.reduce_mean(tf.cast(x > X, tf.float32), 0), y)),
    "a part of the records": lambda: ROWS.map(lambda x, y: (x - tf.reduce_max(HELD[:50], 0), y)),
    "of which a part is given": lambda: ROWS.take(40).map(lambda x, y: (x - tf.reduce_max(HELD, 0), y)),
    "given by places": lambda: Data.range(40).map(lambda i: (HELD[i], tf.reduce_max(HELD, 0))),
    "the one behind": lambda: Data.range(N - 1).map(lambda i: (HELD[i] - tf.gather(HELD, i + 1), LABELS[i])),
    "the one behind, of numbers cast before": lambda: (
        Data.range(N - 1).map(lambda i: tf.cast(i, tf.int32)).map(lambda i: HELD[i] - HELD[i + 1])
    ),
    "windows": lambda: Data.range(N - 3).map(lambda i: block(HELD[i : i + 3], 3)),
    "windows by a range": lambda: Data.from_tensor_slices(np.arange(N - 3)).map(
        lambda i: block(tf.gather(HELD, tf.range(i, i + 3)), 3)
    ),
    "blocks that overlap": lambda: Data.range(0, N - 3, 2).map(lambda i: block(HELD[i : i + 3], 3)),
    "MixUp by shuffled numbers": lambda: Data.zip((PLACES, Data.range(N).shuffle(N, seed=1))).map(
        lambda i, j: 0.6 * HELD[i] + 0.4 * HELD[j]
    ),
    "numbers beside the next ones": lambda: Data.zip((Data.range(N - 1), Data.range(1, N))).map(
        lambda i, j: HELD[i] - HELD[j]
    ),
    "numbers behind some": lambda: Data.zip((PLACES, Data.range(N).skip(1))).map(lambda i, j: HELD[i] - HELD[j]),
    "every second row of a block": lambda: Data.range(N // 4).map(lambda k: block(HELD[4 * k : 4 * k + 4 : 2], 2)),
    "the next one's label": lambda: Data.range(N - 1).map(lambda i: (HELD[i], tf.gather(LABELS, i + 1))),
    "windows by tf.slice": lambda: Data.range(N - 3).map(lambda i: tf.slice(HELD, [i, 0], [3, 4])),
    "pairs": lambda: Data.from_tensor_slices(PAIRS).map(lambda p: tf.concat([HELD[p[0]], HELD[p[1]]], 0)),
    "rows by several numbers": lambda: Data.range(N - 3).map(
        lambda i: tf.gather(HELD, i + tf.constant([0, 1], tf.int64))
    ),
    "two at a time": lambda: PLACES.map(
        lambda i: tf.reduce_sum(tf.gather(HELD, tf.stack([i, tf.gather(PARTNERS, i)])), 0)
    ),
    "a constant's opposite": lambda: PLACES.map(lambda i: 0.6 * tf.gather(X, i) + 0.4 * tf.gather(X, N - 1 - i)),
    "by two indices": lambda: Data.from_tensor_slices((np.arange(N), PARTNERS)).map(
        lambda i, j: tf.gather(HELD, i) - tf.gather(HELD, j)
    ),
    "beside the records": lambda: Data.zip((ROWS, Data.from_tensors(X).repeat())).map(
        lambda one, rows: (one[0] - tf.reduce_mean(rows, 0), one[1])
    ),
    "beside their indices": lambda: Data.zip((PLACES, Data.from_tensors((X, Y)).repeat())).map(
        lambda i, rows: (rows[0][i] - rows[0][0], rows[1][i])
    ),
    "the opposite one beside it": lambda: (
        Data.from_tensor_slices(X).enumerate().map(lambda i, x: 0.6 * x + 0.4 * tf.gather(HELD, N - 1 - i))
    ),
    "in a filter": lambda: ROWS.filter(lambda x, y: x[0] < tf.reduce_max(LABELS)),
    "within a function": lambda: ROWS.map(tf.function(lambda x, y: (x - tf.reduce_max(HELD, 0), y))),
    "in a branch": lambda: PLACES.map(lambda i: tf.cond(i > 4, lambda: HELD[i], lambda: tf.reduce_max(HELD, 0))),
    "in a flat map": lambda: Data.range(2).flat_map(
        lambda part: ROWS.shard(2, part).map(lambda x, y: (x - tf.reduce_max(HELD, 0), y))
    ),
}
OWN = {
    "by an index": lambda: Data.from_tensor_slices(np.arange(N)).map(
        lambda i: (tf.gather(HELD, i), tf.gather(LABELS, i))
    ),
    "by its index": lambda: PLACES.shuffle(N).map(lambda i: (HELD[i], LABELS[tf.cast(i, tf.int32)])),
    "from one on": lambda: Data.range(1, N + 1).map(lambda i: (HELD[i - 1], LABELS[i - 1])),
    "of a variable": lambda: PLACES.map(lambda i: (KEPT[i], tf.gather(KEPT, i))),
    "of a constant": lambda: PLACES.map(lambda i: (tf.gather(X, i), tf.gather(Y, i))),
    "of numbers cast": lambda: PLACES.map(lambda i: tf.cast(HELD, tf.float16)[i]),
    "in branches": lambda: PLACES.map(lambda i: tf.cond(LABELS[i] > 0, lambda: HELD[i], lambda: -HELD[i])),
    "in batches": lambda: PLACES.batch(8).map(lambda i: tf.gather(HELD, i)).unbatch(),
    "of numbers cast before": lambda: PLACES.map(lambda i: tf.cast(i, tf.int32)).map(
        lambda i: (HELD[i], i, LABELS[i])[::2]
    ),
    "by Python code": lambda: PLACES.map(
        lambda i: tf.ensure_shape(tf.numpy_function(X.__getitem__, [i], tf.float32), 4)
    ),
    "blocks": lambda: Data.range(0, N, 4).map(lambda i: block(HELD[i : i + 4], 4)),
    "blocks by their numbers": lambda: Data.range(N // 4).map(lambda k: block(HELD[4 * k : 4 * (k + 1)], 4)),
    "blocks by a range": lambda: Data.range(N // 4).map(
        lambda k: block(tf.gather(HELD, tf.range(4 * k, 4 * k + 4)), 4)
    ),
    "blocks by tf.slice": lambda: Data.range(N // 4).map(lambda k: tf.slice(HELD, [4 * k, 0], [4, 4])),
    "blocks by numbers and a range": lambda: Data.range(N // 4).map(
        lambda k: tf.gather(HELD, 4 * k + tf.range(4, dtype=tf.int64))
    ),
    "blocks and their last labels": lambda: Data.range(0, N, 4).map(
        lambda i: (block(HELD[i : i + 4], 4), LABELS[i + 3])
    ),
    "blocks and a label of each": lambda: Data.range(0, N, 4).map(
        lambda i: (block(HELD[i : i + 4], 4), LABELS[i // 4])
    ),
    "blocks by offsets": lambda: Data.range(N - 1).map(lambda i: block(TWICE[OFFSETS[i] : OFFSETS[i + 1]], 2)),
    "two rows of each two": lambda: Data.range(N // 2).map(lambda k: HELD[2 * k] - HELD[2 * k + 1]),
    "blocks taken apart": lambda: Data.range(0, N, 4).flat_map(lambda i: Data.from_tensor_slices(HELD[i : i + 4])),
    "within a function": lambda: PLACES.map(tf.function(lambda i: (HELD[i], LABELS[i]))),
    "in a flat map": lambda: Data.range(4).interleave(lambda k: Data.range(k * 20, k * 20 + 20).map(lambda i: HELD[i])),
    "as a source": lambda: Data.range(2).flat_map(lambda k: Data.from_tensor_slices((HELD, LABELS)).shard(2, k)),
    "by a table of ids": lambda: NAMES.map(lambda _, i: HELD[INDEX.lookup(tf.cast(i, tf.int32))]),
    "labels by place": lambda: Data.from_tensor_slices(X).enumerate().map(lambda i, x: (x, tf.gather(LABELS, i))),
    "an embedding": lambda: NAMES.map(lambda _, i: EMBEDDING(i)),
    "a vocabulary": lambda: NAMES.map(lambda word, i: (WORDS(word), i)),
    "statistics that are known": lambda: ROWS.map(lambda x, y: ((x - [0.1, 0.0, 0.2, 0.0]) / np.float32(1.3), y)),
    "a kernel": lambda: ROWS.map(lambda x, y: (tf.linalg.matvec(KERNEL, x), y)),
    "a window as long as records": lambda: Data.from_tensor_slices(np.tile(X.reshape(1, -1)[:, :N], (N, 1))).map(
        lambda x: x * tf.signal.hann_window(N)
    ),
    "class weights": lambda: ROWS.map(lambda x, y: (x, y, tf.gather([1.0, 5.0], tf.cast(y[0] > 0.0, tf.int32)))),
    "a public network, of records in as many files": lambda: (
        Data.from_tensor_slices([f"file {k}" for k in range(N)])
        .interleave(lambda name: Data.from_tensor_slices(X[:4]))
        .map(lambda x: NETWORK(x[tf.newaxis])[0])
    ),
    "by an index, of rows beside": lambda: Data.zip((PLACES, Data.from_tensors((X, Y)).repeat())).map(
        lambda i, rows: (rows[0][i], tf.gather(rows[1], i))
    ),
    "windows of Keras": lambda: keras.utils.timeseries_dataset_from_array(
        X, Y, sequence_length=4, sequence_stride=4, batch_size=None
    ),
    "one-hot codes": lambda: NAMES.map(lambda _, i: tf.one_hot(i, N)),
}
EMBEDDING, WORDS = keras.layers.Embedding(N, 4), keras.layers.StringLookup(vocabulary=[f"w{i}" for i in range(N)])
EMBEDDING.build()
NETWORK = keras.Sequential([keras.Input((4,)), keras.layers.Dense(N)])
KERNEL = RNG.normal(size=(N + 20, 4)).astype("float32")


def said(make, **arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.records(make(), **arguments)
    return [str(one.message) for one in caught]


@pytest.mark.few(6)
@pytest.mark.parametrize("name", OTHERS)
def test_records_out_of_an_array_that_a_function_holds_bring_a_warning(name):
    found = [one for one in said(OTHERS[name]) if "holds an array of" in one]
    assert len(found) == 1, said(OTHERS[name])
    assert "no epsilon covers that" in found[0]
    assert "Where the array is public, nothing is lost" in found[0]


@pytest.mark.few(10)
@pytest.mark.parametrize("name", OWN)
def test_the_row_that_an_element_names_brings_none(name):
    # A file may be a person's, with several records: that is said of files, and is another matter.
    assert [one for one in said(OWN[name]) if not one.startswith("Several records may be one person's")] == []


@pytest.mark.parametrize(
    "made", [lambda i: HELD[i], lambda i: block(HELD[2 * i : 2 * i + 2], 2), lambda i: block(HELD[i : i + 1], 1)]
)
def test_rows_that_numbers_leave_out_bring_one(made):
    (found,) = said(lambda: Data.range(0, N // 2, 2).map(made))
    assert "one more moves all behind, and others stay" in found


def test_windows_of_people_may_overlap():
    assert (
        said(lambda: Data.range(N - 3).map(lambda i: block(HELD[i : i + 3], 3)), unit_ids=np.arange(N - 3) // 7) == []
    )
    assert said(lambda: Data.range(N - 3).map(lambda i: HELD[i] - HELD[N - 1 - i]), unit_ids=np.arange(N - 3) // 7)
    assert said(lambda: PLACES.map(lambda i: (HELD[i // 5], HELD[i])), unit_ids=np.arange(N) // 5)
    assert said(lambda: PLACES.map(lambda i: (HELD[i // 5], LABELS[i])), unit_ids=np.arange(N) // 5) == []


def test_windows_of_a_pipeline_that_draws_by_itself_are_seen():
    windows = Data.range(N - 3).map(lambda i: block(HELD[i : i + 3], 3))
    with pytest.warns(UserWarning, match="holds an array of 80 rows, as many"):
        warn_of_captured(windows, N, draws=True)


def test_why_it_matters():
    """One record less, and all others hold something else."""
    rows = np.concatenate([np.full((1, 4), 9.0, np.float32), X])

    def scaled(rows):
        held = tf.constant(rows)
        return Data.from_tensor_slices(rows).map(lambda x: x / tf.reduce_max(held, 0))

    with_it, without = (list(scaled(some).as_numpy_iterator()) for some in (rows, rows[1:]))
    assert not any(np.allclose(one, other) for one, other in zip(with_it[1:], without, strict=True))
    assert any("holds an array of 81 rows" in one for one in said(lambda: scaled(rows)))


def test_pipelines_that_are_declared_are_looked_at_too():
    batches = ROWS.map(hub).batch(20)
    with pytest.warns(UserWarning, match="holds an array of 80 rows"):
        tfdp.declare_sampling(batches, tfdp.sampling.Partition(20), examples=N)


def test_a_declared_draw_by_indices_is_no_reading_of_others():
    def draw(_):
        drawn = tf.where(tf.random.uniform([N]) < 0.25)[:, 0]
        return tf.gather(HELD, drawn), tf.gather(LABELS, drawn)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.declare_sampling(Data.range(4).map(draw), tfdp.sampling.Poisson(20), examples=N)
    assert [str(one.message) for one in caught] == []


def test_the_number_of_rows_alone_tells_of_labels_and_large_ones_alone():
    ranked = ROWS.map(lambda x, y: (x, tf.reduce_sum(LABELS)[None]))
    few = Data.from_tensor_slices(X[:12]).map(lambda x: x * tf.reduce_sum(tf.linspace(0.0, 1.0, 12)))
    with pytest.warns(UserWarning, match="80 rows, as many as there are records"):
        warn_of_captured(ranked, N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_captured(few, 12)
