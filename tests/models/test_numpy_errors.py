"""Where a program has NumPy raise at what its numbers do, the library's own small numbers raise nothing."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon
from tfdp_layers.sampling import FixedSize, Poisson, TruncatedPoisson


@pytest.mark.parametrize(
    ("sampling", "more"),
    [
        (Poisson(10), {"unit": "owner", "records_per_owner": 4}),
        (TruncatedPoisson(10), {}),
        (FixedSize(10), {}),
    ],
    ids=["owners", "truncated", "fixed size"],
)
def test_a_ledger_is_read(sampling: Any, more: Any) -> None:
    ledger = Ledger()
    token = ledger.begin(Release((GroupNoise("a", 1.0, 1.037),), sampling, 1000, **more))
    ledger.reserve(token, 50)
    ledger.settle(token, 50)
    ledger.end(token)
    with np.errstate(all="raise"):
        assert 0.0 < epsilon(ledger, 1e-5) < 100.0


@pytest.mark.slow
def test_a_model_is_trained() -> None:
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss="mse")
    x = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32)
    with np.errstate(all="raise"):
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
        assert np.geterr()["under"] == "raise"
        assert model.privacy_statement(1e-5).epsilon > 0.0
