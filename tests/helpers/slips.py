"""A small private model, and what it refuses before anything is spent."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

X, Y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40)[:, None] % 2


def made(optimizer=None, loss="mse"):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(optimizer or tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss, run_eagerly=True)
    return model


def assert_refused(model, says, kind=ValueError, x=X, y=Y, **options):
    with pytest.raises(kind, match=says):
        model.fit(x, y, **({"batch_size": 8, "verbose": 0} | options))
    assert model.ledger.steps == 0
