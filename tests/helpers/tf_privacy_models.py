"""Models of tensorflow-privacy with a ledger, for its own environment; elsewhere tests that import this are skipped."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

tfp = pytest.importorskip("tensorflow_privacy")
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry  # noqa: E402

tk, kl = tf.keras, tf.keras.layers
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 6)).astype("float32"), RNG.integers(0, 3, 200)
PER_RECORD = tk.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
MEAN = tk.losses.SparseCategoricalCrossentropy(from_logits=True)
FAST = {"use_xla": False, "layer_registry": layer_registry.make_default_layer_registry()}


def layers():
    return [tk.Input((6,)), kl.Dense(40, "tanh"), kl.Dense(3)]


def of_optimizer(cls, clip=0.5, noise=1.5, ledger=None, rate=1.0, **options):
    model = tfdp.tf_privacy.with_ledger(tk.Sequential(layers()), ledger)
    model.compile(cls(l2_norm_clip=clip, noise_multiplier=noise, learning_rate=rate, **options), PER_RECORD)
    return model


def of_model(clip=0.5, noise=1.5, ledger=None, rate=1.0, **options):
    model = tfp.DPSequential(l2_norm_clip=clip, noise_multiplier=noise, layers=layers(), **options)
    tfdp.tf_privacy.with_ledger(model, ledger).compile(tk.optimizers.SGD(rate), MEAN)
    return model


KINDS = {
    "optimizer": lambda **o: of_optimizer(tfp.DPKerasSGDOptimizer, **o),
    "vectorized": lambda **o: of_optimizer(tfp.VectorizedDPKerasSGDOptimizer, **o),
    "model": lambda **o: of_model(use_xla=False, **o),
    "registry": lambda **o: of_model(**FAST, **o),
    "xla": of_model,
}
ENDS = {name: (kind, True) for name, kind in KINDS.items()}
ENDS |= {f"{name}, epochs": (KINDS[name], False) for name in ("optimizer", "model")}


def draws(size=20, **options):
    return tfdp.tf_privacy.PoissonBatches(X, Y, size, **options)


def flat(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])
