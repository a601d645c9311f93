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
from helpers.variants import slow_but
from tfdp_layers.clipping import filters
from tfdp_layers.per_record.contributions import Stored
from tfdp_layers.rules import norms

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


@pytest.mark.few(4)
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


@pytest.mark.few(1)
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


# Every bounding of records' gradients, beside layers that compute in bfloat16 -----------------------------------------

ADAPTED = tfdp.optimizers.AdaDPOptimizer
BOUNDINGS = {
    "AdaDP by layer": lambda: ADAPTED(1.0, 1.0, l2_norm_clip=CLIP, scale_estimator="layer"),
    "AdaDP by query": lambda: ADAPTED(1.0, 1.0, l2_norm_clip=CLIP, scale_estimator="query"),
    "AdaDP by coordinate": lambda: ADAPTED(1.0, 1.0, l2_norm_clip=CLIP, scale_estimator="coordinate"),
    "tanh, clipped": lambda: tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.0, CLIP),
    "tanh by dimension": lambda: tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.0, bound="dimension"),
    "flat": lambda: tfdp.optimizers.ClippedOptimizer("sgd", 1.0, CLIP, "flat"),
    "adaptive": lambda: tfdp.optimizers.ClippedOptimizer("sgd", 1.0, CLIP, "adaptive"),
}
LOW = {
    "conv2d": lambda: ([kl.Conv2D(3, 3, activation="relu"), kl.Flatten()], (6, 6, 2)),
    "depthwise": lambda: ([kl.DepthwiseConv2D(3), kl.GlobalAveragePooling2D()], (6, 6, 2)),
    "groups": lambda: ([kl.Conv2D(4, 3, groups=2), kl.Flatten()], (6, 6, 4)),
    "conv1d": lambda: ([kl.Conv1D(3, 3), kl.Flatten()], (8, 2)),
    "embedding": lambda: ([kl.Embedding(9, 4), kl.Flatten()], (6,)),
    "normalized": lambda: ([kl.Dense(5), kl.LayerNormalization()], (6,)),
}
CROSSED = [(layers, bounding) for layers in LOW for bounding in BOUNDINGS]


@pytest.fixture(params=["mixed_bfloat16", "bfloat16"])
def low_policy(request):
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(request.param)
    yield request.param
    keras.mixed_precision.set_dtype_policy(before)


def low_model(layers, bounding):
    keras.utils.set_random_seed(1)
    made, shape = LOW[layers]()
    kind = "int32" if layers == "embedding" else None
    model = tfdp.PrivateSequential([keras.Input(shape, dtype=kind), *made, kl.Dense(3)])
    model.compile(BOUNDINGS[bounding](), product)
    return model, shape


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("layers", "bounding"), slow_but([one for one in CROSSED if one[0] == "conv2d"], CROSSED, several=True)
)
def test_every_bounding_takes_layers_of_bfloat16_and_keeps_its_bound(layers, bounding, low_policy):
    """A sum of norms of two types was refused by TensorFlow, for AdaDP and tanh behind a small convolution."""
    model, shape = low_model(layers, bounding)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (10, *shape)).astype(np.float32)
    model.fit(x, rng.normal(size=(10, 3)).astype(np.float32), batch_size=5, steps_per_epoch=1, verbose=0)
    assert all(np.isfinite(np.asarray(w, np.float32)).all() for w in model.get_weights())
    for switched in (0.0, 1.0) if getattr(model.optimizer, "_switch", None) is not None else (None,):
        if switched is not None:
            model.optimizer._switch.assign(switched)
        assert max(influences(model)) <= 1 + SLACK


@pytest.mark.parametrize("kind", [tf.bfloat16, tf.float16])
def test_norms_are_float32_and_count_every_term(kind):
    """A running sum of bfloat16 stays at 256 equal terms."""
    rows = tf.ones((2, 1000), kind)
    for found in (norms.squared_norm(rows), filters.magnitudes(Stored(tf.zeros((1000,)), rows))):
        assert found.dtype == tf.float32
        np.testing.assert_allclose(found, [1000.0, 1000.0], rtol=1e-5)
    assert norms.euclidean_norm(tf.ones((2,), kind)).dtype == tf.float32
    assert norms.euclidean_norm(tf.ones((2, 3), tf.float64)).dtype == tf.float64
