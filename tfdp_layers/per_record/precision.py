"""Products of each record's own rows, in the type that the layer computes in."""

import tensorflow as tf

__all__ = ["are_bfloat16", "each_product"]


def each_product(x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """X^T U of every record, float32: multiplied in bfloat16 where both are of that type, else in float32."""
    if not are_bfloat16(x, u):
        x, u = tf.cast(x, tf.float32), tf.cast(u, tf.float32)
    return tf.cast(tf.matmul(x, u, transpose_a=True), tf.float32)


def are_bfloat16(*values: tf.Tensor) -> bool:
    """Whether all are bfloat16, whose range is that of float32; float16 overflows at 65,504."""
    return all(value.dtype == tf.bfloat16 for value in values)
