"""Gives every test the same initial weights: with the seeds of noise and sampling, its result is one and the same."""

import pytest


@pytest.fixture(autouse=True)
def same_weights():
    import keras

    keras.utils.set_random_seed(0)
