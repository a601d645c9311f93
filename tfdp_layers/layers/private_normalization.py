"""Normalization of private data, by a noisy mean and variance of each feature."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.batches.extremes import warn_of_extremes
from tfdp_layers.layers.adapted import AdaptedLayer, adapting, chunks

_MARGIN = 2.0**-16
"""Of the bound, for rounding: sums in float64 do not use it up before 1e10 records."""
_SMALLEST = float(np.finfo(np.float32).eps)
"""The least variance, in half ranges squared: below it float32 tells no values of the range apart."""


@adapting
@keras.saving.register_keras_serializable(package="tfdp_layers")
class PrivateNormalization(AdaptedLayer):
    """Shifts and scales each feature to mean 0 and variance 1; `adapt` releases both, of all features, with noise.

    Forward: y = (x - mean) / sqrt(variance), both being fixed: found by `adapt`, not trained. It is
    `keras.layers.Normalization` over the last axis, for data whose statistics are private. A record is not clipped
    there.

    Formal guarantee: one `adapt` is one Gaussian mechanism of the given noise multiplier over all its records, which
    joins the ledger of every private model that uses the layer, by whatever name or copy: a model whose layer was
    adapted without a record of it refuses to train and to state an epsilon. Adapting twice costs twice.
    Derivation: with c and h the middle and half of a feature's public range, t = (x - c) / h, clipped to [-1, 1]. What
    is released is the sum over the records of (t, 2 t^2 - 1) of all d features (of their means, where a record has
    several positions) plus noise. With u = t^2 in [0, 1], t^2 + (2 t^2 - 1)^2 = 4 u^2 - 3 u + 1 is convex in u, so it
    is at most its value at an end, max(1, 2) = 2: the vector of a record has norm at most sqrt(2 d). A mean over
    positions is a convex combination of such vectors, of no larger norm. So adding or removing a record, or replacing
    it by an empty one, moves the sum by at most sqrt(2 d), attained by every record at the ends of all ranges.
    (Replacing a record is accounted with twice that.) NaN counts as the middle of the range, an infinity as its end.
    Mean and variance follow by post-processing, with the declared number n of records, or with a noisy one that is
    released beside the sums where `adapt` counts them by itself: mean t = S_1 / n and mean t^2 = (S_2 / n + 1) / 2. A
    variance below its own noise tells nothing, and is replaced by that noise's deviation; none is larger than h^2, as
    that of no numbers in the range is.

    The noise on a feature's mean has standard deviation noise_multiplier * sqrt(2 d) * h / n. With a noisy n that of
    the sums is 1.118 times as large, and the mean's distance from the middle is off by a part of itself as well, of
    standard deviation 2.24 noise_multiplier / n (see `adapt`).

    Shapes: (batch, ..., features), unchanged.
    Args:
        noise_multiplier: the noise's standard deviation over sqrt(2 d), of each `adapt`. 0 adds none: epsilon is
            infinite.
        lower, upper: a public range of each feature, (features,) or one number for all, in units of the data: of what
            can be, not of what the records hold. `tfdp.preprocessing.quantiles` finds one privately.
        noise_source: "default", "secure" or a `NoiseSource`, for tests `tfdp.noise.SeededNoise(seed)`. It is not saved.
        name, dtype: as in Keras.

    Attributes:
        mean, variance: (features,).
        ledger: what `adapt` released, saved with the weights. Where the layer is used outside of a private model (to
            transform the data before `fit`), merge it yourself: `model.ledger.merge(layer.ledger)`.

    Raises: ValueError for settings out of range.
    Source: moments of bounded values by the Gaussian mechanism (Dwork and Roth 2014, theorem A.1), centered and joined.
    """

    group = "noisy mean and variance"

    def __init__(self, noise_multiplier: float, lower: Any, upper: Any, **kwargs: Any) -> None:
        super().__init__(noise_multiplier, **kwargs)
        self.lower, self.upper = (np.asarray(end, np.float64) for end in (lower, upper))
        with np.errstate(over="ignore"):
            wide = np.isfinite(self.upper - self.lower).all() and np.all(self.lower < self.upper)
        if not wide or max(self.lower.ndim, self.upper.ndim) > 1:
            raise ValueError(
                "`lower` and `upper` must be finite numbers, (features,) or one for all, each lower below its upper."
                f" Received: lower={lower!r}, upper={upper!r}."
            )

    def build(self, input_shape: Sequence[int | None]) -> None:
        features = input_shape[-1]
        ends = {end.shape for end in (self.lower, self.upper)} - {(), (features,)}
        if len(input_shape) < 2 or features is None or ends:
            raise ValueError(
                f"PrivateNormalization got records of shape {tuple(input_shape[1:])}, and ranges of shapes"
                f" {self.lower.shape} and {self.upper.shape}: give a range for each feature of the last axis."
            )
        self.mean = self.add_weight(shape=(features,), name="mean", initializer="zeros", trainable=False)
        self.variance = self.add_weight(shape=(features,), name="variance", initializer="ones", trainable=False)
        self.build_receipt()

    def warn_of(self, data: np.ndarray, unit_ids: Any) -> None:
        """Warns of ranges that end at one record's own numbers."""
        warn_of_extremes(data, self.lower, self.upper, unit_ids)

    def call(self, inputs: tf.Tensor) -> Any:
        mean, variance = (keras.ops.cast(value, inputs.dtype) for value in (self.mean, self.variance))
        return keras.ops.divide(keras.ops.subtract(inputs, mean), keras.ops.sqrt(variance))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[Any, ...]:
        return tuple(input_shape)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if shape[-1] != self.mean.shape[0] or 0 in shape:
            raise ValueError(f"adapt got records of shape {shape}; the layer has {self.mean.shape[0]} features.")

    def total(self, data: Any) -> tf.Tensor:
        return tf.constant(moments(data, *self._ranges()))

    @property
    def sensitivity(self) -> float:
        return math.sqrt(2.0 * self.mean.shape[0]) * (1.0 + _MARGIN)

    def use(self, released: np.ndarray, count: float, stddev: float) -> None:
        middle, half = self._ranges()
        first, second = np.split(released / count, 2)
        mean, square = np.clip(first, -1.0, 1.0), np.clip((second + 1.0) / 2.0, 0.0, 1.0)
        noise = stddev / count
        least = np.maximum(noise * np.sqrt(0.25 + 4.0 * mean**2), _SMALLEST)
        self.mean.assign(middle + half * mean)
        self.variance.assign(np.clip(square - mean**2, np.minimum(least, 1.0), 1.0) * half**2)

    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Middle and half of each feature's range, (features,)."""
        lower, upper = (np.broadcast_to(end, self.mean.shape) for end in (self.lower, self.upper))
        return lower / 2.0 + upper / 2.0, upper / 2.0 - lower / 2.0

    def plain(self) -> Any:
        return keras.layers.Normalization(axis=-1, name=self.name)

    def copy_to(self, target: Any) -> None:
        target.set_weights([np.asarray(self.mean), np.asarray(self.variance), np.zeros((), "int32")])
        target.finalize_state()

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"lower": self.lower.tolist(), "upper": self.upper.tolist()}


def moments(data: Any, middle: np.ndarray, half: np.ndarray) -> np.ndarray:
    """The sums over the records of t, then of 2 t^2 - 1, in float64: (2 features,)."""
    total = np.zeros(2 * len(middle))
    for rows in chunks(data):
        with np.errstate(invalid="ignore", over="ignore"):
            t = np.clip((rows.astype(np.float64) - middle) / half, -1.0, 1.0)
        t = np.where(np.isnan(t), 0.0, t)
        axes = tuple(range(1, t.ndim - 1))
        total += np.concatenate([t.mean(axis=axes), (2.0 * t**2 - 1.0).mean(axis=axes)], axis=-1).sum(axis=0)
    return total
