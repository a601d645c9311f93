"""Branches of a zip that leave out, add or move elements by themselves are told; those that go together are not."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.mixed_pipelines import Data, X, Y
from helpers.variants import slow_but
from tfdp_layers.batches.mixing import meetings

IMAGES, LABELS = Data.from_tensor_slices(X), Data.from_tensor_slices(Y)
TEXTS = Data.from_tensor_slices(["a b", "c"])
READ = tf.data.TFRecordDataset


def light(x, *_):
    return x[0] < 0.9


def checked(x):
    return tf.debugging.check_numerics(tf.math.log(x), "x")


def loose(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def beside(*branches):
    return Data.zip(tuple(branches))


def by_halves(rows):
    return Data.choose_from_datasets([rows.take(30), rows.skip(30)], Data.range(2).repeat(30))


def by_rows(array):
    return Data.range(len(array)).map(lambda i: tf.gather(array, i))


def in_turns(count):
    return Data.from_tensor_slices(["a", "b"]).interleave(READ, cycle_length=count)


def filtered_inside(file):
    return beside(READ(file).filter(lambda one: one != b"x"), READ(file))


def kept(x):
    return Data.from_tensors(x).filter(light)


def shard_of(x):
    return Data.range(4).shard(4, tf.cast(4.0 * x[0], tf.int64) % 4)


OUT = {
    "a filter": lambda: beside(IMAGES.filter(light), LABELS),
    "a filter of the labels": lambda: beside(IMAGES, LABELS.filter(light)),
    "two filters": lambda: beside(IMAGES.filter(light), LABELS.filter(light)),
    "in one of three": lambda: beside(
        IMAGES, LABELS, Data.from_tensor_slices(X + 1.0).filter(light).map(lambda x: 2.0 * x)
    ),
    "errors": lambda: beside(IMAGES.map(checked).ignore_errors(), LABELS),
    "equal ones": lambda: beside(Data.from_tensor_slices(np.arange(60) // 2).unique(), LABELS),
    "a shuffle": lambda: beside(IMAGES.shuffle(60), LABELS),
    "two shuffles": lambda: beside(IMAGES.shuffle(60), LABELS.shuffle(60)),
    "two seeds": lambda: beside(IMAGES.shuffle(60, seed=1), LABELS.shuffle(60, seed=2)),
    "one seed, of batches": lambda: beside(IMAGES.batch(5).shuffle(9, seed=1).unbatch(), LABELS.shuffle(9, seed=1)),
    "words": lambda: beside(TEXTS.flat_map(lambda one: Data.from_tensor_slices(tf.strings.split(one))), LABELS),
    "lists": lambda: beside(Data.from_tensor_slices(tf.ragged.constant([[1.0], [1.0, 2.0]])).unbatch(), LABELS),
    "as many as it says": lambda: beside(
        IMAGES.flat_map(lambda x: Data.from_tensors(x).repeat(tf.cast(3.0 * x[0], tf.int64))), LABELS
    ),
    "skipped": lambda: beside(IMAGES, LABELS.skip(1)),
    "skipped, and changed": lambda: beside(IMAGES.map(checked).skip(3).cache(), LABELS.take(50).map(lambda y: y + 1.0)),
    "other shards": lambda: beside(IMAGES.shard(2, 0).skip(1), LABELS.shard(2, 0)),
    "by chance": lambda: beside(Data.sample_from_datasets([IMAGES.take(30), IMAGES.skip(30)], [0.5, 0.5]), LABELS),
    "groups": lambda: beside(
        IMAGES.group_by_window(lambda x: tf.cast(2.0 * x[0], tf.int64), lambda _, one: one.batch(4), 4).unbatch(),
        LABELS,
    ),
    "any order": lambda: beside(IMAGES.map(checked, num_parallel_calls=2, deterministic=False), LABELS),
    "any order, by an option": lambda: beside(loose(IMAGES.map(checked, num_parallel_calls=2)), LABELS),
    "any order of all, by an option": lambda: loose(beside(IMAGES.map(checked, num_parallel_calls=2), LABELS)),
    "rows that numbers name": lambda: beside(by_rows(X).filter(light), by_rows(Y)),
    "several files at once": lambda: beside(READ(["a", "b"], num_parallel_reads=2), READ(["c", "d"])),
    "within a flat map": lambda: beside(TEXTS.flat_map(lambda one: READ(one).filter(lambda a: a != b"x")), LABELS),
    "within a flat map of a flat map": lambda: beside(
        IMAGES.flat_map(lambda x: Data.from_tensors(x).flat_map(kept)), LABELS
    ),
    "within a function of a flat map": lambda: beside(IMAGES.flat_map(tf.function(kept)), LABELS),
    "a zip within a flat map": lambda: TEXTS.flat_map(filtered_inside),
}
TOGETHER = {
    "maps": lambda: beside(IMAGES.map(checked, num_parallel_calls=2).cache(), LABELS.prefetch(2)),
    "batches": lambda: beside(IMAGES.batch(5), LABELS.batch(5)).unbatch(),
    "batches taken apart": lambda: beside(IMAGES.batch(5).map(lambda x: 2.0 * x).unbatch(), LABELS),
    "batches taken apart by a flat map": lambda: beside(IMAGES.batch(5).flat_map(Data.from_tensor_slices), LABELS),
    "batches of another size": lambda: beside(IMAGES.batch(8).rebatch(5).unbatch(), LABELS),
    "arrays of batches": lambda: beside(Data.from_tensor_slices(X.reshape(12, 5, 8)).unbatch(), LABELS),
    "one element of several": lambda: beside(IMAGES.flat_map(shard_of), LABELS),
    "maps within a flat map of a flat map": lambda: beside(
        TEXTS.flat_map(lambda one: Data.from_tensors(one).flat_map(lambda name: READ(name).map(tf.strings.length))),
        LABELS,
    ),
    "by numbers": lambda: beside(IMAGES.take(30), LABELS.skip(30)),
    "cut alike": lambda: beside(IMAGES.skip(5).map(checked).take(9), LABELS.map(lambda y: y + 1.0).skip(5)),
    "one is shorter": lambda: beside(IMAGES.take(9), LABELS),
    "shards that are apart": lambda: beside(IMAGES.shard(2, 0), LABELS.shard(2, 1)),
    "a row more": lambda: beside(IMAGES, Data.from_tensor_slices(np.arange(61)).skip(1)),
    "files": lambda: beside(READ(["a", "b"]), TEXTS.flat_map(READ)),
    "lines": lambda: beside(IMAGES, tf.data.TextLineDataset("a.csv").skip(1)),
    "listed files": lambda: beside(Data.list_files(__file__, shuffle=False).map(tf.io.read_file), LABELS),
    "several files at once": lambda: beside(READ(["a", "b"], num_parallel_reads=2), READ(["c"], num_parallel_reads=2)),
    "interleaved": lambda: beside(in_turns(2), in_turns(2)),
    "one seed": lambda: beside(IMAGES.shuffle(60, seed=3), LABELS.shuffle(60, seed=3)),
    "chosen alike": lambda: beside(by_halves(IMAGES), by_halves(LABELS)),
    "generators": lambda: beside(Data.from_generator(lambda: iter(X), output_signature=tf.TensorSpec((8,))), LABELS),
    "a filter below both": lambda: beside(*(lambda one: (one.map(light), one))(IMAGES.filter(light))),
    "zipped first": lambda: beside(IMAGES, LABELS).filter(light).shuffle(60),
    "errors, zipped first": lambda: beside(IMAGES, LABELS).map(lambda x, y: (checked(x), y)).ignore_errors(),
    "windows": lambda: (
        beside(IMAGES, LABELS).window(5, shift=5).flat_map(lambda x, y: beside(x.batch(5), y.skip(4).batch(1)))
    ),
    "any order of both": lambda: loose(beside(IMAGES.map(checked), LABELS.cache())),
    "numbered": lambda: IMAGES.filter(light).enumerate(),
    "counts beside": lambda: beside(IMAGES.filter(light), (Data.counter(), Data.range(60))),
    "random numbers": lambda: beside(IMAGES.filter(light), Data.random().map(lambda one: one % 5)),
    "one thing": lambda: beside(IMAGES.filter(light), Data.from_tensors(1.0).repeat()),
    "rows that numbers name": lambda: beside(by_rows(X), by_rows(Y)),
    "series": lambda: keras.utils.timeseries_dataset_from_array(X, Y, 5, sequence_stride=5).unbatch(),
}
QUICK = [
    "within a flat map of a flat map",
    "within a function of a flat map",
    "a filter",
    "a filter of the labels",
    "errors",
    "a shuffle",
    "words",
    "within a flat map",
]
QUICK_TOGETHER = [
    "one element of several",
    "maps",
    "batches taken apart",
    "files",
    "one seed",
    "a filter below both",
    "counts beside",
]


@pytest.mark.parametrize("name", slow_but(QUICK, [*OUT]))
def test_a_branch_that_does_not_go_with_the_others_is_told(name):
    told = [one for one in meetings(OUT[name](), batched=False) if "branch of a zip" in one.reason]
    assert told
    assert not any(one.certain for one in told)


@pytest.mark.parametrize("name", slow_but(QUICK_TOGETHER, [*TOGETHER]))
def test_branches_that_go_together_are_taken_without_a_word(name):
    assert list(meetings(TOGETHER[name](), batched=False)) == []


def test_data_sets_that_were_saved_in_shards_are_told(tmp_path):
    one, several = str(tmp_path / "one"), str(tmp_path / "several")
    IMAGES.save(one)
    IMAGES.save(several, shard_func=lambda x: tf.cast(2.0 * x[0], tf.int64))
    assert list(meetings(beside(Data.load(one), LABELS), batched=False)) == []
    assert list(meetings(beside(Data.load(several), LABELS), batched=False))
    assert list(meetings(beside(IMAGES.snapshot(str(tmp_path / "kept")), LABELS), batched=False)) == []


def test_the_warning_says_how_to_zip():
    with pytest.warns(UserWarning, match=r"one branch of a zip .*\(\.filter\).*Zip first"):
        tfdp.records(OUT["a filter"]())
    sampling = tfdp.sampling.Partition(20)
    rows = OUT["a filter"]().batch(20).apply(tf.data.experimental.assert_cardinality(3))
    with pytest.warns(UserWarning, match=r"one branch of a zip .*\(\.filter\).*Zip first"):
        tfdp.declare_sampling(rows, sampling, examples=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.records(TOGETHER["zipped first"]())
