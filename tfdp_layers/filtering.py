"""Filtered gradients: every coordinate of every record's gradient passes a function before records are summed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdp_layers.clipping import Contributions, FlatClipping, LayerVariables, bounded_sums
from tfdp_layers.fused import EntryFunction, filtered_sum, is_outer_product
from tfdp_layers.per_record.contributions import Contribution, Lookups, Stored
from tfdp_layers.rules import ROUNDING, Tanh, squared_norm
from tfdp_layers.sensitivity import SensitivityGroup

_CHUNK = 1_000_000
"""Entries of written-out gradients held at once: they stay in a processor's cache from the filter to the sum."""


class Filtered(Stored):
    """Filtered gradients, written out, of some records. A refused record's norm is infinite: it adds zero."""

    def __init__(self, variable: Any, values: tf.Tensor, refused: tf.Tensor) -> None:
        super().__init__(variable, values)
        self.refused = refused

    def squared_norms(self) -> tf.Tensor:
        return infinite_where(self.refused, super().squared_norms())


class FilteredLookups(Lookups):
    """The same for an embedding: `ids` are each record's distinct tokens, `u` the filtered sums over their places."""

    def __init__(self, variable: Any, ids: tf.Tensor, u: tf.Tensor, refused: tf.Tensor) -> None:
        super().__init__(variable, ids, u)
        self.refused = refused

    def distinct(self) -> tuple[tf.Tensor, tf.Tensor]:
        return self.ids, self.u

    def squared_norms(self) -> tf.Tensor:
        return infinite_where(self.refused, super().squared_norms())

    def rounding(self) -> None:
        """None: each row of the table gets one term of a record."""


@dataclass(frozen=True)
class FilteredClipping(FlatClipping):
    """Filters every coordinate of each record's gradient by c tanh(g / k), then bounds the L2 norm of the result.

    Attributes:
        l2_norm_clip: C; with `clip` the filtered gradient is scaled to L2 norm at most C, over all weights together.
        rule: c and k.
        clip: False leaves the filtered gradient as it is: of P weights, its norm can be c sqrt(P).

    Guarantee: a record adds at most C, or at most c sqrt(P): with f_j = c tanh(g_j / k), |f_j| <= c, so
        ||f|| <= c sqrt(P). A record whose gradient is not finite, or whose factors' squares overflow float32, adds
        exactly zero: tanh(infinity) = 1 does not count.
    Memory: a chunk of records' gradients at a time, about 4 MB or one gradient of the model, whichever is larger.
    Source: "Improving the Algorithm of Deep Learning with Differential Privacy" (2021), there without the clip.
    """

    rule: Tanh = field(default_factory=Tanh)
    clip: bool = True

    NAME = "layers filtered together"

    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        variables = tuple(v for _, owned in layers for v in owned)
        if not variables:
            return []
        bound = self.l2_norm_clip if self.clip else self.rule.output_scale * math.sqrt(sizes(variables))
        return [SensitivityGroup(self.NAME, variables, bound, self_bounded=False)]

    def scales(self, norms: tf.Tensor, bound: float) -> tf.Tensor:
        """What each record's tanh(g / k), of the given norm, is multiplied by where it is clipped."""
        return self.rule.output_scale * super().scales(self.rule.output_scale * norms, bound)

    def sums(self, groups: Sequence[SensitivityGroup], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        found = []
        for group in groups:
            constant = self.rule.output_scale * (1.0 - ROUNDING)
            scales = functools.partial(self.scales, bound=group.bound) if self.clip else constant
            found += filtered_sums(group.variables, parts, self.filtered, scales, present)
        return found

    def filtered(self, variable: Any, values: tf.Tensor, rows: Any) -> tf.Tensor:
        return self.rule.unit(values)


def filtered_sums(
    variables: Sequence[Any],
    parts: Contributions,
    function: EntryFunction,
    scales: Callable[[tf.Tensor], tf.Tensor] | float,
    present: tf.Tensor,
) -> list[tf.Tensor]:
    """sum_i scale_i function(g_i) for each variable, a chunk of records at a time; see `bounded_sums`.

    Args:
        scales: of the norms of function(g_i) over all the variables: (batch,) -> (batch,); or a number for all.
        present: (batch,); only its length matters.

    Guarantee: a record whose gradient is not finite adds exactly zero, whatever the function makes of it.
    """
    used = [parts[id(v)] for v in variables if id(v) in parts]
    if not used:
        return [tf.zeros(v.shape, tf.float32) for v in variables]
    refused = ~tf.math.is_finite(tf.add_n([magnitudes(part) for part in used]))
    if callable(scales):
        return chunked_sums(variables, used, function, scales, refused, present)
    clean = [] if tf.executing_eagerly() else [part.keep(~refused) for part in used if is_outer_product(part)]
    sums = {id(part.variable): scales * filtered_sum(part, function) for part in clean}
    others = [part for part in used if id(part.variable) not in sums]
    if others:
        rest = [part.variable for part in others]
        found = chunked_sums(rest, others, function, scales, refused, present)
        sums |= {id(v): total for v, total in zip(rest, found, strict=True)}
    return [sums[id(v)] if id(v) in sums else tf.zeros(v.shape, tf.float32) for v in variables]


def chunked_sums(
    variables: Sequence[Any],
    used: Sequence[Contribution],
    function: EntryFunction,
    scales: Callable[[tf.Tensor], tf.Tensor] | float,
    refused: tf.Tensor,
    present: tf.Tensor,
) -> list[tf.Tensor]:
    """The same with gradients written out, a chunk of records at a time."""

    def chunk(start: Any, size: Any) -> list[tf.Tensor]:
        without = refused[start : start + size]
        some = {id(p.variable): filtered(p.rows(start, size), function, without) for p in used}
        if callable(scales):
            return bounded_sums(variables, some, scales)[0]
        weights = tf.where(without, 0.0, scales)

        def total(parts: Sequence[Contribution]) -> list[tf.Tensor]:
            return [part.weighted_sum(weights) for part in parts]

        clean = lambda: total([part.keep(~without) for part in some.values()])  # noqa: E731
        sums = tf.cond(tf.reduce_any(without), clean, lambda: total(list(some.values())))
        found = dict(zip(some, sums, strict=True))
        return [found[id(v)] if id(v) in found else tf.zeros(v.shape, tf.float32) for v in variables]

    rows, size = present.shape[0], max(1, _CHUNK // sum(entries(part) for part in used))
    if rows is not None:  # XLA needs chunks of one size.
        size = max(divisor for divisor in range(1, min(size, max(rows, 1)) + 1) if rows % divisor == 0)
    return in_chunks(chunk, size, rows, tf.shape(present)[0], variables)


def in_chunks(
    chunk: Callable[[Any, Any], list[tf.Tensor]], size: int, static: int | None, rows: tf.Tensor, variables: Any
) -> list[tf.Tensor]:
    """The sum of chunk(start, length) over all records."""
    if static is not None and size >= static:
        return chunk(0, static)

    def body(start: tf.Tensor, totals: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        length = size if static is not None else tf.minimum(size, rows - start)
        return start + size, [a + b for a, b in zip(totals, chunk(start, length), strict=True)]

    zeros = [tf.zeros(v.shape, tf.float32) for v in variables]
    return tf.while_loop(lambda start, _: start < rows, body, [tf.constant(0), zeros], parallel_iterations=1)[1]


def filtered(part: Contribution, function: EntryFunction, refused: tf.Tensor) -> Contribution:
    """The filtered gradients of a chunk of records; of an embedding only the rows that they use are written out."""
    if isinstance(part, Lookups):
        ids, u = part.distinct()
        return FilteredLookups(part.variable, ids, function(part.variable, u, ids), refused)
    return Filtered(part.variable, function(part.variable, part.gradients(), None), refused)


def magnitudes(part: Contribution) -> tf.Tensor:
    """Finite only where every entry of a record's gradient is, in float32: (batch,). Cheaper than looking at them.

    By Cauchy-Schwarz the product of the factors' norms bounds every entry, and each partial sum that makes it.
    """
    factors = [getattr(part, name) for name in ("values", "x", "u") if hasattr(part, name)]
    if not factors:
        return part.squared_norms()
    return functools.reduce(tf.multiply, [squared_norm(factor) for factor in factors])


def entries(part: Contribution) -> int:
    """How many numbers one record's gradient takes, written out as `filtered` does."""
    if isinstance(part, Lookups):
        return (part.ids.shape[1] or 128) * part.variable.shape[-1]
    return math.prod(part.variable.shape)


def sizes(variables: Sequence[Any]) -> int:
    """The number of weights."""
    return sum(math.prod(v.shape) for v in variables)


def infinite_where(refused: tf.Tensor, norms: tf.Tensor) -> tf.Tensor:
    return tf.where(refused, tf.fill(tf.shape(norms), tf.constant(math.inf, norms.dtype)), norms)
