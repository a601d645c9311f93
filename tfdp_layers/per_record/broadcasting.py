"""Products and shapes of rows, and sums over what a value was broadcast along."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.per_record.contributions import positions


def summed_like(rows: tf.Tensor, value_shape: Sequence[int], shape: Sequence[int]) -> tf.Tensor:
    """Sums each record's rows over the axes along which a value of `value_shape` was broadcast: (batch, *shape)."""
    rows = tf.cast(rows, tf.float32)
    rank = len(rows.shape) - 1
    padded = [1] * (rank - len(value_shape)) + list(value_shape)
    axes = [axis + 1 for axis in range(rank) if padded[axis] == 1 and rows.shape[axis + 1] != 1]
    for axis in sorted(axes, reverse=True):  # one after another: rounding grows with the length of a running sum
        rows = tf.reduce_sum(rows, axis=axis)
    return tf.reshape(rows, (-1, *shape))


def multiplied(inputs: tf.Tensor, matrix: tf.Tensor, transpose_b: bool = False) -> Any:
    """inputs (batch, ..., n) times a matrix (n, m), or (m, n) transposed: (batch, ..., m).

    Never of more than three axes: with oneDNN, TensorFlow 2.21 multiplies (batch, 1, k, n) by (n, m) wrongly, and
    writes beyond its memory.
    """
    if len(inputs.shape) <= 3:
        return tf.matmul(inputs, matrix, transpose_b=transpose_b)
    flat = tf.matmul(positions(inputs), matrix, transpose_b=transpose_b)
    if None not in inputs.shape[1:]:
        return tf.reshape(flat, (-1, *inputs.shape[1:-1], flat.shape[-1]))
    outputs = tf.reshape(flat, tf.concat([tf.shape(inputs)[:-1], tf.shape(flat)[-1:]], 0))
    return tf.ensure_shape(outputs, [*inputs.shape[:-1], flat.shape[-1]])


def reshaped(value: tf.Tensor, shape: Sequence[int] | None) -> tf.Tensor:
    return value if shape is None else tf.reshape(value, shape)
