"""A training whose weights cannot move says so before its first step: each would cost its epsilon all the same."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

X = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")


def trained(optimizer, policy):
    layers = [keras.Input((6,)), keras.layers.Dense(2, dtype=policy)]
    model = tfdp.make_private(keras.Sequential(layers))
    model.compile(tfdp.optimizers.ClippedOptimizer(optimizer, noise_multiplier=1.0), "mse")
    before = model.get_weights()
    model.fit(X, np.ones((12, 2), "float32"), batch_size=4, verbose=0)
    return any(not np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True))


def test_adam_in_bfloat16_moves_nothing_and_says_so():
    with pytest.warns(UserWarning, match="Weights of bfloat16 will not move: Adam computes with beta_2=0.999"):
        assert not trained(keras.optimizers.Adam(0.01), "bfloat16")


@pytest.mark.parametrize(
    ("optimizer", "policy"),
    [
        (keras.optimizers.SGD(0.5, momentum=0.9), "bfloat16"),
        (keras.optimizers.Adam(0.01, beta_2=0.99), "bfloat16"),
        (keras.optimizers.Adam(0.01), "mixed_bfloat16"),
    ],
    ids=["SGD", "another decay", "mixed"],
)
def test_what_moves_says_nothing(optimizer, policy):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Weights of")
        assert trained(optimizer, policy)
