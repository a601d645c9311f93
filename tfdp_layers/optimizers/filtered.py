"""Tanh-filtered DP-SGD, sound by default."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdp_layers.clipping.filters import FilteredClipping
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.optimizers.noise_multiplier import CALIBRATE, refuse_calibrating_printed
from tfdp_layers.rules.entries import Tanh
from tfdp_layers.sensitivity import Role, SensitivityGroup


@keras.saving.register_keras_serializable(package="tfdp_layers")
class TanhFilteredOptimizer(PrivateOptimizer):
    """Filters every coordinate of each record's gradient by output_scale * tanh(g / active_range), bounds, sums, adds
    noise, and lets any Keras optimizer step.

    The paper adds noise for an L2 sensitivity of 1, which filtered gradients don't have: of P weights, their norm can
    be output_scale * sqrt(P), as the paper says itself (section III-A). So by default the filtered gradient is clipped.

    Args:
        optimizer, noise_multiplier: see `PrivateOptimizer`.
        l2_norm_clip: bound on each record's filtered gradient over all weights (bound="clip").
        output_scale, active_range: c and k, see `tfdp.rules.Tanh`. With bound="clip" the output scale matters only
            relative to l2_norm_clip.
        bound: "clip": noise for l2_norm_clip. "dimension": no clip, and noise for output_scale * sqrt(P).
        as_published: the printed algorithm, for study: no clip, noise for l2_norm_clip (the paper: 1). The ledger
            counts its true cost, by output_scale * sqrt(P), and shows the nominal cost beside it; a `PrivacyBudget`
            refuses to start unless it accepts the nominal figure.
        allow_generic: see `ClippedOptimizer`.
        noise_allocation, noise_source, name: see `PrivateOptimizer`.

    Formal guarantee: each step is one Gaussian mechanism on a sum to which one record adds at most the bound of
    `model.sensitivities()`, of the given noise multiplier unless `as_published`; then of noise multiplier
    noise_multiplier * l2_norm_clip / (output_scale * sqrt(P)).
    Microbatches: the paper allows groups of records whose mean gradient is filtered. Give each group as one record, x
    of shape (groups, members, ...) and y alike, to layers that take a further axis (Dense, Embedding, attention and
    normalization; not convolutions), with `sampling=tfdp.sampling.FixedSize(groups in a step)`. A record belongs to its
    group for good, so data sets that differ in one record, wherever it was added, removed or replaced, differ in what
    one group adds: two vectors of norm at most S, up to 2 S apart, and one record can attain that by turning the mean
    round. That is "replace one group", for which FixedSize is accounted, with 2 S. Poisson sampling of groups is
    accounted for a whole group that comes or goes, and does NOT cover a record within one: (1 - q) N(0) + q N(a)
    against (1 - q) N(0) + q N(b) is not the pair of distributions that it composes, whatever multiple of S is put in.

    Raises:
        ValueError: for an unknown bound, a number that is not positive and finite, or an output scale so much above the
            clip that entries whose squares vanish in float32 could exceed it.
    Source: "Improving the Algorithm of Deep Learning with Differential Privacy" (2021). Readings taken: microbatches of
        one record, as in all its experiments; the printed noise does not grow with the output scale.
    """

    _FIXED = (
        *PrivateOptimizer._FIXED,
        *("l2_norm_clip", "output_scale", "active_range", "bound", "as_published", "allow_generic"),
    )

    def __init__(
        self,
        optimizer: str | keras.optimizers.Optimizer,
        noise_multiplier: float | str = CALIBRATE,
        l2_norm_clip: float = 1.0,
        output_scale: float = 1.0,
        active_range: float = 1.0,
        bound: str = "clip",
        as_published: bool = False,
        *,
        allow_generic: bool = False,
        **kwargs: Any,
    ) -> None:
        if bound not in ("clip", "dimension"):
            raise ValueError(f"`bound` must be 'clip' or 'dimension'. Received: bound={bound!r}.")
        refuse_calibrating_printed(noise_multiplier, as_published)
        clip = bound == "clip" and not as_published
        bounding = FilteredClipping(l2_norm_clip, Tanh(output_scale, active_range), clip, allow_generic=allow_generic)
        super().__init__(optimizer, noise_multiplier, **kwargs)
        self._bounding = bounding
        self.l2_norm_clip, self.output_scale, self.active_range = l2_norm_clip, output_scale, active_range
        self.bound, self.as_published, self.allow_generic = bound, bool(as_published), bool(allow_generic)

    @property
    def bounding(self) -> FilteredClipping:
        return self._bounding

    @property
    def nominal_noise_multiplier(self) -> float | None:
        return self.multiplier.number if self.as_published else None

    def stddevs(self, groups: Sequence[SensitivityGroup]) -> list[float]:
        """The noise of each group; as published, that of the filtered weights is scaled from l2_norm_clip."""
        found = super().stddevs(groups)
        if not self.as_published:
            return found
        printed = self._bounding.l2_norm_clip
        return [s * printed / g.bound if g.role is Role.OPTIMIZER else s for g, s in zip(groups, found, strict=True)]

    def get_config(self) -> dict[str, Any]:
        rule = self._bounding.rule
        return super().get_config() | {
            "l2_norm_clip": self._bounding.l2_norm_clip,
            "output_scale": rule.output_scale,
            "active_range": rule.active_range,
            "bound": self.bound,
            "as_published": self.as_published,
            "allow_generic": self._bounding.allow_generic,
        }
