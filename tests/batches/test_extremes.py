"""Ranges whose ends are one record's own numbers bring a warning; round ones, known ones and shared ones don't."""

import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.batches.extremes import warn_of_extremes

RNG = np.random.default_rng(0)
X = RNG.lognormal(8.0, 1.0, (1000, 3))
SERIES = RNG.lognormal(3.0, 1.0, (200, 7, 2))
UNITS = np.arange(1000) // 5
SAME = X[:, :1].copy()
SAME[UNITS[np.argmax(X[:, 0])] == UNITS] = X[:, 0].max()  # the richest person has it in every row
AGES = RNG.integers(18, 95, (1000, 2)).astype("float64")
WHOLE = np.append(RNG.integers(1000, 70_000, (999, 1)), [[77_435]], axis=0)
CLIPPED = np.clip(X, 1234.567, 12_345.678)


def ends(x):
    axes = tuple(range(x.ndim - 1))
    return x.min(axes), x.max(axes)


TAKEN = {
    "both ends": (X, *ends(X), 6),
    "of float32": (X.astype("float32"), *ends(X.astype("float32")), 6),
    "of float64, rounded": (X.astype("float32"), *ends(X), 6),
    "one for all": (X, 0.0, X.max(), 1),
    "the largest alone": (X, 0.0, X.max(0), 3),
    "the smallest alone": (X, X.min(0), 1e6, 3),
    "cents": (X.round(2), 0.0, X.round(2).max(0), 3),
    "whole numbers": (WHOLE, 0, 77_435, 1),
    "negative": (-X, -X.max(0), 0.0, 3),
    "logarithms": (np.log(X), *ends(np.log(X)), 6),
    "standardised": ((X - 3000.0) / 4000.0, *ends((X - 3000.0) / 4000.0), 6),
    "ratios": (X / 1e6, *ends(X / 1e6), 6),
    "of several positions": (SERIES, *ends(SERIES), 4),
    "beside NaN": (np.where(RNG.random(X.shape) < 0.1, np.nan, X)[np.argsort(X[:, 0])], 0.0, X[:, 0].max(), 1),
    "one person in several rows": (SAME, 0.0, X[:, 0].max(), 1, UNITS),
}
TAKEN["beside NaN"][0][-1] = X[:, 0].max()  # in its last row it is there
TAKEN["beside NaN"][0][-1, 1:] = 0.0
TAKEN["beside NaN"][0][:, 1:] = np.minimum(TAKEN["beside NaN"][0][:, 1:], 900.0)
KNOWN = {
    "ages and their own ends": (AGES, *ends(AGES)),
    "ages": (AGES, 0, 120),
    "binary": (RNG.integers(0, 2, (900, 2)), 0, 1),
    "signs": (RNG.choice([-1.0, 1.0], (900, 2)), -1.0, 1.0),
    "one flag in a thousand": (np.eye(1000)[:, :1], 0.0, 1.0),
    "bytes": (np.append(RNG.integers(3, 250, (900, 1)), [[0], [255]], 0).astype("uint8"), 0, 255),
    "percents, one of 100": (np.append(RNG.random((900, 1)) * 99, [[0.0], [100.0]], 0), 0.0, 100.0),
    "a sensor": (np.append(RNG.integers(1, 4000, (900, 1)), [[0], [4095]], 0), 0, 4095),
    "years": (np.append(RNG.integers(1930, 2020, (900, 1)), [[1907], [2025]], 0), 1907, 2025),
    "clipped": (CLIPPED, *ends(CLIPPED)),
    "clipped, one row": (np.log(np.append(X[:, :1].clip(2.0, 9e5), [[1e6]], 0)), 0.0, np.log(1e6)),
    "counts, one row": (np.log1p(np.append(RNG.integers(0, 90, (900, 1)), [[500]], 0)), 0.0, np.log1p(500)),
    "roots, one row": (np.sqrt(np.append(RNG.integers(0, 90, (900, 1)), [[500]], 0)), 0.0, np.sqrt(500)),
    "angles": (np.append(RNG.random((900, 1)), [[0.0], [2 * np.pi]], 0), 0.0, 2 * np.pi),
    "probabilities": (np.append(RNG.random((900, 1)) * 0.9, [[1e-6], [1 - 1e-6]], 0), 1e-6, 1 - 1e-6),
    "logits that Keras clipped": (
        np.append(RNG.normal(size=(900, 1)), [[-15.942385], [15.942385]], 0).astype("float32"),
        -15.942385,
        np.float32(15.942385),
    ),
    "probabilities that Keras clipped": (
        np.append(RNG.random((900, 1)) * 0.9, [[1e-7], [1 - 1e-7]], 0).astype("float32"),
        np.float32(1e-7),
        np.float32(1 - 1e-7),
    ),
    "tenths in float32": (np.append(RNG.random((900, 1)) * 0.05, [[0.1]], 0).astype("float32"), 0.0, np.float32(0.1)),
    "beyond the ends": (X, np.sort(X, 0)[5], np.sort(X, 0)[-5]),
    "ends of other records": (X[:500], X[500:].min(0) / 3, X[500:].max(0) * 3),
    "with a margin": (X, X.min(0) * 0.9, X.max(0) * 1.1),
    "two people": (np.append(X[:, 0], X[:, 0].max())[:, None], 0.0, X[:, 0].max()),
    "two people in several rows": (SAME, 0.0, X[:, 0].max(), np.arange(1000) // 2),
    "nothing but NaN": (np.full((50, 1), np.nan), 0.123456, 1.234567),
    "other shapes": (X, X.min(0)[:2], X.max(0)[:2]),
}


def said(x, lower, upper, unit_ids=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_extremes(x, lower, upper, unit_ids)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", TAKEN)
def test_ends_that_are_one_records_numbers_are_told(name):
    x, lower, upper, count, *unit_ids = TAKEN[name]
    (message,) = said(x, lower, upper, *unit_ids)
    assert message.startswith(f"In `lower` and `upper`, {count} end")
    assert message.endswith("Where these numbers were known beforehand, nothing is lost.")


@pytest.mark.parametrize("name", KNOWN)
def test_others_are_left_in_peace(name):
    assert said(*KNOWN[name]) == []


def test_hardly_any_number_passes_for_one_that_somebody_chose():
    for table in (X, np.log(X), X / 1e6, -X, RNG.normal(size=(1000, 3)), RNG.random((1000, 3))):
        columns = table.reshape(1, -1)
        (message,) = said(np.append(columns - 1.0, columns, 0)[:, :64], -1e9, columns[0, :64])
        assert int(message.split()[4]) >= 63


def test_where_all_ends_are_round_nothing_is_read():
    assert said(np.broadcast_to(np.float32(0), (10**8, 10**4)), -1.0, 255.0) == []


@pytest.mark.parametrize("shape", [(1000,), (1000, 3)])
def test_quantiles_say_it(shape):
    x = X.reshape(-1)[: np.prod(shape)].reshape(shape)
    settings = {"noise_multiplier": 20.0, "ledger": tfdp.accounting.Ledger(), "probabilities": [0.5]}
    with pytest.warns(UserWarning, match="exactly the smallest or largest"):
        tfdp.preprocessing.quantiles(x, lower=x.min(0), upper=x.max(0), **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.preprocessing.quantiles(x, lower=0.0, upper=1e6, **settings)


def test_adapt_says_it_before_it_is_charged():
    layer = tfdp.layers.PrivateNormalization(20.0, lower=X.min(0), upper=X.max(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="exactly the smallest or largest"):
            layer.adapt(X)
        assert not layer.ledger.entries
        tfdp.layers.PrivateNormalization(20.0, lower=0.0, upper=20_000.0).adapt(X)


def test_adapt_knows_whose_the_rows_are():
    layer = tfdp.layers.PrivateNormalization(20.0, lower=0.0, upper=X[:, 0].max())
    with pytest.warns(UserWarning, match="1 end of a range is exactly"):
        layer.adapt(SAME, unit_ids=UNITS)


def test_metrics_say_it():
    numbers, settings = X[:, 0], {"ledger": tfdp.accounting.Ledger(), "stddev": 0.1}
    with pytest.warns(UserWarning, match="2 ends of the ranges are exactly"):
        tfdp.release_metric(numbers, lower=numbers.min(), upper=numbers.max(), **settings)
    settings["ledger"] = tfdp.accounting.Ledger()
    with pytest.warns(UserWarning, match="1 end of a range is exactly"):
        tfdp.release_metric(SAME[:, 0], lower=0.0, upper=SAME.max(), unit_ids=UNITS, **settings)
    settings["ledger"] = tfdp.accounting.Ledger()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.release_metric(numbers, lower=0.0, upper=1e6, **settings)
        tfdp.release_metric(numbers > 3000.0, **settings)
        tfdp.release_metric([True, False, True], **settings)
