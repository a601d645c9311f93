"""Filtered gradients: every coordinate of every record's gradient passes a function before records are summed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.clipping.bounding import Bounding, Contributions, LayerVariables, one_group
from tfdp_layers.clipping.kernels import NARROW, EntryFunction, OuterFunction, is_outer_product
from tfdp_layers.clipping.odd_series import TANH
from tfdp_layers.clipping.outer_products import FilteredProducts
from tfdp_layers.per_record.bounded import bounded_sums, clip_scales
from tfdp_layers.per_record.contributions import Contribution, Lookups, Products, Stored, records
from tfdp_layers.per_record.convolutions import KernelGradients
from tfdp_layers.rules.entries import Tanh
from tfdp_layers.rules.norms import squared_norm
from tfdp_layers.rules.rows import ROUNDING, check_bound, few
from tfdp_layers.sensitivity import SensitivityGroup

_CHUNK = 1_000_000
"""Entries of written-out gradients held at once: they stay in a processor's cache from the filter to the sum."""


LARGEST_SCALE = 1e8
"""Of c over C. Filtered entries below 2^-63 have squares that count as zero: the norm of a billion may be 3e-15 c."""


class Filtered(Stored):
    """Filtered gradients, written out, of some records. A refused record's norm is infinite: it adds zero."""

    def __init__(self, variable: keras.Variable, values: tf.Tensor, refused: tf.Tensor) -> None:
        super().__init__(variable, values)
        self.refused = refused

    def squared_norms(self) -> tf.Tensor:
        return infinite_where(self.refused, super().squared_norms())


class FilteredLookups(Lookups):
    """Filtered gradients of an embedding: `ids` are a record's distinct tokens, `u` filtered sums over their places."""

    def __init__(self, variable: keras.Variable, ids: tf.Tensor, u: tf.Tensor, refused: tf.Tensor) -> None:
        super().__init__(variable, ids, u)
        self.refused = refused

    def distinct(self) -> tuple[tf.Tensor, tf.Tensor]:
        return self.ids, self.u

    def squared_norms(self) -> tf.Tensor:
        return infinite_where(self.refused, super().squared_norms())

    def rounding(self) -> None:
        """None: each row of the table gets one term of a record."""


@dataclass(frozen=True)
class FilteredClipping(Bounding):
    """Filters every coordinate of each record's gradient by c tanh(g / k), then bounds the L2 norm of the result.

    Attributes:
        l2_norm_clip: C; with `clip` the filtered gradient is scaled to L2 norm at most C, over all weights together.
        rule: c and k.
        clip: False leaves the filtered gradient as it is: of P weights, its norm can be c sqrt(P).

    Guarantee: a record adds at most C, or at most c sqrt(P): with f_j = c tanh(g_j / k), |f_j| <= c, so
        ||f|| <= c sqrt(P). A record whose gradient is not finite, or whose factors' squares overflow float32, adds
        exactly zero: tanh(infinity) = 1 does not count.
    Memory: a chunk of records' gradients at a time, about 4 MB or one gradient of the model, whichever is larger; of
        small convolutions, together up to 250,000 weights, those of the whole batch.
    Source: "Improving the Algorithm of Deep Learning with Differential Privacy" (2021), there without the clip.
    """

    l2_norm_clip: float = 1.0
    rule: Tanh = field(default_factory=Tanh)
    clip: bool = True

    NAME = "layers filtered together"

    def __post_init__(self) -> None:
        check_bound(l2_norm_clip=self.l2_norm_clip)
        if self.clip and self.rule.output_scale > LARGEST_SCALE * self.l2_norm_clip:
            raise ValueError(
                f"`output_scale` may be at most {LARGEST_SCALE:g} times `l2_norm_clip`: entries whose squares are zero"
                f" in float32 would add up to more than the clip. Received: output_scale={self.rule.output_scale!r},"
                f" l2_norm_clip={self.l2_norm_clip!r}."
            )

    @property
    def chunked(self) -> bool:
        return True

    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        weights = sizes([v for _, owned in layers for v in owned])
        bound = self.l2_norm_clip if self.clip else self.rule.output_scale * math.sqrt(weights)
        return one_group(self.NAME, layers, bound)

    def scales(self, norms: tf.Tensor, bound: float) -> tf.Tensor:
        """What each record's tanh(g / k), of the given norm, is multiplied by where it is clipped."""
        return self.rule.output_scale * clip_scales(self.rule.output_scale * norms, bound)

    def sums(self, groups: Sequence[SensitivityGroup], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        found = []
        for group in groups:
            constant = self.rule.output_scale * (1.0 - ROUNDING)
            scales = functools.partial(self.scales, bound=group.bound) if self.clip else constant
            found += filtered_sums(group.variables, parts, TanhEntries(self.rule), scales, present)
        return found


@dataclass(frozen=True)
class TanhEntries(EntryFunction):
    """tanh(g / k) of each entry."""

    rule: Tanh

    def __call__(self, variable: keras.Variable, values: tf.Tensor, rows: tf.Tensor | None) -> tf.Tensor:
        return self.rule.unit(values)

    def outer(self, variable: keras.Variable, start: int | tf.Tensor, size: int) -> OuterFunction:
        return lambda factors, u: self.rule.unit(factors[0][:, tf.newaxis] * u)

    def products(self, part: Products, refused: tf.Tensor) -> FilteredProducts:
        # Of few entries the kernels take no longer; and the last layer's are seldom small.
        series = TANH if min(part.variable.shape) >= NARROW else None
        return FilteredProducts(part, self, refused, series, self.rule.active_range)


def filtered_sums(
    variables: Sequence[Any],
    parts: Contributions,
    function: EntryFunction,
    scales: Callable[[tf.Tensor], tf.Tensor] | float,
    present: tf.Tensor,
) -> list[tf.Tensor]:
    """sum_i scale_i function(g_i) for each variable; see `bounded_sums`.

    Args:
        scales: of the norms of function(g_i) over all the variables: (batch,) -> (batch,); or a number for all.
        present: (batch,); only its length matters.

    Guarantee: a record whose gradient is not finite adds exactly zero, whatever the function makes of it.
    """
    used = [parts[id(v)] for v in variables if id(v) in parts]
    if not used:
        return [tf.zeros(v.shape, tf.float32) for v in variables]
    refused = ~tf.math.is_finite(tf.add_n([magnitudes(part) for part in used]))
    # Kernels would be compiled anew at every eager call.
    eager = tf.executing_eagerly()
    dense = [function.products(part, refused) for part in used if not eager and is_outer_product(part)]
    own = {id(part.variable) for part in dense}
    others = [part for part in used if id(part.variable) not in own]
    if callable(scales):
        found, weights = clipped_sums(dense, others, function, scales, refused, present)
        sums = [part.weighted_sum(weights) for part in dense]
    else:
        found, _ = chunked_sums(others, function, scales, refused, present, None)
        sums = [scales * part.sum() for part in dense]
    totals = {id(part.variable): total for part, total in zip([*others, *dense], [*found, *sums], strict=True)}
    return [totals[id(v)] if id(v) in totals else tf.zeros(v.shape, tf.float32) for v in variables]


def clipped_sums(
    dense: Sequence[FilteredProducts],
    others: Sequence[Contribution],
    function: EntryFunction,
    scales: Callable[[tf.Tensor], tf.Tensor],
    refused: tf.Tensor,
    present: tf.Tensor,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums of the others, and what each record was multiplied by: (batch,)."""
    squared = tf.add_n([part.largest_squared_norms() for part in dense]) if dense else tf.zeros_like(present)
    found, norms = chunked_sums(others, function, scales, refused, present, squared)
    return found, tf.where(tf.math.is_finite(norms), scales(norms), tf.zeros_like(norms))


def chunked_sums(
    others: Sequence[Contribution],
    function: EntryFunction,
    scales: Callable[[tf.Tensor], tf.Tensor] | float,
    refused: tf.Tensor,
    present: tf.Tensor,
    elsewhere: tf.Tensor | None,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums with gradients written out, a chunk of records at a time; and the norms over all weights: (batch,).

    Args:
        elsewhere: (batch,), the squared norms over the weights that are not among `others`; None with a number for
            `scales`, which needs no norms: then zeros are returned for them.
    """
    if not others:
        return [], tf.zeros_like(present) if elsewhere is None else tf.sqrt(elsewhere)
    variables = [part.variable for part in others]
    # Faster than chunk by chunk.
    write_out([part for part in others if isinstance(part, KernelGradients)])

    def chunk(start: int | tf.Tensor, size: int | tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        without = records(refused, start, size)
        some = {id(p.variable): filtered(few_rows(p, start, size, most), function, without) for p in others}
        if callable(scales):
            assert elsewhere is not None
            return bounded_sums(variables, some, scales, records(elsewhere, start, size))
        weights = tf.where(without, 0.0, scales)
        together = lambda: [part.weighted_sum(weights) for part in some.values()]  # noqa: E731
        clean = lambda: [part.keep(~without).weighted_sum(weights) for part in some.values()]  # noqa: E731
        short = few(*(values for part in some.values() for values in part.factors))
        sums = clean() if short else tf.cond(tf.reduce_any(without), clean, together)
        return sums, tf.zeros_like(weights)

    rows, most = present.shape[0], chunk_size(sum(entries(part) for part in others))
    if rows is not None:  # XLA needs chunks of one size.
        most = max(divisor for divisor in range(1, min(most, max(rows, 1)) + 1) if rows % divisor == 0)
    return in_chunks(chunk, most, rows, present, variables)


def few_rows(part: Contribution, start: int | tf.Tensor, size: int | tf.Tensor, most: int) -> Contribution:
    """Records start ... start + size - 1 alone, `most` of them at most."""
    some = part.rows(start, size)
    if isinstance(some, KernelGradients):
        some.few = most
    return some


def write_out(parts: Sequence[Contribution]) -> None:
    """Writes gradients of small kernels out for all records, if they are few."""
    kernels = [part for part in parts if isinstance(part, KernelGradients) and part.stored]
    products = [part for part in parts if isinstance(part, Products) and part.positions != 1]
    if sum(entries(part) for part in [*kernels, *products]) > _CHUNK // 4:
        return
    for kernel in kernels:
        kernel.gradients()
    for product in products:
        product.written()


def chunk_size(weights: int) -> int:
    """How many records' gradients of so many weights are written out at once.

    A multiple of eight where it can be: the gradients of convolutions are written out for eight records at a time.
    """
    size = max(1, _CHUNK // weights)
    return size if size < 8 and 8 * weights > 4 * _CHUNK else max(8, size - size % 8)


def in_chunks(
    chunk: Callable[[Any, Any], tuple[list[tf.Tensor], tf.Tensor]],
    size: int,
    static: int | None,
    present: tf.Tensor,
    variables: Sequence[keras.Variable],
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Over all records, the sum of the first of chunk(start, length), and the second's rows."""
    if static is not None and size >= static:
        return chunk(0, static)
    rows = tf.shape(present)[0]
    index = tf.range(rows)

    def body(start: tf.Tensor, totals: list[tf.Tensor], norms: tf.Tensor) -> tuple[Any, ...]:
        length = size if static is not None else tf.minimum(size, rows - start)
        sums, own = chunk(start, length)
        places = index - start
        mine = (places >= 0) & (places < length)
        norms = tf.where(mine, tf.gather(own, tf.clip_by_value(places, 0, length - 1)), norms)
        return start + size, [a + b for a, b in zip(totals, sums, strict=True)], norms

    zeros = [tf.zeros(v.shape, tf.float32) for v in variables]
    begin = (tf.constant(0), zeros, tf.zeros_like(present))
    return tf.while_loop(lambda start, *_: start < rows, body, begin, parallel_iterations=1)[1:]


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
