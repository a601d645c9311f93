"""A tensorflow-privacy model on records that another ledger was charged for: `fit` says so, as a private model does."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, epsilon, together

tfp = pytest.importorskip("tensorflow_privacy")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 6)).astype("float32"), RNG.integers(0, 3, 200)
PER_RECORD = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def fitted(x, y=None, ledger=None):
    """A new model's ledger after an epoch, and what was warned of."""
    layers = [tf.keras.Input((6,)), tf.keras.layers.Dense(3)]
    model = tfdp.tf_privacy.with_ledger(tf.keras.Sequential(layers), ledger)
    model.compile(tfp.VectorizedDPKerasSGDOptimizer(l2_norm_clip=0.5, noise_multiplier=1.5), PER_RECORD)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y, epochs=1, verbose=0, **({} if y is None else {"batch_size": 50}))
    texts = [str(one.message) for one in caught]
    return model.ledger, [one for one in texts if one.startswith(("Other ledgers", "Of "))]


def test_the_same_records_are_known_again_and_added_up():
    ledger = Ledger()
    assert fitted(X, Y, ledger)[1] == []
    assert fitted(X, Y, ledger)[1] == []
    other, (said,) = fitted(X[RNG.permutation(200)[:100]], Y[:100])
    assert "for some of them: 1." in said
    assert together(other).steps == ledger.steps + other.steps == 8 + 2
    assert epsilon(together(other), 1e-3) > epsilon(other, 1e-3)
    assert fitted(RNG.normal(size=(200, 6)).astype("float32"), Y)[1] == []


def test_so_are_those_of_poisson_draws():
    ledger, said = fitted(tfdp.tf_privacy.PoissonBatches(X, Y, 50))
    assert said == []
    other, (said,) = fitted(tfdp.tf_privacy.PoissonBatches(X[::-1].copy(), Y, 40))
    assert together(other).steps == ledger.steps + other.steps == 4 + 5


def test_copies_are_noticed():
    _, (said,) = fitted(np.tile(X, (2, 1)), np.tile(Y, 2))
    assert said.startswith("Of 200 different rows that were looked at, 200 come several times, up to 2")
