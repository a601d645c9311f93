"""Models of tensorflow-privacy that train the same weights: none states less than all of them released."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import epsilon

tfp = pytest.importorskip("tensorflow_privacy")

tk, kl = tf.keras, tf.keras.layers
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 6)).astype("float32"), RNG.integers(0, 3, 200)
DELTA = 1e-3
PER_RECORD = tk.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def test_models_that_share_weights_state_what_both_released():
    def over(inner, ledger=None):
        model = tk.Sequential([tk.Input((6,)), inner, kl.Dense(3)])
        tfdp.tf_privacy.with_ledger(model, ledger)
        model.compile(tfp.DPKerasSGDOptimizer(l2_norm_clip=0.5, noise_multiplier=1.5, learning_rate=0.1), PER_RECORD)
        return model

    inner = kl.Dense(4, "tanh")
    first, second = over(inner), over(inner)
    first.fit(X, Y, batch_size=100, verbose=0)
    with pytest.raises(ValueError, match="trained by another model, with another ledger"):
        second.fit(X, Y, batch_size=100, verbose=0)
    with pytest.raises(ValueError, match="trained by another model"):
        second.privacy_statement(DELTA)
    assert second.ledger.steps == 0
    second.ledger.merge(first.ledger)
    second.fit(X, Y, batch_size=100, verbose=0)
    second.privacy_statement(DELTA)
    assert epsilon(second.ledger, DELTA) > epsilon(first.ledger, DELTA)
    with pytest.raises(ValueError, match="trained by another model"):
        first.privacy_statement(DELTA)  # its weights were trained on since
    third = over(inner, second.ledger)
    third.fit(X, Y, batch_size=100, verbose=0)
    assert str(third.privacy_statement(DELTA)) == str(second.privacy_statement(DELTA))
