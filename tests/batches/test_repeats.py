"""Records that a pipeline or a source gives several times are refused where a record is what is protected."""

import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers import grain_like
from tfdp_layers.batches.overlaps import may_overlap
from tfdp_layers.batches.repeats import repeats, rounds

Dataset = tf.data.Dataset
X = np.arange(40.0, dtype="float32").reshape(20, 2)
ALONE = Dataset.from_tensor_slices(X)
PAIRS = Dataset.from_tensor_slices((X, X[:, 0]))
PARTS = [PAIRS.take(9), PAIRS.skip(9)]
TURNS = Dataset.range(2).repeat(20)


GRAIN = grain_like.source([*zip(X, X[:, 0], strict=True)])


def changed(dataset):
    return grain_like.Map(dataset)


def behind(*datasets):
    return grain_like.Concatenate(*datasets, length=sum(map(len, datasets)))


class Repeat:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return X[index], X[index, 0]


REPEATED = {
    "repeat": PAIRS.repeat(3),
    "before other steps": PAIRS.repeat(2).map(lambda x, y: (x + 1.0, y)).shuffle(9).prefetch(1),
    "endless, then cut": PAIRS.repeat().take(50),
    "oversampled": Dataset.sample_from_datasets([PAIRS.repeat(), PAIRS], [0.5, 0.5]).take(30),
    "behind itself": PAIRS.concatenate(PAIRS.repeat(2)),
    "behind itself, changed": PAIRS.concatenate(PAIRS.map(lambda x, y: (-x, y))).shuffle(9),
    "changed, behind itself": PAIRS.map(lambda x, y: (-x, y)).prefetch(1).concatenate(PAIRS.cache()),
    "in turns with itself, changed": Dataset.sample_from_datasets([PAIRS, PAIRS.map(lambda x, y: (-x, y))], [0.5, 0.5]),
    "a part behind itself": PARTS[0].concatenate(PARTS[1]).concatenate(PARTS[0].map(lambda x, y: (-x, y))),
    "by flat_map": PAIRS.flat_map(lambda x, y: Dataset.from_tensors((x, y)).repeat(3)),
    "a class, by flat_map": PAIRS.flat_map(
        lambda x, y: Dataset.from_tensors((x, y)).repeat(tf.cast(1 + y % 2, tf.int64))
    ),
    "by interleave": PAIRS.interleave(lambda x, y: Dataset.from_tensors((x, y)).repeat(2)),
    "all of a zip": Dataset.zip((ALONE.repeat(2), ALONE.repeat(2))),
    "enumerated": PAIRS.repeat(2).enumerate().map(lambda _, pair: pair),
    "Grain": grain_like.Repeat(GRAIN, length=20),
    "Grain, behind itself, changed": behind(GRAIN, changed(GRAIN)),
    "Grain, one source wrapped twice": behind(changed(grain_like.source(GRAIN._source)), GRAIN),
    "Grain, a part behind itself": behind(grain_like.cut(GRAIN, 0, 9), changed(grain_like.cut(GRAIN, 0, 9))),
    "Grain, wrapped again": grain_like.source(grain_like.Repeat(GRAIN, length=20)),
    "Grain, before other steps": changed(grain_like.Shuffle(grain_like.Repeat(GRAIN))),
}
ONCE = {
    "plain": PAIRS.shuffle(20),
    "repeat(1)": PAIRS.repeat(1),
    "a label for all": Dataset.zip((ALONE, Dataset.from_tensors(0.0).repeat())),
    "a mixture of two": Dataset.sample_from_datasets([PAIRS.take(9), PAIRS.skip(9)], [0.5, 0.5]),
    "in turns": Dataset.choose_from_datasets([PAIRS.take(10), PAIRS.skip(10)], TURNS),
    "counted": PAIRS.enumerate().map(lambda _, pair: pair),
    "two parts": PAIRS.take(3).concatenate(PAIRS.skip(3)),
    "two parts, changed": PARTS[0].map(lambda x, y: (-x, y)).concatenate(PARTS[1]),
    "shards": PAIRS.shard(2, 0).concatenate(PAIRS.shard(2, 1)),
    "two people in one element": ALONE.map(lambda x: x[:1]).concatenate(ALONE.map(lambda x: x[1:])),
    "beside itself": Dataset.zip((ALONE, ALONE.map(lambda x: -x))),
    "files, by interleave": Dataset.range(2).interleave(
        lambda n: Dataset.from_tensor_slices(X[:10] + tf.cast(n, "float32"))
    ),
    "rows, by flat_map": ALONE.batch(4).flat_map(Dataset.from_tensor_slices),
    "Grain": changed(GRAIN),
    "Grain, two parts": behind(grain_like.cut(GRAIN, 0, 9), changed(grain_like.cut(GRAIN, 9, 20))),
    "Grain, changed on both ways": behind(changed(GRAIN), changed(GRAIN)),
    "another library's": Repeat(),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_repeats_records_is_refused_unless_it_is_said_whose_they_are(name):
    records = tfdp.records(REPEATED[name])
    with pytest.raises(ValueError, match=r"Leave \.repeat out"):
        tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(5))
    ids = np.arange(len(records)) % 20
    if records.moved:  # by place they would be those of others
        with pytest.raises(ValueError, match="moves records to other places"):
            tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(5), unit_ids=ids)
        return
    assert tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(5), unit_ids=ids).examples == min(
        20, len(records)
    )


@pytest.mark.parametrize("name", ONCE)
def test_what_repeats_no_record_is_taken(name):
    assert not repeats(ONCE[name])
    tfdp.PrivateBatches(tfdp.records(ONCE[name]), sampling=tfdp.sampling.Poisson(5))


def few(x, y):
    return y < 9.0


CHOSEN = grain_like.Filter(GRAIN)
OVERLAPS = {
    "oversampled": PAIRS.concatenate(PAIRS.filter(few)),
    "oversampled, changed": PAIRS.map(lambda x, y: (2 * x, y)).concatenate(PAIRS.filter(few).map(lambda x, y: (-x, y))),
    "oversampled, in turns": Dataset.sample_from_datasets([PAIRS, PAIRS.filter(few)], [0.5, 0.5]),
    "two filters": PAIRS.filter(few).concatenate(PAIRS.filter(lambda x, y: y >= 9.0)),
    "the first ones again": PAIRS.concatenate(PAIRS.take(9)),
    "two cuts": PAIRS.take(9).concatenate(PAIRS.skip(8)),
    "two numbers of shards": PAIRS.shard(2, 0).concatenate(PAIRS.shard(3, 0)),
    "Grain, oversampled": behind(GRAIN, CHOSEN),
    "Grain, two filters": behind(grain_like.Filter(GRAIN), grain_like.Filter(GRAIN)),
    "Grain, in turns": grain_like.Mixed(GRAIN, changed(CHOSEN), length=40),
    "Grain, the first ones again": behind(GRAIN, grain_like.cut(GRAIN, 0, 9)),
}
APART = {
    **{name: one for name, one in ONCE.items() if name not in ("another library's",)},
    "three parts": PAIRS.take(3).concatenate(PAIRS.skip(3).take(4)).concatenate(PAIRS.skip(7).filter(few)),
    "filters of two halves": PARTS[0].filter(few).concatenate(PARTS[1].filter(few)),
    "a filter of all": PAIRS.take(9).concatenate(PAIRS.skip(9)).filter(few),
    "numbers of rows of two arrays": Dataset.range(9)
    .filter(lambda n: n > 3)
    .map(lambda n: (n, 0.0))
    .concatenate(Dataset.range(9).map(lambda n: (-n, 1.0))),
    "Grain, every second one": behind(grain_like.cut(GRAIN, 0, 20, 2), grain_like.cut(GRAIN, 19, 0, -2)),
    "Grain, a part of a part": behind(
        grain_like.cut(grain_like.cut(GRAIN, 0, 10), 0, 5), grain_like.Filter(grain_like.cut(GRAIN, 5, 20))
    ),
    "Grain, a filter": CHOSEN,
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_parts_of_one_source_that_are_put_together_bring_a_word_unless_it_is_said_whose_they_are(name):
    assert may_overlap(OVERLAPS[name])
    assert not repeats(OVERLAPS[name])
    if "Grain, in" in name or "turns" in name:
        return
    records = tfdp.records(OVERLAPS[name])
    with pytest.warns(UserWarning, match="Parts of one source") as caught:
        tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(5))
    assert sum("Parts of one source" in str(one.message) for one in caught) == 1
    if not records.moved:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ids = [f"p{abs(int(np.ravel(row)[0])) // 4}" for row in records.near()[0][0]]  # of whom each record is
            tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(5), unit_ids=ids)


@pytest.mark.parametrize("name", APART)
def test_parts_that_are_apart_bring_none(name):
    assert not may_overlap(APART[name])


def test_overlapping_parts_of_a_declared_pipeline_bring_a_word():
    batches = PAIRS.concatenate(PAIRS.filter(few)).batch(5).apply(tf.data.experimental.assert_cardinality(6))
    with pytest.warns(UserWarning, match="Parts of one source"):
        tfdp.declare_sampling(batches, tfdp.sampling.Partition(5), examples=29)


def test_a_source_without_an_end_is_refused():
    """Grain's repeat() has this length: an epoch would be as many steps."""
    with pytest.raises(ValueError, match="source is endless"):
        tfdp.records(grain_like.Repeat(GRAIN, length=sys.maxsize // 20 * 20))


RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 4)).astype("float32")


class GoesRound:
    """A source that is longer than what it reads, to make epochs longer."""

    def __len__(self):
        return 300

    def __getitem__(self, index):
        return ROWS[index % 60], ROWS[index % 60, 0]


def mapped(rows, folder):
    np.save(folder / "rows.npy", rows)
    return np.load(folder / "rows.npy", mmap_mode="r")


AGAIN = {
    "a source that goes round": (lambda _: GoesRound(), 5),
    "through a random transform": (lambda _: tfdp.records(GoesRound(), lambda one: (one[0] + RNG.normal(), one[1])), 5),
    "a list": (lambda _: tfdp.records([(row, row[0]) for row in ROWS] * 3), 3),
    "a mapped file": (lambda folder: mapped(np.tile(ROWS, (4, 1)), folder), 4),
    "a mapped file, one behind the other": (lambda folder: mapped(np.repeat(ROWS, 4, axis=0), folder), 4),
}


@pytest.mark.parametrize("name", AGAIN)
def test_records_that_are_not_all_looked_at_are_noticed_where_they_come_again(name, tmp_path):
    make, times = AGAIN[name]
    records = make(tmp_path)
    y = None if hasattr(records, "structure") or isinstance(records, GoesRound) else np.zeros(len(records))
    ids = np.arange(len(records)) // times if "behind" in name else np.arange(len(records)) % 60
    for other in ({}, {"unit_ids": np.arange(len(records)) % 7}):
        with pytest.warns(UserWarning, match=f"seem to be 60, each {times} times or more"):
            tfdp.PrivateBatches(records, y, tfdp.sampling.Poisson(5), **other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.PrivateBatches(records, y, tfdp.sampling.Poisson(5), unit_ids=ids)


@pytest.mark.parametrize(
    "rows",
    [ROWS, np.zeros((240, 3)), RNG.integers(0, 2, (960, 2)), RNG.integers(0, 3, (720, 1)), np.arange(960) % 2],
    ids=["different", "alike", "few cells", "fewer", "in turns"],
)
def test_others_are_not_and_few_are_read(rows):
    read = []
    assert rounds(len(rows), lambda place: read.append(place) or rows[place]) == 1
    assert len(read) < (20 if rows is ROWS else 160)


def test_an_endless_pipeline_is_told_of_with_the_option_of_readers_that_repeat_by_themselves():
    with pytest.raises(ValueError, match=r"Leave out \.repeat\(\), and give num_epochs=1 to make_csv_dataset"):
        tfdp.records(tf.data.Dataset.from_tensor_slices(np.zeros((4, 2), np.float32)).repeat())
