"""The records of a training are known again by where they lie, or by their rows; other people's are not."""

import numpy as np
import pytest

from tfdp_layers.accounting.columns import by_design, columns_of
from tfdp_layers.accounting.footprint import PLACE, came_from, footprint_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 6)).astype("float32")
LABELS = RNG.integers(0, 2, 600)
TEXTS = np.array([f"record {place}" for place in range(200)], object)
SMALL = RNG.integers(0, 4, (600, 3))
BLANK = np.concatenate([np.zeros((120, 6), "float32"), X[:480]])
BALANCED = np.random.RandomState(0).permutation(np.repeat(np.arange(3), 200))  # as scikit-learn's shuffle by seed 0
DAYS, HOURS = np.repeat(np.arange(40), 24), np.tile(np.arange(24), 40)
GRID = np.stack([DAYS / 40, HOURS / 24, DAYS % 7], 1).astype("float32")


def baskets(seed: int, records: int, share: float) -> np.ndarray:
    return (np.random.default_rng(seed).random((records, 40)) < share).astype("float32")


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
    "two bootstrap samples": (X[RNG.integers(0, 600, 600)], X[RNG.integers(0, 600, 600)]),
    "bootstrap samples of a third": (X[RNG.integers(0, 600, 200)], X[RNG.integers(0, 600, 200)]),
    "texts": (TEXTS, TEXTS[::-1].astype("U")),
    "other features, one in common": (X[:, :4].copy(), X[:, 3:].copy()),
    "a column more": (X, np.column_stack([X, LABELS])),
    "scaled, but for a flag": (np.column_stack([X, LABELS]), np.column_stack([X * 2.0 - 1.0, LABELS])),
    "features of a text each": (np.column_stack([TEXTS, TEXTS[::-1]]), TEXTS.copy()),
    "beside blank ones": (BLANK, BLANK[RNG.permutation(600)]),
    "scaled, but for balanced classes": (np.column_stack([X, BALANCED]), np.column_stack([1.0 - X * 2.0, BALANCED])),
    "a part of many baskets": (baskets(0, 1500, 0.06), baskets(0, 1500, 0.06)[RNG.permutation(1500)[:400]]),
    "numbers of patients": (NUMBERS := RNG.choice(10**9, (500, 1), replace=False), NUMBERS[::-1].copy()),
    "incomes": (INCOMES := RNG.lognormal(10.0, 1.0, (500, 1)).round(), INCOMES[100:].copy()),
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
    "balanced classes in one order": (np.column_stack([X, BALANCED]), np.column_stack([X[::-1] + 1.0, BALANCED])),
    "hours of days": (GRID.copy(), GRID[RNG.permutation(960)]),
    "hours of most days": (GRID[RNG.random(960) < 0.7], GRID[RNG.random(960) < 0.7]),
    "numbers from 0 on": (np.arange(500)[:, None], RNG.permutation(500)[:, None]),
    "days of a year": (np.arange(365)[:, None] / 364, RNG.permutation(365)[:300, None] / 364),
    "small baskets among large ones": (baskets(1, 1500, 0.06), baskets(2, 400, 0.02)),
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


def test_what_shows_it_is_said_in_words():
    scaled, other = X * 2.0 - 1.0, RNG.normal(size=(600, 3))
    for mine, theirs, seen in (
        (of(X), of(X[5:]), PLACE),
        (of(X), of(X[::-1].copy()), "equal rows"),
        (of(X), of(np.column_stack([other, X[:, 0]])), "a column of equal values"),
        (footprint_of([], [X], [LABELS]), footprint_of([], [scaled], [LABELS.copy()]), "equal labels, row by row"),
        (footprint_of([], [X], [BALANCED]), footprint_of([], [scaled], [BALANCED]), "equal labels, row by row"),
        (footprint_of([], [X], [BALANCED]), footprint_of([], [other], [BALANCED]), None),
        (footprint_of([], [X], [LABELS]), footprint_of([], [other, LABELS]), "a column of equal values"),
        (of(X), of(other), None),
    ):
        assert mine.seen(theirs) == theirs.seen(mine) == seen


@pytest.mark.parametrize(
    ("counts", "chosen"),
    [
        ((50, 50, 50), True),
        ((900, 100), True),
        ((990, 10), True),
        ((100, 200, 300), True),
        ((40, 15, 5), False),
        ((307, 293), False),
        ((4, 4), False),
        ((600,), False),
        ((50_013, 9_987), False),
    ],
)
def test_round_shares_were_chosen(counts, chosen):
    assert by_design(np.array(counts)) == chosen


@pytest.mark.parametrize("records", [80, 300, 400, 500, 1000, 60_000])
def test_counts_of_people_who_came_by_chance_are_seldom_round(records):
    drawn = np.random.default_rng(0).binomial(records, 0.37, 500)
    assert sum(by_design(np.array([one, records - one])) for one in drawn) <= 50


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
