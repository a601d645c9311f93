"""Sums that are not additive, though every row may be."""

import tensorflow as tf

from helpers.proof.mixing.base import mean, size, sums

# Sums


@sums
def a_mean(x):
    return tf.reduce_mean(x, axis=0)


@sums
def mean_of_all(x):
    return tf.reduce_mean(x)


@sums
def largest(x):
    return tf.reduce_max(x, axis=0)


@sums
def square_of_sum(x):
    return tf.square(tf.reduce_sum(x, axis=0))


@sums
def bits_of_a_sum(x):
    return tf.cast(tf.bitcast(tf.cast(tf.reduce_sum(x, axis=0), tf.bfloat16), tf.float16), tf.float32)


@sums
def rounded_sum(x):
    return tf.round(tf.reduce_sum(x, axis=0))


@sums
def sum_as_integer(x):
    return tf.cast(tf.reduce_sum(x, axis=0), tf.int32)


@sums
def sum_is_positive(x):
    return tf.cast(tf.cast(tf.reduce_sum(x, axis=0), tf.bool), tf.float32)


@sums
def clipped_sum(x):
    return tf.clip_by_norm(tf.reduce_sum(x, axis=0), 1.0)


@sums
def product_of_sums(x):
    return tf.reduce_sum(x[:, :3], axis=0) * tf.reduce_sum(x[:, 3:], axis=0)


@sums
def matrix_of_sums(x):
    total = tf.reduce_sum(x, axis=0)
    return tf.tensordot(total, total, 0)


@sums
def sum_of_some(x):
    return tf.reduce_sum(x[:3], axis=0)


@sums
def sum_by_place(x):
    return tf.reduce_sum(x * tf.cast(tf.range(size(x)), tf.float32)[:, None], axis=0)


@sums
def sum_of_pairs(x):
    return tf.reduce_sum(tf.matmul(x, x, transpose_b=True))


@sums
def sum_over_size(x):
    return tf.reduce_sum(x, axis=0) / tf.cast(size(x), tf.float32)


@sums
def sum_chosen_by_itself(x):
    total = tf.reduce_sum(x, axis=0)
    return tf.where(total > 0.0, total, 0.0)


@sums
def sum_chosen_by_records(x):
    total = tf.reduce_sum(x, axis=0)
    return tf.cond(tf.reduce_all(x > 0.0), lambda: total, lambda: 2.0 * total)


@sums
def picked_by_sums(x):
    total = tf.reduce_sum(x, axis=0)
    return tf.gather(tf.range(6.0), tf.cast(total, tf.int32) % 6)


@sums
def largest_by_segments(x):
    return tf.math.unsorted_segment_max(x, tf.cast(x[:, 0] > 0.0, tf.int32), 2)


@sums
def mean_by_segments(x):
    return tf.math.unsorted_segment_mean(x, tf.cast(x[:, 0] > 0.0, tf.int32), 2)


@sums
def last_by_scatter(x):
    return tf.tensor_scatter_nd_update(tf.zeros((2, 6)), tf.cast(x[:, :1] > 0.0, tf.int32), x)


@sums
def rows_padded_and_summed(x):
    missing = -size(x) % 4
    return tf.reduce_sum(tf.pad(x, [[0, missing], [0, 0]], constant_values=1.0), axis=0)


@sums
def rows_padded_with_zeros_and_counted(x):
    missing = -size(x) % 4
    return tf.reduce_sum(tf.exp(tf.pad(x, [[0, missing], [0, 0]])), axis=0)


@sums
def sum_plus_one(x):
    return tf.reduce_sum(x, axis=0) + 1.0


@sums
def batch_mean_in_gradient(x):
    @tf.custom_gradient
    def same(v):
        return tf.identity(v), lambda upstream: upstream - mean(upstream)

    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(same(tf.matmul(x, weight)) ** 2)
    return tape.gradient(loss, weight)


@sums
def rows_swapped_in_gradient(x):
    @tf.custom_gradient
    def same(v):
        return tf.identity(v), lambda upstream: tf.reverse(upstream, [0])

    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(same(tf.matmul(x, weight)) ** 2)
    return tape.gradient(loss, weight)


@sums
def contrastive_loss(x):
    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        y = tf.matmul(x, weight)
        scores = tf.matmul(y, y, transpose_b=True)
        loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(tf.eye(size(x)), scores))
    return tape.gradient(loss, weight)


@sums
def gradient_clipped_together(x):
    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(tf.matmul(x, weight) ** 2)
    return tf.clip_by_norm(tape.gradient(loss, weight), 1.0)


@sums
def mean_loss(x):
    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_mean(tf.matmul(x, weight) ** 2)
    return tape.gradient(loss, weight)
