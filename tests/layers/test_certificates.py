"""No record, whatever it holds, moves a clipped layer's released sum by more than the layer says; a witness does."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.certify import (
    DENORMAL,
    KINDS,
    SCALES,
    SLACK,
    assert_flow_below_is_each_records_own,
    best_record,
    built,
    certify,
    distance,
    extreme,
    hostile_records,
    output_shape,
    releaser,
    supremum,
    witness,
)
from helpers.clipped_cases import Case, case
from helpers.variants import slow_but
from tfdp_layers.layers import ClippedConv1D, ClippedConv2D, ClippedConv3D, ClippedDense, ClippedDepthwiseConv2D

BOUNDS = ("spatial_l1", "patch")
REPRESENTATIVE = [
    case(ClippedDense, (5,), units=3),
    case(ClippedDense, (4, 5), units=3),
    case(ClippedDense, (4, 5), units=3, use_bias=False),
    case(ClippedDense, (3, 12), units=2),
    case(ClippedConv2D, (9, 8, 2), filters=2, kernel_size=3, strides=2, bound="patch"),
    case(ClippedConv1D, (8, 2), filters=3, kernel_size=3, padding="causal"),
    case(ClippedConv2D, (6, 5, 2), filters=3, kernel_size=3, padding="same", strides=2),
    case(ClippedConv2D, (5, 5, 2), filters=3, kernel_size=3, padding="same", bound="patch"),
    case(ClippedConv3D, (4, 4, 4, 2), filters=2, kernel_size=2, dilation_rate=2, bound="patch", use_bias=False),
    case(ClippedDepthwiseConv2D, (6, 6, 3), kernel_size=3, padding="same", depth_multiplier=2),
]


def grid(layer_type: type, shape: tuple[int, ...], paddings: tuple[str, ...], **fixed: Any) -> list[Case]:
    """Every padding x (stride, dilation) x bias x bound that Keras takes."""
    geometries = [(1, 1), (2, 1), (1, 2)] + ([(2, 2)] if layer_type is ClippedDepthwiseConv2D else [])
    names = ("padding", "strides", "dilation_rate", "use_bias", "bound")
    product = itertools.product(paddings, geometries, (True, False), BOUNDS)
    every = [
        dict(zip(names, (padding, *geometry, bias, bound), strict=True)) for padding, geometry, bias, bound in product
    ]
    return [case(layer_type, shape, **(fixed | options)) for options in every]


GRIDS = {
    "Dense": [
        case(ClippedDense, shape, units=3, use_bias=bias)
        for shape, bias in itertools.product([(5,), (4, 5), (2, 3, 5)], (True, False))
    ],
    "Conv1D": grid(ClippedConv1D, (8, 2), ("valid", "same", "causal"), filters=3, kernel_size=3),
    "Conv1D channels_first": grid(
        ClippedConv1D, (2, 8), ("causal",), filters=3, kernel_size=2, data_format="channels_first"
    ),
    "Conv2D": grid(ClippedConv2D, (6, 7, 2), ("valid", "same"), filters=3, kernel_size=(3, 2)),
    "Conv2D odd kernel": grid(ClippedConv2D, (5, 5, 2), ("same",), filters=3, kernel_size=3),
    "Conv2D channels_first": grid(
        ClippedConv2D, (2, 6, 5), ("same",), filters=3, kernel_size=3, data_format="channels_first"
    ),
    "Conv2D groups": [
        case(ClippedConv2D, (5, 5, 4), filters=4, kernel_size=3, groups=2, padding="same"),
        case(ClippedConv2D, (5, 5, 4), filters=4, kernel_size=3, groups=2, bound="patch", use_bias=False),
    ],
    "Conv3D": grid(ClippedConv3D, (4, 4, 3, 2), ("valid", "same"), filters=2, kernel_size=2),
    "Conv3D channels_first": [
        case(ClippedConv3D, (2, 4, 4, 3), filters=2, kernel_size=2, data_format="channels_first"),
    ],
    "DepthwiseConv2D": grid(ClippedDepthwiseConv2D, (6, 6, 2), ("valid", "same"), kernel_size=3, depth_multiplier=2),
    "DepthwiseConv2D channels_first": [
        case(ClippedDepthwiseConv2D, (2, 6, 6), kernel_size=3, bound=bound, data_format="channels_first")
        for bound in BOUNDS
    ],
}
LARGE = {"Conv1D", "Conv2D", "Conv2D channels_first", "Conv3D", "DepthwiseConv2D"}
FEW = [REPRESENTATIVE[i] for i in (0, 1, 6, 7, 9)]
"""A vector, a sequence, and pictures with each bound."""


@pytest.mark.few(3)
@pytest.mark.parametrize("name", slow_but(set(GRIDS) - LARGE, GRIDS))
def test_a_witness_attains_the_bound(name: str) -> None:
    for one in GRIDS[name]:
        layer = one.layer()
        record = witness(layer, one.shape)
        # Where no patch is ever alone, nothing attains the patch bound: there the numerical supremum is close to it.
        lowest = 0.8 if record is None else 1 - 1e-4
        x, u = record or supremum(layer, one.shape)
        attained = distance(releaser(layer)(x[None], u[None])) / layer.sensitivity()
        assert lowest <= attained <= 1 + SLACK, f"{one}: {attained}"


def test_only_the_patch_bound_may_lack_a_witness() -> None:
    every = [one for name in ("Conv1D", "Conv2D odd kernel") for one in GRIDS[name]]
    lacking = [dict(one.options) for one in every if witness(one.layer(), one.shape) is None]
    assert lacking
    assert all(o["bound"] == "patch" and o["padding"] == "same" and o["kernel_size"] == 3 for o in lacking)


def kinds() -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(KINDS), st.sampled_from(SCALES))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(kinds(), kinds()), min_size=2, max_size=4),
    weights=st.sampled_from([0.0, 1e-20, 1.0, 1e20, np.nan, np.inf]),
    clips=st.sampled_from([(2.0, 0.5), (1e-6, 1e3), (1e4, 1e-8)]),
    seed=st.integers(0, 2**16),
)
def assert_adversaries_stay_inside(one: Case, rows: Any, weights: float, clips: tuple[float, float], seed: int) -> None:
    layer = one.layer(input_clip=clips[0], upstream_clip=clips[1])
    layer.kernel.assign(np.asarray(layer.kernel) * np.float32(weights))
    rng = np.random.default_rng(seed)
    x = np.stack([extreme(*kind, one.shape, rng) for kind, _ in rows])
    u = np.stack([extreme(*kind, output_shape(layer, one.shape), rng) for _, kind in rows])
    release, bound = releaser(layer), layer.sensitivity()
    alone = [release(x[[i]], u[[i]]) for i in range(len(rows))]
    together = release(x, u)
    for i, part in enumerate(alone):
        assert distance(part) <= bound * (1 + SLACK), rows[i]
        others = np.arange(len(rows)) != i
        assert distance(together, release(x[others], u[others])) <= bound * (1 + SLACK), rows[i]
    # Additivity: nobody's contribution is changed by who else is there.
    assert distance(together, [np.sum(parts, axis=0) for parts in zip(*alone, strict=True)]) <= SLACK * bound


@pytest.mark.few(2)
@pytest.mark.parametrize("one", slow_but(FEW, REPRESENTATIVE), ids=str)
def test_no_batch_of_hostile_records_exceeds_the_bound(one: Case) -> None:
    assert_adversaries_stay_inside(one)


@pytest.mark.parametrize("one", REPRESENTATIVE, ids=str)
def test_what_flows_on_below_is_each_records_own(one: Case) -> None:
    layer = one.layer()
    rng = np.random.default_rng(0)
    target = output_shape(layer, one.shape)
    x, u = rng.normal(size=(2, *one.shape)).astype(np.float32), rng.normal(size=(2, *target)).astype(np.float32)
    assert_flow_below_is_each_records_own(layer, x, u)


@pytest.mark.few(1)
@pytest.mark.parametrize("one", slow_but([FEW[0], FEW[2]], REPRESENTATIVE), ids=str)
def test_eager_graph_and_xla_agree_and_keep_the_bound(one: Case) -> None:
    layer = one.layer()
    records = [best_record(layer, one.shape), *hostile_records(layer, one.shape)]
    x, u = (np.stack(parts) for parts in zip(*records, strict=True))
    bound, eager = layer.sensitivity(), releaser(layer)
    for mode in ("graph", "xla"):
        release = releaser(layer, mode)
        for i in range(len(records)):
            got = release(x[[i]], u[[i]])
            assert distance(got, eager(x[[i]], u[[i]])) <= 1e-4 * bound, (mode, i)
            assert distance(got) <= bound * (1 + SLACK), (mode, i)
        assert distance(release(x, u), eager(x, u)) <= 1e-4 * bound, mode


@pytest.mark.parametrize(
    ("layer_type", "shape", "options"),
    [
        (ClippedConv2D, (2, 5, 5), {"filters": 2, "kernel_size": 3, "padding": "same", "strides": 2}),
        (ClippedConv3D, (2, 3, 4, 3), {"filters": 2, "kernel_size": 2, "bound": "patch"}),
    ],
)
def test_channels_first_under_xla(layer_type: type, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    layer = case(layer_type, shape, data_format="channels_first", **options).layer()
    found = certify(layer, shape, "xla")
    assert layer.sensitivity() * (1 - 1e-4) <= found <= layer.sensitivity() * (1 + SLACK)


# Rounding: many positions, and sums that cancel


def test_rounding_over_many_positions_stays_inside() -> None:
    # Not a power of two, or the equal values below would add up without rounding.
    positions = 100_000
    dense = built(ClippedDense(1, use_bias=False, input_clip=1.0, upstream_clip=1.0), (positions, 1))
    convolution = built(ClippedConv1D(2, 1, input_clip=1e-2, upstream_clip=1.0), (positions, 1))
    for layer, mode in itertools.product((dense, convolution), ("eager", "xla")):
        release = releaser(layer, mode)
        for value in (0.1, 1.1):
            x, u = (np.full((1, positions, size), value, np.float32) for size in (1, layer.kernel.shape[-1]))
            found = distance(release(x, u)) / layer.sensitivity()
            # The margin for rounding must not eat the bound either.
            assert 0.98 <= found <= 1 + SLACK, (layer.name, mode, value)


@pytest.mark.few(2)
@pytest.mark.parametrize("input_clip", [1e-10, 1e-6, 1e-3])
def test_rounding_of_sums_that_cancel_stays_inside(input_clip: float) -> None:
    layer = built(ClippedDense(1, input_clip=input_clip, upstream_clip=1.0), (64, 1))
    release, rng = releaser(layer), np.random.default_rng(0)
    x = np.ones((1, 64, 1), np.float32)
    u = [extreme("cancelling", 1e12, (1, 64, 1), rng).astype(np.float64) for _ in range(50)]
    u = [(one - one.mean(axis=1, keepdims=True)).astype(np.float32) for one in u]
    assert max(distance(release(x, one)) for one in u) <= layer.sensitivity() * (1 + SLACK)


def test_the_smallest_bound_is_not_undercut_by_underflow() -> None:
    layer = built(ClippedDense(1, input_clip=1e-10, upstream_clip=1e-10), (10_000,))
    release = releaser(layer)
    for scale in (1e-23, 3e-23, 1e-12, DENORMAL):
        found = distance(release(np.full((1, 10_000), scale, np.float32), np.ones((1, 1), np.float32)))
        assert found <= layer.sensitivity() * (1 + SLACK)
