"""Convolutions as products of patches with a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.noise.cores import on_gpus
from tfdp_layers.per_record.contributions import Arrangement, Products, positions
from tfdp_layers.per_record.convolutions import KernelGradients, paddings
from tfdp_layers.per_record.precision import are_bfloat16, each_product

_COMPILED, _PLAIN = 16, 4
"""Records at a time, with XLA or in bfloat16, and else: their patches stay in the cache."""

_ON_GPU, _BYTES = 256, 2**28
"""On a GPU so many records at a time, or fewer, whose patches fill so much memory: operations take long to start."""


class PatchBlocks(KernelGradients):
    """Kernel gradients of a 2D convolution from patches of a few records at once, since patches take much memory.

    Args:
        compiled: by XLA into a function of its own: faster for many positions and few weights.
    """

    rounds = True

    def __init__(
        self, *args: Any, size: Sequence[int], strides: Sequence[int], padding: str, compiled: bool = False
    ) -> None:
        super().__init__(*args)
        self.geometry: Any = {"size": size, "strides": strides, "padding": padding}
        self.compiled = compiled

    def gradients(self) -> tf.Tensor:
        if self._written is None:
            self._written = self._of_rows(self.x, self.u) if tf.executing_eagerly() else self._in_blocks()
        return self._written

    def _of_rows(self, x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
        strides, padding = self.geometry["strides"], self.geometry["padding"]
        found = patch_products(self.variable, x, u, strides, [1, 1], padding)
        return found.laid_out(each_product(*found.given))

    def _in_blocks(self) -> tf.Tensor:
        of_rows, together = self._of_rows, _COMPILED if are_bfloat16(self.x, self.u) else _PLAIN
        if on_gpus():
            together = self._on_gpu()
        elif self.compiled:
            of_rows = tf.function(self._of_rows, jit_compile=True, autograph=False)
            together = min(_COMPILED, self.few or _COMPILED)
        elif self.few and self.few <= 2 * _PLAIN:
            return self._of_rows(self.x, self.u)
        batch = tf.shape(self.x)[0]
        # At least one block, so that an empty piece has a shape as well; zeros fill the last one.
        missing = tf.maximum(-(-batch // together), 1) * together - batch

        x, u = (tf.pad(v, [[0, missing]] + [[0, 0]] * (len(v.shape) - 1)) for v in (self.x, self.u))

        def block(start: tf.Tensor) -> tf.Tensor:  # slices of the first axis are not copied
            starts, sizes = [start] + [0] * (len(x.shape) - 1), [together]
            return of_rows(*(tf.slice(v, starts, sizes + v.shape[1:]) for v in (x, u)))

        found = tf.map_fn(block, tf.range(0, batch + missing, together), fn_output_signature=tf.float32)
        return tf.reshape(found, (-1, *self.variable.shape))[:batch]

    def _on_gpu(self) -> int:
        """How many records are taken at a time on a GPU."""
        bytes_each = 4 * math.prod(self.u.shape[1:-1]) * math.prod(self.variable.shape[:-1])
        return min(max(_BYTES // bytes_each, _COMPILED), self.few or _ON_GPU, _ON_GPU)

    def like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        return PatchBlocks(self.variable, x, u, self.convolution, self.overlap, **self.geometry, compiled=self.compiled)


def regular(size: Sequence[int], strides: Sequence[int], rates: Sequence[int]) -> bool:
    """Whether `patch_products` cuts its patches by whole blocks of pixels."""
    whole = all(k % s == 0 for k, s in zip(size, strides, strict=True))
    return whole and set(rates) == {1} and strides[0] in (1, strides[-1])


def patch_products(
    kernel: keras.Variable, x: tf.Tensor, u: tf.Tensor, strides: Sequence[int], rates: Sequence[int], padding: str
) -> Products:
    """The kernel's gradients as those of a matrix that multiplies the patches; one or two space axes."""
    *size, channels, units = kernel.shape
    pads, u = paddings(x.shape[1:-1], size, strides, padding), u if len(size) == 2 else u[:, tf.newaxis]
    if len(size) == 1:
        x, pads = x[:, tf.newaxis], [(0, 0), *pads]
        size, strides, rates = [1, *size], [1, *strides], [1, *rates]
    if not regular(size, strides, rates):
        found = tf.image.extract_patches(x, *([1, *values, 1] for values in (size, strides, rates)), padding.upper())
        return Products(kernel, positions(found), positions(u))
    out = u.shape[1:3]
    ends = block_ends(out, strides, size)
    x = blocks(tf.pad(x, [(0, 0), *pads, (0, 0)])[:, : ends[0], : ends[1]], strides)
    taps = [k // s for k, s in zip(size, strides, strict=True)]
    if tuple(strides) == (1, 1):  # features in the kernel's own order
        found = tf.concat([x[:, :, tap : tap + out[1]] for tap in range(taps[1])], -1)
        found = tf.concat([found[:, tap : tap + out[0]] for tap in range(taps[0])], -1)
    else:
        # First along the rows, then along the columns: the pieces that are copied become long.
        found = tf.concat([x[:, tap : tap + out[0]] for tap in range(taps[0])], -1)
        found = tf.concat([found[:, :, tap : tap + out[1]] for tap in range(taps[1])], -1)
    inputs, count = math.prod(kernel.shape[:-1]), math.prod(out)
    # Written out, (units, inputs) takes half the time of (inputs, units) where it has the longer rows.
    turned = units < inputs and count * (inputs + units) > inputs * units
    if tuple(strides) == (1, 1):
        arrange = Arrangement((units, inputs), (1, 0)) if turned else None
    elif turned:
        arrange = Arrangement((units, taps[1], taps[0], *strides, channels), (2, 3, 1, 4, 5, 0))
    else:
        arrange = Arrangement((taps[1], taps[0], *strides, channels, units), (1, 2, 0, 3, 4, 5))
    rows, columns = (u, found) if turned else (found, u)
    return Products(kernel, positions(rows), positions(columns), arrange)


def block_ends(out: Sequence[int], strides: Sequence[int], size: Sequence[int]) -> list[int]:
    """How many pixels the patches reach along each axis; whole blocks where they are cut by blocks."""
    return [(n - 1) * s + k for n, s, k in zip(out, strides, size, strict=True)]


def blocks(x: tf.Tensor, strides: Sequence[int]) -> tf.Tensor:
    """(batch, rows, columns, channels) -> one entry for each step of the strides, its pixels side by side.

    Strides: the same along both, or 1 along the rows.
    """
    rows, columns = strides
    if columns == 1:
        return x
    if rows == 1:
        return tf.reshape(x, (-1, x.shape[1], x.shape[2] // columns, columns * x.shape[3]))
    return tf.nn.space_to_depth(x, rows)
