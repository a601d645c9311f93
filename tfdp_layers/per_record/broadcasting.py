"""Sums over what a value was broadcast along."""

from collections.abc import Sequence

import tensorflow as tf


def summed_like(rows: tf.Tensor, value_shape: Sequence[int], shape: Sequence[int]) -> tf.Tensor:
    """Sums each record's rows over the axes along which a value of `value_shape` was broadcast: (batch, *shape)."""
    rows = tf.cast(rows, tf.float32)
    rank = len(rows.shape) - 1
    padded = [1] * (rank - len(value_shape)) + list(value_shape)
    axes = [axis + 1 for axis in range(rank) if padded[axis] == 1 and rows.shape[axis + 1] != 1]
    for axis in sorted(axes, reverse=True):  # one after another: rounding grows with the length of a running sum
        rows = tf.reduce_sum(rows, axis=axis)
    return tf.reshape(rows, (-1, *shape))
