"""Numbers that the devices compute otherwise than a proof might: bounds of other axes, roundings, indices clamped."""

import tensorflow as tf

from helpers.proof.mixing.base import hidden, loop, made_sums, size, sums, total


def segments(x, own, width=1):
    """Each record's entries put into segments of its own, as long as `own` lies between 0 and width - 1."""
    offsets = tf.range(size(x), dtype=own.dtype)[:, None] * width
    found = tf.math.unsorted_segment_sum(x, offsets + own, size(x) * width)
    return tf.reduce_sum(tf.tanh(tf.reshape(found, (-1, width))), axis=0)


def filled(x, number, dtype=tf.int32):
    """The number for each record, which is bounded by it where all entries are known to be it."""
    own = tf.fill((size(x), 1), tf.cast(number, dtype))
    return tf.concat([own, own[:, :0]], 1)


def joined(own, axis):
    """The same: bounds of the sums of leading entries along the axis are known then."""
    return tf.concat([own, own[:, :0]], axis) if axis == 1 else tf.concat([own, own[:, :, :0]], axis)


# Sums of leading entries along an axis that is dropped


@sums
def sums_along_a_dropped_axis(x):
    own = tf.squeeze(joined(tf.cast(x > 0.0, tf.int32)[:, None, :], 1), 1)
    return segments(x, tf.cumsum(own, axis=1), 2)


@sums
def sums_along_one_of_two_dropped_axes(x):
    own = tf.squeeze(joined(tf.cast(x > 0.0, tf.int32)[:, None, None, :], 2), [1, 2])
    return segments(x, tf.cumsum(own, axis=-1), 2)


@sums
def sums_along_an_axis_that_was_dropped_before(x):
    own = tf.squeeze(joined(tf.cast(x > 0.0, tf.int32)[:, None, :], 1), -2)
    return segments(x, tf.cumsum(tf.expand_dims(own, 1), axis=2)[:, 0], 2)


# Numbers of constants, rounded


@sums
def one_lost_in_float32(x):
    return segments(x[:, :1], filled(x, ((tf.constant(1e8) + 1.0) - 1e8) - 1.0))


@sums
def one_lost_in_float16(x):
    return segments(x[:, :1], filled(x, ((tf.constant(2048.0, tf.float16) + 1.0) - 2048.0) - 1.0))


@sums
def one_lost_in_bfloat16(x):
    return segments(x[:, :1], filled(x, ((tf.constant(256.0, tf.bfloat16) + 1.0) - 256.0) - 1.0))


@sums
def one_lost_in_a_sum_of_four(x):
    return segments(x[:, :1], filled(x, tf.add_n([tf.constant(n) for n in (1e8, 1.0, -1e8, -1.0)])))


@sums
def one_lost_behind_a_product(x):
    return segments(x[:, :1], filled(x, (tf.constant(1e4) * 1e4 + 1.0) - 1e8 - 1.0))


@sums
def integer_that_no_float_is(x):
    own = filled(x, tf.constant(2**53 + 1, tf.int64), tf.int64)
    offsets = tf.range(size(x), dtype=tf.int64)[:, None] + own - 2**53
    found = tf.math.unsorted_segment_sum(x[:, :1], offsets, size(x))
    return tf.reduce_sum(tf.tanh(found), axis=0)


@sums
def zero_on_some_devices(x):
    return segments(x[:, :1], filled(x, tf.gather(tf.ones(2), [5])[0] - 1.0))


@sums
def zero_on_some_devices_along_axis_1(x):
    return segments(x[:, :1], filled(x, tf.gather(tf.ones((1, 2)), [-1], axis=1)[0, 0] - 1.0))


# What kernels refuse, and XLA does not


def summed_along(x, axis):
    return tf.reduce_sum(tf.tanh(tf.cumsum(x, axis=axis)), axis=0)


@sums
def axis_by_an_index_from_the_end(x):
    return summed_along(x, tf.gather(tf.constant([0, 1]), [-1])[0])


@sums
def axis_by_an_index_from_the_end_of_a_row(x):
    return summed_along(x, tf.gather(tf.constant([[0, 1]]), hidden(x, -1), axis=1)[0])


@sums
def axis_by_a_slice_from_the_end(x):
    return summed_along(x, tf.slice(tf.constant([0, 1, 0]), [hidden(x, -2)], [hidden(x, 1)])[0])


@sums
def axis_by_a_slice_beyond_the_end(x):
    return summed_along(x, tf.slice(tf.constant([0, 1]), [1], tf.stack([hidden(x, 2)]))[0])


@made_sums
def quotient_of_nothing():
    number = tf.Variable(0)
    return lambda x: segments(x[:, :1], filled(x, number // number - 1))


@made_sums
def remainder_of_nothing():
    number = tf.Variable(0)
    return lambda x: segments(x[:, :1], filled(x, (number + 1) // (number * number)) * (number % number))


def of_slices(x, length):
    """Sums over as many rows, in steps of as many: of the last slice there may be fewer."""

    def part(i, found):
        return (found + total(tf.slice(x, [i, 0], [length, 6])),)

    return loop(part, tf.zeros(6), step=length, x=x)[0]


@sums
def slices_of_three_beyond_the_end(x):
    return of_slices(x, 3)


@sums
def slices_of_two_beyond_the_end(x):
    return of_slices(x, 2)


# A constant's order at random


def shuffled_seed(x, seed):
    noise = tf.random.stateless_normal(tf.shape(x), tf.random.shuffle(seed))
    return tf.reduce_sum(tf.tanh(x + noise), axis=0)


@sums
def seed_of_a_shuffled_constant(x):
    return shuffled_seed(x, tf.constant([7, 8]))


@made_sums
def seed_of_a_shuffled_variable():
    seed = tf.Variable([7, 7])
    return lambda x: shuffled_seed(x, seed)


@sums
def seed_of_a_shuffled_table(x):
    return shuffled_seed(x, tf.bitwise.bitwise_or(tf.constant([7, 7]), 0))
