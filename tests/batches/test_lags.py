"""Columns that were moved down a whole table hold other people's values, where one person's rows end."""

import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp

RNG = np.random.default_rng(0)
PEOPLE = np.repeat(np.arange(40), 10)
DOSE, AGE = RNG.normal(size=(2, 400)).astype("float32")


def moved(column, by=1, of=PEOPLE):
    """As pandas' shift, of each person by itself; of one, of the whole table."""
    found = np.zeros_like(column)
    for person in np.unique(of):
        rows = np.flatnonzero(of == person)
        found[rows[by:]] = column[rows[:-by]]
    return found


ALL = np.zeros(400, int)
BEFORE, WHOLE = moved(DOSE, of=ALL), RNG.integers(50, 150, 400).astype("float32")
BELOW, WHOLE_BEFORE = np.append(DOSE[1:], np.float32(0)), moved(WHOLE, of=ALL)
LAGGED = {
    "the row above": (DOSE, BEFORE, "column 2 is column 0 of the row above"),
    "three rows above": (DOSE, moved(DOSE, 3, of=ALL), "column 2 is column 0 of 3 rows above"),
    "the row below": (DOSE, BELOW, "column 0 is column 2 of the row above"),
    "a difference": (DOSE, DOSE - BEFORE, "column 2 is the difference between column 0 and that of the row above"),
    "a difference to the row below": (DOSE, DOSE - BELOW, "column 0 and that of the row below"),
    "whole numbers": (WHOLE, WHOLE_BEFORE, "column 2 is column 0 of the row above"),
    "of ten values": (WHOLE % 10, WHOLE_BEFORE % 10, "column 2 is column 0 of the row above"),
    "a difference of whole numbers": (WHOLE, WHOLE - WHOLE_BEFORE, "column 2 is the difference between column 0"),
}
COUNT = np.arange(400, dtype="float32")
OTHER = {
    "the row above of each person": moved(DOSE),
    "a difference of each person's own": DOSE - moved(DOSE),
    "another column": RNG.normal(size=400),
    "a flag": RNG.integers(0, 2, 400),
    "what never changes": np.ones(400),
    "sorted": np.sort(RNG.normal(size=400)),
    "a number of the row": COUNT,
}


def told_of(x, y=None, people=PEOPLE):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.PrivateBatches(
            x, np.zeros((len(people), 1)) if y is None else y, tfdp.sampling.Poisson(5), unit_ids=people
        )
    return [str(one.message) for one in caught]


def said(*columns, people=PEOPLE):
    return told_of(np.stack(columns, 1).astype("float32"), people=people)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", LAGGED)
def test_columns_that_hold_other_peoples_values_are_told(name):
    column, lagged, says = LAGGED[name]
    (message,) = said(column, AGE, lagged)
    assert message.startswith("Rows hold what is other people's: column ")
    assert says in message
    assert "groupby" in message


PLACES = {
    "columns by name": ({"dose": DOSE, "age": AGE, "past": BEFORE}, None, "input 2 is input 1 of the row above"),
    "columns of one number": ({"a": DOSE[:, None], "b": BEFORE[:, None]}, None, "input 1 is input 0"),
    "two inputs": ([np.stack([AGE, DOSE], 1), BEFORE[:, None]], None, "input 1 is column 1 of input 0"),
    "behind a wide input": ([RNG.normal(size=(400, 40)), np.stack([DOSE, BEFORE], 1)], None, "column 1 of input 1 is"),
    "a target of the row below": (
        np.stack([AGE, DOSE], 1),
        BELOW * (1.0 + 1e-8 * RNG.random(400)),
        "column 1 is the target of",
    ),
    "a change to the row below": (np.stack([AGE, DOSE], 1), (BELOW - DOSE)[:, None], "the target is the difference"),
    "the target of the row above": (np.stack([AGE, BEFORE], 1), DOSE, "column 1 is the target of the row above"),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", PLACES)
def test_it_is_told_wherever_the_columns_stand(name):
    """Of a dict of columns one patient moved a sum by 3.73 bounds, of `label = table.dose.shift(-1)` by 2.83."""
    x, y, says = PLACES[name]
    (message,) = told_of(x, y)
    assert says in message


@pytest.mark.parametrize("name", OTHER)
def test_others_are_left_in_peace(name):
    assert said(DOSE, AGE, OTHER[name]) == []


def test_numbers_of_rows_beside_the_next_ones_are_left_in_peace():
    assert said(COUNT, COUNT + 1, DOSE) == []
    assert said(DOSE, AGE, BEFORE, people=np.arange(400) // 80) == []  # too few people to tell


VISITS, LATER = np.repeat(np.arange(600), 2), np.arange(1200) % 2 == 1
RARE = np.where(RNG.random(1200) < 0.04, RNG.integers(1, 90, 1200), 0)
OUTLIERS = np.where(RNG.random(1200) < 0.02, 999999.0, RNG.normal(60, 15, 1200))
TIMES = np.sort(RNG.uniform(0, 30000, 1200)) + 2e7 * (np.arange(1200) > 600)
HOURS = np.sort(RNG.integers(0, 24, 1200))
ARMS = np.array([0, 1, 3, 2, 4])[np.arange(601) % 5]
ORDINARY = {
    "days since the last visit, and to the next": (
        np.where(LATER, RNG.integers(1, 90, 1200), RARE),  # 0 at most first visits
        np.where(LATER, RARE, RNG.integers(1, 90, 1200)),  # 0 at most last ones
    ),
    "arms in rotation, and the next one's": (ARMS[VISITS], ARMS[VISITS + 1]),
    "a code of no answer": (OUTLIERS, RNG.normal(size=1200)),
    "one typing error": (np.where(np.arange(1200) == 7, 5e6, RNG.normal(size=1200)), RNG.normal(size=1200)),
    "times with a gap": (TIMES, RNG.normal(60, 15, 1200)),
    "hours in order": (HOURS, np.minimum(HOURS + (RNG.random(1200) < 0.02), 23)),
    "times by tenths": (0.1 * np.arange(1200), 0.1 * np.arange(1200) + 0.1),
    "the same column twice": (RARE, RARE),
    "amounts and their negatives": (np.where(LATER, 0, RNG.integers(1, 90, 1200)),) * 2,
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_columns_bring_no_warning(name):
    one, other = ORDINARY[name]
    sign = -1.0 if "negatives" in name else 1.0
    noise = np.random.default_rng(1).normal(size=1200)
    assert told_of(np.stack([one, sign * other, noise], 1), np.zeros((1200, 1)), VISITS) == []
    assert told_of({"one": one, "other": sign * other}, np.asarray(one, "float32"), VISITS) == []


def test_blocks_of_one_text_are_told_once():
    tokens = RNG.integers(0, 50, 400 * 16 + 1).astype("int32")
    (message,) = told_of(tokens[:-1].reshape(400, 16), tokens[1:].reshape(400, 16))
    assert message.startswith("Records go on in one another")
