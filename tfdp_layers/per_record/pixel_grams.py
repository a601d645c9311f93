"""Convolutions over few positions: norms from Gram matrices of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.per_record.contributions import SMALLEST, positions
from tfdp_layers.per_record.convolutions import KernelGradients, paddings
from tfdp_layers.per_record.patches import PatchBlocks, block_ends, blocks, patch_products, regular
from tfdp_layers.rules.norms import number_of, squared_norm, sum_in_stages, terms_in_stages

_PATCHES = 8192
"""Up to so many entries of a record's patches all of them are cut at once; more only a few records' at a time."""


class PixelGrams(KernelGradients):
    """Kernel gradients of a 2D convolution over few positions, with norms from Gram matrices of pixels.

    ||P^T U||^2 = <P P^T, U U^T>, and the Gram matrix of patches p and q is the sum over the kernel's taps a of that of
    pixels p + a and q + a: taps times fewer multiplications than from the patches themselves.
    """

    def __init__(self, *args: Any, size: Sequence[int], strides: Sequence[int], padding: str) -> None:
        super().__init__(*args)
        self.geometry: Any = {"size": size, "strides": strides, "padding": padding}

    @property
    def stored(self) -> bool:
        return False

    def gradients(self) -> tf.Tensor:
        size, strides, padding = (self.geometry[name] for name in ("size", "strides", "padding"))
        if not regular(size, strides, [1, 1]):
            return super().gradients()
        if math.prod(self.u.shape[1:3]) * math.prod(self.variable.shape[:-1]) <= _PATCHES:
            return patch_products(self.variable, self.x, self.u, strides, [1, 1], padding).gradients()
        cut = PatchBlocks(self.variable, self.x, self.u, self.convolution, self.overlap, **self.geometry)
        cut.few = self.few
        return cut.gradients()

    def squared_norms(self) -> tf.Tensor:
        out, strides = self.u.shape[1:3], self.geometry["strides"]
        padded = tf.pad(self.x, [(0, 0), *paddings(self.x.shape[1:-1], **self.geometry), (0, 0)])
        if regular(self.geometry["size"], strides, [1, 1]):  # pixels between two steps count as channels of one
            ends = block_ends(out, strides, self.geometry["size"])
            padded = blocks(padded[:, : ends[0], : ends[1]], strides)
        (height, width), u = padded.shape[1:3], positions(self.u)
        pixels = positions(padded)
        gram = tf.reshape(tf.matmul(pixels, pixels, transpose_b=True), (-1, height, width, height, width))
        for axis in (0, 1):  # first along the rows, then along the columns
            taps, step = in_steps(self.geometry["size"], strides)[axis]
            length = (out[axis] - 1) * step + 1
            gram = tf.add_n([shifted(gram, axis, tap, length, step) for tap in range(taps)])
        upstream = tf.reshape(tf.matmul(u, u, transpose_b=True), (-1, *out, *out))
        products = tf.reshape(gram * upstream, (-1, math.prod(out), math.prod(out)))
        return sum_in_stages(products)

    def rounding(self) -> tuple[tf.Tensor, Any, Any] | None:
        magnitudes, _, sum_error = super().rounding() or (None, None, None)
        places = number_of(self.u, [1, 2])
        terms = math.prod(self.variable.shape[:-1]) + self.u.shape[-1] + terms_in_stages(places, places)
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


def in_steps(size: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(taps, step) along each axis: of whole blocks of pixels where the kernel is cut into them, else of pixels."""
    if regular(size, strides, [1, 1]):
        return [(taps // step, 1) for taps, step in zip(size, strides, strict=True)]
    return list(zip(size, strides, strict=True))


def shifted(gram: tf.Tensor, axis: int, tap: int, length: int, step: int) -> tf.Tensor:
    """Entries tap, tap + step ... of both sides' axis of a Gram matrix (batch, h, w, h, w)."""
    part = slice(tap, tap + length, step)
    index: list[Any] = [slice(None)] * 5
    index[1 + axis] = index[3 + axis] = part
    return gram[tuple(index)]
