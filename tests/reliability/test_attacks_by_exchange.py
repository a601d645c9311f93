"""What takes the place of draws, noise or a process does not pass for what a training was certified with."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.forks import in_fork

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = np.ones((40, 1), "float32")


def model_of(optimizer=None, **options):
    inputs = keras.Input((3,))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(inputs)))
    model.compile(optimizer or tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", **options)
    return model


@pytest.mark.parametrize("eager", [True, False])
def test_a_training_does_not_go_on_in_a_fork(eager):
    """Parent and child stepped with the same noise, on the draws that lay ready."""
    model = model_of(run_eagerly=eager)
    with model.private_run(X, Y, batch_size=10, verbose=0, accept_measured=True) as run:
        run.step(next(run))
        batch = next(run)
        said = in_fork(lambda: run.step(batch))
        assert "A training goes on, with its draws and noise, in a forked process" in said
        run.step(batch)
    assert model.ledger.steps == 2
