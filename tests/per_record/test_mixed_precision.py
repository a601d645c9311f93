"""Under float16 and bfloat16 policies the bound holds in float32, noise is float32, and nothing scales the loss."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK
from helpers.empty_draws import empty_batches
from helpers.hostile_batches import influences
from helpers.private_models import CLIP, product

kl = keras.layers
POLICIES = ["mixed_float16", "mixed_bfloat16"]


@pytest.fixture(params=POLICIES)
def policy(request):
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(request.param)
    yield request.param
    keras.mixed_precision.set_dtype_policy(before)


def model_of(*layers, shape=(6, 5, 2), noise=1.0, clipping="flat"):
    model = tfdp.PrivateSequential([keras.Input(shape), *layers])
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), noise, CLIP, clipping), product)
    return model


def network(**options):
    layers = [kl.Conv2D(3, 2, activation="relu"), kl.GroupNormalization(1), kl.Reshape((20, 3)), kl.LSTM(4)]
    return model_of(*layers, kl.Dense(3), **options)


def test_the_bound_holds_in_float32(policy):
    """Rounded after the clip, two bfloat16 vectors exceeded it by 0.5%."""
    model = model_of(kl.Conv2D(8, 2), kl.LayerNormalization(), kl.Dense(16))
    assert 0.99 < max(influences(model)) <= 1 + SLACK


WRITTEN = {
    "patches of a convolution": (lambda: kl.Conv2D(32, 3, padding="same"), (9, 8, 24)),
    "strided": (lambda: kl.Conv2D(40, 4, 2), (18, 18, 16)),
    "products over positions": (lambda: kl.Dense(12), (40, 16)),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_gradients_written_out_for_their_norms_may_be_rounded(kind, policy, monkeypatch):
    """What is added is what was measured: in bfloat16 close to that of float32, and no more than its bound."""
    layer, shape = WRITTEN[kind]
    multiplied = []
    plain = tf.matmul

    def noted(a, b, *args, **kwargs):
        multiplied.append(a.dtype)
        return plain(a, b, *args, **kwargs)

    monkeypatch.setattr(tf, "matmul", noted)
    model = model_of(layer(), shape=shape)
    assert 0.99 < max(influences(model)) <= 1 + SLACK
    assert (tf.bfloat16 in multiplied) == (policy == "mixed_bfloat16")
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(3, *size)).astype(np.float32) for size in (shape, model.output_shape[1:]))
    low = model.bounded_gradient_sums(x, y)
    keras.mixed_precision.set_dtype_policy("float32")
    twin = model_of(layer(), shape=shape)
    twin.set_weights(model.get_weights())
    for found, exact in zip(low, twin.bounded_gradient_sums(x, y), strict=True):
        assert np.linalg.norm(found - exact) < 0.01 * np.linalg.norm(exact)


def test_layers_compute_low_and_sums_are_float32(policy):
    model = network(clipping="adaptive")
    assert {layer.compute_dtype for layer in model.layers} == {policy.removeprefix("mixed_")}
    x, y = np.ones((3, 6, 5, 2), np.float32), np.ones((3, 3), np.float32)
    assert model(x).dtype == policy.removeprefix("mixed_")
    assert {g.dtype for g in model.bounded_gradient_sums(x, y)} == {tf.float32}
    tfdp.check_independence(model)


@pytest.mark.slow
def test_fit_adds_float32_noise_and_scales_no_loss(policy):
    model = network()
    assert type(model.optimizer) is tfdp.optimizers.ClippedOptimizer
    x, y = (np.ones((12, *shape), np.float32) for shape in ((6, 5, 2), (3,)))
    before = model.get_weights()
    model.fit(empty_batches(x, y), steps_per_epoch=1, verbose=0)
    moved = np.concatenate([(a - b).ravel() for a, b in zip(before, model.get_weights(), strict=True)])
    rounded = np.asarray(tf.cast(tf.cast(moved, policy.removeprefix("mixed_")), tf.float32))
    assert (moved != rounded).mean() > 0.9
    assert np.std(4 * moved) == pytest.approx(CLIP, rel=0.3)
    model.fit(x, y, batch_size=4, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    with pytest.raises(ValueError, match="scales losses"):
        tfdp.optimizers.ClippedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), 1.0)


def test_mixing_is_still_found(policy):
    class Centers(kl.Layer):
        def call(self, x):
            return x - tf.reduce_mean(x, axis=0, keepdims=True)

    with pytest.raises(ValueError, match="'centers'"):
        tfdp.check_independence(model_of(kl.Flatten(), kl.Dense(6), Centers(name="centers"), kl.Dense(3)))
