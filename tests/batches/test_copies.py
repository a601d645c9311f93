"""Copies of records that are read by index, which no array of all of them shows."""

import pathlib
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers import grain_like
from tfdp_layers.accounting.repeats import repeated

N = 240
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 12)).astype("float32"), (RNG.random(N) < 0.1).astype("float32")
FEW = RNG.integers(0, 3, size=(N, 3)).astype("float32")
RARE = np.flatnonzero(Y)
OVER = RNG.permutation(np.concatenate([np.arange(N), np.tile(RARE, 8)]))
DRAWN = np.random.default_rng(1).choice(N, 2 * N, p=np.where(Y > 0, 9, 1) / np.where(Y > 0, 9, 1).sum())


def named(rows):
    return [f"scan{i}.png" for i in rows]


def load(name):
    return X[int(name[4:-4])], Y[int(name[4:-4])]


def noisy(name):
    x, y = load(name)
    return x + np.random.default_rng().normal(size=x.shape).astype("float32"), y


class Source:
    def __init__(self, rows, table=X):
        self.rows, self.table = rows, table

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.table[self.rows[index]], Y[self.rows[index]]


def mapped(rows, folder, table=X):
    np.save(folder / "x.npy", table[rows])
    return np.load(folder / "x.npy", mmap_mode="r")


def found_in(records, y=None, **options):
    """How many rows come several times, and how often at most; None where nothing is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = tfdp.PrivateBatches(records, y, tfdp.sampling.Poisson(20), **options)
        copies = batches.footprint().copies
    found = None if copies is None else repeated(copies)
    return None if found is None else found[1:]


MAKES = {
    "names": lambda rows, folder: (tfdp.records(named(rows), load),),
    "names and labels": lambda rows, folder: (
        tfdp.records([(f"a/{i}.png", float(Y[i])) for i in rows], lambda it: (X[int(it[0][2:-4])], np.float32(it[1]))),
    ),
    "names, changed at random": lambda rows, folder: (tfdp.records(named(rows), noisy),),
    "paths, changed at random": lambda rows, folder: (
        tfdp.records([pathlib.Path(one) for one in named(rows)], lambda one: noisy(str(one))),
    ),
    "paths and labels, changed at random": lambda rows, folder: (
        tfdp.records([(pathlib.Path(f"scan{i}.png"), float(Y[i])) for i in rows], lambda it: noisy(str(it[0]))),
    ),
    "dicts of names, changed at random": lambda rows, folder: (
        tfdp.records([{"of": f"scan{i}.png", "y": int(Y[i])} for i in rows], lambda it: noisy(it["of"])),
    ),
    "indices": lambda rows, folder: (tfdp.records(rows.tolist(), lambda i: (X[i], Y[i])),),
    "a source": lambda rows, folder: (Source(rows),),
    "Grain": lambda rows, folder: (grain_like.Shuffle(grain_like.source([(X[i], Y[i]) for i in rows]), seed=1),),
    "a list of records": lambda rows, folder: (tfdp.records([(X[i], Y[i]) for i in rows]),),
    "a mapped file": lambda rows, folder: (mapped(rows, folder), Y[rows]),
}


@pytest.mark.parametrize("rows", [OVER, DRAWN], ids=["oversampled", "drawn by weights"])
@pytest.mark.parametrize("name", MAKES)
def test_copies_are_seen_wherever_records_are_read_by_index(name, rows, tmp_path):
    times = np.bincount(rows)
    assert found_in(*MAKES[name](rows, tmp_path)) == (np.sum(times > 1), times.max())


@pytest.mark.parametrize("name", MAKES)
def test_of_different_records_nothing_is_said(name, tmp_path):
    assert found_in(*MAKES[name](RNG.permutation(N), tmp_path)) is None


def test_equal_rows_of_few_values_are_no_copies(tmp_path):
    plain = np.arange(N)
    assert found_in(Source(plain, FEW)) is None
    assert found_in(mapped(plain, tmp_path, FEW), Y) is None
    assert found_in(tfdp.records([*map(tuple, FEW.tolist())], lambda it: (np.float32(it), np.float32(0)))) is None
    ages = RNG.integers(18, 90, N).tolist()
    assert found_in(tfdp.records(ages, lambda age: (np.float32([age, age % 7]), np.float32(0)))) is None


def dropped(*values):
    made = np.zeros(6, np.float32)
    made[: len(values)] = values
    return made * (np.random.default_rng().random(6) > 0.2), np.float32(0)


def codes(limits):
    return RNG.integers(0, limits, size=(2 * N, len(limits))).tolist()


FEW_VALUED = {
    "answers": (
        [(("18-25", "26-40", "66+")[a], "yn"[b], ("A1", "B2")[c], d) for a, b, c, d in codes([3, 2, 2, 9])],
        lambda it: dropped(ord(it[0][0]), it[1] == "y", ord(it[2][0]), it[3]),
    ),
    "answers in dicts": (
        [{"age": f"{a}0-{a}9", "of": ("A1", "B2")[b], "n": c} for a, b, c in codes([5, 2, 9])],
        lambda it: dropped(int(it["age"][0]), ord(it["of"][0]), it["n"]),
    ),
    "lines": (
        [f"{a},{'MF'[b]},{c},{d}" for a, b, c, d in codes([40, 2, 3, 4])],
        lambda it: dropped(*(ord(one[0]) for one in it.split(","))),
    ),
    "words": ([f"{('ok', 'thanks', 'good')[a]}{b}" for a, b in codes([3, 60])], lambda it: dropped(*map(ord, it[:6]))),
    "dates": ([f"2024-{a + 10}-{b + 10}" for a, b in codes([3, 18])], lambda it: dropped(int(it[5:7]), int(it[8:]))),
    "codes": ([f"{'ABC'[a]}{b + 10}.{c}" for a, b, c in codes([3, 40, 9])], lambda it: dropped(*map(ord, it))),
}


@pytest.mark.parametrize("name", FEW_VALUED)
def test_few_valued_texts_that_are_changed_at_random_are_no_names(name):
    assert found_in(tfdp.records(*FEW_VALUED[name])) is None


def test_a_list_of_records_is_read_once_before_training():
    reads = []

    class Label:
        def __array__(self, dtype=None, copy=None):
            reads.append(0)
            return np.asarray(0.0, np.float32)

    records = tfdp.records([(x, Label()) for x in X])
    there = len(reads)
    for _ in range(3):
        records.inputs(), records.labels()
    assert N <= there <= 2 * N + 8
    assert len(reads) == there


def test_copies_of_one_person_are_covered_where_it_is_said_whose_they_are():
    assert found_in(Source(OVER), unit_ids=OVER // 2) is None
    assert found_in(Source(OVER), unit_ids=np.arange(len(OVER)) // 2) is not None


def test_a_training_says_it_once():
    model = tfdp.make_private(keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(tfdp.records(named(OVER), load), batch_size=20, epochs=1, verbose=0)
    assert sum("come several times" in str(one.message) for one in caught) == 1
