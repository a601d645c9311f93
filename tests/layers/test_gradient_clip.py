"""A clip of each record's gradient by its own norm: ordinary records attain it, none exceeds it, all else stays."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tfdp_layers as tfdp
from helpers.certify import KINDS, SCALES, SLACK, built, distance, extreme, gradient_below, hostile_records, releaser
from helpers.clipped_cases import Case, case
from helpers.transformer_cases import plain_twin
from helpers.variants import slow_but
from tfdp_layers.layers import (
    ClippedConv1D,
    ClippedConv2D,
    ClippedConv3D,
    ClippedDense,
    ClippedDepthwiseConv2D,
    ClippedEinsumDense,
    ClippedEmbedding,
    ClippedGroupNormalization,
    ClippedLayerNormalization,
    ClippedMultiHeadAttention,
    gradient_clip,
)
from tfdp_layers.per_record import bounded

CASES = [
    case(ClippedDense, (5,), units=3),
    case(ClippedDense, (5,), units=3, use_bias=False),
    case(ClippedDense, (4, 5), units=3),
    case(ClippedDense, (2, 30), units=40),
    case(ClippedConv1D, (8, 2), filters=3, kernel_size=3, padding="causal"),
    case(ClippedConv2D, (6, 7, 2), filters=3, kernel_size=3, padding="same", strides=2),
    case(ClippedConv2D, (3, 3, 8), filters=64, kernel_size=3, padding="same", use_bias=False),
    case(ClippedConv2D, (2, 4, 5), filters=4, kernel_size=3, data_format="channels_first", groups=2),
    case(ClippedConv3D, (4, 4, 4, 2), filters=2, kernel_size=2, dilation_rate=2),
    case(ClippedDepthwiseConv2D, (6, 6, 3), kernel_size=3, depth_multiplier=2),
    case(ClippedEinsumDense, (4, 5), equation="abc,cde->abde", output_shape=(4, 2, 3), bias_axes="de"),
    case(ClippedEinsumDense, (4, 5), equation="abc,bcd->abd", output_shape=(4, 3), bias_axes="d"),
    case(ClippedEmbedding, (6,), input_dim=7, output_dim=3),
    case(ClippedLayerNormalization, (4, 5)),
    case(ClippedGroupNormalization, (4, 4), groups=2),
]
each_case = pytest.mark.parametrize("one", CASES, ids=str)
FEW = [CASES[i] for i in (0, 5)]
"""A vector and a picture."""


def layer_of(one: Case, clip: Any = 0.5) -> Any:
    options = dict(one.options) | {"gradient_clip": clip}
    return built(one.layer_type(**options), one.shape)


def target(layer: Any, one: Case) -> tuple[int, ...]:
    return tuple(layer(np.zeros((1, *one.shape), np.float32)).shape[1:])


def inputs(one: Case, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The values; tokens for an embedding, some of them outside of the vocabulary, and often the same."""
    if one.layer_type is not ClippedEmbedding:
        return values
    return rng.integers(-1, rng.choice([1, 8]), values.shape).astype(np.float32)


def ordinary(one: Case, layer: Any, rows: int, scale: float = 100.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, *one.shape)).astype(np.float32) * scale
    u = (rng.uniform(1, 2, (rows, *target(layer, one))) * scale).astype(np.float32)
    return (rng.integers(0, 7, x.shape).astype(np.float32) if one.layer_type is ClippedEmbedding else x), u


@each_case
@pytest.mark.parametrize("clip", [0.5, "automatic"])
@pytest.mark.parametrize("mode", slow_but(["eager"], ["eager", "graph", "xla"]))
def test_ordinary_records_attain_the_bound_in_every_mode(one: Case, clip: Any, mode: str) -> None:
    layer = layer_of(one, clip)
    assert layer.sensitivity() == (1.0 if clip == "automatic" else clip)
    x, u = ordinary(one, layer, 1)
    attained = distance(releaser(layer, mode)(x, u)) / layer.sensitivity()
    assert 1 - 2e-4 <= attained <= 1 + SLACK, attained


def assert_adversaries_stay_inside(one: Case, examples: int = 25) -> None:
    kinds = st.tuples(st.sampled_from(KINDS), st.sampled_from(SCALES))

    @settings(max_examples=examples, deadline=None, derandomize=True, phases=[Phase.generate])  # not shrunk: slow
    @given(
        rows=st.lists(st.tuples(kinds, kinds), min_size=2, max_size=4),
        weights=st.sampled_from([0.0, 1.0, 1e20, np.nan]),
        clip=st.sampled_from([0.5, 1e-8, 1e6, "automatic"]),
        seed=st.integers(0, 2**16),
    )
    def check(rows: Any, weights: float, clip: Any, seed: int) -> None:
        layer, rng = layer_of(one, clip), np.random.default_rng(seed)
        layer.set_weights([value * np.float32(weights) for value in layer.get_weights()])
        x = inputs(one, np.stack([extreme(*kind, one.shape, rng) for kind, _ in rows]), rng)
        u = np.stack([extreme(*kind, target(layer, one), rng) for _, kind in rows])
        release, limit = releaser(layer), layer.sensitivity() * (1 + SLACK)
        alone = [release(x[[i]], u[[i]]) for i in range(len(rows))]
        together = release(x, u)
        for i, part in enumerate(alone):
            assert distance(part) <= limit, (rows[i], clip)
        sums = [np.sum(parts, axis=0) for parts in zip(*alone, strict=True)]
        assert distance(together, sums) <= SLACK * layer.sensitivity(), (rows, clip)

    check()


@pytest.mark.few(1)
@pytest.mark.parametrize("one", slow_but(FEW, CASES), ids=str)
def test_no_batch_of_hostile_records_exceeds_the_bound(one: Case) -> None:
    assert_adversaries_stay_inside(one, examples=20)


@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("one", slow_but(CASES[:1], [CASES[i] for i in (0, 2, 3, 5, 6, 12)]), ids=str)
def test_compiled_hostile_records_stay_inside(one: Case, mode: str) -> None:
    layer = layer_of(one)
    release, rng = releaser(layer, mode), np.random.default_rng(0)
    x, u = zip(*hostile_records(layer, one.shape), strict=True)
    for record, upstream in zip(inputs(one, np.stack(x), rng), u, strict=True):
        assert distance(release(record[None], upstream[None])) <= layer.sensitivity() * (1 + SLACK)


@each_case
def test_the_forward_pass_and_what_flows_on_below_are_those_of_keras(one: Case) -> None:
    layer = layer_of(one, 1e-3)
    twin = plain_twin(layer)
    x, u = ordinary(one, layer, 3, scale=1.0)
    np.testing.assert_allclose(layer(x), twin(x), rtol=1e-5, atol=1e-5)
    if one.layer_type is not ClippedEmbedding:
        np.testing.assert_allclose(gradient_below(layer, x, u), gradient_below(twin, x, u), rtol=1e-4, atol=1e-4)


@each_case
def test_where_the_clip_does_not_bind_gradients_are_those_of_keras(one: Case) -> None:
    layer = layer_of(one, 1e8)
    x, u = ordinary(one, layer, 3, scale=1.0)
    for ours, theirs in zip(releaser(layer)(x, u), releaser(plain_twin(layer))(x, u), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_another_records_nan_does_not_reach_a_record_below() -> None:
    for one in (CASES[0], CASES[2], CASES[5]):
        layer = layer_of(one)
        x, u = ordinary(one, layer, 2)
        expected = gradient_below(layer, x, u)[0]
        u[1] = np.nan
        np.testing.assert_array_equal(gradient_below(layer, x, u)[0], expected)


@pytest.mark.slow
def test_rounding_over_many_equal_positions_stays_inside() -> None:
    positions = 100_000  # not a power of two, or the equal values would add up without rounding
    for layer in (ClippedDense(1, gradient_clip=1.0), ClippedConv1D(2, 1, gradient_clip=1.0)):
        built(layer, (positions, 1))
        for mode in ("eager", "xla"):
            for value in (0.1, 1.1):
                units = layer.kernel.shape[-1]
                x, u = (np.full((1, positions, size), value, np.float32) for size in (1, units))
                found = distance(releaser(layer, mode)(x, u))
                assert 0.97 <= found <= 1 + SLACK, (layer.name, mode, value, found)


# Planted bugs


def clip_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gradient_clip.GradientClip, "scales", lambda self, norms: tf.ones_like(norms))


def bias_left_out_of_the_norm(patch: pytest.MonkeyPatch) -> None:
    def sums(variables: Any, parts: Any, scales: Any) -> Any:
        norms = tf.sqrt(parts[id(variables[0])].largest_squared_norms())
        return [parts[id(v)].weighted_sum(scales(norms)) for v in variables], norms

    patch.setattr(gradient_clip, "bounded_sums", sums)


def scaled_by_the_mean_norm_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        gradient_clip.GradientClip,
        "scales",
        lambda self, norms: tf.ones_like(norms) * bounded.clip_scales(tf.reduce_mean(norms), self.bound),
    )


def refused_records_multiplied_by_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bounded.Contribution, "keep", lambda self, kept: self)
    for kind in (bounded.Contribution, *bounded.Contribution.__subclasses__()):
        patch.setattr(kind, "keep", lambda self, kept: self)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "bug",
    [
        clip_forgotten,
        bias_left_out_of_the_norm,
        scaled_by_the_mean_norm_of_the_batch,
        refused_records_multiplied_by_zero,
    ],
)
@pytest.mark.parametrize("one", slow_but(CASES[:1], [CASES[0], CASES[5]]), ids=str)
def test_a_planted_bug_is_found(bug: Any, one: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        assert_adversaries_stay_inside(one, examples=60)


# As an argument of a layer, and in models


def test_no_clip_is_automatic_and_both_kinds_are_refused() -> None:
    assert ClippedDense(10).gradient_clip == "automatic"
    assert ClippedDense(10, input_clip=1.0, upstream_clip=1.0).gradient_clip is None
    with pytest.raises(ValueError, match="one or the other"):
        ClippedDense(10, gradient_clip=1.0, input_clip=1.0, upstream_clip=1.0)
    with pytest.raises(ValueError, match="give both"):
        ClippedDense(10, input_clip=1.0)
    with pytest.raises(ValueError, match="one or the other"):
        ClippedMultiHeadAttention(2, 3, gradient_clip={"query": 1.0}, upstream_clip=1.0)
    for wrong in (0.0, -1.0, np.nan, np.inf, "auto"):
        with pytest.raises(ValueError, match="gradient_clip"):
            ClippedDense(10, gradient_clip=wrong)
    with pytest.raises(ValueError, match="bound='patch'"):
        ClippedConv2D(3, 3, gradient_clip=1.0, bound="patch")
    with pytest.raises(ValueError, match="bound='exact'"):
        ClippedConv2D(3, 3, input_clip=1.0, upstream_clip=1.0, bound="exact")


@each_case
@pytest.mark.parametrize("clip", [0.5, "automatic"])
def test_configurations_come_back(one: Case, clip: Any) -> None:
    layer = layer_of(one, clip)
    again = one.layer_type.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.sensitivity() == layer.sensitivity()


def model_of(**clips: Any) -> Any:
    twice = ClippedDense(6, activation="tanh", name="twice", **clips)
    inputs = keras.Input((8, 8, 1))
    hidden = ClippedConv2D(3, 3, activation="relu", name="convolution", **clips)(inputs)
    hidden = keras.layers.Dense(6)(keras.layers.Flatten()(hidden)) if not clips else keras.layers.Flatten()(hidden)
    hidden = ClippedDense(6, name="first", **clips)(hidden)
    outputs = ClippedDense(3, name="last", **clips)(twice(twice(hidden)))
    model = tfdp.PrivateModel(inputs, outputs)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), keras.losses.SparseCategoricalCrossentropy(True))
    return model


@pytest.mark.slow
def test_a_model_states_fits_saves_loads_and_serves(tmp_path: Path) -> None:
    model = model_of(gradient_clip=0.5)
    assert {g.name: g.bound for g in model.sensitivities()} == {
        "convolution": 0.5,
        "first": 0.5,
        "twice": 1.0,  # its gradients add up over its uses
        "last": 0.5,
    }
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 8, 8, 1)).astype("float32"), rng.integers(0, 3, 64)
    whole = model.bounded_gradient_sums(x, y)
    halves = [model.bounded_gradient_sums(x[part], y[part]) for part in (slice(0, 24), slice(24, 64))]
    for ours, one, other in zip(whole, *halves, strict=True):
        np.testing.assert_allclose(ours, one + other, rtol=1e-4, atol=1e-5)
    model.fit(x, y, batch_size=16, physical_batch_size=5, epochs=1, verbose=0)
    assert "0.5" in str(model.privacy_statement(1e-5))
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    assert [g.bound for g in loaded.sensitivities()] == [g.bound for g in model.sensitivities()]
    plain = model.to_keras()
    np.testing.assert_allclose(plain.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    assert not any(type(part).__module__.startswith("tfdp") for part in plain._flatten_layers())


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("clips", [{}, {"gradient_clip": 2.0}])
def test_make_private_swaps_layers_without_a_clip_to_choose(clips: dict[str, Any]) -> None:
    kl = keras.layers
    inputs = keras.Input((6,), dtype="int32")
    hidden = kl.LayerNormalization()(kl.Embedding(9, 4)(inputs))
    hidden = kl.Conv1D(3, 2)(kl.MultiHeadAttention(2, 2)(hidden, hidden))
    plain = keras.Model(inputs, kl.Dense(2)(kl.Flatten()(hidden)))
    private = tfdp.make_private(plain, bounding="backprop_clipping", **clips)
    private.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), keras.losses.SparseCategoricalCrossentropy(True))
    assert {g.bound for g in private.sensitivities()} == {clips.get("gradient_clip", 1.0)}
    x = np.random.default_rng(0).integers(0, 9, (32, 6))
    np.testing.assert_allclose(private(x), plain(x), rtol=1e-5, atol=1e-6)
    private.fit(x, x[:, 0] % 2, batch_size=8, epochs=1, verbose=0)
    np.testing.assert_allclose(private.to_keras()(x), private(x), rtol=1e-5, atol=1e-6)


def test_a_frozen_weight_gets_no_gradient_and_is_not_in_the_norm() -> None:
    layer = built(ClippedDense(3, gradient_clip=0.5), (5,))
    layer.bias.trainable = False
    x, u = ordinary(CASES[0], layer, 1)
    (kernel,) = releaser(layer)(x, u)
    assert distance([kernel]) == pytest.approx(0.5, rel=1e-4)
