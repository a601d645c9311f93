"""Rules that change each entry of a gradient by itself."""

import abc
from dataclasses import dataclass

import tensorflow as tf

from tfdp_layers.rules.rows import check_bound


@dataclass(frozen=True)
class EntryRule(abc.ABC):
    """Changes each entry of a gradient by itself: for `tfdp.layers.GradientFilter`, and within filtered DP-SGD.

    Shapes: any, unchanged.
    Guarantee: every entry lies within [-largest, largest]; NaN and infinity become zero.
    """

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """The largest absolute value of an entry afterwards."""

    @abc.abstractmethod
    def unit(self, values: tf.Tensor) -> tf.Tensor:
        """The entries over `largest`, within [-1, 1] where `values` is finite."""

    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        filtered = tf.cast(self.largest, values.dtype) * self.unit(values)
        return tf.where(tf.math.is_finite(values), filtered, tf.zeros_like(values))


@dataclass(frozen=True)
class Tanh(EntryRule):
    """output_scale * tanh(g / active_range) of each entry g.

    Attributes:
        output_scale: c, the largest absolute value of an entry afterwards.
        active_range: k; entries of up to about 3 k are told apart, larger ones are all near c. Units of the gradient.

    Raises: ValueError unless both are positive and finite.
    Source: "Improving the Algorithm of Deep Learning with Differential Privacy" (2021), equation 4 and section IV.
    """

    output_scale: float = 1.0
    active_range: float = 1.0

    def __post_init__(self) -> None:
        check_bound(output_scale=self.output_scale, active_range=self.active_range)

    @property
    def largest(self) -> float:
        return self.output_scale

    def unit(self, values: tf.Tensor) -> tf.Tensor:
        return tf.tanh(values if self.active_range == 1.0 else values * (1.0 / self.active_range))


@dataclass(frozen=True)
class Clamp(EntryRule):
    """min(max(g, -limit), limit) of each entry g. Raises ValueError unless the limit is positive and finite."""

    limit: float = 1.0

    def __post_init__(self) -> None:
        check_bound(limit=self.limit)

    @property
    def largest(self) -> float:
        return self.limit

    def unit(self, values: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(values if self.limit == 1.0 else values * (1.0 / self.limit), -1.0, 1.0)
