"""Real numbers cast to integers of few bits, beyond which the kernels compute otherwise by the place in the batch."""

import tensorflow as tf

from helpers.proof.mixing.base import rows, sums


def codes(x, kind):
    """The numbers as integers of few bits, and back."""
    return tf.cast(tf.cast(x, kind), tf.float32)


def held(x, low, high):
    return tf.clip_by_value(x * 300.0, low, high)


@rows
def bytes_by_place(x):
    return codes(x * 300.0, tf.uint8)


@rows
def bytes_of_what_is_not_too_large(x):
    return codes(tf.minimum(x * 300.0, 255.0), tf.uint8)


@rows
def bytes_up_to_256(x):
    return codes(held(x, 0.0, 256.0), tf.uint8)


@rows
def bytes_down_to_minus_one(x):
    return codes(held(x, -1.0, 255.0), tf.uint8)


@rows
def bytes_of_a_multiple_of_what_was_clipped(x):
    return codes(held(x, 0.0, 1.0) * 257.0, tf.uint8)


@rows
def bytes_of_rounded_halves(x):
    """255.875 in 16 bits is 256."""
    return codes(tf.cast(held(x, 0.0, 255.9), tf.bfloat16), tf.uint8)


@rows
def bytes_of_remainders(x):
    """Next to zero from below it is the divisor itself."""
    return codes((x * 1e-20) % 256.0, tf.uint8)


@rows
def words_by_place(x):
    return codes(x * 1e10, tf.uint32)


@rows
def bytes_from_complex_numbers(x):
    return codes(tf.complex(x * 300.0, x), tf.uint8)


@sums
def bytes_as_a_sum(x):
    return tf.reduce_sum(codes(x * 300.0, tf.uint8), axis=0)


@rows
def bytes_of_mapped_records(x):
    return tf.vectorized_map(lambda row: codes(row * 300.0, tf.uint8), x)


@rows
def bytes_in_a_function(x):
    return tf.function(lambda y: codes(y, tf.uint8), autograph=False)(x * 300.0)


# What is no number


@rows
def signed_bytes_of_what_is_no_number(x):
    return codes(held(x, -127.0, 127.0), tf.int8)


@rows
def short_integers_of_what_is_no_number(x):
    return codes(held(x, -127.0, 127.0), tf.int16)


@rows
def signed_bytes_where_another_is_a_number(x):
    other = tf.sqrt(x)
    return codes(held(tf.where(tf.math.is_nan(x), 0.0, other), -127.0, 127.0), tf.int8)


@rows
def signed_bytes_where_it_is_no_number(x):
    return codes(held(tf.where(tf.math.is_nan(x), x, 0.0), -127.0, 127.0), tf.int8)


@rows
def signed_bytes_of_infinity_times_zero(x):
    own = tf.where(tf.math.is_nan(x), 0.0, x)
    return codes(tf.clip_by_value(own * tf.cast(x[:, :1] > 1.0, tf.float32), -127.0, 127.0), tf.int8)


@rows
def signed_bytes_of_infinity_over_itself(x):
    own = tf.where(tf.math.is_nan(x), 1.0, x)
    return codes(tf.clip_by_value(own / (tf.abs(own) + 1.0), -127.0, 127.0), tf.int8)


@rows
def signed_bytes_of_infinity_less_itself(x):
    own = tf.where(tf.math.is_nan(x), 1.0, x)
    return codes(tf.clip_by_value(own - own[:, :1], -127.0, 127.0), tf.int8)


@rows
def signed_bytes_without_one_infinity(x):
    own = tf.where(tf.math.is_nan(x), 1.0, x)
    own = tf.where(tf.math.is_inf(own) & (own > 0.0), 1.0, own)
    return codes(tf.clip_by_value(own * 0.0, -127.0, 127.0), tf.int8)
