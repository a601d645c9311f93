"""What each record adds to the gradient of a convolution's kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.contributions import Contribution, Stored, records, zero_rows
from tfdp_layers.per_record.precision import are_bfloat16
from tfdp_layers.rules.norms import squared_norm, summation_error

Convolution = Callable[[Any, Any], Any]
_STORED = 65_536
"""Kernels of up to so many entries are written out for every record: then the weighted sum needs no second pass."""
_TOGETHER = 8
"""Records in one round of that loop."""


class KernelGradients(Contribution):
    """g_i of a kernel W, where z_i = convolution(x_i, W) is linear in W, and u_i is the gradient at z_i.

    Norms: record by record. The weighted sum: from the gradients written out for the norms if the kernel is small, else
    the framework's own kernel gradient of the whole batch.

    Args:
        x, u: (batch, ...), the convolution's input and the gradient at its output, channels last.
        convolution: (x, kernel) -> z, without bias.
        overlap: the most patches that hold one entry of the input: ||P||^2 <= overlap ||x||^2.

    Attributes:
        few: at most so many records, if that is known: no loop is needed where they are few.
        rounds: whether gradients that are written out are computed in bfloat16 where x and u come so, as Keras does:
            what is added is then what was measured.
    """

    rounds = False

    def __init__(
        self, variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, convolution: Convolution, overlap: int
    ) -> None:
        super().__init__(variable)
        low = self.rounds and self.stored and are_bfloat16(x, u)
        self.x, self.u = (x, u) if low else (tf.cast(x, tf.float32), tf.cast(u, tf.float32))
        self.convolution, self.overlap = convolution, overlap
        self.few: int | None = None
        self._written: tf.Tensor | None = None

    @property
    def stored(self) -> bool:
        return math.prod(self.variable.shape) <= _STORED

    def one(self, x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
        """sum_i g_i of some records."""
        kernel = tf.zeros(self.variable.shape, tf.float32)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernel)
            outputs = self.convolution(x, kernel)
        return tape.gradient(outputs, kernel, output_gradients=u)

    def each(self, function: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """function(g_i) of every record, `_TOGETHER` of them in a round of the loop."""
        batch = tf.shape(self.x)[0]

        def several(start: tf.Tensor) -> tf.Tensor:
            found = []
            for offset in range(min(self.few or _TOGETHER, _TOGETHER)):
                row = tf.minimum(start + offset, batch - 1)  # what is beyond the last record is dropped below
                found.append(function(self.one(self.x[row][tf.newaxis], self.u[row][tf.newaxis])))
            return tf.stack(found)

        if self.few and self.few <= _TOGETHER:
            return several(tf.constant(0))[:batch]
        # At least one round, so that an empty piece has a shape as well.
        starts = tf.range(0, tf.maximum(batch, 1), _TOGETHER)
        rounds = tf.map_fn(several, starts, fn_output_signature=tf.float32)
        return tf.reshape(rounds, tf.concat([[-1], tf.shape(rounds)[2:]], 0))[:batch]

    def gradients(self) -> tf.Tensor:
        if self._written is None:
            self._written = tf.reshape(self.each(lambda gradient: gradient), (-1, *self.variable.shape))
        return self._written

    def squared_norms(self) -> tf.Tensor:
        if self.stored:
            return squared_norm(self.gradients())
        return self.each(lambda gradient: tf.squeeze(squared_norm(gradient[tf.newaxis]), 0))

    def rounding(self) -> tuple[tf.Tensor, Any, Any] | None:
        if self.stored:
            return None
        space = list(range(1, len(self.u.shape) - 1))
        magnitudes = self.overlap * squared_norm(self.x) * squared_norm(self.u)
        return magnitudes, 0.0, 2.0 * summation_error(self.u, space)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        if self._written is not None or are_bfloat16(self.x, self.u):
            return Stored(self.variable, self.gradients()).weighted_sum(weights)
        return self.one(self.x, self.u * tf.reshape(weights, [-1] + [1] * (len(self.u.shape) - 1)))

    @property
    def factors(self) -> tuple[tf.Tensor, ...]:
        return (self.x, self.u) if self._written is None else (self._written,)

    def like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        """These kernel gradients, for other records."""
        return KernelGradients(self.variable, x, u, self.convolution, self.overlap)

    def keep(self, kept: tf.Tensor) -> Contribution:
        if self._written is not None:
            return Stored(self.variable, zero_rows(self._written, kept))
        return self.like(zero_rows(self.x, kept), zero_rows(self.u, kept))

    def rows(self, start: int | tf.Tensor, size: int | tf.Tensor) -> Contribution:
        if self._written is not None:
            return Stored(self.variable, records(self._written, start, size))
        return self.like(records(self.x, start, size), records(self.u, start, size))


def paddings(space: Sequence[int], size: Sequence[int], strides: Sequence[int], padding: str) -> list[tuple[int, int]]:
    """Zeros before and after each axis, as TensorFlow puts them."""
    if padding == "valid":
        return [(0, 0)] * len(size)
    totals = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(space, size, strides, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]
