"""Per-coordinate clamps on every record's gradient, whose sizes follow what was released."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfdp_layers.clipping.bounding import Bounding, Contributions, LayerVariables, one_group
from tfdp_layers.clipping.filters import filtered_sums, sizes, write_out
from tfdp_layers.clipping.kernels import EntryFunction, OuterFunction
from tfdp_layers.clipping.outer_products import FilteredProducts
from tfdp_layers.per_record.bounded import bounded_sums, clip_scales
from tfdp_layers.rules.rows import ROUNDING, check_bound
from tfdp_layers.sensitivity import LARGEST_SUM, Role, SensitivityGroup

if TYPE_CHECKING:
    from tfdp_layers.per_record.contributions import Products


@dataclass(frozen=True, eq=False)
class AdaptiveClamping(Bounding):
    """Clamps coordinate j of every record's gradient to [-s_j, s_j]; until the switch, clips its L2 norm to C.

    What is summed is in units in which the bound is 1 in both phases, so that neither the noise nor the ledger depends
    on the state: g / C clipped to norm 1, or the vector of clamp(g_j / s_j, -1, 1) / sqrt(P), P weights. The optimizer
    multiplies by C, or by s_j sqrt(P), after the noise.

    Attributes:
        l2_norm_clip: C.
        switched: whether the clamps are in force: () boolean.
        clamp: (variable, P) -> s, of the variable's shape or a scalar; positive.
        clip_factor: s over the size of the gradient that it stands for.
        counted: also release, for each variable, the sum over the drawn records of +1/2 (the root mean square of its
            gradient is at most s / clip_factor) or -1/2: statistics of bound 1/2.
        unprotected: also release the sum of the gradients as they are, without a bound: the printed algorithm.

    Guarantee: the sum over j of clamp(...)^2 / P is at most 1: each term is at most 1 / P. A record whose gradient is
        not finite adds exactly zero.
    Source: Xu et al. 2019, "An Adaptive and Fast Convergent Approach to Differentially Private Deep Learning", lemma 1
        and equation 5.
    """

    l2_norm_clip: float = 1.0
    switched: Callable[[], Any] = lambda: False
    clamp: Callable[[Any, int], Any] = lambda variable, weights: 1.0
    clip_factor: float = 1.0
    counted: bool = False
    unprotected: bool = False

    NAME = "layers clamped together"
    STATISTIC = "records below the scale of "
    UNPROTECTED = "gradients without bound or noise"

    def __post_init__(self) -> None:
        check_bound(l2_norm_clip=self.l2_norm_clip)

    @property
    def chunked(self) -> bool:
        return True

    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        found = one_group(self.NAME, layers, 1.0)
        for clamped in found[:1]:
            if self.counted:
                found += [SensitivityGroup(self.STATISTIC + v.path, (), 0.5, Role.STATISTIC) for v in clamped.variables]
            if self.unprotected:
                shape = (sizes(clamped.variables),)
                found.append(SensitivityGroup(self.UNPROTECTED, (), LARGEST_SUM, Role.UNPROTECTED, shape))
        return found

    def sums(self, groups: Sequence[SensitivityGroup], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        if not groups:
            return []
        variables = groups[0].variables
        # First, so that gradients written out for it need not be made again.
        counts = self.counts(variables, parts, present) if self.counted else []

        def fresh() -> Contributions:  # what a branch remembers, no other may use
            return {key: copy.copy(part) for key, part in parts.items()}

        totals = tf.cond(
            tf.cast(self.switched(), tf.bool),
            lambda: self.clamped_sums(variables, fresh(), present),
            lambda: bounded_sums(variables, fresh(), self.over_norm)[0],
        )
        return [*totals, *counts, *(self.unbounded_sum(variables, fresh()) if self.unprotected else [])]

    def over_norm(self, norms: tf.Tensor) -> tf.Tensor:
        """What a gradient of this norm is multiplied by, to have norm at most 1."""
        return clip_scales(norms, self.l2_norm_clip) / self.l2_norm_clip

    def clamped_sums(self, variables: Sequence[Any], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        """The sums of clamp(g_j / s_j, -1, 1) / sqrt(P)."""
        weights = sizes(variables)
        clamps = {id(v): tf.convert_to_tensor(self.clamp(v, weights), tf.float32) for v in variables}
        weight = (1.0 - ROUNDING) / math.sqrt(weights)

        # Divided after the sum, at the cost of one division a weight instead of one a record and weight.
        sums = filtered_sums(variables, parts, ClampedEntries(clamps), weight, present)
        return [total / clamps[id(v)] for total, v in zip(sums, variables, strict=True)]

    def counts(self, variables: Sequence[Any], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        """For each variable: how many records are below its scale, less those that are not, over 2."""
        found = []
        # Their norms cost as much as they do, and the clamps need them.
        write_out([parts[id(v)] for v in variables if id(v) in parts])
        for variable in variables:
            part = parts.get(id(variable))
            squared = tf.zeros_like(present) if part is None else part.squared_norms()
            clamp = tf.convert_to_tensor(self.clamp(variable, sizes(variables)), tf.float32)
            scale = tf.reduce_mean(tf.square(clamp / self.clip_factor))
            # Not finite counts as above; padding must not count at all, since its amount tells how many were drawn.
            below = tf.where(squared <= scale * math.prod(variable.shape), 0.5, -0.5)
            found.append(tf.reduce_sum(tf.where(present > 0.0, below, tf.zeros_like(below))))
        return found

    def unbounded_sum(self, variables: Sequence[Any], parts: Contributions) -> list[tf.Tensor]:
        """The sum of finite gradients, all weights in one vector."""
        sums, _ = bounded_sums(variables, parts, tf.ones_like)
        return [tf.concat([tf.reshape(total, (-1,)) for total in sums], 0)]


@dataclass(frozen=True)
class ClampedEntries(EntryFunction):
    """min(max(g, -s), s) of each entry, by the id of its variable: s of the variable's shape, or a scalar; positive."""

    clamps: Mapping[int, tf.Tensor]

    def __call__(self, variable: keras.Variable, values: tf.Tensor, rows: tf.Tensor | None) -> tf.Tensor:
        clamp = self.clamps[id(variable)]
        if clamp.shape.rank and rows is not None:
            clamp = tf.gather(clamp, tf.maximum(rows, 0))
        return tf.minimum(tf.maximum(values, -clamp), clamp)

    def of_inputs(self, variable: keras.Variable, x: tf.Tensor) -> list[tf.Tensor]:
        clamp = self.clamps[id(variable)]
        # Of one clamp for all units: the most that u may be. Where that is infinite, any finite u is within it.
        return [x] if clamp.shape.rank else [x, clamp / tf.abs(x)]

    def outer(self, variable: keras.Variable, start: int | tf.Tensor, size: int) -> OuterFunction:
        clamp = self.clamps[id(variable)]
        if clamp.shape.rank:
            tile = tf.slice(clamp, [start, 0], [size, clamp.shape[1]])
            return lambda factors, u: tf.minimum(tf.maximum(factors[0][:, tf.newaxis] * u, -tile), tile)

        def scaled(factors: Sequence[tf.Tensor], u: tf.Tensor) -> tf.Tensor:
            x, limit = (factor[:, tf.newaxis] for factor in factors)
            return x * tf.minimum(tf.maximum(u, -limit), limit)  # one multiplication less an entry

        return scaled

    def turned(self, variable: keras.Variable) -> EntryFunction:
        clamp = self.clamps[id(variable)]
        return ClampedEntries({id(variable): tf.transpose(clamp)}) if clamp.shape.rank else self

    def products(self, part: Products, refused: tf.Tensor) -> FilteredProducts:
        return FilteredProducts(part, self, refused, None)
