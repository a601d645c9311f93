"""Records that meet in a pipeline, before they are drawn, are refused; what works record by record is not."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.batches.mixing import meetings, refuse_mixing

Data = tf.data.Dataset
RNG = np.random.default_rng(0)
X, Y = RNG.random((60, 8), np.float32), np.eye(2, dtype=np.float32)[np.arange(60) % 2]
ROWS = Data.from_tensor_slices((X, Y))
IMAGES = Data.from_tensor_slices((RNG.random((60, 8, 8, 3), np.float32), Y))
TEXTS = Data.from_tensor_slices((np.array(["a b", "b"] * 10), np.arange(20)))


def centred(x, y):
    return x - tf.reduce_mean(x, 0), y


def doubled(x, y):
    return 2.0 * x, y, tf.ones(tf.shape(y)[0])


def half(one, other):
    return 0.5 * (one[0] + other[0]), 0.5 * (one[1] + other[1])


def half_of(one, x):
    return one[0] + x, one[1]


def layer(made):
    """A layer on x alone, in training."""

    def call(x, y):
        return made(x, training=True), y

    return call


def together(made):
    """A layer on x and y, in training."""

    def call(x, y):
        found = made({"images": x, "labels": y}, training=True)
        return found["images"], found["labels"]

    return call


def slices(x, y):
    return Data.from_tensor_slices((x, y))


COUNT = tf.Variable(0.0)
QUEUE, OTHER = tf.queue.FIFOQueue(9, tf.float32, [(8,)]), iter(ROWS.repeat())
FIXED = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [1.0, 5.0]), 0.0)
COUNTER, BOXES = Data.counter(), tf.constant([[[0.1, 0.1, 0.9, 0.9]]])


def twice(rows):
    return Data.zip((rows.map(lambda x, y: x), rows.map(lambda x, y: y)))


def kept(write=lambda total, x: total.assign_add(x)):
    total = tf.Variable(tf.zeros(8))

    def call(x, y):
        return x - write(total, x), y

    return ROWS.map(call)


def scaled_by(table):
    """By the largest number so far, which a table keeps."""

    def call(x, y):
        key = tf.constant(0, tf.int64)
        largest = tf.maximum(tf.ensure_shape(table.lookup(key), ()), tf.reduce_max(x))
        table.insert(key, largest)
        return x / largest, y

    return ROWS.map(call)


def first_of_each(table):
    def stays(x, y):
        key = tf.argmax(y)
        count = table.lookup(key)
        table.insert(key, count + 1)
        return count < 9

    return ROWS.shuffle(60).filter(stays)


def table_of(value):
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.constant(value).dtype, value)


def filled():
    """A table that is written beforehand."""
    table = table_of(0.5)
    table.insert(tf.range(2, dtype=tf.int64), [1.0, 2.0])
    return ROWS.map(lambda x, y: (x * table.lookup(tf.argmax(y)), y))


def queued(x, y):
    return (QUEUE.enqueue(x), x - QUEUE.dequeue())[1], y


def normalized():
    norm = keras.layers.BatchNormalization()
    norm.build((None, 8))
    return ROWS.batch(20).map(layer(norm)).unbatch()


def texts(made):
    return TEXTS.batch(5).map(lambda text, y: (made(text), y)).unbatch()


def generated():
    signature = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 2)))
    return Data.from_generator(lambda: iter([(X, Y)]), output_signature=signature)


def fixed(function, source=ROWS):
    return source.batch(20, drop_remainder=True).map(function).unbatch()


def where_known(x, y):
    if x.shape[0] is not None:
        x = x - tf.reduce_mean(x, 0, keepdims=True)
    return x, y


def neighbours_of_twenty(x, y):
    return (tf.concat([x[1:], x[:1]], 0), y) if x.shape[0] == 20 else (x, y)


def own_of_twenty(x, y):
    """Where the number is known, a constant of that many rows, so that it is in the graph."""
    weights = np.eye(20, dtype=np.float32)[::-1].copy() if x.shape[0] is not None else None
    return (x if weights is None else weights @ x), y


def cropped(x, y):
    return tf.image.random_crop(x, (tf.shape(x)[0], 4, 4, 3)), y


def flat(x, y):
    return tf.reshape(x, (20, -1)), y


def cut(size, **options):
    windows = Data.from_tensor_slices(X).window(size, drop_remainder=True, **options)
    return windows.flat_map(lambda one: one.batch(size)).map(lambda one: (tf.reduce_mean(one, 0), one[-1, :1]))


def parsed(text, y):
    return tf.io.parse_example(text, {"x": tf.io.FixedLenFeature([2], tf.float32)})["x"], y


def fields(text, y):
    return tf.stack(tf.io.decode_csv(text, [0.0, 0.0]), 1), y


def between(x, y):
    return tf.searchsorted([0.2, 0.5], x[:, 0]), tf.searchsorted(tf.sort(x, 1), x)


MIXED = {
    "mean": lambda: ROWS.batch(20).map(centred).unbatch(),
    "of a fixed size": lambda: ROWS.batch(20, drop_remainder=True).map(centred).unbatch(),
    "of a known size": lambda: fixed(where_known),
    "of one size": lambda: fixed(neighbours_of_twenty),
    "of a fixed size, MixUp": lambda: fixed(together(keras.layers.MixUp()), IMAGES),
    "before a map": lambda: ROWS.batch(20).map(centred).prefetch(2).unbatch().map(lambda x, y: (2.0 * x, y)).shuffle(9),
    "roll": lambda: ROWS.batch(20).map(lambda x, y: (0.7 * x + 0.3 * tf.roll(x, 1, 0), y)).unbatch(),
    "sort": lambda: ROWS.batch(20).map(lambda x, y: (tf.sort(x, 0), y)).unbatch(),
    "MixUp": lambda: IMAGES.batch(20).map(together(keras.layers.MixUp())).unbatch(),
    "CutMix": lambda: IMAGES.batch(20).map(together(keras.layers.CutMix())).unbatch(),
    "BatchNormalization": normalized,
    "a variable": kept,
    "scan": lambda: ROWS.scan(tf.zeros(8), lambda state, one: (state + one[0], (one[0] - state, one[1]))),
    "resampling": lambda: ROWS.rejection_resample(lambda x, y: tf.argmax(y, output_type=tf.int32), [0.5, 0.5]),
    "two orders": lambda: Data.zip((ROWS.shuffle(60), ROWS.shuffle(60))).map(half),
    "neighbours": lambda: Data.zip((ROWS, ROWS.skip(1))).map(half),
    "two orders of batches": lambda: Data.zip((ROWS.shuffle(60).batch(20), ROWS.batch(20))).map(half).unbatch(),
    "a filter of batches": lambda: ROWS.batch(20).filter(lambda x, y: tf.reduce_mean(y[:, 0]) > 0.4).unbatch(),
    "taken apart by a flat map": lambda: ROWS.batch(20).map(centred).flat_map(slices),
    "within a flat map": lambda: ROWS.batch(20).flat_map(lambda x, y: slices(*centred(x, y))),
    "within an interleave": lambda: ROWS.batch(20).interleave(lambda x, y: slices(*centred(x, y))),
    "batches of batches": lambda: ROWS.batch(10).map(centred).batch(2).unbatch().unbatch(),
    "batched anew": lambda: ROWS.batch(20).map(centred).rebatch(5).unbatch(),
    "groups": lambda: (
        ROWS.group_by_window(lambda x, y: tf.argmax(y), lambda _, group: group.batch(30), window_size=30)
        .map(centred)
        .unbatch()
    ),
    "beside a batch's mean": lambda: Data.zip((ROWS, ROWS.batch(60).map(centred).repeat())),
    "elements beside batches": lambda: Data.zip((ROWS, ROWS.batch(2))).map(lambda one, two: one),
    "one shuffle read twice": lambda: twice(ROWS.shuffle(60)),
    "as long as": lambda: ROWS.take_while(lambda x, y: x[0] < 0.9),
    "a table": lambda: scaled_by(table_of(1.0)),
    "a table of a filter": lambda: first_of_each(table_of(0)),
    "a dense table": lambda: scaled_by(tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 1.0, -1, -2)),
    "a queue": lambda: ROWS.map(queued),
    "a scattered variable": lambda: kept(lambda total, x: total.scatter_add(tf.IndexedSlices(x[:1], [0]))),
    "behind a write": lambda: (
        ROWS.batch(20).map(tf.function(lambda x, y: (COUNT.assign_add(1.0), centred(x, y))[1])).unbatch()
    ),
    "one tensor": lambda: Data.from_tensors((X, Y)).map(centred).unbatch(),
    "a scan over one tensor": lambda: (
        Data.from_tensors((X, Y))
        .repeat(len(X))
        .scan(tf.constant(0, tf.int64), lambda i, one: (i + 1, (one[0][i] - one[0][0], one[1][i])))
    ),
    "a generator": lambda: generated().map(centred).unbatch(),
}
FINE = {
    "a table that nobody writes": lambda: ROWS.map(
        lambda x, y: (x, y, FIXED.lookup(tf.argmax(y, output_type=tf.int32)))
    ),
    "a table that was written": filled,
    "counts beside": lambda: Data.zip((ROWS, (COUNTER, COUNTER))).map(lambda one, two: one),
    "files that are read": lambda: Data.list_files(__file__).map(lambda path: tf.strings.length(tf.io.read_file(path))),
    "checks and messages": lambda: ROWS.map(lambda x, y: (tf.debugging.check_numerics(x, "x"), tf.abs(y))),
    "a box": lambda: IMAGES.map(lambda x, y: (tf.image.sample_distorted_bounding_box([8, 8, 3], BOXES)[0], y)),
    "records": lambda: ROWS,
    "batches taken apart": lambda: ROWS.shuffle(60).batch(20).prefetch(2).unbatch(),
    "doubled": lambda: ROWS.batch(20).map(doubled).unbatch(),
    "of a fixed size": lambda: ROWS.batch(20, drop_remainder=True).map(lambda x, y: (2.0 * x, y)).unbatch(),
    "of a fixed size, in a shape": lambda: fixed(flat, IMAGES),
    "of a fixed size, cropped": lambda: fixed(cropped, IMAGES),
    "of a fixed size, random layers": lambda: fixed(layer(keras.layers.RandomRotation(0.1)), IMAGES),
    "of a fixed size, words": lambda: fixed(
        layer(keras.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4)), TEXTS
    ),
    "of a fixed size, a map": lambda: fixed(lambda x, y: (tf.map_fn(lambda one: one / tf.norm(one), x), y)),
    "of a fixed size, ones": lambda: fixed(lambda x, y: (x, y, tf.ones(x.shape[0]))),
    "cropped": lambda: IMAGES.batch(20).map(cropped).unbatch(),
    "parsed": lambda: TEXTS.batch(5).map(parsed).unbatch(),
    "fields": lambda: TEXTS.batch(5).map(fields).unbatch(),
    "between edges": lambda: ROWS.batch(5).map(between).unbatch(),
    "windows side by side": lambda: cut(5),
    "windows that leave out": lambda: cut(3, shift=7),
    "windows of every second": lambda: cut(3, shift=6, stride=2),
    "windows in between": lambda: cut(3, shift=3, stride=2),
    "in parallel": lambda: ROWS.batch(20).map(doubled, num_parallel_calls=2).cache().unbatch(),
    "constants": lambda: ROWS.batch(20).map(layer(keras.layers.Normalization(mean=0.5, variance=2.0))).unbatch(),
    "random layers": lambda: IMAGES.batch(20).map(layer(keras.layers.RandomRotation(0.1))).unbatch(),
    "resized": lambda: IMAGES.batch(20).map(lambda x, y: (tf.image.resize(x, (4, 4)), y)).unbatch(),
    "words": lambda: texts(keras.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4)),
    "numbers of texts": lambda: texts(keras.layers.StringLookup(vocabulary=["a", "b"])),
    "a dict": lambda: ROWS.batch(20).map(lambda x, y: ({"a": x[:, :3], "b": x[:, 3:]}, y)).unbatch(),
    "one record's mean": lambda: ROWS.map(centred),
    "batches as records": lambda: ROWS.batch(10, drop_remainder=True).map(centred),
    "x beside y": lambda: Data.zip((Data.from_tensor_slices(X), Data.from_tensor_slices(Y))),
    "mapped twice": lambda: Data.zip((ROWS.map(lambda x, y: x), ROWS.map(lambda x, y: y).prefetch(1))),
    "a filter": lambda: ROWS.filter(lambda x, y: y[0] > 0.5),
    "windows": lambda: keras.utils.timeseries_dataset_from_array(X, Y, 5).unbatch(),
    "numbered": lambda: ROWS.enumerate().map(lambda place, one: one),
    "a generator": lambda: generated().unbatch(),
    "read twice, interleaved": lambda: twice(Data.range(3).interleave(lambda place: slices(X[:9], Y[:9]))),
    "read twice, a part": lambda: twice(ROWS.take(30).skip(2).shard(2, 0)),
    "read twice, filtered": lambda: twice(ROWS.filter(lambda x, y: y[0] > 0.5)),
    "read twice, shuffled once": lambda: twice(ROWS.shuffle(9, seed=1, reshuffle_each_iteration=False)),
    "read twice in batches": lambda: (
        Data.zip((ROWS.batch(4), ROWS.map(lambda x, y: x).batch(4))).map(half_of).unbatch()
    ),
    "parsed files": lambda: Data.range(3).interleave(lambda place: slices(X[:9], Y[:9]).map(lambda x, y: (x, y))),
    "interleaved": lambda: Data.range(3).interleave(lambda place: ROWS.shard(3, place)),
    "two data sets": lambda: ROWS.concatenate(Data.from_tensor_slices((X + 1.0, Y))),
}
QUICK = [
    "mean",
    "of a fixed size",
    "of a known size",
    "of one size",
    "MixUp",
    "a variable",
    "a table",
    "a table of a filter",
    "two orders",
    "scan",
    "neighbours",
    "a generator",
]


QUICK_FINE = [name for name in FINE if name.startswith(("of a fixed", "windows"))]
QUICK_FINE += [
    "a table that nobody writes",
    "counts beside",
    "doubled",
    "words",
    "mapped twice",
    "cropped",
    "parsed",
    "fields",
    "between edges",
]


@pytest.mark.parametrize("name", slow_but(QUICK, [*MIXED]))
def test_records_that_meet_are_refused(name):
    with pytest.raises(ValueError, match=r"Records meet in this pipeline: .*no epsilon is stated"):
        tfdp.records(MIXED[name]())


@pytest.mark.parametrize("name", slow_but(QUICK_FINE, [*FINE]))
def test_what_works_record_by_record_is_taken_without_a_word(name):
    assert list(meetings(FINE[name](), batched=False)) == []


UNKNOWN = {
    "an iterator": lambda: ROWS.map(lambda x, y: (x - next(OTHER)[0], y)),
    "a file that is written": lambda: ROWS.map(
        lambda x, y: (tf.io.write_file("/dev/null", tf.as_string(x[0])), (x, y))[1]
    ),
    "another data set": lambda: ROWS.map(
        lambda x, y: (x - ROWS.reduce(tf.zeros(8), lambda all_of, one: all_of + one[0]), y)
    ),
    "a group": lambda: ROWS.group_by_window(
        lambda x, y: tf.constant(0, tf.int64), lambda _, group: group.batch(8).map(centred), window_size=8
    ).unbatch(),
    "a flat map": lambda: ROWS.batch(8).flat_map(lambda x, y: Data.from_tensors(centred(x, y)).unbatch()),
    "unique": lambda: Data.from_tensor_slices(np.arange(60) // 2).unique(),
    "of a known size, by a constant": lambda: fixed(own_of_twenty),
    "a shape that says the number": lambda: IMAGES.batch(20).map(flat).unbatch(),
    "windows": lambda: cut(5, shift=1),
    "windows with gaps": lambda: cut(4, shift=2, stride=2),
    "lists of several lengths": lambda: (
        TEXTS.batch(5)
        .map(lambda text, y: (tf.io.parse_example(text, {"x": tf.io.VarLenFeature(tf.float32)})["x"].values, y))
        .unbatch()
    ),
}


@pytest.mark.parametrize("name", slow_but([name for name in UNKNOWN if name != "a group"], [*UNKNOWN]))
def test_what_cannot_be_followed_is_said(name):
    found = list(meetings(UNKNOWN[name](), batched=False))
    assert found
    assert not any(one.certain for one in found)


def test_what_is_not_known_is_said():
    def odd(x, y):
        return tf.linalg.sqrtm(tf.linalg.diag(x)), y

    with pytest.warns(
        UserWarning, match="Whether records meet in this pipeline is not known: .* no rule for operation"
    ):
        refuse_mixing(ROWS.batch(20).map(odd).unbatch())


def told(pipeline):
    with pytest.warns(UserWarning, match="Whether records meet in this pipeline is not known") as caught:
        refuse_mixing(pipeline)
    return str(caught[0].message)


def test_what_helps_is_what_it_says():
    """Nothing of MixUp, or of layers, where it is not known whether records meet."""
    said = told(UNKNOWN["a shape that says the number"]())
    assert "dataset.map before .batch" in said
    assert "write -1 for the number of records" in said
    assert "MixUp" not in said
    assert "a layer of the model" not in said
    fixed_size = told(UNKNOWN["of a known size, by a constant"]())
    assert "a fixed size does what may depend on that size" in fixed_size
    windows = told(UNKNOWN["windows"]())
    assert ".window(5, shift=1) puts one record of its source into several windows, up to 5" in windows
    assert "unit_ids" in windows
    assert "up to 4" in told(UNKNOWN["windows with gaps"]())


def test_one_record_a_batch_meets_no_other():
    for drop in (False, True):
        found = list(meetings(ROWS.batch(1, drop_remainder=drop).map(doubled).unbatch(), batched=False))
        assert found == []


def test_windows_whose_persons_are_given_may_overlap():
    windows = cut(5, shift=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_place = tfdp.records(windows, unit_ids=np.arange(56) // 14)
        windows = windows.enumerate().map(lambda i, one: ({"x": one[0], "who": i // 14}, one[1]))
        by_name = tfdp.records(windows, unit_ids="who")
    assert list(by_place.unit_ids) == list(by_name.unit_ids)


def test_windows_are_told_where_a_sampling_is_declared():
    windows = cut(5, shift=1).batch(20).apply(tf.data.experimental.assert_cardinality(3))
    sampling = tfdp.sampling.Partition(20)
    with pytest.warns(UserWarning, match=r"Records may meet in this pipeline: \.window\(5, shift=1\)"):
        tfdp.declare_sampling(windows, sampling, examples=56)


def test_functions_within_functions_that_write_are_said():
    total = tf.Variable(tf.zeros(8))
    within = tf.function(lambda x: x - total.assign_add(x))
    branches = ROWS.map(lambda x, y: (tf.cond(y[0] > 0.0, lambda: total.assign_add(x), lambda: x), y))
    for pipeline in (ROWS.map(lambda x, y: (within(x), y)), branches):
        with pytest.warns(UserWarning, match="a function within one of its functions writes a variable or a table"):
            refuse_mixing(pipeline)


def test_python_code_on_batches_is_refused_and_on_records_it_is_not():
    def code(x, y):
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), x.shape), y

    with pytest.raises(ValueError, match="Python code in the graph"):
        refuse_mixing(ROWS.batch(20).map(code).unbatch())
    assert list(meetings(ROWS.map(code), batched=False)) == []


def test_batches_of_declared_pipelines_are_looked_at_as_well():
    sampling, batches = tfdp.sampling.Partition(20), ROWS.shuffle(60).batch(20)
    for pipeline in (batches, batches.map(lambda x, y: (2.0 * x, y)), ROWS.shuffle(60).map(centred).batch(20)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tfdp.declare_sampling(pipeline, sampling, examples=60)
    with pytest.warns(UserWarning, match="Records may meet in this pipeline: a function on batches"):
        tfdp.declare_sampling(batches.map(centred), sampling, examples=60)
