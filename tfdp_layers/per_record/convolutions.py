"""What each record adds to the gradient of a convolution's kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.per_record.contributions import (
    SMALLEST,
    Contribution,
    Stored,
    positions,
    zero_rows,
)
from tfdp_layers.rules import number_of, squared_norm, summation_error

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
    """

    def __init__(self, variable: Any, x: tf.Tensor, u: tf.Tensor, convolution: Convolution, overlap: int) -> None:
        super().__init__(variable)
        self.x, self.u = tf.cast(x, tf.float32), tf.cast(u, tf.float32)
        self.convolution, self.overlap = convolution, overlap
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
            for offset in range(_TOGETHER):
                row = tf.minimum(start + offset, batch - 1)  # what is beyond the last record is dropped below
                found.append(function(self.one(self.x[row][tf.newaxis], self.u[row][tf.newaxis])))
            return tf.stack(found)

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
        if self._written is not None:
            return Stored(self.variable, self._written).weighted_sum(weights)
        return self.one(self.x, self.u * tf.reshape(weights, [-1] + [1] * (len(self.u.shape) - 1)))

    def like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        """The same for other records."""
        return KernelGradients(self.variable, x, u, self.convolution, self.overlap)

    def keep(self, kept: tf.Tensor) -> Contribution:
        if self._written is not None:
            return Stored(self.variable, zero_rows(self._written, kept))
        return self.like(zero_rows(self.x, kept), zero_rows(self.u, kept))

    def rows(self, start: Any, size: Any) -> Contribution:
        if self._written is not None:
            return Stored(self.variable, self._written[start : start + size])
        return self.like(self.x[start : start + size], self.u[start : start + size])


class PixelGrams(KernelGradients):
    """The same for a 2D convolution over few positions, with norms from Gram matrices of pixels instead of patches.

    ||P^T U||^2 = <P P^T, U U^T>, and the Gram matrix of patches p and q is the sum over the kernel's taps a of that of
    pixels p + a and q + a: taps times fewer multiplications than from the patches themselves.
    """

    def __init__(self, *args: Any, size: Sequence[int], strides: Sequence[int], padding: str) -> None:
        super().__init__(*args)
        self.geometry: Any = {"size": size, "strides": strides, "padding": padding}

    @property
    def stored(self) -> bool:
        return False

    def squared_norms(self) -> tf.Tensor:
        padded = tf.pad(self.x, [(0, 0), *paddings(self.x.shape[1:-1], **self.geometry), (0, 0)])
        (height, width), out = padded.shape[1:3], self.u.shape[1:3]
        pixels, u = positions(padded), positions(self.u)
        gram = tf.reshape(tf.matmul(pixels, pixels, transpose_b=True), (-1, height, width, height, width))
        for axis in (0, 1):  # first along the rows, then along the columns
            taps, step = self.geometry["size"][axis], self.geometry["strides"][axis]
            length = (out[axis] - 1) * step + 1
            gram = tf.add_n([shifted(gram, axis, tap, length, step) for tap in range(taps)])
        upstream = tf.reshape(tf.matmul(u, u, transpose_b=True), (-1, *out, *out))
        products = tf.reshape(gram * upstream, (-1, math.prod(out), math.prod(out)))
        return tf.reduce_sum(tf.reduce_sum(products, axis=2), axis=1)

    def rounding(self) -> tuple[tf.Tensor, Any, Any] | None:
        magnitudes, _, sum_error = super().rounding() or (None, None, None)
        terms = math.prod(self.variable.shape[:-1]) + self.u.shape[-1] + 2.0 * number_of(self.u, [1, 2])
        return magnitudes, terms * 2.0**-24, sum_error

    def underflow(self) -> Any:
        """As for `Products` of the patches."""
        count = number_of(self.u, [1, 2])
        patches = count * math.prod(self.variable.shape[:-1]) * SMALLEST
        upstream = count * self.u.shape[-1] * SMALLEST
        energy = self.overlap * squared_norm(self.x)
        return patches * squared_norm(self.u) + upstream * energy + patches * upstream

    def like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        return PixelGrams(self.variable, x, u, self.convolution, self.overlap, **self.geometry)


def shifted(gram: tf.Tensor, axis: int, tap: int, length: int, step: int) -> tf.Tensor:
    """Entries tap, tap + step ... of both sides' axis of a Gram matrix (batch, h, w, h, w)."""
    part = slice(tap, tap + length, step)
    index: list[Any] = [slice(None)] * 5
    index[1 + axis] = index[3 + axis] = part
    return gram[tuple(index)]


def paddings(space: Sequence[int], size: Sequence[int], strides: Sequence[int], padding: str) -> list[tuple[int, int]]:
    """Zeros before and after each axis, as TensorFlow puts them."""
    if padding == "valid":
        return [(0, 0)] * len(size)
    totals = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(space, size, strides, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]
