"""Rules: each record's norm comes below the bound, whatever it holds, and no other record is touched."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tfdp_layers.layers import ClippedDepthwiseConv2D
from tfdp_layers.layers.conv import patches_on_axis
from tfdp_layers.rules.norms import summation_error
from tfdp_layers.rules.rows import (
    FEW,
    L2,
    LARGEST_BOUND,
    ROUNDING,
    SMALLEST_BOUND,
    AffineL2,
    PatchL2,
    Rule,
    SpatialL1,
    bound_upstream,
    check_bound,
    few,
    scale_rows,
    select_rows,
)

SPACE = (3, 4)
MULTIPLICITY = np.arange(12.0).reshape(SPACE)
RULES: list[Rule] = [
    L2(0.5),
    SpatialL1(0.5),
    PatchL2(0.5, MULTIPLICITY),
    AffineL2(0.5, 2.0),
    AffineL2(0.5, 1e-3),
]


def exact_norm(rule: Rule, row: np.ndarray) -> float:
    """The norm of the rule's docstring in float64, of one record (*space, channels)."""
    row = row.astype(np.float64)
    flat = row.reshape(-1, row.shape[-1])
    if isinstance(rule, SpatialL1):
        return float(np.linalg.norm(np.abs(flat).sum(axis=0)))
    if isinstance(rule, PatchL2):
        return math.sqrt(np.sum(rule.multiplicity[..., None] * row**2))
    if isinstance(rule, AffineL2):
        t = rule.input_clip
        return math.sqrt((t**2 * np.sum(flat**2) + np.sum(flat.sum(axis=0) ** 2)) / (t**2 + 1))
    return float(np.linalg.norm(flat))


def first(rule: Rule) -> Rule:
    """The same rule for channels_first."""
    return dataclasses.replace(rule, channels_first=True)


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_row_comes_inside_the_bound_or_to_zero(rule: Rule) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(floats, min_size=24, max_size=24), st.sampled_from([1e-30, 1e-6, 1.0, 1e12]))
    def inside(values: list[float], scale: float) -> None:
        with np.errstate(all="ignore"):
            row = (np.array(values) * scale).astype(np.float32).reshape(*SPACE, 2)
        result = np.asarray(rule(row[None]))[0]
        assert np.all(np.isfinite(result))
        assert exact_norm(rule, result) <= rule.bound
        if not np.all(np.isfinite(row)):
            assert not np.any(result)

    inside()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rows_inside_the_bound_stay_and_others_keep_their_direction(rule: Rule) -> None:
    rows = np.random.default_rng(0).normal(size=(2, *SPACE, 2)).astype(np.float32)
    rows[0] *= 0.9 * rule.bound / exact_norm(rule, rows[0])
    rows[1] *= 1e3
    result = np.asarray(rule(rows))
    np.testing.assert_array_equal(result[0], rows[0])
    np.testing.assert_allclose(result[1], rows[1] * rule.bound / exact_norm(rule, rows[1]), rtol=3 * ROUNDING)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_norm_is_the_one_of_the_docstring_in_either_data_format(rule: Rule) -> None:
    rows = np.random.default_rng(1).normal(size=(5, *SPACE, 2)).astype(np.float32)
    expected = [exact_norm(rule, row) for row in rows]
    np.testing.assert_allclose(rule.norm(rows), expected, rtol=1e-5)
    np.testing.assert_allclose(first(rule).norm(np.moveaxis(rows, -1, 1)), expected, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_row_depends_on_itself_alone(rule: Rule) -> None:
    rows = np.random.default_rng(2).normal(size=(3, *SPACE, 2)).astype(np.float32)
    expected = np.asarray(rule(rows[:1]))
    for hostile in (np.nan, np.inf, -np.inf, 1e30, 0.0):
        rows[1:] = hostile
        np.testing.assert_array_equal(np.asarray(rule(rows))[:1], expected)
        assert np.all(np.asarray(rule(rows))[1:] == 0)


def test_a_row_on_vectors_has_its_euclidean_norm_under_every_upstream_rule() -> None:
    rows = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    for rule in (L2(1.0), AffineL2(1.0, 3.0)):
        np.testing.assert_allclose(rule.norm(rows), np.linalg.norm(rows, axis=1), rtol=1e-6)


def test_the_scale_is_a_constant_in_the_backward_pass() -> None:
    rows = tf.constant(np.random.default_rng(4).normal(size=(3, 7)), tf.float32)
    rule = L2(0.5)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        total = tf.reduce_sum(rule(rows))
    expected = np.asarray(rule.scales(rows))[:, None] * np.ones((1, 7))
    np.testing.assert_allclose(tape.gradient(total, rows), expected, rtol=1e-6)


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_bound_upstream_is_the_identity_forward_and_the_rule_backward(jit_compile: bool | None) -> None:
    rule = SpatialL1(0.5)
    rng = np.random.default_rng(5)
    values, upstream = (rng.normal(size=(3, *SPACE, 2)).astype(np.float32) for _ in range(2))
    upstream[1] *= 1e-3
    upstream[2, 0, 0, 0] = np.nan

    def both(values: tf.Tensor, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            outputs = bound_upstream(values, rule)
        return outputs, tape.gradient(outputs, values, output_gradients=upstream)

    function = both if jit_compile is None else tf.function(both, autograph=False, jit_compile=jit_compile)
    outputs, gradient = function(tf.constant(values), tf.constant(upstream))
    np.testing.assert_array_equal(outputs, values)
    np.testing.assert_array_equal(np.asarray(gradient)[1], upstream[1])
    assert not np.any(np.asarray(gradient)[2])
    assert rule.bound * (1 - 3 * ROUNDING) <= exact_norm(rule, np.asarray(gradient)[0]) <= rule.bound


def test_rows_that_are_summed_afterwards_leave_room_for_the_rounding() -> None:
    rows = np.ones((1, 1000, 2), np.float32)
    plain, summed = (float(L2(0.5, summed=flag).scales(rows)[0]) for flag in (False, True))
    assert summed / plain == pytest.approx(1 - 1000 * 2**-24, rel=1e-6)


def test_the_rounding_margin_grows_with_the_number_of_positions_known_or_not() -> None:
    unknown = tf.function(
        lambda rows: summation_error(rows, [1, 2]), input_signature=[tf.TensorSpec((None, None, None, 2))]
    )
    for space in ((1, 1), (5, 7), (300, 300)):
        rows = tf.zeros((1, *space, 2))
        assert summation_error(rows, [1, 2]) == pytest.approx(math.prod(space) * 2**-24)
        assert float(unknown(rows)) == pytest.approx(math.prod(space) * 2**-24)
    # Never so much that a scale would change its sign.
    assert summation_error(tf.zeros((0, 2**13, 2**13, 1)), [1, 2]) < 1


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 1e-11, 1e39, None, "1", True, 1j, [1.0]])
def test_what_is_no_bound_is_refused_by_name_with_the_value(value: Any) -> None:
    with pytest.raises(ValueError, match="`input_clip` must be a number") as caught:
        check_bound(input_clip=value)
    assert repr(value) in str(caught.value)
    with pytest.raises(ValueError, match="`bound`"):
        L2(value)


def test_numbers_of_every_type_are_bounds() -> None:
    check_bound(a=1, b=SMALLEST_BOUND, c=LARGEST_BOUND, d=np.float32(0.5), e=np.int64(3))
    rows = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(L2(LARGEST_BOUND)(rows), rows)


def test_rules_are_frozen() -> None:
    for rule in RULES:
        with pytest.raises(dataclasses.FrozenInstanceError):
            rule.bound = 2.0  # type: ignore[misc]


# The inequalities that the docstrings of the rules rest on: the joint gradient against the norms, in exact geometry.


@settings(max_examples=100, deadline=None, derandomize=True)
@given(t=st.sampled_from([1e-2, 1.0, 30.0]), positions=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_affine_norm_bounds_the_joint_gradient_over_positions(t: float, positions: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, u = rng.normal(size=(positions, 2)), rng.normal(size=(positions, 3)) + rng.normal(size=3)
    x *= t / np.linalg.norm(x)
    joint = np.linalg.norm(np.vstack([x.T @ u, u.sum(axis=0)]))
    assert joint <= exact_norm(AffineL2(1.0, t), u) * math.hypot(t, 1) * (1 + 1e-12)


# Patches


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 12),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    padding=st.sampled_from(["valid", "same", "causal"]),
)
def test_patches_on_axis_are_the_derivative_of_a_convolution(
    size: int, kernel: int, stride: int, dilation: int, padding: str
) -> None:
    assume(stride == 1 or dilation == 1)
    assume(padding != "valid" or (kernel - 1) * dilation < size)
    layer = keras.layers.Conv1D(
        1, kernel, stride, padding, dilation_rate=dilation, use_bias=False, kernel_initializer="ones"
    )
    np.testing.assert_array_equal(
        patches_on_axis(size, kernel, stride, dilation, padding), derivative(layer, (size, 1))
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(["valid", "same"]),
)
def test_patches_of_a_depthwise_convolution_with_stride_and_dilation(
    size: tuple[int, int], kernel: tuple[int, int], stride: int, dilation: tuple[int, int], padding: str
) -> None:
    assume(padding != "valid" or all((k - 1) * d < n for k, d, n in zip(kernel, dilation, size, strict=True)))
    options = {"strides": stride, "padding": padding, "dilation_rate": dilation, "use_bias": False}
    plain = keras.layers.DepthwiseConv2D(kernel, depthwise_initializer="ones", **options)
    clipped = ClippedDepthwiseConv2D(kernel, input_clip=1.0, upstream_clip=1.0, bound="patch", **options)
    np.testing.assert_array_equal(clipped.count_patches(size), derivative(plain, (*size, 1)))


def derivative(layer: Any, shape: tuple[int, ...]) -> np.ndarray:
    """d sum(layer(x)) / d x of the Keras layer with a kernel of ones: how often each pixel is used."""
    x = tf.ones((1, *shape))
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(layer(x))
    return np.asarray(tape.gradient(total, x))[0, ..., 0]


@pytest.mark.parametrize(
    "rule", [L2(1.0), SpatialL1(1.0), AffineL2(1.0, 0.1), PatchL2(1.0, np.ones((150, 60)))], ids=str
)
@pytest.mark.parametrize("channels_first", [False, True])
def test_over_many_positions_rounding_never_makes_the_norm_too_small(rule: Rule, channels_first: bool) -> None:
    rng = np.random.default_rng(6)
    for rows in (
        np.full((1, 150, 60, 3), 0.1),
        np.abs(rng.normal(size=(1, 150, 60, 3))),
        rng.normal(size=(1, 150, 60, 3)),
    ):
        rows = rows.astype(np.float32)
        exact = exact_norm(rule, rows[0])
        found = first(rule).norm(np.moveaxis(rows, -1, 1)) if channels_first else rule.norm(rows)
        assert exact * (1 - ROUNDING) <= float(found[0]) <= exact * 1.06


@pytest.mark.parametrize("width", [4, FEW], ids=["in one go", "by a branch"])
def test_refusing_one_row_changes_no_other_on_either_way(width: int) -> None:
    rows = np.random.default_rng(7).normal(size=(3, width, 2)).astype(np.float32)
    assert few(tf.constant(rows)) == (width == 4)
    scales = np.array([0.3, 0.7, 1.0], np.float32)

    def both(values: np.ndarray, factors: np.ndarray) -> Any:
        values = tf.constant(values)
        with tf.GradientTape() as tape:
            tape.watch(values)
            outputs = scale_rows(select_rows(values, tf.constant(factors)), tf.constant(factors))
        return np.asarray(outputs), np.asarray(tape.gradient(outputs, values, output_gradients=values))

    plain = both(rows, scales)
    rows[1], scales[1] = np.inf, 0.0
    for refused, before in zip(both(rows, scales), plain, strict=True):
        np.testing.assert_array_equal(refused[[0, 2]], before[[0, 2]])
        np.testing.assert_array_equal(refused[1], 0.0)
