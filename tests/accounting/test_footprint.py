"""The records of a training are known again by where they lie, or by their rows; other people's are not."""

import gc

import numpy as np
import pytest

from tfdp_layers.accounting.footprint import came_from, footprint_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 6)).astype("float32")
TEXTS = np.array([f"record {place}" for place in range(200)], object)
SMALL = RNG.integers(0, 4, (600, 3))
BLANK = np.concatenate([np.zeros((120, 6), "float32"), X[:480]])


def of(*arrays: np.ndarray):
    return footprint_of(arrays, arrays)


SAME = {
    "the object": (X, X),
    "rows that meet": (X[:400], X[300:]),
    "rows backwards": (X[::-1], X[5:6]),
    "columns of the same rows": (X[:, :2], X[:, 4:]),
    "a copy": (X, X.copy()),
    "a shuffled part": (X, X[RNG.permutation(600)[:60]]),
    "parts that overlap by a tenth": (X[:330].copy(), X[300:].copy()),
    "another precision and order": (X, np.asfortranarray(X.astype("float64"))),
    "texts": (TEXTS, TEXTS[::-1].astype("U")),
    "beside blank ones": (BLANK, BLANK[RNG.permutation(600)]),
}
OTHER = {
    "other rows of one array": (X[:300], X[300:]),
    "every other row": (X[::2], X[1::2]),
    "copies of other rows": (X[:300].copy(), X[300:].copy()),
    "a fiftieth in common": (X[:306].copy(), X[300:].copy()),
    "other texts": (TEXTS, np.array([f"another {place}" for place in range(200)], object)),
    "cells of a small table": (SMALL, SMALL[RNG.permutation(600)]),
    "blank rows": (BLANK, np.concatenate([np.zeros((300, 6), "float32"), X[480:]])),
    "few rows": (X[:7].copy(), X[:7].copy()),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_records_are_known_again(name):
    a, b = map(of, SAME[name])
    assert a.overlaps(b)
    assert b.overlaps(a)


@pytest.mark.parametrize("name", OTHER)
def test_other_records_are_not(name):
    a, b = map(of, OTHER[name])
    assert not a.overlaps(b)
    assert not b.overlaps(a)


def test_tables_whose_rows_are_alike_by_chance_are_told_apart():
    """Two draws of one distribution: the rarer their cells, the more rows are single, and the more equal one."""
    for cells in (2, 5, 20, 60):
        a, b = (np.random.default_rng(seed).integers(0, cells, (2000, 3)) for seed in (1, 2))
        assert not of(a).overlaps(of(b)), cells


def test_a_place_is_told_of_whatever_the_records_are():
    ones, copy = np.ones((600, 6), "float32"), X.copy()
    assert of(ones).same_place(of(ones[10:]))
    assert not of(ones).same_place(of(np.ones((600, 6), "float32")))
    assert not of(X).same_place(of(copy))


def test_what_is_computed_from_records_has_their_places():
    made = np.tanh(X @ RNG.normal(size=(6, 4)))
    came_from(made, X[100:])
    assert of(made[:50]).same_place(of(X[149:]))
    assert not of(made[:50]).overlaps(of(X[150:]))


def test_mapped_files_are_known_by_their_names_and_not_read(tmp_path):
    np.save(tmp_path / "x.npy", X)
    a, b = (footprint_of([], [np.load(tmp_path / "x.npy", mmap_mode="r")[part]]) for part in (slice(9), slice(8, None)))
    assert a.sketch is None
    assert a.same_place(b)
    assert not a.overlaps(of(X))


def test_nothing_of_the_records_is_kept_alive_and_no_place_is_given_twice():
    seen = []
    for _ in range(50):
        made = np.ones((30, 2))
        seen.append(of(made))
        del made
        gc.collect()
    assert not any(a.same_place(b) for place, a in enumerate(seen) for b in seen[:place])
