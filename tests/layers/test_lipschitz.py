"""Lipschitz layers stretch nothing, whatever their weights are, and no record exceeds what follows from that."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.certify import (
    SLACK,
    assert_flow_below_is_each_records_own,
    built,
    distance,
    hostile_records,
    influences,
    output_shape,
    releaser,
)
from helpers.lipschitz_cases import used_norm
from helpers.variants import slow_but
from tfdp_layers.layers import GroupSort, LipschitzConv2D, LipschitzDense, lipschitz, lipschitz_base
from tfdp_layers.layers.lipschitz_base import LipschitzLayer
from tfdp_layers.rules import spectral
from tfdp_layers.rules.rows import L2

R, P = 2.0, 0.5
CLIPS = {"input_clip": R, "upstream_clip": P}
CASES: dict[str, tuple[type, tuple[int, ...], dict[str, Any]]] = {
    "dense": (LipschitzDense, (7,), {"units": 5}),
    "dense with bias": (LipschitzDense, (7,), {"units": 5, "use_bias": True}),
    "dense over positions": (LipschitzDense, (4, 7), {"units": 5, "use_bias": True, "bias_clip": 0.3}),
    "patches": (LipschitzConv2D, (8, 8, 2), {"filters": 3, "kernel_size": 4, "strides": 4}),
    "patches with bias": (LipschitzConv2D, (8, 8, 2), {"filters": 3, "kernel_size": 2, "strides": 2, "use_bias": True}),
    "valid": (LipschitzConv2D, (6, 7, 2), {"filters": 3, "kernel_size": 3}),
    "same": (LipschitzConv2D, (6, 7, 2), {"filters": 3, "kernel_size": 3, "padding": "same", "use_bias": True}),
    "strided": (LipschitzConv2D, (7, 7, 2), {"filters": 3, "kernel_size": 3, "padding": "same", "strides": 2}),
    "dilated": (LipschitzConv2D, (7, 7, 2), {"filters": 2, "kernel_size": 2, "dilation_rate": 2}),
}
each = pytest.mark.parametrize("name", slow_but(["dense with bias"], CASES))


def made(name: str, **changes: Any) -> tuple[Any, tuple[int, ...]]:
    kind, shape, options = CASES[name]
    return built(kind(**(CLIPS | options | changes)), shape), shape


def bound(layer: Any, shape: tuple[int, ...]) -> float:
    return layer.bound(layer.input_clip, layer.upstream_clip, (None, *shape))


def worst(name: str, mode: str = "eager") -> float:
    """The largest influence of hostile records and of constant ones, over the bound."""
    layer, shape = made(name)
    target = output_shape(layer, shape)
    constant = (np.full(shape, 9.0, np.float32), np.full(target, 9.0, np.float32))
    one_hot = tuple(np.eye(1, int(np.prod(s)), dtype=np.float32).reshape(s) * 1e3 for s in (shape, target))
    records = [constant, one_hot, *hostile_records(layer, shape)]
    return max(influences(releaser(layer, mode), records)) / bound(layer, shape)


KERNELS = ("normal", "orthogonal", "rank one", "equal", "huge", "one step of power iteration is blind to it")


def kernel_of(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    normal = rng.normal(size=(rows, columns))
    left, _, right = np.linalg.svd(normal, full_matrices=False)
    blind = np.zeros((rows, columns))
    blind[:, : columns // 2 * 2] = np.tile([5.0, -5.0], (rows, columns // 2))
    found = {
        "normal": normal,
        "orthogonal": left @ right,
        "rank one": np.outer(left[:, 0], right[0]),
        "equal": np.ones((rows, columns)),
        "huge": normal * 1e30,
        "one step of power iteration is blind to it": blind + 0.01,
    }[kind]
    return found.reshape(shape).astype(np.float32)


def largest_norm_used(name: str, kinds: Sequence[str] = KERNELS) -> float:
    rng = np.random.default_rng(0)
    layer, shape = made(name)
    found = []
    for kind in kinds:
        layer.kernel.assign(kernel_of(kind, layer.kernel.shape, rng))
        found.append(used_norm(layer, shape))
    return max(found)


@pytest.mark.parametrize("name", slow_but(["dense"], ["dense", "strided"]))
def test_the_kernel_that_is_used_stretches_nothing(name: str) -> None:
    assert largest_norm_used(name) <= 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_kernel_that_is_not_finite_counts_as_zeros(value: float) -> None:
    layer, _ = made("dense")
    kernel = np.asarray(layer.kernel).copy()
    kernel[1, 2] = value
    layer.kernel.assign(kernel)
    np.testing.assert_array_equal(layer(np.ones((2, 7), np.float32)), 0.0)


@each
def test_no_record_exceeds_the_bound(name: str) -> None:
    assert worst(name) <= 1 + SLACK


MODES = [("dense with bias", "xla"), ("same", "graph")]


@pytest.mark.parametrize(("name", "mode"), slow_but(MODES[:1], MODES, several=True))
def test_no_record_exceeds_it_in_a_graph_or_under_xla(name: str, mode: str) -> None:
    assert worst(name, mode) <= 1 + SLACK


@pytest.mark.parametrize("name", ["dense", "dense with bias", "patches"])
def test_a_record_attains_the_bound_where_no_positions_overlap(name: str) -> None:
    layer, shape = made(name)
    x, u = (np.zeros((1, *s), np.float32) for s in (shape, output_shape(layer, shape)))
    x[(0,) * x.ndim], u[(0,) * u.ndim] = 10 * R, -10 * P
    assert 0.999 <= distance(releaser(layer)(x, u)) / bound(layer, shape) <= 1 + SLACK


@pytest.mark.parametrize(("size", "lowest"), [(12, 0.8), (60, 0.96)])
def test_large_constant_pictures_come_near_the_bound_of_kernels_that_overlap(size: int, lowest: float) -> None:
    layer = built(LipschitzConv2D(1, 3, **CLIPS), (size, size, 1))
    x, u = np.ones((1, size, size, 1), np.float32), np.ones((1, size - 2, size - 2, 1), np.float32)
    found = distance(releaser(layer)(x * 10, u * 10)) / bound(layer, (size, size, 1))
    assert lowest <= found <= 1 + SLACK
    assert found == pytest.approx((size - 2) / size, rel=1e-2)


def test_the_gradient_is_that_of_the_kernel_that_is_used() -> None:
    layer, _ = made("dense")
    x = np.random.default_rng(0).normal(size=(1, 7)).astype(np.float32) * 0.1
    u = np.random.default_rng(1).normal(size=(1, 5)).astype(np.float32) * 0.1
    np.testing.assert_allclose(releaser(layer)(x, u)[0], x.T @ u, rtol=1e-4)
    np.testing.assert_allclose(layer(x), x @ np.asarray(layer.bounded_kernel((None, 7))), rtol=1e-4)


@each
def test_what_flows_on_below_is_each_records_own(name: str) -> None:
    layer, shape = made(name)
    rng = np.random.default_rng(0)
    x, u = (rng.normal(size=(2, *s)).astype(np.float32) for s in (shape, output_shape(layer, shape)))
    assert_flow_below_is_each_records_own(layer, x, u)


# Planted bugs


class Unbounded(L2):
    """The rule that someone forgot."""

    def scales(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.ones_like(rows[(slice(None), *[0] * (len(rows.shape) - 1))])


def one_step_of_power_iteration(real: tf.Tensor, imaginary: Any = None) -> tf.Tensor:
    start = tf.ones((real.shape[-2], 1), tf.float64)
    back = tf.matmul(real, start / tf.norm(start), transpose_a=True)
    return tf.reduce_max(tf.norm(tf.matmul(real, back / tf.norm(back)), axis=[-2, -1]))


@pytest.mark.parametrize(("name", "planted"), [("dense", one_step_of_power_iteration), ("dense", "no margin")])
def test_a_norm_that_is_no_bound_is_found(name: str, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of rank one, where the bound is the norm but for rounding.
    kinds = ["rank one"] * 20 if planted == "no margin" else KERNELS
    assert largest_norm_used(name, kinds) <= 1.0
    if planted == "no margin":
        monkeypatch.setattr(spectral, "ROUNDING", 0.0)
    else:
        monkeypatch.setattr(lipschitz, "spectral_bound", planted)
    assert largest_norm_used(name, kinds) > 1.0


def bias_forgotten(patch: pytest.MonkeyPatch) -> None:
    honest = LipschitzLayer.bound
    patch.setattr(LipschitzLayer, "bound", lambda self, *args: honest(_without_bias(self), *args))


def _without_bias(layer: Any) -> Any:
    """The layer, as a copy that says it has no bias."""
    copied = type(layer).from_config(layer.get_config() | {"use_bias": False})
    copied.build(layer._build_shapes_dict["input_shape"])
    return copied


def inputs_not_projected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lipschitz_base, "L2", lambda bound, **options: L2(bound, **options) if options else Unbounded(bound))


def upstream_not_clipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lipschitz_base, "bound_upstream", lambda outputs, rule: outputs)


def overlap_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LipschitzConv2D, "overlap", lambda self, shape: 1.0)


PLANTED = [
    (bias_forgotten, "dense with bias"),
    (inputs_not_projected, "dense"),
    (upstream_not_clipped, "dense"),
    (overlap_forgotten, "valid"),
]


@pytest.mark.parametrize(("bug", "name"), slow_but(PLANTED[:1], PLANTED, several=True))
def test_a_planted_bug_is_found(bug: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert worst(name) > 1 + 100 * SLACK


# GroupSort


@pytest.mark.parametrize("group_size", [2, 3, 4, 6])
def test_group_sort_sorts_and_sends_each_gradient_where_its_entry_came_from(group_size: int) -> None:
    rng = np.random.default_rng(0)
    x = tf.constant(rng.integers(0, 3, (50, 3, 12)).astype(np.float32))  # many are equal
    u = rng.normal(size=x.shape).astype(np.float32)
    layer = GroupSort(group_size)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x)
        loss = tf.reduce_sum(outputs * u)
    below = np.asarray(tape.gradient(loss, x))
    groups = (50, 3, 12 // group_size, group_size)
    np.testing.assert_array_equal(outputs, -np.sort(-np.asarray(x).reshape(groups)).reshape(x.shape))
    np.testing.assert_array_equal(np.sort(below.reshape(groups)), np.sort(u.reshape(groups)))


def test_max_and_min_would_send_both_gradients_of_equal_entries_to_one() -> None:
    a, b = tf.constant([1.0]), tf.constant([1.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([a, b])
        planted = tf.maximum(a, b) + tf.minimum(a, b)
        ours = tf.add_n(lipschitz.larger_first(a, b))
    assert np.ravel(tape.gradient(planted, [a, b])).tolist() == [2.0, 0.0]
    assert np.ravel(tape.gradient(ours, [a, b])).tolist() == [1.0, 1.0]


# What is refused


def test_arguments_that_no_bound_covers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`input_clip` must be a number.*Received: input_clip=-1"):
        LipschitzDense(3, input_clip=-1)
    with pytest.raises(ValueError, match="`bias_clip`"):
        LipschitzDense(3, bias_clip=np.nan)
    with pytest.raises(ValueError, match="without groups"):
        LipschitzConv2D(4, 3, groups=2)
    with pytest.raises(ValueError, match="at least 2"):
        GroupSort(1)
    with pytest.raises(ValueError, match=r"multiple of 2"):
        GroupSort(2)(keras.Input((5,)))
