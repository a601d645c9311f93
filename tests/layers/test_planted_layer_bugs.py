"""A bug planted in a clipped layer lets a record exceed what the layer says, and certifying finds it."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from helpers.certify import SLACK, certify
from helpers.clipped_cases import Case, case
from tfdp_layers.layers import ClippedConv2D, ClippedDense, base
from tfdp_layers.rules.rows import L2


class Unbounded(L2):
    """The rule that someone forgot."""

    def scales(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.ones_like(rows[(slice(None), *[0] * (len(rows.shape) - 1))])


def upstream_clip_forgotten(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    patch.setattr(layer_type, "upstream_rule", property(lambda self: Unbounded(1.0)))


def input_clip_forgotten(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    patch.setattr(layer_type, "input_rule", property(lambda self: Unbounded(1.0)))


def plain_l2_upstream(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    patch.setattr(layer_type, "upstream_rule", property(lambda self: L2(self.upstream_clip)))


def multiplicity_forgotten(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    patch.setattr(layer_type, "count_patches", lambda self, space: np.ones(space, np.float32))


def multiplied_by_zero_instead_of_selected(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    patch.setattr(tf.math, "multiply_no_nan", tf.multiply)


def scaled_by_the_largest_norm_of_the_batch(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    honest = L2.norm
    patch.setattr(L2, "norm", lambda self, rows: tf.ones_like(honest(self, rows)) * tf.reduce_max(honest(self, rows)))


def refused_inputs_reach_a_product(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    patch.setattr(base, "select_rows", lambda rows, scales: rows)


def scale_left_out_where_it_follows_the_product(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    patch.setattr(base, "scale_rows", lambda rows, scales: rows)


def bias_forgotten_in_the_bound(patch: pytest.MonkeyPatch, layer_type: type) -> None:
    patch.setattr(layer_type, "sensitivity", lambda self: self.upstream_clip * self.input_clip)


DENSE, SEQUENCE = case(ClippedDense, (5,), units=3), case(ClippedDense, (6, 5), units=3)
NO_BIAS = case(ClippedDense, (5,), units=3, use_bias=False)
CONVOLUTION = case(ClippedConv2D, (8, 8, 1), filters=1, kernel_size=8, padding="same", use_bias=False)
PATCHES = case(ClippedConv2D, (8, 8, 1), filters=1, kernel_size=3, padding="same", bound="patch")
WIDE = case(ClippedDense, (300,), units=300)
NARROW = case(ClippedDense, (6,), units=2)
NARROW_CONVOLUTION = case(ClippedConv2D, (8, 8, 2), filters=2, kernel_size=3, strides=2)
PLANTED = [
    (upstream_clip_forgotten, DENSE),
    pytest.param(upstream_clip_forgotten, CONVOLUTION, marks=pytest.mark.slow),
    (input_clip_forgotten, DENSE),
    (input_clip_forgotten, PATCHES),
    (plain_l2_upstream, SEQUENCE),
    (plain_l2_upstream, CONVOLUTION),
    (plain_l2_upstream, PATCHES),
    (multiplicity_forgotten, PATCHES),
    (multiplied_by_zero_instead_of_selected, DENSE),
    pytest.param(multiplied_by_zero_instead_of_selected, CONVOLUTION, marks=pytest.mark.slow),
    (multiplied_by_zero_instead_of_selected, WIDE),
    (scaled_by_the_largest_norm_of_the_batch, NO_BIAS),
    (refused_inputs_reach_a_product, NARROW),
    pytest.param(refused_inputs_reach_a_product, NARROW_CONVOLUTION, marks=pytest.mark.slow),
    (scale_left_out_where_it_follows_the_product, NARROW),
    pytest.param(scale_left_out_where_it_follows_the_product, NARROW_CONVOLUTION, marks=pytest.mark.slow),
    (bias_forgotten_in_the_bound, DENSE),
    (bias_forgotten_in_the_bound, PATCHES),
]


@functools.cache
def excess(one: Case) -> float:
    """The largest influence found over the bound, of the layer as it is: the same for all its bugs."""
    layer = one.layer()
    return certify(layer, one.shape) / layer.sensitivity()


@pytest.mark.few(2)
@pytest.mark.parametrize(("bug", "one"), PLANTED, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_planted_bug_is_found(bug: Any, one: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert excess(one) <= 1 + SLACK, "without the bug"
    bug(monkeypatch, one.layer_type)
    broken = one.layer()
    assert certify(broken, one.shape) > broken.sensitivity() * (1 + 100 * SLACK)


def test_plain_l2_clipping_of_a_convolution_is_out_by_several_times_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_l2_upstream(monkeypatch, CONVOLUTION.layer_type)
    broken = CONVOLUTION.layer()
    assert certify(broken, CONVOLUTION.shape) > 4 * broken.sensitivity()
