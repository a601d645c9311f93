"""Data sets that functions of flat maps make are followed as pipelines are; what is not known to be fine is told."""

import numpy as np
import pytest
import tensorflow as tf

from helpers.mixed_pipelines import NAMES, ROWS, Data, X, Y, slices
from tfdp_layers.batches.choices import choice_in
from tfdp_layers.batches.mixing import meetings, refuse_mixing
from tfdp_layers.batches.pieces import elements_of
from tfdp_layers.batches.repeats import repeats

LINES = tf.data.TextLineDataset
FILES = tf.data.TFRecordDataset
MEAN = Data.from_tensor_slices(X).batch(60).map(lambda x: tf.reduce_mean(x, 0))


def less(x, y):
    return x - tf.reduce_mean(x, 0), y


def sums(state, one):
    return state + 1, one


def by_numbers(x, y, *, center=True):
    mean = tf.reduce_mean(x, 0) if center else None
    whole = Data.range(tf.shape(x, out_type=tf.int64)[0])
    return whole.map(lambda i: (x[i] - mean if center else x[i], y[i]))


def same_class(x, y):
    return ROWS.filter(lambda _, other: tf.reduce_all(other == y)).batch(60)


TOLD = {
    "a mean of all": lambda: ROWS.flat_map(lambda x, y: Data.zip((Data.from_tensors((x, y)), MEAN))),
    "others of its class": lambda: ROWS.flat_map(lambda x, y: Data.zip((Data.from_tensors(x), same_class(x, y)))),
    "an array made into a data set": lambda: ROWS.interleave(
        lambda x, y: slices(X, Y).skip(3).take(1).map(lambda a, b: (x - a, y))
    ),
    "one row beside all": lambda: ROWS.flat_map(lambda *one: Data.zip((Data.from_tensors(one), slices(X, Y).take(1)))),
    "rows by their numbers": lambda: ROWS.batch(20).flat_map(by_numbers),
    "rows beside all rows": lambda: ROWS.batch(20).flat_map(
        lambda x, y: slices(x, y).flat_map(lambda a, b: Data.from_tensors((a - x[0], b)))
    ),
    "rows of one table": lambda: Data.from_tensors((X, Y)).flat_map(by_numbers),
    "rows of groups": lambda: ROWS.group_by_window(
        lambda x, y: tf.argmax(y), lambda _, group: group.batch(30), window_size=30
    ).flat_map(by_numbers),
    "a scan of each file": lambda: NAMES.flat_map(lambda name: LINES(name).scan(0, sums)),
    "a scan of windows": lambda: ROWS.window(9).flat_map(lambda x, y: Data.zip((x, y)).scan(0, sums)),
    "the next line": lambda: NAMES.flat_map(lambda name: Data.zip((LINES(name), LINES(name).skip(1)))),
    "a file behind itself": lambda: NAMES.flat_map(lambda name: LINES(name).concatenate(LINES(name))),
    "copies": lambda: Data.range(2).flat_map(lambda k: slices(X * tf.cast(1 - 2 * k, tf.float32), Y).concatenate(ROWS)),
    "the same file": lambda: Data.range(3).interleave(lambda k: LINES("a.csv").map(lambda one: (one, k))),
    "too few shards": lambda: Data.range(4).interleave(lambda k: ROWS.shard(3, k)),
    "numbered": lambda: NAMES.interleave(lambda name: LINES(name).enumerate()),
    "windows that overlap": lambda: NAMES.flat_map(
        lambda name: LINES(name).window(4, 1).flat_map(lambda w: w.batch(4))
    ),
    "batches handed on": lambda: ROWS.batch(20).flat_map(lambda x, y: Data.from_tensors((x, y)).map(less)).unbatch(),
    "a held data set, called": lambda: ROWS.flat_map(tf.function(lambda x, y: Data.zip((Data.from_tensors(x), MEAN)))),
}
QUIET = {
    "files": lambda: NAMES.interleave(FILES, num_parallel_calls=2, deterministic=True),
    "lines without the first": lambda: NAMES.flat_map(lambda name: LINES(name).skip(1).map(tf.strings.length)),
    "files and labels": lambda: Data.from_tensor_slices((["a", "b"], [0, 1])).interleave(
        lambda name, y: LINES(name).map(lambda one: (one, y))
    ),
    "a function that reads": lambda: NAMES.interleave(tf.function(lambda name: FILES(name).prefetch(2))),
    "parts that the element names": lambda: Data.from_tensor_slices((["a", "b"], np.array([0, 3]))).interleave(
        lambda name, first: FILES(name).skip(first).take(9)
    ),
    "a filter": lambda: NAMES.interleave(lambda name: LINES(name).filter(lambda one: one != b"x").shuffle(9)),
    "two files of a name": lambda: NAMES.flat_map(lambda name: Data.zip((LINES(name + ".x"), LINES(name + ".y")))),
    "two fields of a file": lambda: NAMES.flat_map(
        lambda name: Data.zip((LINES(name).map(tf.strings.length), LINES(name)))
    ),
    "a generator of each file": lambda: NAMES.interleave(
        lambda name: Data.from_generator(iter, output_signature=tf.TensorSpec((), tf.string), args=([name],))
    ),
    "rows by their numbers": lambda: ROWS.batch(20).flat_map(lambda x, y: by_numbers(x, y, center=False)),
    "maps of rows": lambda: ROWS.batch(20).flat_map(lambda x, y: slices(x, y).map(lambda x, y: (2.0 * x, y))),
    "shards of all": lambda: Data.range(3).interleave(lambda k: ROWS.shard(3, k)),
    "one element each": lambda: ROWS.flat_map(
        lambda x, y: Data.from_tensors((2.0 * x, y)).filter(lambda x, y: x[0] > 0)
    ),
    "elements of windows": lambda: ROWS.window(5).flat_map(lambda *one: Data.zip(one)),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_flat_maps_hold_or_make_of_several_records_is_told(name):
    found = [one for one in meetings(TOLD[name](), batched=False)]
    assert found
    assert not any(one.certain for one in found)


@pytest.mark.parametrize("name", QUIET)
def test_files_rows_and_parts_that_an_element_names_are_taken_without_a_word(name):
    pipeline = QUIET[name]()
    assert [*meetings(pipeline, batched=False)] == []
    assert choice_in(pipeline) == ""
    assert elements_of(pipeline) == 1


def test_ids_settle_windows_and_copies_alone():
    with pytest.warns(UserWarning, match=r"Several records may be one person's: a function of a flat map"):
        refuse_mixing(TOLD["a file behind itself"]())
    for whose, name in ((False, "windows that overlap"), (True, "a mean of all")):
        with pytest.warns(
            UserWarning, match="Whether records meet in this pipeline is not known: a function of a flat"
        ):
            refuse_mixing(TOLD[name](), whose)


GROUPS = {
    "windows": lambda: ROWS.window(6).flat_map(lambda x, y: Data.zip((x.batch(6), y.batch(6)))),
    "means": lambda: ROWS.batch(6).map(less).flat_map(lambda x, y: Data.from_tensors((x, y))),
    "means in turns": lambda: ROWS.batch(6).interleave(lambda x, y: Data.from_tensors(less(x, y))),
    "lines of files": lambda: NAMES.flat_map(lambda name: LINES(name).batch(6)),
    "batches in windows": lambda: ROWS.batch(6).window(2).flat_map(lambda *one: Data.zip(one)),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_behind_flat_maps_are_batches(name):
    assert elements_of(GROUPS[name]()) == 6


def test_a_mean_that_a_flat_map_hands_on_is_refused_where_it_is_taken_apart():
    for pipeline in (GROUPS["means"](), GROUPS["means in turns"]()):
        assert any(one.certain for one in meetings(pipeline.unbatch(), batched=False))


def test_a_shard_within_a_function_is_a_choice_by_place():
    assert ".shard that counts places, in a function" in choice_in(
        NAMES.interleave(lambda name: LINES(name).shard(3, 0))
    )


MOVED = {
    "beside its batches": lambda: Data.zip(
        (ROWS, Data.from_tensor_slices(X).batch(20).flat_map(lambda x: Data.from_tensors(x[0]).repeat(20)))
    ),
    "beside the next": lambda: Data.zip((Data.from_tensor_slices(X), Data.from_tensor_slices(X.copy()).skip(1))),
    "by a row": lambda: Data.zip((Data.from_tensor_slices(X[:-1]), Data.from_tensor_slices(X[1:]))),
    "turned round": lambda: Data.zip((Data.from_tensor_slices(X), Data.from_tensor_slices(X[::-1].copy()))),
    "lines of a file": lambda: Data.zip((LINES(["a", "b"]), LINES("b").skip(1))),
}


@pytest.mark.parametrize("name", MOVED)
def test_sources_of_one_array_are_one(name):
    assert any("a zip puts records of one source" in one.reason for one in meetings(MOVED[name](), batched=False))


def test_sources_of_one_array_may_stand_beside_themselves():
    masked = np.where(np.arange(60)[:, None] % 5 == 0, 0.0, X).astype(np.float32)
    for other in (X.copy(), masked, X + 1.0):
        assert [*meetings(Data.zip((ROWS, Data.from_tensor_slices(other))), batched=False)] == []
    both = [NAMES.interleave(lambda name: FILES(name).map(tf.strings.length)) for _ in range(2)]
    assert [*meetings(Data.zip(tuple(both)), batched=False)] == []


def test_sources_of_one_array_come_twice():
    assert repeats(ROWS.concatenate(Data.from_tensor_slices((X.copy(), Y)).map(lambda x, y: (-x, y))))
    assert repeats(LINES("a").concatenate(LINES(["b", "a"])))
    assert not repeats(LINES("a").concatenate(LINES("b")))
    assert not repeats(Data.from_tensor_slices((X[:30], Y[:30])).concatenate(Data.from_tensor_slices((X[30:], Y[30:]))))


MEAN = Data.from_tensors(X).map(lambda rows: tf.reduce_mean(rows, 0))


@pytest.mark.parametrize(
    "made",
    [
        lambda: Data.range(4).interleave(
            lambda k: ROWS.map(lambda x, y: (x - MEAN.get_single_element(), y)).shard(4, k)
        ),
        lambda: ROWS.flat_map(lambda x, y: Data.from_tensors((x - MEAN.get_single_element(), y))),
        lambda: ROWS.group_by_window(
            lambda x, y: tf.cast(x[0] > MEAN.get_single_element()[0], tf.int64), lambda key, rows: rows, window_size=60
        ),
        lambda: ROWS.batch(20).flat_map(
            lambda x, y: Data.zip((Data.from_tensor_slices(x), Data.from_tensor_slices(y).skip(1)))
        ),
        lambda: Data.zip(
            tuple(
                NAMES.interleave(lambda name: FILES(name), num_parallel_calls=2, deterministic=False) for _ in range(2)
            )
        ),
    ],
    ids=[
        "a shard of changed rows",
        "one element of a held set",
        "the key of groups",
        "the next row of a batch",
        "two at once",
    ],
)
def test_what_was_said_before_data_sets_in_functions_were_followed_is_said_still(made):
    assert [*meetings(made(), batched=False)]
