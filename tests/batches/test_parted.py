"""A flat map that makes several records of what one element gave says so: how many need not be known for that."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.mixed_pipelines import NAMES, ROWS, Data, X, Y, slices
from tfdp_layers.batches.mixing import meetings, refuse_mixing

NOTES = Data.from_tensor_slices((np.array(["fever. pain", "rash", "cough. pain. rash"]), np.zeros(3, np.float32)))
SERIES = Data.from_tensor_slices((X.reshape(20, 3, 8), np.arange(20.0)))
VISITS = Data.from_tensor_slices(tf.RaggedTensor.from_row_lengths(X, [5, 15, 40]))
LENGTHS = Data.from_tensor_slices((X.reshape(20, 3, 8), np.arange(20) % 3, np.arange(20.0)))
PATIENTS = Data.from_generator(lambda: iter([]), output_signature=(tf.TensorSpec((None, 4)), tf.TensorSpec(())))
PARTS, Lines, Records = Data.from_tensor_slices, tf.data.TextLineDataset, tf.data.TFRecordDataset


def sentences(text, *_):
    return tf.strings.split(text, ". ")


def picture(name):
    return tf.reshape(tf.io.decode_png(tf.io.read_file(name), channels=3), (-1, 4, 4, 3))


def fields(line):
    return tf.strings.to_number(tf.strings.split(line, ","))


def decoded(record):
    return tf.reshape(tf.io.decode_raw(record, tf.float32), (-1, 4))


def labelled(rows, y):
    return PARTS(rows).map(lambda one: (one, y))


def ragged(labels):
    """A generator of ragged arrays beside labels of this shape."""
    signature = (tf.RaggedTensorSpec((None, None)), tf.TensorSpec(labels))
    return Data.from_generator(lambda: iter([]), output_signature=signature)


def pictures_of(names):
    return PARTS(names).map(lambda name: tf.io.decode_png(tf.io.read_file(name), channels=3))


def visit(rows):
    return PARTS(rows).window(2, 1).flat_map(lambda one: one.batch(2))


def words_by_number(text, y):
    words = tf.strings.split(text)
    return Data.range(tf.size(words, out_type=tf.int64)).map(lambda i: (words[i], y))


SEVERAL = {
    "sentences": lambda: NOTES.flat_map(lambda t, y: PARTS(sentences(t)).map(lambda s: (s, y))),
    "sentences and labels": lambda: NOTES.flat_map(
        lambda t, y: slices(sentences(t), tf.fill(tf.shape(sentences(t)), y))
    ),
    "texts alone": lambda: NOTES.map(lambda t, y: t).interleave(lambda t: PARTS(sentences(t))),
    "in a function": lambda: NOTES.flat_map(tf.function(lambda t, y: PARTS(sentences(t)))),
    "by their numbers": lambda: NOTES.flat_map(words_by_number),
    "copies of each class": lambda: ROWS.flat_map(lambda x, y: PARTS(tf.repeat(x[None], tf.argmax(y) + 1, axis=0))),
    "random changes by a count": lambda: ROWS.flat_map(lambda x, y: Data.range(6).map(lambda _: (x, y))),
    "ragged visits": lambda: VISITS.flat_map(PARTS),
    "visits of a generator": lambda: PATIENTS.flat_map(lambda v, y: PARTS(v).map(lambda one: (one, y))),
    "visits beside their label": lambda: PATIENTS.flat_map(
        lambda v, y: Data.zip((PARTS(v), Data.from_tensors(y).repeat()))
    ),
    "padded visits": lambda: LENGTHS.flat_map(lambda v, n, y: PARTS(v[:n]).map(lambda one: (one, y))),
    "all rows of an array": lambda: PARTS(X.reshape(20, 3, 8)).flat_map(PARTS),
    "windows of its own": lambda: SERIES.flat_map(lambda x, y: visit(x).map(lambda one: (one, y))),
    "its own next step": lambda: SERIES.flat_map(lambda x, y: Data.zip((PARTS(x), PARTS(x).skip(1)))),
    "windows of one label": lambda: SERIES.flat_map(lambda x, y: slices(x, tf.repeat(y, 3))),
    "made within, then cut": lambda: SERIES.flat_map(lambda x, y: Data.from_tensors((x, y)).flat_map(labelled)),
    "notes made within, then cut": lambda: NOTES.flat_map(
        lambda t, y: Data.from_tensors((t, y)).map(lambda t, y: (sentences(t), y)).flat_map(labelled)
    ),
    "lines of shards": lambda: NAMES.interleave(lambda name: Lines(name).flat_map(lambda one: PARTS(fields(one)))),
    "words of lines of shards, by their numbers": lambda: NAMES.interleave(
        lambda name: Lines(name).map(lambda one: (one, 0)).flat_map(words_by_number)
    ),
    "records of shards": lambda: NAMES.interleave(lambda name: Records(name).map(decoded).flat_map(PARTS)),
    "records of shards, cut behind": lambda: NAMES.interleave(lambda name: Records(name).map(decoded)).flat_map(PARTS),
    "two arrays of each record of shards": lambda: NAMES.interleave(
        lambda name: Records(name).map(lambda one: (decoded(one), decoded(one)[:, 0]))
    ).flat_map(slices),
    "records of a list of files": lambda: Records(["a", "b"]).map(lambda one: (decoded(one), 0.0)).flat_map(labelled),
    "rows of batches": lambda: PARTS(X.reshape(20, 3, 8)).batch(2).flat_map(PARTS).flat_map(PARTS),
    "repeated parts": lambda: SERIES.flat_map(lambda x, y: PARTS(x).take(1).repeat(2)),
    "batched parts": lambda: SERIES.flat_map(lambda x, y: PARTS(x).batch(2)),
    "a share of the parts": lambda: SERIES.flat_map(lambda x, y: PARTS(x).shard(2, 0)),
    "one part, taken apart": lambda: SERIES.flat_map(lambda x, y: PARTS(x[None]).unbatch()),
    "one part behind one": lambda: SERIES.flat_map(lambda x, y: PARTS(x[:1]).concatenate(PARTS(x[1:2]))),
    "ragged visits of a generator": lambda: ragged(()).flat_map(lambda v, y: PARTS(v).map(lambda one: (one, y))),
    "pieces of pictures": lambda: NAMES.flat_map(lambda name: PARTS(picture(name))),
}
ONE_EACH = {
    "one row of each": lambda: SERIES.flat_map(lambda x, y: PARTS(x).shuffle(3).take(1)),
    "all rows put together": lambda: SERIES.flat_map(lambda x, y: PARTS(x).shuffle(3).batch(3)),
    "one or none": lambda: ROWS.flat_map(lambda x, y: Data.from_tensors((x, y)).take(tf.argmax(y))),
    "beside one row": lambda: SERIES.flat_map(lambda x, y: Data.zip((Data.from_tensors(y), PARTS(x)))),
    "batches taken apart": lambda: ROWS.batch(7).flat_map(slices),
    "batches of a generator": lambda: Data.from_generator(
        lambda: iter([]), output_signature=(tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))
    ).flat_map(slices),
    "one batch of a generator": lambda: Data.from_generator(
        lambda: iter([]), output_signature=tf.TensorSpec((None, 8))
    ).flat_map(PARTS),
    "blocks by their numbers": lambda: Data.range(6).flat_map(
        lambda i: slices(*(tf.constant(one)[10 * i : 10 * i + 10] for one in (X, Y)))
    ),
    "arrays in files": lambda: NAMES.flat_map(lambda name: PARTS(tf.numpy_function(np.load, [name], tf.float32))),
    "lines that are split": lambda: NAMES.flat_map(lambda name: PARTS(tf.strings.split(tf.io.read_file(name), "\n"))),
    "lines and their file's label": lambda: PARTS((["a"], [1.0])).flat_map(
        lambda name, y: Data.zip((tf.data.TextLineDataset(name), Data.from_tensors(y).repeat()))
    ),
    "rows of a shard's lines": lambda: NAMES.interleave(lambda name: Lines(name).skip(1).map(fields)),
    "one part of each line": lambda: NAMES.interleave(
        lambda name: Lines(name).flat_map(lambda one: PARTS(fields(one)).take(1))
    ),
    "lines that pass": lambda: NAMES.interleave(
        lambda name: Lines(name).flat_map(lambda one: Data.from_tensors(fields(one)).filter(lambda row: row[0] > 0))
    ),
    "lines in batches": lambda: NAMES.interleave(lambda name: Lines(name).batch(8).flat_map(PARTS)),
    "lines beside their file's label and weight": lambda: NAMES.flat_map(
        lambda name: Data.zip((Lines(name), PARTS(tf.strings.bytes_split(name))))
    ),
    "files that lines name": lambda: NAMES.interleave(
        lambda name: Lines(name).flat_map(lambda one: PARTS(tf.strings.split(tf.io.read_file(one), "\n")))
    ),
    "one part of a whole": lambda: SERIES.flat_map(
        lambda x, y: Data.from_tensors(x).flat_map(lambda rows: PARTS(rows).take(1))
    ),
    "ragged batches of a generator": lambda: ragged((None,)).flat_map(slices),
    "pictures in folders": lambda: NAMES.interleave(lambda name: pictures_of(tf.io.matching_files(name + "/*.png"))),
    "pictures that a file lists": lambda: NAMES.flat_map(
        lambda name: pictures_of(tf.strings.split(tf.io.read_file(name), "\n"))
    ),
    "names in folders": lambda: NAMES.flat_map(lambda name: Data.list_files(name + "/*.png", shuffle=False)),
}


def said(pipeline):
    return [one.reason for one in meetings(pipeline, batched=False)]


@pytest.mark.few(len(SEVERAL))
@pytest.mark.parametrize("name", SEVERAL)
def test_a_number_of_records_that_is_not_known_counts_as_several(name):
    assert sum("records of a" in one or "records of each" in one for one in said(SEVERAL[name]())) == 1


@pytest.mark.few(len(ONE_EACH))
@pytest.mark.parametrize("name", ONE_EACH)
def test_one_record_of_each_and_names_of_files_are_taken_without_a_word(name):
    assert said(ONE_EACH[name]()) == []


@pytest.mark.parametrize("name", ["sentences", "padded visits", "ragged visits"])
def test_ids_settle_it(name):
    with pytest.warns(UserWarning, match=r"Several records may be one person's: .* unit_ids"):
        refuse_mixing(SEVERAL[name]())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_mixing(SEVERAL[name](), whose=True)


def test_a_folder_s_name_may_be_added_to():
    """A text added to a name was taken for a number, in a TypeError."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = PARTS(["tests/batches"]).map(lambda folder: tf.strings.length(folder + "/*.py"))
        assert len(tfdp.records(names.map(lambda n: tf.cast(n, tf.float32)[None]))) == 1
