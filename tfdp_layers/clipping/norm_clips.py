"""Clips of each record's gradient norm: over all weights, layer by layer, automatic or adaptive."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tfdp_layers.clipping.bounding import Bounding, Contributions, LayerVariables, one_group
from tfdp_layers.per_record.bounded import STABILITY, automatic_scales, bounded_sums, clip_scales
from tfdp_layers.rules.rows import ROUNDING, check_bound
from tfdp_layers.sensitivity import Role, SensitivityGroup


@dataclass(frozen=True)
class FlatClipping(Bounding):
    """Scales each record's gradient over all weights to L2 norm at most `l2_norm_clip`.

    Guarantee: ||s_i g_i|| <= l2_norm_clip for s_i = min(1, l2_norm_clip / ||g_i||); a record whose gradient is not
    finite adds zero.
    Source: Abadi et al. 2016, arXiv:1607.00133, algorithm 1.
    """

    l2_norm_clip: float = 1.0

    NAME = "layers clipped together"

    def __post_init__(self) -> None:
        check_bound(l2_norm_clip=self.l2_norm_clip)

    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        return one_group(self.NAME, layers, self.l2_norm_clip)

    def scales(self, norms: tf.Tensor, bound: float) -> tf.Tensor:
        """What each record's gradient is multiplied by: (batch,) -> (batch,)."""
        return clip_scales(norms, bound)

    def sums(self, groups: Sequence[SensitivityGroup], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        found = []
        for group in groups:
            found += bounded_sums(group.variables, parts, self.scales_of(group.bound, present))[0]
        return found

    def scales_of(self, bound: float, present: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        """`scales` as a function of the norms alone."""
        return functools.partial(self.scales, bound=bound)


@dataclass(frozen=True)
class PerLayerClipping(FlatClipping):
    """Scales each record's gradient of each layer by itself.

    Args:
        l2_norm_clip: of all layers together, each getting l2_norm_clip / sqrt(layers); or a dict by the layers' paths.

    Guarantee: per layer as in `FlatClipping`.
    Source: McMahan et al. 2018, arXiv:1710.06963, section 3.
    """

    l2_norm_clip: Any = 1.0

    def __post_init__(self) -> None:
        clips = self.l2_norm_clip
        for clip in clips.values() if isinstance(clips, Mapping) else [clips]:
            check_bound(l2_norm_clip=clip)
        if isinstance(clips, Mapping):  # a copy that nobody writes into
            object.__setattr__(self, "l2_norm_clip", MappingProxyType(dict(clips)))

    def __reduce__(self) -> Any:
        clips = self.l2_norm_clip
        return type(self), (dict(clips) if isinstance(clips, Mapping) else clips,)

    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        clips = self.l2_norm_clip
        names = [path for path, _ in layers]
        if not isinstance(clips, Mapping):
            clips = dict.fromkeys(names, clips / math.sqrt(max(1, len(names))))
        if set(clips) != set(names):
            raise ValueError(
                f"`l2_norm_clip` must name exactly the layers {names} that don't bound themselves. Received:"
                f" {sorted(clips)}."
            )
        return [SensitivityGroup(path, variables, float(clips[path]), Role.OPTIMIZER) for path, variables in layers]


@dataclass(frozen=True)
class AutomaticClipping(FlatClipping):
    """Normalises each record's gradient: s_i = l2_norm_clip / (||g_i|| + stability). No threshold to tune.

    A record's weight leaves the direction of its gradient, and is lost when that is normalised. Where the largest
    weight is public, s_i is therefore multiplied by w_i / largest, between 0 and 1.

    Guarantee: ||s_i g_i|| < l2_norm_clip. The value of l2_norm_clip only scales the learning rate.
    Source: Bu et al. 2022, arXiv:2206.07136, "AUTO-S".
    """

    stability: float = STABILITY

    @property
    def weighs(self) -> bool:
        return True

    def __post_init__(self) -> None:
        check_bound(l2_norm_clip=self.l2_norm_clip, stability=self.stability)

    def scales(self, norms: tf.Tensor, bound: float) -> tf.Tensor:
        return automatic_scales(norms, bound, self.stability)

    def scales_of(self, bound: float, present: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        return lambda norms: self.scales(norms, bound) * present


@dataclass(frozen=True, eq=False)
class AdaptiveClipping(FlatClipping):
    """Clips to a threshold that follows a quantile of the records' gradient norms, by noisy counts.

    What is released is in units of the threshold: gradients scaled by min(1 / threshold, 1 / ||g_i||), bound 1, and
    the sum over the drawn records of +1/2 (norm at most the threshold) or -1/2, bound 1/2: two groups of one Gaussian
    mechanism. The optimizer multiplies by the threshold, and moves it, after the noise.

    Args:
        l2_norm_clip: where the threshold starts.
        threshold: the variable that holds it, known after `build` of the optimizer.

    Source: Andrew et al. 2021, arXiv:1905.03871, algorithm 1 (there per user).
    """

    threshold: Callable[[], Any] = lambda: None

    STATISTIC = "records below the threshold"

    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        statistic = SensitivityGroup(self.STATISTIC, (), 0.5, Role.STATISTIC)
        return [g for flat in super().groups(layers) for g in (dataclasses.replace(flat, bound=1.0), statistic)]

    def sums(self, groups: Sequence[SensitivityGroup], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        if not groups:
            return []
        threshold = tf.convert_to_tensor(self.threshold(), tf.float32)

        def scales(norms: tf.Tensor) -> tf.Tensor:
            return (1.0 - ROUNDING) / tf.maximum(norms, threshold)

        totals, norms = bounded_sums(groups[0].variables, parts, scales)
        # Not finite counts as above; padding must not count at all, since its amount tells how many were drawn.
        below = tf.where(norms <= threshold, 0.5, -0.5)
        return [*totals, tf.reduce_sum(tf.where(present > 0.0, below, tf.zeros_like(below)))]
