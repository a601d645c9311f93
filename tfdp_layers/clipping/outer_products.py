"""Filtered gradients of a dense layer: norms and sums, of which no record's gradient is ever written out."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.clipping import kernels
from tfdp_layers.clipping.kernels import EntryFunction
from tfdp_layers.clipping.odd_series import StepwiseSeries, largest
from tfdp_layers.per_record.contributions import Contribution, Products, zero_rows


class FilteredProducts(Contribution):
    """function(x_i u_i^T) of every record i: by a series where all entries are small, else by compiled kernels.

    Args:
        part: gradients that are outer products (`kernels.is_outer_product`).
        function: of each entry.
        refused: (batch,): whose norm is infinite. They add zero, whatever they hold.
        series: what the function is close to, or None.
        unit: entries are over it where they go into the series.
    """

    def __init__(
        self,
        part: Products,
        function: EntryFunction,
        refused: tf.Tensor,
        series: StepwiseSeries | None,
        unit: float = 1.0,
    ) -> None:
        super().__init__(part.variable)
        self.part, self.function, self.refused, self.series, self.unit = part, function, refused, series, unit
        self.x, self.u = part.x[:, 0], part.u[:, 0]
        self._measured: tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None = None

    @property
    def factors(self) -> tuple[tf.Tensor, ...]:
        return (self.x, self.u)

    # Small entries ----------------------------------------------------------------------------------------------------

    def near(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Whose entries are all within the series' limit, (batch,), and their x and u; zeros for the others.

        x is scaled to 1 at its largest, u by as much the other way: no power of either overflows, and what of them
        underflows is too small for any norm.
        """
        assert self.series is not None
        scale = largest(self.x)
        x, u = tf.math.divide_no_nan(self.x, scale), self.u * (scale * (1.0 / self.unit))
        # False for NaN, too. A scale that overflows makes NaN or infinity of u.
        near = (largest(u)[:, 0] <= self.series.limit) & ~self.refused
        return near, zero_rows(x, near), zero_rows(u, near)

    # All others -------------------------------------------------------------------------------------------------------

    def far(self, near: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The records that are neither near nor refused, in front of an order of all; and how many they are."""
        far = ~near & ~self.refused
        return tf.argsort(tf.cast(~far, tf.int32), stable=True), tf.reduce_sum(tf.cast(far, tf.int32))

    def far_squared_norms(self, near: tf.Tensor) -> tf.Tensor:
        order, count = self.far(near)
        x, u = tf.gather(self.x, order), tf.gather(self.u, order)
        found = kernels.filtered_squared_norms(self.variable, x, u, self.function, count)
        return tf.where(near | self.refused, 0.0, tf.gather(found, tf.argsort(order)))

    def far_sum(self, near: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        order, count = self.far(near)
        # What fills up the last block must be finite, and count nothing.
        far = ~near & ~self.refused
        x, u, own = (tf.gather(zero_rows(values, far), order) for values in (self.x, self.u, weights))
        return kernels.weighted_filtered_sum(self.variable, x, u, own, self.function, count)

    # Together ---------------------------------------------------------------------------------------------------------

    def measured(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(near, squared norms, magnitudes), (batch,) each; see `rounding`."""
        if self._measured is None:
            if self.series is None:
                near = tf.zeros_like(self.refused)
                norms = self.far_squared_norms(near)
                self._measured = near, norms, norms
            else:
                near, x, u = self.near()
                norms, magnitudes = self.series.squared_norms(x, u)
                far = tf.cond(
                    tf.reduce_all(near | self.refused),
                    lambda: tf.zeros_like(norms),
                    lambda: self.far_squared_norms(near),
                )
                self._measured = near, norms + far, magnitudes + far
        return self._measured

    def squared_norms(self) -> tf.Tensor:
        norms = self.measured()[1]
        return tf.where(self.refused, tf.fill(tf.shape(norms), float("inf")), norms)

    def rounding(self) -> tuple[tf.Tensor, Any, Any] | None:
        near, _, magnitudes = self.measured()
        inputs, units = self.variable.shape
        sums = (inputs + units + 16) * 2.0**-24  # of a kernel's running sums
        if self.series is None:
            return magnitudes, sums, 0.0
        return magnitudes, tf.where(near, self.series.norm_error(inputs, units), sums), self.series.sum_error

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        if self.series is None:
            return self.far_sum(tf.zeros_like(self.refused), weights)
        near, x, u = self.near()
        total = self.series.weighted_sum(x, u, zero_rows(weights, near))
        return tf.cond(tf.reduce_all(near | self.refused), lambda: total, lambda: total + self.far_sum(near, weights))

    def sum(self) -> tf.Tensor:
        """sum_i function(x_i u_i^T) over the records that are not refused."""
        if self.series is not None:
            return self.weighted_sum(tf.ones_like(self.x[:, 0]))
        x, u = zero_rows(self.x, ~self.refused), zero_rows(self.u, ~self.refused)
        return kernels.filtered_sum(self.variable, x, u, self.function, tf.shape(x)[0])

    def gradients(self) -> tf.Tensor:
        return self.function(self.variable, self.part.gradients(), None)

    def keep(self, kept: tf.Tensor) -> FilteredProducts:
        return FilteredProducts(self.part, self.function, self.refused | ~kept, self.series, self.unit)
