"""DP-SGD: the optimizer that clips each record's gradient of ordinary layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.clipping.bounding import Bounding
from tfdp_layers.clipping.norm_clips import AdaptiveClipping, AutomaticClipping, FlatClipping, PerLayerClipping
from tfdp_layers.clipping.row_counts import RowCounts
from tfdp_layers.noise import SparsityPreserving, as_sparsity_preserving, mapped, stddevs_beside_statistics
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.optimizers.noise_multiplier import CALIBRATE
from tfdp_layers.sensitivity import Role, SensitivityGroup


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedOptimizer(PrivateOptimizer):
    """DP-SGD on ordinary Keras layers: clips each record's gradient, sums, adds Gaussian noise, and lets any Keras
    optimizer step. Layers that bound themselves (`tfdp.layers.Clipped...`) may be mixed in and keep their own bounds.

    Args:
        optimizer, noise_multiplier: see `PrivateOptimizer`.
        l2_norm_clip: bound on each record's gradient, in units of per-record loss per unit of weight, never divided by
            a batch size; 1.0 if left out. With clipping="per_layer" also a dict by the layers' paths.
        clipping: "automatic" if neither this nor l2_norm_clip is given, so that there is no threshold to choose, else
            "flat". "flat": over all weights (Abadi et al. 2016). "per_layer": each layer by itself, l2_norm_clip /
            sqrt(layers) each. "automatic": every gradient normalised to l2_norm_clip (Bu et al. 2022). "adaptive": a
            threshold that starts at l2_norm_clip and follows a quantile of the norms (Andrew et al. 2021).
        target_quantile, threshold_rate: of "adaptive": the fraction of records below the threshold that it moves to,
            and how fast (a factor exp(-rate * distance) a step).
        sparsity_preserving: True, or a `tfdp.noise.SparsityPreserving`: of large embeddings a step moves, and adds
            noise to, only those rows that enough records look up, by a noisy count.
        allow_generic: lets layers without a per-record formula take the slow way (a warning names them); without it
            they are refused.
        noise_allocation, noise_source, name: see `PrivateOptimizer`.

    Formal guarantee: each step is one Gaussian mechanism of the given noise multiplier on sums to which one record adds
    at most the bounds of `model.sensitivities()`, the noisy count of "adaptive" and those of rows included.
    Raises: ValueError for an unknown clipping, a bound that is not positive and finite, or `sparsity_preserving` with
        correlated noise.
    """

    _FIXED = (
        *PrivateOptimizer._FIXED,
        *("l2_norm_clip", "clipping", "target_quantile", "threshold_rate", "allow_generic"),
    )

    def __init__(
        self,
        optimizer: str | keras.optimizers.Optimizer,
        noise_multiplier: float | str = CALIBRATE,
        l2_norm_clip: float | Mapping[str, float] | None = None,
        clipping: str | None = None,
        *,
        target_quantile: float = 0.5,
        threshold_rate: float = 0.2,
        sparsity_preserving: bool | SparsityPreserving = False,
        allow_generic: bool = False,
        **kwargs: Any,
    ) -> None:
        kinds: dict[str, Any] = {
            "flat": FlatClipping,
            "per_layer": PerLayerClipping,
            "automatic": AutomaticClipping,
            "adaptive": AdaptiveClipping,
        }
        if clipping is None:
            clipping = "automatic" if l2_norm_clip is None else "flat"
        l2_norm_clip = 1.0 if l2_norm_clip is None else l2_norm_clip
        if clipping not in kinds:
            raise ValueError(f"`clipping` must be one of {sorted(kinds)}. Received: clipping={clipping!r}.")
        if not 0 < target_quantile < 1 or not threshold_rate > 0:
            raise ValueError(
                "`target_quantile` must be between 0 and 1, and `threshold_rate` positive. Received:"
                f" target_quantile={target_quantile!r}, threshold_rate={threshold_rate!r}."
            )
        options = {"threshold": self.current_threshold} if clipping == "adaptive" else {}
        bounding: Any = kinds[clipping](l2_norm_clip, allow_generic=allow_generic, **options)
        l2_norm_clip = bounding.l2_norm_clip  # of a dict its copy, which nobody writes into
        selection = as_sparsity_preserving(sparsity_preserving, beside=kwargs.get("noise"))
        if selection is not None:
            bounding = RowCounts(bounding, selection.smallest_table, allow_generic=allow_generic)
        super().__init__(optimizer, noise_multiplier, **kwargs)
        self._bounding, self._selection = bounding, selection
        self.l2_norm_clip, self.clipping, self.allow_generic = l2_norm_clip, clipping, bool(allow_generic)
        self.target_quantile, self.threshold_rate = float(target_quantile), float(threshold_rate)
        self.threshold: Any = None

    @property
    def bounding(self) -> Bounding:
        return self._bounding

    @property
    def selection(self) -> SparsityPreserving | None:
        return self._selection

    def current_threshold(self) -> Any:
        """Where the threshold of "adaptive" stands: at its start until the optimizer is built."""
        return self.l2_norm_clip if self.threshold is None else self.threshold.value

    def build(self, variables: Sequence[keras.Variable]) -> None:
        super().build(variables)
        if self.clipping == "adaptive" and self.threshold is None:
            with tf.init_scope():
                start = keras.initializers.Constant(self.l2_norm_clip)
                self.threshold = self.add_variable((), dtype="float32", initializer=start, name="clipping_threshold")

    def stddevs(self, groups: Sequence[SensitivityGroup]) -> list[float]:
        """The noise of each group; statistics get a fixed share of the precision, weights the rest."""
        share = 0.0 if self._selection is None else self._selection.noise_share
        return stddevs_beside_statistics(groups, self.multiplier.number, self.noise_allocation, share)

    def in_units(self, means: list[Any], variables: Sequence[Any], groups: Sequence[SensitivityGroup]) -> list[Any]:
        """Under "adaptive" times the threshold, where this optimizer clips."""
        if self.threshold is None:
            return means
        clipped = {id(v) for group in groups if group.role is Role.OPTIMIZER for v in group.variables}
        threshold = tf.convert_to_tensor(self.threshold.value)
        return [
            mapped(lambda mean: mean * threshold, m) if id(v) in clipped else m
            for m, v in zip(means, variables, strict=True)
        ]

    def after_noise(
        self,
        means: list[Any],
        statistics: Sequence[tf.Tensor],
        variables: Sequence[Any],
        groups: Sequence[SensitivityGroup],
    ) -> list[Any]:
        """Under "adaptive" the threshold moves, by the released count of the records."""
        scaled = self.in_units(means, variables, groups)
        if self.threshold is not None and statistics:
            below = statistics[0] + 0.5
            step = -self.threshold_rate * tf.clip_by_value(below - self.target_quantile, -1.0, 1.0)
            threshold = tf.convert_to_tensor(self.threshold.value)
            self.threshold.assign(tf.clip_by_value(threshold * tf.exp(step), 1e-8, 1e8))
        return scaled

    def get_config(self) -> dict[str, Any]:
        selection = {} if self._selection is None else {"sparsity_preserving": self._selection.config()}
        clip = self.l2_norm_clip
        return (
            super().get_config()
            | selection
            | {
                "l2_norm_clip": dict(clip) if isinstance(clip, Mapping) else clip,
                "clipping": self.clipping,
                "target_quantile": self.target_quantile,
                "threshold_rate": self.threshold_rate,
                "allow_generic": self.allow_generic,
            }
        )
