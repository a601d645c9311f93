"""The records of a training are known again by where they lie, or by their rows; other people's are not."""

import numpy as np
import pytest

from tfdp_layers.accounting.columns import columns_of
from tfdp_layers.accounting.footprint import came_from, footprint_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 6)).astype("float32")
LABELS = RNG.integers(0, 2, 600)
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
    "other features, one in common": (X[:, :4].copy(), X[:, 3:].copy()),
    "a column more": (X, np.column_stack([X, LABELS])),
    "scaled, but for a flag": (np.column_stack([X, LABELS]), np.column_stack([X * 2.0 - 1.0, LABELS])),
    "features of a text each": (np.column_stack([TEXTS, TEXTS[::-1]]), TEXTS.copy()),
    "beside blank ones": (BLANK, BLANK[RNG.permutation(600)]),
}
OTHER = {
    "other rows of one array": (X[:300], X[300:]),
    "every other row": (X[::2], X[1::2]),
    "copies of other rows": (X[:300].copy(), X[300:].copy()),
    "a fiftieth in common": (X[:306].copy(), X[300:].copy()),
    "another scale": (X, X * 2.0 - 1.0),
    "numbered records": (np.column_stack([np.arange(600), X]), np.column_stack([np.arange(600), X + 1.0])),
    "classes that take turns": (
        np.column_stack([np.arange(600) % 10, X]),
        np.column_stack([np.arange(600) % 10, X + 1.0]),
    ),
    "sorted classes": (np.column_stack([np.sort(LABELS), X]), np.column_stack([np.sort(LABELS), X + 1.0])),
    "a column in another place": (X[:500], np.column_stack([X[1:501, 0], X[1:501] + 1.0])[:400]),
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


def visits(rng: np.random.Generator, count: int) -> np.ndarray:
    """Age, pressure where it was taken, and whether: half of the rows equal others."""
    missing = rng.random(count) < 0.2
    return np.stack([rng.integers(18, 95, count), rng.normal(130, 20, count).round() * ~missing, missing], 1)


def drawn(cells: int):
    return lambda rng, count: rng.integers(0, cells, (count, 3))


def heavy(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.minimum(rng.zipf(1.4, (count, 2)), 10**6)


@pytest.mark.parametrize("draw", [visits, heavy, *map(drawn, (2, 8, 12, 20, 40))])
@pytest.mark.parametrize(("one", "other"), [(3000, 3000), (20_000, 2000), (200, 200), (2000, 80)])
def test_tables_of_other_people_whose_rows_are_equal_by_chance_are_told_apart(draw, one, other):
    for seed in range(8):
        a, b = (draw(np.random.default_rng([which, seed]), count) for which, count in ((1, one), (2, other)))
        assert not of(a).overlaps(of(b))


@pytest.mark.parametrize("count", [200, 3000])
def test_half_of_the_rows_of_such_a_table_are_known_again_among_others(count):
    old, new = visits(RNG, count), visits(RNG, count // 2)
    again = np.concatenate([old[RNG.permutation(count)[: count // 2]], new])
    assert of(old).overlaps(of(again[RNG.permutation(len(again))]))


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


def test_equal_labels_tell_of_the_same_people_and_numbered_ones_do_not():
    scaled = X * 2.0 - 1.0
    for labels, known in ((LABELS, True), (np.arange(600) % 7, False), (np.ones(600), False)):
        a, b = (footprint_of([], [x], [labels.copy()]) for x in (X, scaled))
        assert a.overlaps(b) == known
        assert not a.same_place(b)
    one = footprint_of([], [X], [LABELS])
    assert not footprint_of([], [scaled], [LABELS]).same_place(one)  # one object of labels is no place


def test_what_was_computed_from_records_is_known_as_labels_and_in_a_table():
    made = np.tanh(X @ RNG.normal(size=(6, 2)))
    came_from(made, X)
    other = RNG.normal(size=(600, 3))
    assert footprint_of([], [other], [made]).same_place(of(X))
    table = of(np.column_stack([other, made]))
    assert table.overlaps(of(X))
    assert of(X).overlaps(table)
    assert not table.same_place(of(X))  # equal numbers show it, which no statement may tell
    assert not of(other).overlaps(of(X))


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
    assert not any(a.same_place(b) for place, a in enumerate(seen) for b in seen[:place])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)),
        np.zeros((20, 0)),
        np.array([[1], [2, 3]] * 10, object),
        np.array([{"a": 1}] * 20, object),
        np.zeros(20, [("a", "f4"), ("b", "i4")]),
        np.arange(20) * 1j,
        np.arange(20).astype("datetime64[D]"),
    ],
    ids=["no records", "no columns", "lists", "dicts", "structures", "complex", "dates"],
)
def test_columns_of_odd_arrays_are_no_error(array):
    assert columns_of([array]) == columns_of([array.copy()])
    came_from(array, X)
