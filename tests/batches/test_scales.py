"""Columns that were scaled by statistics of the very records bring a warning; others don't."""

import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.batches.scales import warn_of_scaled

RNG = np.random.default_rng(0)
X = RNG.lognormal(8.0, 1.0, (1000, 3))
AGES = RNG.integers(18, 95, (1000, 2))
PIXELS = RNG.integers(0, 256, (1000, 9))


def standardised(x, **how):
    return ((x - x.mean(0)) / x.std(0, **how)).astype("float32")


def ranged(x):
    return ((x - x.min(0)) / np.ptp(x, 0)).astype("float32")


SCALED = {
    "standardised": standardised(X),
    "by pandas": standardised(X, ddof=1),
    "in double precision": (X - X.mean(0)) / X.std(0),
    "one column of many": np.column_stack([X, standardised(X)[:, 0]]),
    "a target": standardised(X)[:, 0],
    "a rare flag": standardised((RNG.random((1000, 1)) < 0.03).astype("float64")),
    "more rows than are looked at at once": standardised(RNG.normal(5.0, 2.0, (20_000, 2))),
    "ranged": ranged(X),
    "ages": ranged(AGES),
    "beside flags": np.column_stack([ranged(X), X[:, 0] > 3000]),
}
OTHER = {
    "as they came": X,
    "by constants": (np.log(X) - 8.0).astype("float32"),
    "by those of other people": ((X[:500] - X[500:].mean(0)) / X[500:].std(0)).astype("float32"),
    "a part": standardised(X)[:900],
    "with noise": standardised(X) + np.float32(0.01),
    "pixels": (PIXELS / 255).astype("float32"),
    "percentages": RNG.integers(0, 101, (1000, 4)) / 100.0,
    "one-hot": np.eye(7)[RNG.integers(0, 7, 1000)],
    "a balanced design": np.tile([[-1.0], [1.0]], (500, 1)),
    "zeros": np.zeros((1000, 3)),
    "one ratio": RNG.random((1000, 1)).clip(0.1, 0.9) * 1.25 - 0.125,
    "images": ranged(RNG.normal(size=(100, 64))).reshape(100, 8, 8),
    "few": standardised(X[:10]),
    "whole numbers": AGES,
    "texts": np.array(["a", "b"] * 50, object),
    "none": np.zeros((0, 3)),
}


def said(**given):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_scaled(**given)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", SCALED)
def test_what_was_scaled_by_itself_is_told(name):
    (message,) = said(x=X, y=SCALED[name])
    assert message.startswith("Of y, ")


@pytest.mark.parametrize("name", OTHER)
def test_what_was_not_is_left_in_peace(name):
    assert said(x=OTHER[name], y=None) == []


def test_it_counts_columns_of_all_arrays():
    (message,) = said(x={"a": standardised(X), "b": [standardised(X)[:, :1], X]})
    assert message.startswith("Of x, 4 columns have each exactly mean 0 and standard deviation 1")


def test_batches_of_such_records_say_it():
    with pytest.warns(UserWarning, match="statistics of these very records"):
        tfdp.PrivateBatches(standardised(X), np.ones((1000, 1)), tfdp.sampling.Poisson(8))
