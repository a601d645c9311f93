"""Sums of per-record gradients in which each record is scaled by what its own norm allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.per_record.contributions import Contribution
from tfdp_layers.rules.rows import ROUNDING, few

STABILITY = 0.01
"""Added to the norm that an automatic clip divides by: the value of Bu et al. 2022."""


def clip_scales(norms: tf.Tensor, bound: float) -> tf.Tensor:
    """min(1, bound / norm), a margin for rounding below it: (batch,) -> (batch,)."""
    limit = bound * (1.0 - ROUNDING)
    return limit / tf.maximum(norms, limit)


def automatic_scales(norms: tf.Tensor, bound: float, stability: float = STABILITY) -> tf.Tensor:
    """bound / (norm + stability), a margin for rounding below it: (batch,) -> (batch,).

    Source: Bu et al. 2022, arXiv:2206.07136, "AUTO-S".
    """
    return bound * (1.0 - ROUNDING) / (norms + stability)


def bounded_sums(
    variables: Sequence[Any],
    parts: Mapping[int, Contribution],
    scales: Callable[[tf.Tensor], tf.Tensor],
    elsewhere: tf.Tensor | float = 0.0,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """sum_i scale_i g_i for each variable, and the norms (batch,) that the scales were made from.

    Args:
        elsewhere: (batch,), the squared norms of further weights' gradients, which are summed elsewhere.

    Guarantee: row i's scale depends on its own norm alone; a row whose norm is not finite adds exactly zero. If
    scales(n) <= bound * (1 - ROUNDING) / n, every row adds at most `bound` over all the variables together: the norm
    counts what rounding can add to the sum.
    """
    used = [parts[id(v)] for v in variables if id(v) in parts]
    if not used:
        return [tf.zeros(v.shape, tf.float32) for v in variables], tf.zeros((0,), tf.float32)
    squared = tf.add_n([part.largest_squared_norms() for part in used]) + elsewhere
    finite = tf.math.is_finite(squared)
    norms = tf.sqrt(squared)
    weights = tf.where(finite, scales(norms), tf.zeros_like(norms))

    def total(clean: list[Contribution]) -> list[tf.Tensor]:
        return [part.weighted_sum(weights) for part in clean]

    def selected() -> list[tf.Tensor]:
        return total([part.keep(finite) for part in used])

    # Zero times NaN is NaN: refused rows are selected away, at a cost that only batches with such rows pay: or that
    # is none, and then a branch is not worth its own.
    short = few(*(values for part in used for values in part.factors))
    sums = selected() if short else tf.cond(tf.reduce_all(finite), lambda: total(used), selected)
    found = {id(part.variable): total for part, total in zip(used, sums, strict=True)}
    return [found[id(v)] if id(v) in found else tf.zeros(v.shape, tf.float32) for v in variables], norms
