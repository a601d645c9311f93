"""Indices, segments and scatters by place."""

import tensorflow as tf

from helpers.proof.mixing.base import by_twos, copies, rows, size, sums

# Segments and scatters by place


@rows
def centre_of_class(x):
    own = tf.cast(x[:, 0] > 0.0, tf.int32)
    return x - tf.gather(tf.math.unsorted_segment_mean(x, own, 2), own)


@rows
def segments_of_two(x):
    own = tf.range(size(x)) // 2
    return x - tf.gather(tf.math.unsorted_segment_sum(x, own, size(x)), own)


@rows
def segments_of_neighbours(x):
    own = tf.minimum(tf.range(size(x)) + tf.cast(x[:, 0] > 0.0, tf.int32), size(x) - 1)
    return tf.math.unsorted_segment_sum(x, own, size(x))


@rows
def segments_just_too_wide(x):
    own = tf.range(size(x))[:, None] * 5 + tf.cumsum(tf.cast(x > 0.0, tf.int32), axis=1)
    found = tf.math.unsorted_segment_sum(tf.reshape(x, (-1,)), tf.reshape(own, (-1,)), size(x) * 5)
    return tf.reshape(found, (-1, 5))


@rows
def segments_by_counts(x):
    own = tf.range(size(x)) * 5 + tf.reduce_sum(tf.cast(x > 0.0, tf.int32), axis=1)
    return tf.reshape(tf.math.unsorted_segment_sum(x[:, 0], own, size(x) * 5), (-1, 5))


@rows
def largest_of_segments(x):
    own = tf.cast(x[:, 0] > 0.0, tf.int32)
    return x - tf.gather(tf.math.unsorted_segment_max(x, own, 2), own)


@rows
def scattered_to_next(x):
    i = (tf.range(size(x)) + 1) % size(x)
    return tf.scatter_nd(i[:, None], x, tf.shape(x))


@rows
def updated_by_place(x):
    return tf.tensor_scatter_nd_update(x, [[0]], tf.zeros((1, 6)))


@rows
def added_by_class(x):
    own = tf.cast(x[:, :1] > 0.0, tf.int32)
    return x + tf.reduce_max(tf.scatter_nd(own, x, (2, 6)), axis=0)


# Indices, segments, scatters


@rows
def picked_by_other_copies(x):
    repeated, tiled = copies(x)
    return by_twos(tf.gather(repeated, tf.argmax(tiled, 1)[:, None], batch_dims=1))


@rows
def four_tables(x):
    own = tf.cast(x > 0.0, tf.int32)
    return tf.gather(tf.random.stateless_normal((4, 2), [1, 2]), own, batch_dims=1)


@rows
def four_own_indices(x):
    return tf.gather(x, [[0], [1], [2], [3]], batch_dims=1)


@sums
def segments_of_other_copies(x):
    repeated, tiled = copies(x)
    return tf.math.unsorted_segment_sum(repeated, tf.cast(tiled[:, 0] > 0.0, tf.int32), 2)


@sums
def scattered_by_other_copies(x):
    repeated, tiled = copies(x)
    return tf.scatter_nd(tf.cast(tiled[:, :1] > 0.0, tf.int32), repeated, (2, 6))


def segmented(x, own, width, data=None):
    data = tf.reshape(x if data is None else data, (-1,))
    found = tf.math.unsorted_segment_sum(data, tf.reshape(own, (-1,)), size(x) * width)
    return tf.reshape(found, (-1, width))


def bits(x):
    return tf.cast(x > 0.0, tf.int32)


def place(x, width):
    return tf.range(size(x))[:, None] * width


@rows
def segments_below(x):
    return segmented(x, tf.maximum(place(x, 7) + tf.cumsum(bits(x), axis=1) - 1, 0), 7)


@rows
def segments_one_below(x):
    return segmented(x, place(x, 7) + tf.cumsum(bits(x), axis=1) - 1, 7)


@rows
def segments_too_narrow(x):
    return segmented(x, place(x, 3) + tf.cumsum(bits(x), axis=1), 3)


@rows
def joined_segments_too_narrow(x):
    own = tf.concat([tf.zeros((size(x), 1), tf.int32), bits(x)[:, 1:]], 1)
    return segmented(x, place(x, 3) + tf.cumsum(own, axis=1), 3)


@rows
def segments_by_backward_sums(x):
    return segmented(x, place(x, 3) + tf.cumsum(bits(x), axis=1, reverse=True), 3)


@rows
def segments_of_turned(x):
    return segmented(x, place(x, 7) + tf.cumsum(bits(x), axis=1), 7, tf.transpose(x))


@rows
def segments_without_stride(x):
    return segmented(x, tf.range(size(x))[:, None] + bits(x), 2)


@rows
def segments_of_unknown_size(x):
    return segmented(x, place(x, 7) + tf.cast(tf.abs(x), tf.int32), 7)


def from_the_end(x, least, most):
    """Places in three segments, those below 0 from the end."""
    return tf.clip_by_value(tf.cast(x * 9.0, tf.int32), least, most)


@rows
def segments_one_beyond_the_end(x):
    own = from_the_end(x, -3, 3)
    return segmented(x, place(x, 3) + tf.where(own < 0, own + 3, own), 3)


@rows
def segments_from_the_end_of_turned(x):
    own = from_the_end(x, -3, 2)
    return segmented(x, place(x, 3) + tf.where(own < 0, tf.reverse(own, [1]) + 3, own), 3)


@rows
def segments_from_the_end_where_others_are(x):
    own, other = from_the_end(x, -3, 2), from_the_end(x + 1.0, -3, 2)
    return segmented(x, place(x, 3) + tf.where(other < 0, own + 3, own + 0), 3)


@rows
def segments_from_the_end_where_others_are_below(x):
    own, other = from_the_end(x, -3, 2), from_the_end(x + 1.0, -3, 2)
    return segmented(x, place(x, 3) + tf.where(other < 0, 2, own), 3)


@rows
def segments_from_the_end_below_a_drawn_one(x):
    own, end = from_the_end(x, -3, 2), tf.clip_by_value(tf.cast(x[:, ::-1] * 9.0, tf.int32), 0, 2)
    return segmented(x, place(x, 3) + tf.where(own < end, own + 3, own), 3)
