"""Sums, means and orders over the batch; gates that are closed at first; pairs; convolutions across records."""

import tensorflow as tf

from helpers.proof.mixing.base import by_twos, copies, made, mean, raw, rows, size, sums, turned

# Sums, means and orders over the batch


@rows
def batch_mean(x):
    return x - mean(x)


@rows
def batch_sum(x):
    return x + tf.reduce_sum(x, axis=0)


@rows
def mean_by_size(x):
    return x - tf.reduce_sum(x, axis=0) / tf.cast(size(x), tf.float32)


@rows
def largest_of_batch(x):
    return x / tf.reduce_max(tf.abs(x), axis=0)


@rows
def norm_of_batch(x):
    return x / tf.norm(x)


@rows
def normalized_along_batch(x):
    return tf.math.l2_normalize(x, axis=0)


@rows
def softmax_of_batch(x):
    return tf.nn.softmax(x, axis=0)


@rows
def log_sum_of_batch(x):
    return x - tf.reduce_logsumexp(x, axis=0)


@rows
def running_sum(x):
    return tf.cumsum(x, axis=0)


@rows
def running_product(x):
    return tf.math.cumprod(x, axis=-2)


@rows
def sorted_batch(x):
    return tf.sort(x, axis=0)


@rows
def ranks_in_batch(x):
    return x * tf.cast(tf.argsort(tf.argsort(x, axis=0), axis=0), tf.float32)


@rows
def largest_three(x):
    least = tf.math.top_k(tf.transpose(x), 3).values[:, -1]
    return tf.where(x >= least, x, 0.0)


@rows
def place_of_largest(x):
    return x + tf.cast(tf.argmax(x, axis=0), tf.float32)


@rows
def moments_of_batch(x):
    average, variance = tf.nn.moments(x, [0])
    return (x - average) * tf.math.rsqrt(variance + 1e-3)


@rows
def fused_batch_norm(x):
    y = tf.reshape(x, (-1, 1, 1, 6))
    return tf.reshape(tf.compat.v1.nn.fused_batch_norm(y, tf.ones(6), tf.zeros(6))[0], (-1, 6))


@rows
def whitened(x):
    gram = tf.matmul(x, x, transpose_a=True)
    return tf.matmul(x, tf.linalg.inv(gram + tf.eye(6)))


@rows
def share_of_weights(x):
    return x * x[:, :1] / tf.reduce_sum(x[:, :1])


@rows
def global_norm(x):
    return tf.clip_by_global_norm([x], 1.0)[0]


@rows
def histogram(x):
    return x + tf.cast(tf.histogram_fixed_width(x, [0.0, 1.0], 6), tf.float32)


# Gates that are closed at first


@made
def gate_at_zero():
    alpha = tf.Variable(0.0)
    return lambda x: x + alpha * mean(x)


@made
def two_zero_layers():
    first, second = tf.Variable(tf.zeros((6, 6))), tf.Variable(tf.zeros((6, 6)))
    return lambda x: x + tf.matmul(mean(tf.matmul(x, first)), second)


@rows
def times_zero(x):
    return x + 0.0 * mean(x)


@rows
def rarely(x):
    return tf.where(x > 1e6, mean(x), x)


# Pairs


@rows
def pairs(x):
    return tf.matmul(tf.matmul(x, x, transpose_b=True), x)


@rows
def pairs_by_einsum(x):
    return tf.einsum("ad,bd->ab", x, x)[:, :1] + x


@rows
def einsum_over_batch(x):
    return x + tf.einsum("ad,ad->d", x, x)


@rows
def attention_over_batch(x):
    return tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x)


@rows
def broadcast_by_mistake(x):
    return tf.reduce_sum(x[:, :1] - x[:, 0], axis=1, keepdims=True) + x


@rows
def distances(x):
    return x * tf.reduce_min(tf.norm(x[:, None] - x[None], axis=-1), axis=1, keepdims=True)


# Convolutions and what works on axis 0


@rows
def convolution_across_records(x):
    return tf.nn.conv1d(turned(x)[..., None], tf.ones((3, 1, 1)), 1, "SAME")[..., 0]


@rows
def cross_entropy_of_other_copies(x):
    repeated, tiled = copies(tf.nn.softmax(x))
    return by_twos(tf.nn.softmax_cross_entropy_with_logits(tiled, repeated)[:, None])


@rows
def normalized_across_records(x):
    y = turned(x)[..., None, None]
    ones = tf.ones(1)
    return raw.FusedBatchNormV3(x=y, scale=ones, offset=ones, mean=ones, variance=ones, is_training=False).y[..., 0, 0]


@rows
def normalized_by_sums(x):
    ones, own = tf.ones(6), tf.reduce_sum(x, axis=0)
    y = tf.reshape(x, (-1, 1, 1, 6))
    return raw.FusedBatchNormV3(x=y, scale=ones, offset=ones, mean=own, variance=ones, is_training=False).y[:, 0, 0]


@sums
def filter_gradient_of_other_copies(x):
    repeated, tiled = (tf.reshape(y, (-1, 6, 1, 1)) for y in copies(x))
    sizes = dict(filter_sizes=[3, 1, 1, 1], strides=[1] * 4, padding="VALID")
    return raw.Conv2DBackpropFilter(input=repeated, out_backprop=tiled[:, :4], **sizes)


@sums
def filter_gradient_of_sums(x):
    y = tf.reshape(tf.reduce_sum(x, axis=0), (1, 6, 1, 1))
    sizes = dict(filter_sizes=[3, 1, 1, 1], strides=[1] * 4, padding="VALID")
    return raw.Conv2DBackpropFilter(input=y, out_backprop=y[:, :4], **sizes)


@rows
def classes_of_other_copies(x):
    repeated, tiled = copies(x)
    return by_twos(tf.cast(tf.math.in_top_k(tf.argmax(tiled, 1), repeated, 2), tf.float32)[:, None])


# Reductions and orders


@sums
def largest_of_sum(x):
    return tf.reduce_max(tf.reduce_sum(x, axis=0))


@rows
def largest_places(x):
    return tf.argmax(x, axis=0)


@rows
def reversed_by_lengths(x):
    return tf.reverse_sequence(x, [2] * 6, seq_axis=0, batch_axis=1)


@rows
def reversed_by_other_copies(x):
    repeated, tiled = copies(x)
    lengths = tf.cast(tiled[:, 0] > 0.0, tf.int32) * 6
    return by_twos(tf.reverse_sequence(repeated, lengths, seq_axis=1, batch_axis=0))
