"""A fit that makes no step releases nothing, and names no noise that nobody adds."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

X, Y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40)[:, None] % 2


@pytest.mark.slow
def test_a_fit_that_plans_no_step_says_so(capsys):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("adam"), "mse", run_eagerly=True)
    options = {"batch_size": 20, "verbose": 2, "callbacks": [tfdp.callbacks.PrivacyBudget(3.0, 1e-3)]}
    model.fit(X, Y, epochs=0, **options)
    assert capsys.readouterr().out == "No step is planned: nothing is released.\n"
    assert model.ledger.steps == 0
    model.fit(X, Y, epochs=1, **options)
    assert capsys.readouterr().out.startswith("Noise multiplier ")
    assert model.ledger.steps == 2
