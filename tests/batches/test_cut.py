"""Pipelines that `.batch` is seen to cut from passes over their records are told from those that may draw."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers import declare_sampling
from tfdp_layers.batches.cut import warn_of_cut
from tfdp_layers.sampling import FixedSize, Partition, Poisson

Data, More = tf.data.Dataset, tf.data.experimental
SIZE, RECORDS = 8, 40
FILES = [str(Path(__file__))]
X = np.arange(80, dtype=np.float32).reshape(RECORDS, 2)
WEIGHT = tf.Variable(2.0)


def weighted(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x * WEIGHT, y


ALL, NAMES = Data.from_tensor_slices((X, X[:, 0])), Data.from_tensor_slices(FILES)
LINES, RECORDS_OF = tf.data.TextLineDataset, tf.data.TFRecordDataset

READERS: dict[str, Callable[[], Data]] = {
    "TFRecordDataset": lambda: RECORDS_OF(FILES),
    "TextLineDataset": lambda: LINES(FILES).skip(1),
    "FixedLengthRecordDataset": lambda: tf.data.FixedLengthRecordDataset(FILES, 2),
    "CsvDataset": lambda: More.CsvDataset(FILES, [tf.float32]),
    "SqlDataset": lambda: More.SqlDataset("sqlite", "there", "select 1", (tf.int32,)),
    "make_csv_dataset": lambda: More.make_csv_dataset(
        FILES, 3, column_names=["x"], column_defaults=[0.0], header=False, num_epochs=1
    ).unbatch(),
    "make_batched_features_dataset": lambda: More.make_batched_features_dataset(
        FILES, 3, {"x": tf.io.FixedLenFeature([], tf.float32)}, num_epochs=1
    ).unbatch(),
}


def rows_of_each(x: Any, y: Any) -> Data:
    return Data.from_tensor_slices((x, y))


def draws(x: Any, y: Any) -> Any:
    drawn = tf.random.shuffle(tf.range(RECORDS))[:SIZE]
    return tf.gather(x, drawn), tf.gather(y, drawn)


def turned(x: Any, y: Any) -> Any:
    return x + tf.random.normal(()), y


def rows_by_seed(i: Any) -> Any:
    return tf.gather(X, tf.random.stateless_uniform([SIZE], [i, 0], 0, RECORDS, tf.int32))


def seeded(i: Any) -> Data:
    return Data.from_tensor_slices(rows_by_seed(i))


def masked(x: Any, y: Any) -> Any:
    kept = tf.random.uniform([tf.shape(x)[0]]) < 0.2
    return tf.boolean_mask(x, kept), tf.boolean_mask(y, kept)


def rows_by_number(number: Any) -> Any:
    return tf.gather(X, (number + tf.range(SIZE, dtype=tf.int64)) % RECORDS)


def rows_by_chance(i: Any) -> Any:
    return draws(X, X[:, 0])


def rows_by_python(i: Any) -> Any:
    return tf.gather(X, tf.numpy_function(lambda i: np.random.permutation(RECORDS)[:SIZE], [i], tf.int64))


def lines_of_part(name: Any) -> Data:
    return LINES(name).filter(lambda _: tf.random.uniform(()) < 0.2)


def changed(x: Any, y: Any) -> Any:
    return x + tf.random.normal(tf.shape(x)), y


def kept_beside(x: Any, y: Any) -> Any:
    return x, y, tf.random.uniform(tf.shape(y)) < 0.2


def kept_rows(x: Any, y: Any, kept: Any) -> Any:
    return tf.boolean_mask(x, kept), tf.boolean_mask(y, kept)


def weighed(x: Any, y: Any) -> Any:
    return x, y, tf.cast(tf.random.uniform(tf.shape(y)) < 0.2, tf.float32)


def lengths(name: Any) -> Data:
    """Of lines that are not empty, with numbers by chance beside."""
    return LINES(name).filter(lambda one: one != "").map(lambda one: kept_beside(one, tf.strings.length(one)))


def lengths_by_chance(name: Any) -> Data:
    return LINES(name).map(lambda one: kept_beside(one, tf.strings.length(one))).filter(lambda x, y, kept: kept)


def positive(x: Any, y: Any) -> Any:
    return y > 0.0


PASSES: dict[str, Callable[[], Data]] = {
    **{name: lambda made=made: made().batch(SIZE) for name, made in READERS.items()},
    "several files at once": lambda: RECORDS_OF(FILES, num_parallel_reads=2).shuffle(9).batch(SIZE),
    "compressed": lambda: tf.data.FixedLengthRecordDataset(FILES, 2, compression_type="GZIP").batch(SIZE),
    "batches of a reader": lambda: More.make_csv_dataset(
        FILES, SIZE, column_names=["x"], column_defaults=[0.0], header=False, num_epochs=1
    ),
    "interleave": lambda: Data.list_files(FILES).interleave(RECORDS_OF, num_parallel_calls=2).batch(SIZE),
    "a shard of the files": lambda: NAMES.shard(2, 0).interleave(RECORDS_OF).shuffle(9).batch(SIZE),
    "flat_map": lambda: NAMES.flat_map(RECORDS_OF).map(tf.strings.length).batch(SIZE),
    "a function that opens": lambda: NAMES.interleave(tf.function(lambda name: LINES(name).prefetch(2))).batch(SIZE),
    "changed at random within": lambda: NAMES.flat_map(
        lambda name: LINES(name).skip(1).shuffle(9).map(lambda _: turned(0.0, 1.0))
    ).batch(SIZE),
    "batches of each file": lambda: NAMES.interleave(lambda name: LINES(name).batch(SIZE)),
    "a file in each round": lambda: Data.range(9).flat_map(lambda _: LINES(FILES).shuffle(99)).batch(SIZE),
    "windows": lambda: ALL.window(SIZE).flat_map(lambda *one: Data.zip(one)).batch(SIZE),
    "batches of windows": lambda: ALL.window(SIZE).flat_map(lambda x, y: Data.zip((x.batch(SIZE), y.batch(SIZE)))),
    "rebatch": lambda: ALL.batch(4).rebatch(SIZE),
    "unbatch": lambda: ALL.batch(20).unbatch().batch(SIZE),
    "rows of batches": lambda: ALL.batch(20).flat_map(rows_of_each).batch(SIZE),
    "one of each": lambda: ALL.flat_map(lambda *one: Data.from_tensors(one)).batch(SIZE),
    "ragged_batch": lambda: ALL.ragged_batch(SIZE),
    "a filter by values": lambda: ALL.filter(lambda x, y: y > 0.0).batch(SIZE),
    "numbered": lambda: ALL.enumerate().batch(SIZE),
    "in two parts": lambda: ALL.take(20).concatenate(ALL.skip(20)).batch(SIZE),
    "changed at random": lambda: ALL.map(turned).batch(SIZE).map(turned),
    "of TensorFlow 1": lambda: tf.compat.v1.data.TFRecordDataset(FILES).batch(SIZE),
    "taken from one order": lambda: (
        ALL.shuffle(RECORDS, reshuffle_each_iteration=False).take(SIZE).repeat().batch(SIZE)
    ),
    "taken from a small buffer": lambda: ALL.shuffle(2).take(SIZE).repeat().batch(SIZE),
    "taken and kept": lambda: ALL.shuffle(RECORDS).take(SIZE).cache().repeat().batch(SIZE),
    "taken, in batches, and kept": lambda: ALL.shuffle(RECORDS).take(SIZE).batch(SIZE).cache().repeat(),
    "taken from an order that is kept": lambda: ALL.shuffle(RECORDS).cache().take(SIZE).repeat().batch(SIZE),
    "taken from shuffles and mixed": lambda: ALL.shuffle(RECORDS).take(SIZE).repeat(9).shuffle(9).batch(SIZE),
    "so many steps of a round": lambda: ALL.shuffle(RECORDS).repeat().batch(SIZE).take(5),
    "all but the first": lambda: ALL.shuffle(RECORDS).batch(SIZE).skip(1),
    "errors left out": lambda: ALL.batch(SIZE).ignore_errors(),
    "full ones alone": lambda: ALL.batch(SIZE).filter(lambda x, y: tf.shape(x)[0] == SIZE),
    "batches that are numbered": lambda: ALL.batch(SIZE).enumerate().map(lambda _, batch: batch),
    "batches that are kept": lambda: ALL.batch(SIZE).snapshot("nowhere"),
    "batches side by side": lambda: Data.zip(tuple(Data.from_tensor_slices(one).batch(SIZE) for one in (X, X[:, 0]))),
    "batches one behind the other": lambda: (
        ALL.take(20).shuffle(20).batch(SIZE).concatenate(ALL.skip(20).shuffle(20).batch(SIZE))
    ),
    "groups": lambda: ALL.group_by_window(lambda x, y: tf.cast(y > 0, tf.int64), lambda _, one: one.batch(SIZE), SIZE),
    "shuffled and repeated at once": lambda: ALL.apply(More.shuffle_and_repeat(RECORDS)).batch(SIZE),
    "changed at random, and taken apart": lambda: ALL.batch(20).map(changed).unbatch().batch(SIZE),
    "changed at random, and batched anew": lambda: (
        ALL.map(turned).batch(4, drop_remainder=True).map(turned).rebatch(SIZE)
    ),
    "changed at random, and a filter by values": lambda: ALL.map(turned).filter(positive).batch(SIZE),
    "changed, taken apart, and a filter by values": lambda: (
        ALL.batch(20).map(changed).unbatch().filter(positive).batch(SIZE)
    ),
    "changed at random, and rows of each": lambda: ALL.batch(20).map(changed).flat_map(rows_of_each).batch(SIZE),
    "changed twice, and taken apart": lambda: (
        ALL.batch(20).map(changed).map(lambda x, y: (x / 2, y)).unbatch().batch(SIZE)
    ),
    "numbers by chance behind a filter": lambda: NAMES.interleave(lengths).batch(SIZE),
    "changed at random, and groups": lambda: ALL.map(turned).group_by_window(
        lambda x, y: tf.cast(y, tf.int64) % 2, lambda _, one: one.batch(SIZE), SIZE
    ),
    "a filter by a weight": lambda: ALL.map(weighted).filter(positive).batch(SIZE),
    "changed at random, with weights": lambda: ALL.map(lambda x, y: (*turned(x, y), y)).batch(SIZE),
}
DRAWS: dict[str, Callable[[], Data]] = {
    "a filter by chance": lambda: ALL.filter(lambda x, y: tf.random.uniform(()) < 0.2).batch(SIZE),
    "a filter by chance within": lambda: NAMES.flat_map(lines_of_part).batch(SIZE),
    "a filter by chance of a seed": lambda: (
        ALL.repeat().enumerate().filter(lambda i, _: tf.random.stateless_uniform((), [i, 0]) < 0.2).batch(SIZE)
    ),
    "a filter by random numbers beside": lambda: (
        Data.zip((ALL, Data.random(1, rerandomize_each_iteration=True))).filter(lambda _, r: r % 3 == 0).batch(8)
    ),
    "Python": lambda: Data.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int32)).batch(SIZE),
    "taken from a shuffle": lambda: ALL.shuffle(RECORDS).take(SIZE).repeat().batch(SIZE),
    "taken from a shuffle within": lambda: (
        Data.range(9).flat_map(lambda _: LINES(FILES).shuffle(RECORDS).take(SIZE)).batch(SIZE)
    ),
    "batches of a shuffle within": lambda: Data.range(9).flat_map(lambda _: LINES(FILES).shuffle(99).batch(8).take(1)),
    "a shuffle of a function within": lambda: (
        Data.range(9).flat_map(lambda _: tf.function(lambda: LINES(FILES).shuffle(RECORDS))().take(SIZE)).batch(SIZE)
    ),
    "a data set that a function holds": lambda: Data.range(9).flat_map(lambda _: ALL.shuffle(40).take(8)).batch(SIZE),
    "rows of all records": lambda: ALL.repeat().batch(RECORDS).map(draws),
    "rows of all records, apart": lambda: ALL.repeat().batch(RECORDS).map(draws).unbatch().batch(SIZE),
    "rows of all records, within": lambda: (
        ALL.repeat().batch(RECORDS).flat_map(lambda x, y: rows_of_each(*draws(x, y))).batch(SIZE)
    ),
    "rows of all, apart": lambda: Data.range(9).map(rows_by_chance).unbatch().batch(SIZE),
    "rows of all, by a seed": lambda: Data.counter().map(rows_by_seed).unbatch().batch(SIZE),
    "rows of all, by Python": lambda: Data.range(9).map(rows_by_python).unbatch().batch(SIZE),
    "rows of all, batched anew": lambda: Data.range(9).map(rows_by_chance).rebatch(SIZE),
    "rows of all, within": lambda: Data.range(9).map(rows_by_chance).flat_map(rows_of_each).batch(SIZE),
    "taken from a shuffle, as batches": lambda: (
        ALL.cache().shuffle(RECORDS).map(turned).take(SIZE).batch(SIZE).repeat().prefetch(2)
    ),
    "taken from a shuffle of them all": lambda: (
        ALL.shuffle(tf.data.UNKNOWN_CARDINALITY).take(SIZE).shuffle(2).repeat().batch(SIZE)
    ),
    "the first batch of a shuffle": lambda: ALL.shuffle(RECORDS).batch(SIZE).take(1).prefetch(1),
    "draws one behind the other": lambda: (
        ALL.shuffle(RECORDS).take(SIZE).batch(SIZE).concatenate(ALL.shuffle(RECORDS).batch(SIZE).take(1))
    ),
    "draws that are numbered": lambda: ALL.shuffle(RECORDS).take(SIZE).repeat().batch(SIZE).enumerate().take(9),
    "random numbers beside batches": lambda: Data.zip((ALL.repeat().batch(RECORDS), Data.random(1))).map(
        lambda batch, r: rows_by_number(r)
    ),
    "a filter of batches by chance": lambda: ALL.batch(1).filter(lambda x, y: tf.random.uniform(()) < 0.2),
    "a draw of one part": lambda: (
        ALL.take(20).filter(lambda x, y: tf.random.uniform(()) < 0.2).batch(SIZE).concatenate(ALL.skip(20).batch(SIZE))
    ),
    "rows of all that chance keeps": lambda: ALL.batch(RECORDS).map(masked).unbatch().batch(SIZE),
    "groups by chance": lambda: ALL.group_by_window(
        lambda x, y: tf.random.uniform((), 0, 9, tf.int64), lambda _, one: one.batch(SIZE), SIZE
    ),
    "by the seeds of steps": lambda: Data.counter().flat_map(seeded).batch(SIZE),
    "a filter by what chance put beside": lambda: (
        ALL.batch(20).map(kept_beside).unbatch().filter(lambda x, y, kept: kept).batch(RECORDS).repeat()
    ),
    "a filter by what chance put beside, of each": lambda: (
        ALL.map(kept_beside).shuffle(9).filter(lambda x, y, kept: kept).batch(SIZE)
    ),
    "a filter by what chance put beside, within": lambda: NAMES.flat_map(lengths_by_chance).batch(SIZE),
    "groups by what chance put beside": lambda: ALL.map(kept_beside).group_by_window(
        lambda x, y, kept: tf.cast(kept, tf.int64), lambda _, one: one.batch(SIZE), SIZE
    ),
    "rows by what chance put beside": lambda: (
        ALL.batch(20).map(kept_beside).flat_map(lambda *one: rows_of_each(*kept_rows(*one))).batch(RECORDS)
    ),
    "rows of all by what chance put beside": lambda: ALL.batch(RECORDS).repeat().map(kept_beside).map(kept_rows),
    "rows of all that chance keeps, as batches": lambda: ALL.batch(RECORDS).repeat().map(masked).take(9),
    "rows of all that chance keeps, side by side": lambda: Data.zip(
        tuple(Data.from_tensor_slices(one).batch(RECORDS).repeat() for one in (X, X[:, 0]))
    ).map(masked),
    "all, which weigh by chance": lambda: ALL.batch(RECORDS).repeat().map(weighed),
}


def told(dataset: Data, sampling: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_cut(dataset, sampling, RECORDS)
    return [str(one.message) for one in caught if "is declared as" in str(one.message)]


@pytest.mark.few(40)
@pytest.mark.parametrize("name", PASSES)
def test_passes_that_are_cut_into_batches_are_no_draws(name: str) -> None:
    (message,) = told(PASSES[name](), Poisson(SIZE))
    assert f".batch({SIZE}) cuts passes over its records" in message


def test_groups_of_several_sizes_are_no_draws_either() -> None:
    lengths = Data.from_tensor_slices(X).bucket_by_sequence_length(lambda x: tf.cast(x[0], tf.int32), [9], [4, 8])
    (message,) = told(lengths, Poisson(SIZE))
    assert "what makes its batches cuts passes" in message
    assert message.endswith("or declare Partition.")
    assert told(lengths, Partition(SIZE)) == []


def test_every_reader_of_tensorflow_is_among_them() -> None:
    names = {name for place in (tf.data, More) for name in dir(place)}
    readers = {name for name in names if name.endswith("Dataset") or (name.startswith("make_") and "dataset" in name)}
    assert readers - {"Dataset", "RandomDataset"} == set(READERS)


@pytest.mark.few(40)
@pytest.mark.parametrize("name", DRAWS)
def test_what_may_draw_brings_no_warning(name: str) -> None:
    assert told(DRAWS[name](), FixedSize(SIZE)) == []


def test_a_draw_of_so_many_is_no_other() -> None:
    (message,) = told(ALL.shuffle(RECORDS).take(SIZE).repeat().batch(SIZE), Poisson(SIZE))
    assert f"or declare FixedSize({SIZE})" in message


@pytest.mark.parametrize("drop", [True, False])
def test_a_random_change_of_all_records_is_no_draw(drop: bool) -> None:
    assert told(ALL.batch(RECORDS, drop_remainder=drop).map(turned).repeat(), Poisson(SIZE))


def test_saved_and_kept_records_are_passes(tmp_path: Path) -> None:
    ALL.save(str(tmp_path / "saved"))
    for records in (Data.load(str(tmp_path / "saved")), ALL.snapshot(str(tmp_path / "kept"))):
        assert told(records.batch(SIZE), Poisson(SIZE))


def test_batches_of_files_of_another_size_are_no_such_partition(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1.0\n" * RECORDS)
    lines = LINES(str(tmp_path / "lines")).map(tf.strings.to_number).map(lambda one: ([one], one))
    known = lines.apply(More.assert_cardinality(RECORDS)).batch(4)
    with pytest.warns(UserWarning, match=r"\.batch\(4\): .*Declare Partition\(4\)"):
        declare_sampling(known, Partition(SIZE), examples=80)
    assert told(lines.batch(SIZE), Partition(SIZE)) == []
