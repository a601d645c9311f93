"""Records that climb do not move a step's sums by more than is stated; planted bugs are found by them."""

import importlib

import keras
import pytest
import tensorflow as tf

from helpers.layer_cases import CASES, stack, tokens
from helpers.record_search import ROUNDING, search

contributions = importlib.import_module("tfdp_layers.per_record.contributions")
rows = importlib.import_module("tfdp_layers.rules.rows")
kl = keras.layers
LIMIT = 1.001


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 9, 16))])
def test_no_record_moves_more_than_its_bound(first):
    for seed in range(first, first + (2 if first == 0 else 7)):
        found = search(seed, 10 if first == 0 else 20)
        assert found.influence <= LIMIT, (seed, found)
        assert found.mixing <= 10 * ROUNDING, (seed, found)


# Planted bugs ---------------------------------------------------------------------------------------------------------


def test_norms_that_are_too_small_are_found(monkeypatch):
    true = contributions.Stored.squared_norms
    monkeypatch.setattr(contributions.Stored, "squared_norms", lambda self: 0.9 * true(self))
    found = search(0, 20, cases={"norms": CASES["norms"]})
    assert found.influence > LIMIT


def test_terms_that_cancel_are_found(monkeypatch):
    for module in (contributions, rows):
        monkeypatch.setattr(module, "CANCELLING", 0.0)
    tables = {"embedding": lambda: tokens(kl.Embedding(5, 8), length=4)}
    assert max(search(seed, 40, cases=tables).mixing for seed in (4, 5, 7)) > 10 * ROUNDING


class Mixing(kl.Layer):
    def call(self, x):
        return x + tf.reduce_mean(x, axis=0, keepdims=True)


def test_records_that_meet_are_found():
    cases = {"mixing": lambda: stack((4,), kl.Dense(3), Mixing(), kl.Dense(2))}
    found = search(0, 10, cases=cases)
    assert found.influence > LIMIT
    assert found.mixing > 10 * ROUNDING
