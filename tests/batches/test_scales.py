"""Columns that were scaled by statistics of the very records bring a warning; others don't."""

import tracemalloc
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


def by_itself(x):
    axes = tuple(range(1, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)


SCALED = {
    "standardised": standardised(X),
    "by pandas": standardised(X, ddof=1),
    "in double precision": (X - X.mean(0)) / X.std(0),
    "one column of many": np.column_stack([X, standardised(X)[:, 0]]),
    "a target": standardised(X)[:, 0],
    "a rare flag": standardised((RNG.random((1000, 1)) < 0.03).astype("float64")),
    "more rows than are looked at at once": standardised(RNG.normal(5.0, 2.0, (20_000, 2))),
    "ranged": ranged(X),
    "ranged, beside ages": np.column_stack([ranged(X), ranged(AGES)]),
    "rounded": ranged(RNG.normal(size=(1000, 3)).round(2)),
    "ranks": np.argsort(RNG.random((1000, 2)), axis=0) / 999.0,
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
    "clipped to ranges": np.clip((RNG.lognormal(10, 1, (900, 3)) - 5e3) / 95e3, 0.0, 1.0),
    "ages by their range": ranged(AGES),
    "scores": RNG.integers(0, 31, (2000, 3)) / 30.0,
    "ratios": RNG.integers(0, 21, (900, 3)) / np.arange(20, 23),
    "a sensor of 12 bits": np.clip(RNG.normal(2000.0, 1500.0, (3000, 4)), 0, 4095).round() / 4095,
    "rare ends of 16 bits": np.concatenate([[[0.0, 0.0], [1.0, 1.0]], RNG.integers(0, 65536, (900, 2)) / 65535]),
    "calendar": np.column_stack([RNG.integers(0, 365, 9000) / 364, RNG.integers(0, 1440, 9000) / 1439]),
    "angles": (1.0 + np.cos(RNG.integers(0, 360, (5000, 2)) * np.pi / 180)) / 2.0,
    "contrasts": RNG.permuted(np.repeat([[-1.0], [0.0], [1.0]], 200, axis=0), axis=0) * np.sqrt(1.5),
    "hours": np.sqrt(2.0) * np.sin(np.arange(1440) * np.pi / 12)[:, None],
    "images, each standardised": by_itself(RNG.random((60, 8, 8, 3)) * RNG.random((60, 1, 1, 1))),
    "images by constants": (RNG.random((300, 8, 8)) - 0.5) * np.sqrt(12.0),
    "signs": np.tile(np.repeat([-1.0, 1.0], 8), (500, 1)).reshape(500, 4, 4),
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


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_tables_of_tutorials_are_told(name):
    table = getattr(pytest.importorskip("sklearn.datasets"), f"load_{name}")().data
    for scaled in (ranged(table), standardised(table)):
        assert len(said(x=scaled)) == 1
    assert said(x=table) == said(x=table / table.max()) == []


@pytest.mark.parametrize("axes", [None, 0, (0, 1)], ids=["all", "places", "channels"])
def test_arrays_that_were_standardised_as_a_whole_are_told(axes):
    pictures = RNG.lognormal(0.0, 1.0, (500, 6, 6, 2)).astype("float32")
    scaled = (pictures - pictures.mean(axes)) / pictures.std(axes)
    (message,) = said(x={"a": X, "b": scaled})
    assert message.startswith("Of x, an array has as a whole exactly mean 0 and standard deviation 1: ")
    assert said(x=scaled[:400]) == []


def test_where_limits_were_known_nothing_is_lost():
    (message,) = said(x=ranged(X))
    assert message.endswith("(values clipped to a range, or ratios, look alike), nothing is lost.")


def test_batches_of_such_records_say_it():
    with pytest.warns(UserWarning, match="statistics of these very records"):
        tfdp.PrivateBatches(standardised(X), np.ones((1000, 1)), tfdp.sampling.Poisson(8))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_standardised_columns_are_seen_in_each_type_of_floats(dtype):
    rng = np.random.default_rng(0)
    raw = np.c_[rng.integers(18, 90, 400), rng.normal(120, 15, 400), rng.normal(5, 1, 400)]
    standard = ((raw - raw.mean(0)) / raw.std(0)).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for given in (standard, raw.astype(dtype), (1000 * raw).clip(-6e4, 6e4).astype(dtype)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                warnings.simplefilter("error", RuntimeWarning)
                tfdp.PrivateBatches(given, sampling=tfdp.sampling.Poisson(20))
            assert bool([one for one in caught if "mean 0" in str(one.message)]) == (given is standard)
        other = (rng.normal(120, 15, (400, 8)) - 120) / 15  # constants from elsewhere
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tfdp.PrivateBatches(other.astype(dtype), sampling=tfdp.sampling.Poisson(20))


def test_standardised_columns_are_seen_in_lists_of_records():
    table = np.random.default_rng(0).normal(size=(100, 3))
    table = ((table - table.mean(0)) / table.std(0)).astype("float32")
    with pytest.warns(UserWarning, match="mean 0 and standard deviation 1"):
        tfdp.records([*zip(table, table[:, 0] > 0, strict=True)])


def to_both_sides(table):
    """As MinMaxScaler((-1, 1)) leaves it."""
    return 2.0 * ranged(table) - 1.0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_columns_from_minus_one_to_one_are_told(dtype):
    rows = np.random.default_rng(3).normal(size=(400, 6))
    (message,) = said(x=to_both_sides(rows).astype(dtype))
    assert "6 columns have each exactly -1 as smallest and 1 as largest value" in message
    assert message.endswith("(values clipped to a range, or ratios, look alike), nothing is lost.")


@pytest.mark.parametrize("count", [300, 2000])
def test_what_only_comes_near_its_ends_is_not_scaled(count):
    """Shares of classes, and what networks make."""
    rng = np.random.default_rng(5)
    shares = np.exp(rng.normal(0, 6, (count, 5)))
    shares /= shares.sum(1, keepdims=True)
    tags, states = 1 / (1 + np.exp(-rng.normal(0, 7, (count, 8)))), np.tanh(rng.normal(0, 3, (count, 6)))
    made = (shares, tags, states, 2 * tags - 1)
    assert [said(x=one.astype(dtype)) for one in made for dtype in ("float64", "float32")] == [[]] * 8


def test_long_tables_are_looked_at_where_they_lie():
    drawn = np.random.default_rng(6).normal(size=(100_000, 20))
    for table in (drawn, to_both_sides(drawn)):
        tracemalloc.start()
        said(x=table.astype("float32"))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 16e6  # with the copy in single precision, of 8e6


def test_pictures_angles_and_others_from_minus_one_to_one_are_not():
    rng = np.random.default_rng(4)
    pixels = rng.integers(0, 256, (900, 20))
    minutes = rng.integers(0, 1440, 900)
    angles = np.stack([np.sin(2 * np.pi * minutes / 1440), np.cos(2 * np.pi * minutes / 1440)], 1)
    others = [pixels / 127.5 - 1, (pixels - 128) / 128, angles, np.tanh(rng.normal(size=(900, 6)))]
    others += [rng.uniform(-1, 1, (900, 6)), rng.choice([-1.0, 1.0], (900, 6)), rng.normal(size=(900, 6)).clip(-1, 1)]
    assert [said(x=one.astype("float32")) for one in others] == [[]] * len(others)
