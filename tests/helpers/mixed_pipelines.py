"""Pipelines whose records meet, and others that make each record of its own alone."""

import keras
import numpy as np
import tensorflow as tf

Data = tf.data.Dataset
RNG = np.random.default_rng(0)
X, Y = RNG.random((60, 8), np.float32), np.eye(2, dtype=np.float32)[np.arange(60) % 2]
ROWS = Data.from_tensor_slices((X, Y))
NAMES = Data.from_tensor_slices(["a.csv", "b.csv"])
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
    "read twice, interleaved": lambda: twice(NAMES.interleave(tf.data.TextLineDataset).map(lambda one: (one, one))),
    "read twice, a part": lambda: twice(ROWS.take(30).skip(2).shard(2, 0)),
    "read twice, filtered": lambda: twice(ROWS.filter(lambda x, y: y[0] > 0.5)),
    "read twice, shuffled once": lambda: twice(ROWS.shuffle(9, seed=1, reshuffle_each_iteration=False)),
    "read twice in batches": lambda: (
        Data.zip((ROWS.batch(4), ROWS.map(lambda x, y: x).batch(4))).map(half_of).unbatch()
    ),
    "rows of batches": lambda: ROWS.batch(5).flat_map(slices),
    "rows of batches, of a fixed size": lambda: ROWS.batch(5, drop_remainder=True).flat_map(slices),
    "parsed files": lambda: NAMES.interleave(lambda name: tf.data.TextLineDataset(name).skip(1).map(tf.strings.length)),
    "interleaved": lambda: Data.range(3).interleave(lambda place: ROWS.shard(3, place)),
    "two data sets": lambda: ROWS.concatenate(Data.from_tensor_slices((X + 1.0, Y))),
}
