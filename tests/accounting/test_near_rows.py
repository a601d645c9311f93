"""Copies in columns of few values: equal rows that have next to no others near them."""

import math
import time

import numpy as np
import pytest

from helpers.equal_rows import cells, of
from tfdp_layers.accounting.near_rows import stand_alone


def clinic(rng, count):
    """Age, pressure, ward, pulse, sex and a score, whole numbers all."""
    kinds = ((20, 90), (80, 200), (0, 3), (50, 120), (0, 2), (0, 10))
    return np.stack([rng.integers(*ends, count) for ends in kinds], 1)


def with_wards(rng, count):
    rows = clinic(rng, count)
    return np.concatenate([rows[:, :2] / 200, rows[:, 3:], rows[:, 2:3] == np.arange(3)], axis=1).astype("float32")


def with_a_total(rng, count):
    rows = clinic(rng, count)
    return np.concatenate([rows, rows.sum(1, keepdims=True)], axis=1)


def beside_a_number(rng, count):
    return np.concatenate([clinic(rng, count), rng.normal(size=(count, 1))], axis=1)


@pytest.mark.parametrize("draw", [clinic, with_wards, with_a_total, beside_a_number])
@pytest.mark.parametrize("oversampled", [True, False])
def test_copies_in_columns_of_few_values_are_noticed(draw, oversampled):
    found = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rows = draw(rng, 1000)
        rare = np.flatnonzero(rng.random(1000) < 0.2)
        more = np.concatenate([np.arange(1000), rng.choice(rare, 600)]) if oversampled else rng.integers(0, 1000, 1000)
        assert of(rows) is None
        found.append(of(rows[more]) is not None and of(*rows[more].T) is not None)
    assert sum(found) >= 6


def answers(columns, alike=0.5):
    """Of 1 to 5, that go together."""

    def draw(rng, count):
        common = math.sqrt(alike) * rng.normal(size=(count, 1))
        return np.digitize(common + math.sqrt(1 - alike) * rng.normal(size=(count, columns)), [-1.5, -0.5, 0.5, 1.5])

    return draw


def with_totals(rng, count):
    rows = answers(10, 0.8)(rng, count)
    return np.column_stack([rows, rows[:, :5].sum(1), rows[:, 5:].sum(1), rows.sum(1)])


def with_a_risk(rng, count):
    """Coins, and a number that follows from all of them."""
    rows = cells(2, 12)(rng, count)
    return np.column_stack([rows, rows @ np.linspace(0.1, 0.9, 12) ** 2])


def passengers(rng, count):
    age = np.where(rng.random(count) < 0.2, 28, np.clip(rng.normal(30, 14, count), 0, 80).round())
    relatives = np.minimum(rng.geometric((0.68, 0.76), (count, 2)) - 1, 8)
    return np.column_stack([rng.integers(1, 4, count), rng.random(count) < 0.65, age, relatives])


def mushrooms(rng, count):
    species = rng.integers(0, 5, (20, 22))[rng.integers(0, 20, count)]
    return np.where(rng.random((count, 22)) < 0.05, rng.integers(0, 5, (count, 22)), species)


def rare_mushrooms(rng, count):
    species = rng.integers(0, 5, (100, 22))[rng.integers(0, 100, count)]
    return np.where(rng.random((count, 22)) < 0.01, rng.integers(0, 5, (count, 22)), species)


def areas(rng, count):
    """Numbers of where people live, and their sex."""
    area = rng.choice(400, count)
    return np.column_stack([rng.integers(10, 99, (400, 5))[area], rng.integers(0, 2, count)])


def powers(rng, count):
    age, sex = rng.integers(20, 90, count), rng.integers(0, 2, count)
    return np.stack([age, sex, age * sex, age * age], 1)


def one_hot(rng, count):
    kinds = np.minimum(rng.zipf(1.5, (count, 5)), 8)
    return (kinds[..., np.newaxis] == np.arange(1, 9)).reshape(count, 40).astype("float32")


def word_counts(rng, count):
    words = np.minimum(rng.zipf(1.6, (count, 12)), 30) * (np.arange(12) < rng.geometric(0.4, (count, 1)))
    return np.stack([np.bincount(row, minlength=31)[1:] for row in words])


def not_measured(rng, count):
    return np.where(rng.random((count, 6)) < 0.6, -999, clinic(rng, count))


def shares(rng, count):
    return rng.multinomial(10, [0.25] * 4, count) / 10


LIKE = [answers(5), answers(20, 0.9), with_totals, with_a_risk, passengers, mushrooms, one_hot, word_counts]
LIKE += [not_measured, shares]


@pytest.mark.few(40)
@pytest.mark.parametrize("draw", LIKE, ids=range(len(LIKE)))
@pytest.mark.parametrize("count", [60, 400, 3000])
def test_people_who_agree_in_columns_of_few_values_are_not(draw, count):
    assert [of(draw(np.random.default_rng(seed), count)) for seed in range(6)] == [None] * 6


@pytest.mark.parametrize("draw", [rare_mushrooms, areas])
@pytest.mark.parametrize("count", [200, 400])
def test_variants_of_one_thing_are_no_copies(draw, count):
    assert [of(draw(np.random.default_rng(seed), count)) for seed in range(8)] == [None] * 8


@pytest.mark.parametrize("draw", [powers, *LIKE[:3]])
def test_columns_that_follow_from_others_do_not_make_rows_stand_alone(draw):
    assert not any(stand_alone([draw(np.random.default_rng(seed), 400)]) for seed in range(6))


def test_a_million_records_of_few_values_take_little_time():
    rng = np.random.default_rng(0)
    rows = np.concatenate([clinic(rng, 100_000)] * 2 + [rng.integers(0, 9, (100_000, 6))]).repeat(3, axis=1)
    began = time.perf_counter()
    stand_alone([rows])
    assert time.perf_counter() - began < 2.0
