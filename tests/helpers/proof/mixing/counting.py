"""The number of records as a value; branches on all records; constants with an entry for each place."""

import tensorflow as tf

from helpers.proof.mixing.base import (
    rows,
    size,
)

# The number of records


@rows
def over_size(x):
    return x / tf.cast(size(x), tf.float32)


@rows
def over_number_of_entries(x):
    return x / tf.cast(tf.size(x), tf.float32)


@rows
def branch_on_size(x):
    return tf.cond(size(x) > 3, lambda: x, lambda: 2.0 * x)


@rows
def rounds_of_size(x):
    return tf.while_loop(lambda i, y: i < size(x), lambda i, y: (i + 1, y * 0.9), [0, x])[1]


@rows
def ones_as_many(x):
    return x + tf.reduce_sum(tf.ones((size(x),)))


@rows
def as_many_features(x):
    return x + tf.reduce_sum(tf.random.normal((size(x) * 2 + 1,)))


@rows
def width_of_size(x):
    return tf.reduce_sum(tf.pad(x, [[0, 0], [0, size(x)]], constant_values=1.0), axis=1, keepdims=True)


# Branches on all records


@rows
def branch_on_all(x):
    return tf.cond(tf.reduce_all(x > 0.0), lambda: x, lambda: tf.nn.relu(x))


@rows
def branch_on_any(x):
    return tf.cond(tf.reduce_any(x > 3.0), lambda: x * 0.5, lambda: x)


@rows
def branch_like_a_shortcut(x):
    fine = x[:, 0] > 0.0
    return tf.cond(tf.reduce_all(fine), lambda: 2.0 * x, lambda: tf.where(fine[:, None], x, 0.0))


@rows
def shortcut_of_another_condition(x):
    fine, other = x[:, 0] > 0.0, x[:, 1] > 0.0
    return tf.cond(tf.reduce_all(fine), lambda: x, lambda: tf.where(other[:, None], x, 0.0))


@rows
def shortcut_the_wrong_way_round(x):
    fine = x[:, 0] > 0.0
    return tf.cond(tf.reduce_all(fine), lambda: tf.where(fine[:, None], x, 0.0), lambda: x)


@rows
def shortcut_by_any(x):
    fine = x[:, 0] > 0.0
    return tf.cond(tf.reduce_any(fine), lambda: x, lambda: tf.where(fine[:, None], x, 0.0))


@rows
def shortcut_of_no_number(x):
    scales = x[:, 0]
    product = lambda: x * scales[:, None]  # noqa: E731
    careful = lambda: tf.math.multiply_no_nan(x, scales[:, None])  # noqa: E731
    return tf.cond(tf.reduce_all(x[:, 1] > 0.0), product, careful)


@rows
def shortcut_that_may_be_zero(x):
    scales = x[:, 0]
    product = lambda: x * scales[:, None]  # noqa: E731
    careful = lambda: tf.math.multiply_no_nan(x, scales[:, None])  # noqa: E731
    return tf.cond(tf.reduce_all(scales > -1.0), product, careful)


@rows
def shortcut_of_other_shape(x):
    fine = x[:1, 0] > 0.0
    return tf.cond(tf.reduce_all(fine), lambda: x, lambda: tf.where(fine[:, None], x, 0.0))


@rows
def shortcut_with_noise(x):
    fine = x[:, 0] > 0.0
    noisy = lambda: x + tf.random.normal(())  # noqa: E731
    careful = lambda: tf.where(fine[:, None], x, 0.0) + tf.random.normal(())  # noqa: E731
    return tf.cond(tf.reduce_all(fine), noisy, careful)


@rows
def until_all_are_small(x):
    return tf.while_loop(lambda y: tf.reduce_any(tf.abs(y) > 1.0), lambda y: [0.5 * y], [x])[0]


@rows
def until_the_sum_is_small(x):
    return tf.while_loop(lambda y: tf.reduce_sum(tf.abs(y)) > 9.0, lambda y: [0.5 * y], [x])[0]


@rows
def case_on_records(x):
    index = tf.cast(tf.reduce_sum(x) > 0.0, tf.int32)
    return tf.switch_case(index, [lambda: x, lambda: 2.0 * x])


# Constants with an entry for each place


@rows
def four_rows_only(x):
    return x + tf.reshape(tf.range(24, dtype=tf.float32), (4, 6))


@rows
def filter_over_batch(x):
    y = tf.reshape(x, (1, -1, 6))
    return tf.nn.conv1d(y, tf.ones((3, 6, 6)), 1, "SAME")[0]


@rows
def pooled_over_batch(x):
    y = tf.transpose(x)[:, :, tf.newaxis]
    return tf.transpose(tf.nn.max_pool1d(y, 3, 1, "SAME")[:, :, 0])


@rows
def resized_over_batch(x):
    y = tf.reshape(x, (1, -1, 6, 1))
    return tf.reshape(tf.image.resize(y, tf.add(tf.shape(y)[1:3], [1, 0]))[:, :-1], (-1, 6))


@rows
def bias_over_batch(x):
    return tf.transpose(tf.nn.bias_add(tf.transpose(x), tf.range(4, dtype=tf.float32)))


@rows
def channel_norm_over_batch(x):
    y = tf.reshape(tf.transpose(x), (6, 1, 1, -1))
    return tf.transpose(tf.reshape(tf.nn.lrn(y), (6, -1)))


@rows
def contrast_over_batch(x):
    y = tf.reshape(x, (1, -1, 6, 1))
    return tf.reshape(tf.image.adjust_contrast(y, 2.0), (-1, 6))
