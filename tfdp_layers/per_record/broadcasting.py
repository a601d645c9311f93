"""Products and shapes of rows, and sums over what a value was broadcast along."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.per_record.contributions import constant, positions


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


def broadcast_value(variable: Any, inputs: tf.Tensor, shape: Sequence[int] | None = None) -> Any:
    """A weight's value as it broadcasts against one record of `inputs` (batch, ...), reshaped to `shape` first.

    A leading axis of one, that of a weight (1, T, F) for records (T, F), is left out: it is of no record.

    Raises: ValueError where the value has more axes than that: they would broadcast against the batch.
    """
    value = constant(variable, inputs.dtype)
    value = value if shape is None else tf.reshape(value, shape)
    beyond = len(value.shape) - len(inputs.shape) + 1
    if beyond == 1 and value.shape[0] == 1:
        return tf.reshape(value, value.shape[1:])
    if beyond > 0:
        raise ValueError(
            f"Weight {variable.path!r} of shape {tuple(value.shape)} has more axes than a record of"
            f" {tuple(inputs.shape[1:])}, so it would broadcast against other records. Leave axes out"
            " (record.offset(weight, inputs, shape=...), record.scale alike), or give the records more."
        )
    return value
