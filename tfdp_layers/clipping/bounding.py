"""What every bound on per-record gradients of ordinary layers offers to an optimizer, and the sum that all share."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdp_layers.per_record.contributions import Contribution
from tfdp_layers.rules.rows import ROUNDING
from tfdp_layers.sensitivity import Role, SensitivityGroup

Contributions = Mapping[int, Contribution]
LayerVariables = Sequence[tuple[str, tuple[Any, ...]]]
"""(path, trainable variables) of each layer that does not bound itself."""


@dataclass(frozen=True)
class Bounding(abc.ABC):
    """Bounds what each record adds to the gradients of the layers that don't bound themselves.

    Attributes:
        allow_generic: whether layers without a per-record formula may take the slow way.
    """

    allow_generic: bool = dataclasses.field(default=False, kw_only=True)

    @abc.abstractmethod
    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        """The groups of weights and their bounds; a group without variables is a statistic (see `sums`)."""

    @abc.abstractmethod
    def sums(self, groups: Sequence[SensitivityGroup], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        """The bounded sum of each variable of the groups, in order; then one scalar for each statistic.

        Args:
            parts: what each record adds, by the variable's id; a variable without an entry is not used.
            present: (batch,) float32, 0.0 for rows of padding.
        """


def one_group(name: str, layers: LayerVariables, bound: float) -> list[SensitivityGroup]:
    """All weights of the layers in one group with one bound; no group where there are none."""
    variables = tuple(v for _, owned in layers for v in owned)
    return [SensitivityGroup(name, variables, bound, Role.OPTIMIZER)] if variables else []


def clip_scales(norms: tf.Tensor, bound: float) -> tf.Tensor:
    """min(1, bound / norm), a margin for rounding below it: (batch,) -> (batch,)."""
    limit = bound * (1.0 - ROUNDING)
    return limit / tf.maximum(norms, limit)


def bounded_sums(
    variables: Sequence[Any],
    parts: Contributions,
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

    # Zero times NaN is NaN: refused rows are selected away, at a cost that only batches with such rows pay.
    sums = tf.cond(tf.reduce_all(finite), lambda: total(used), lambda: total([part.keep(finite) for part in used]))
    found = {id(part.variable): total for part, total in zip(used, sums, strict=True)}
    return [found[id(v)] if id(v) in found else tf.zeros(v.shape, tf.float32) for v in variables], norms
