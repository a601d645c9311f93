"""Layers that bound themselves under policies of 16 bits: the bound holds, sums are float32, outputs are Keras' own."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK
from helpers.hostile_batches import influences
from helpers.private_models import product
from tfdp_layers.layers import gradient_clip

kl, ours = keras.layers, tfdp.layers
TWO = {"input_clip": 2.0, "upstream_clip": 0.5}
UPSTREAM = {"upstream_clip": 0.5}
EXACT = {"gradient_clip": 0.5}
EINSUM: dict[str, Any] = {"equation": "abc,cd->abd", "output_shape": (5, 4), "bias_axes": "d"}

NETWORKS: dict[str, tuple[tuple[int, ...], Any]] = {
    "dense": ((9,), lambda: [ours.ClippedDense(7, **EXACT)]),
    "dense over positions": ((3, 20), lambda: [ours.ClippedDense(12, **EXACT)]),
    "dense by two clips": ((9,), lambda: [ours.ClippedDense(7, **TWO)]),
    "convolution": ((6, 5, 2), lambda: [ours.ClippedConv2D(4, 3, activation="relu", **EXACT)]),
    "convolution by patches": ((6, 5, 2), lambda: [ours.ClippedConv2D(4, 3, bound="patch", **TWO)]),
    "convolution by two clips": ((6, 5, 2), lambda: [ours.ClippedConv2D(4, 3, **TWO)]),
    "einsum": ((5, 6), lambda: [ours.ClippedEinsumDense(**EINSUM)]),
    "einsum by two clips": ((5, 6), lambda: [ours.ClippedEinsumDense(**EINSUM, **TWO)]),
    "normalization": ((5, 6), lambda: [ours.ClippedLayerNormalization(**EXACT)]),
    "normalization by a clip": ((5, 6), lambda: [ours.ClippedGroupNormalization(2, **UPSTREAM)]),
    "several": ((6, 5, 2), lambda: [ours.ClippedConv2D(3, 2, **EXACT), kl.Flatten(), ours.ClippedDense(4)]),
}
POLICIES = ["mixed_bfloat16", "mixed_float16"]


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(request.param)
    yield request.param
    keras.mixed_precision.set_dtype_policy(before)


def model_of(name: str) -> Any:
    shape, layers = NETWORKS[name]
    model = tfdp.PrivateSequential([keras.Input(shape), *layers()])
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 1.0), product)
    return model


@pytest.mark.few(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_hostile_records_stay_within_the_bound_in_float32(name: str, policy: str) -> None:
    if "clip" in name and policy == "mixed_float16":
        pytest.skip("Computed in float32 but for the output: one policy shows it.")
    model = model_of(name)
    found = influences(model)
    assert max(found) <= 1 + SLACK
    if policy == "mixed_bfloat16" and name in ("dense", "convolution"):  # what reaches the bound elsewhere does here
        assert max(found) > 0.99
    x = np.ones((2, *model.input_shape[1:]), np.float32)
    assert model(x).dtype == policy.removeprefix("mixed_")
    assert {t.dtype for t in model.bounded_gradient_sums(x, np.ones(model(x).shape, np.float32))} == {tf.float32}


def test_sums_that_are_rounded_to_16_bits_exceed_the_bound(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug."""

    def rounded(*args: Any) -> Any:
        sums, norms = plain(*args)
        return [tf.cast(tf.cast(one, policy.removeprefix("mixed_")), tf.float32) for one in sums], norms

    plain = gradient_clip.bounded_sums
    monkeypatch.setattr(gradient_clip, "bounded_sums", rounded)
    assert max(influences(model_of("dense"))) > 1 + 3 * SLACK


@pytest.mark.parametrize("name", ["dense", "convolution", "einsum", "normalization"])
def test_what_a_layer_puts_out_and_sends_down_is_that_of_keras(name: str, policy: str) -> None:
    shape, layers = NETWORKS[name]
    (layer,) = layers()
    x = tf.cast(np.random.default_rng(0).normal(size=(3, *shape)), policy.removeprefix("mixed_"))
    layer(x)
    plain = next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("keras."))
    names = ("gradient_clip", "upstream_clip", "input_clip", "bound")
    twin = plain.from_config({key: value for key, value in layer.get_config().items() if key not in names})
    twin(x)
    twin.set_weights(layer.get_weights())
    found = []
    for one in (layer, twin):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = one(x)
        found.append((outputs, tape.gradient(outputs, x)))
    for ours_, theirs in zip(*found, strict=True):
        assert ours_.dtype == theirs.dtype
        np.testing.assert_allclose(*(np.asarray(tf.cast(t, tf.float32)) for t in (ours_, theirs)), atol=2e-2)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("clips", [{}, TWO], ids=["exact", "two clips"])
def test_a_transformer_trains_proved(clips: dict[str, float], policy: str) -> None:
    up = UPSTREAM if clips else {}
    tokens = keras.Input((6,), dtype="int32")
    hidden = ours.ClippedLayerNormalization(**up)(ours.ClippedEmbedding(20, 8, **up)(tokens))
    hidden = ours.ClippedMultiHeadAttention(2, 4, **clips)(hidden, hidden)
    model = tfdp.PrivateModel(tokens, ours.ClippedDense(3, **clips)(kl.GlobalAveragePooling1D()(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), loss)
    before = model.get_weights()
    model.fit(np.arange(48).reshape(8, 6) % 20, np.arange(8) % 3, batch_size=4, verbose=0)
    assert "proved" in str(model.privacy_statement(1e-5))
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_weights_of_other_types_are_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"its weights are {dtype}.*dtype='float32' or 'mixed_bfloat16'"):
        ours.ClippedDense(2, dtype=dtype)(np.ones((2, 5), np.float32))
