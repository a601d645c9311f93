"""Convolutions whose channels fall into groups: by an ordinary convolution, and each group's kernel gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.noise.cores import on_gpus
from tfdp_layers.per_record.convolutions import KernelGradients, paddings
from tfdp_layers.per_record.patches import PatchBlocks


def convolve(inputs: tf.Tensor, kernel: Any, data_format: str, **options: Any) -> Any:
    """`keras.ops.conv`; in groups of channels on a CPU by an ordinary one, whose kernel has zeros between the groups.

    Keras compiles a convolution in groups by XLA, at every call anew where it is eager, and gradients of such take XLA
    a hundred times as long as those of an ordinary convolution of as many channels.

    Shapes: (batch, ..., channels), or (batch, channels, ...) with "channels_first"; kernel (*size, channels / groups,
        filters).
    """
    channels = inputs.shape[-1] if data_format == "channels_last" else inputs.shape[1]
    if channels != kernel.shape[-2] and not on_gpus():
        kernel = between_all(tf.convert_to_tensor(kernel), channels // kernel.shape[-2])
    return keras.ops.conv(inputs, kernel, data_format=data_format, **options)


def between_all(kernel: tf.Tensor, groups: int) -> tf.Tensor:
    """(*size, n, filters) -> (*size, groups * n, filters): zeros from the inputs of a group to filters of others."""
    *size, inputs, filters = kernel.shape
    own = tf.eye(groups, dtype=tf.bool)[:, tf.newaxis, :, tf.newaxis]  # (groups, 1, groups, 1)
    split = tf.reshape(kernel, (*size, 1, inputs, groups, filters // groups))
    # Selected, not multiplied: an infinite weight is one of its own group.
    return tf.reshape(tf.where(own, split, tf.zeros_like(split)), (*size, groups * inputs, filters))


class GroupBlocks(PatchBlocks):
    """Kernel gradients of a convolution in groups of channels, from patches of a few records at once.

    Filters of a group see the inputs of that group alone: their part of the kernel has the gradient P^T U, with P the
    patches of those inputs. Any number of space axes, strides and dilations.

    Args:
        rates: of dilation, one for each axis.
    """

    rounds = False

    def __init__(self, *args: Any, rates: Sequence[int], **geometry: Any) -> None:
        super().__init__(*args, **geometry)
        self.rates = rates

    def _of_rows(self, x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
        *size, inputs, filters = self.variable.shape
        groups, count = x.shape[-1] // inputs, math.prod(u.shape[1:-1])
        patches = tf.reshape(self._patches(x, u.shape[1:-1]), (-1, groups, inputs * math.prod(size), count))
        own = tf.reshape(channels_first(u), (-1, groups, filters // groups, count))
        found = tf.reshape(
            tf.matmul(patches, own, transpose_b=True), (-1, groups, inputs, math.prod(size), filters // groups)
        )
        return tf.reshape(tf.transpose(found, (0, 3, 2, 1, 4)), (-1, *self.variable.shape))

    def _patches(self, x: tf.Tensor, out: Sequence[int]) -> tf.Tensor:
        """(rows, channels, taps, *out): for each tap of the kernel the pixels that it meets."""
        size, strides, padding = (self.geometry[name] for name in ("size", "strides", "padding"))
        reach = [(k - 1) * r + 1 for k, r in zip(size, self.rates, strict=True)]
        pads = paddings(x.shape[1:-1], reach, strides, padding)
        x = tf.pad(channels_first(x), [(0, 0), (0, 0), *pads])
        found = []
        for tap in itertools.product(*map(range, size)):
            starts = [t * r for t, r in zip(tap, self.rates, strict=True)]
            ends = [start + (n - 1) * s + 1 for start, n, s in zip(starts, out, strides, strict=True)]
            found.append(x[(slice(None), slice(None), *map(slice, starts, ends, strides))])
        return tf.stack(found, axis=2)

    def like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        return type(self)(self.variable, x, u, self.convolution, self.overlap, **self.options)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments by name."""
        return {**self.geometry, "rates": self.rates, "compiled": self.compiled}


def channels_first(rows: tf.Tensor) -> tf.Tensor:
    """(rows, ..., channels) -> (rows, channels, ...)."""
    rank = len(rows.shape)
    return tf.transpose(rows, (0, rank - 1, *range(1, rank - 1)))
