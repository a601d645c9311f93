"""Crosses of features, of records that are not alike or are put elsewhere."""

import tensorflow as tf

from helpers.proof.mixing.base import copies, raw, rows, size


def cross(*features):
    """The places, numbers and shape of crosses of features (records, width)."""
    return tf.sparse.cross_hashed([tf.strings.as_string(tf.round(one)) for one in features], 7)


def dense(places, numbers, shape):
    found = raw.SparseToDense(sparse_indices=places, output_shape=shape, sparse_values=numbers, default_value=0)
    return tf.cast(found, tf.float32)


@rows
def crosses_of_other_copies(x):
    repeated, tiled = copies(x)
    found = tf.sparse.to_dense(cross(repeated[:, :1], tiled[:, :1]))
    return x + tf.cast(tf.reduce_sum(tf.reshape(found, (-1, 2)), 1, keepdims=True), tf.float32)


@rows
def crosses_of_the_next_row(x):
    found = cross(x[:, :1], x[:, 1:2])
    return x + dense(found.indices, tf.roll(found.values, 1, 0), found.dense_shape)


@rows
def crosses_of_one_wide_and_two(x):
    found = tf.reshape(tf.sparse.to_dense(cross(x[:, :1], x[:, 1:3])), [-1])
    return x + tf.cast(found[: size(x), None], tf.float32)
