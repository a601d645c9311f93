"""Attacks by what is written when, by seeds that come again, by windows over axis 0."""

import tensorflow as tf

from helpers.proof.mixing.base import loop, made_sums, raw, size, sums

# Control flow and state


@made_sums
def written_by_a_condition():
    rounds = tf.Variable(0)

    def function(x):
        def condition(i, _):
            rounds.assign_add(1)
            return i < size(x)

        return tf.while_loop(condition, lambda i, y: (i + 1, y + x[i]), [tf.constant(0), tf.zeros(6)])[1]

    return function


@made_sums
def read_after_a_condition():
    rounds = tf.Variable(0.0)

    def function(x):
        def condition(i):
            rounds.assign_add(1.0)
            return i < size(x)

        tf.while_loop(condition, lambda i: (i + 1,), [tf.constant(0)])
        return tf.reduce_sum(x, axis=0) * rounds

    return function


@made_sums
def written_by_the_condition_of_a_constant_loop():
    rounds = tf.Variable(0)

    def function(x):
        def condition(i, _):
            rounds.assign_add(1)
            return tf.reduce_sum(tf.cast(x > 0.0, tf.int32)) > i

        tf.while_loop(condition, lambda i, y: (i + 1, y), [tf.constant(0), tf.zeros(6)])
        return tf.reduce_sum(x, axis=0)

    return function


@sums
def dead_by_a_switch(x):
    some = tf.reduce_any(x > 1.0)
    no, yes = raw.Switch(data=tf.constant(0.0), pred=some)
    with tf.control_dependencies([yes]):
        one = raw.Identity(input=tf.constant(1.0))
    with tf.control_dependencies([no]):
        two = raw.Identity(input=tf.constant(2.0))
    return tf.reduce_sum(x, axis=0) * raw.Merge(inputs=[one, two]).output


@sums
def stateful_noise_of_one_seed(x):
    first = raw.RandomStandardNormal(shape=tf.stack([size(x), 6]), dtype=tf.float32, seed=3, seed2=4)
    second = raw.RandomStandardNormal(shape=tf.stack([size(x), 4]), dtype=tf.float32, seed=3, seed2=4)
    return tf.reduce_sum(tf.tanh(x + first) * tf.reduce_sum(second, axis=1, keepdims=True), axis=0)


@made_sums
def noise_of_one_seed_in_every_round():
    seed, widths = tf.Variable([1, 2]), tf.Variable([1, 2, 3])

    def function(x):
        own = tf.identity(seed)
        seed.assign_add([1, 0])

        def part(i, y):
            noise = tf.random.stateless_normal(tf.stack([size(x), widths[i]]), own)
            return (y + tf.reduce_sum(tf.tanh(tf.reduce_sum(noise, axis=1, keepdims=True) * x), axis=0),)

        return loop(part, tf.zeros(6), until=3)[0]

    return function


# Kernels that take axis 0 for another


@sums
def pooled_over_records(x):
    y = tf.reshape(x, (-1, 2, 3, 1))
    found = raw.MaxPool(input=y, ksize=[2, 1, 1, 1], strides=[1, 1, 1, 1], padding="SAME")
    return tf.reduce_sum(found, axis=0)


@sums
def pooled_over_records_by_xla(x):
    @tf.function(jit_compile=True, autograph=False)
    def pooled(y):
        return raw.MaxPool(input=y, ksize=[2, 1, 1, 1], strides=[1, 1, 1, 1], padding="SAME")

    return tf.reduce_sum(pooled(tf.reshape(x, (-1, 2, 3, 1))), axis=0)


@sums
def strides_over_records(x):
    y = tf.reshape(x, (-1, 2, 3, 1))
    found = raw.Conv2D(input=y, filter=tf.ones((1, 1, 1, 1)), strides=[2, 1, 1, 1], padding="SAME")
    return tf.reduce_sum(found, axis=0)


@sums
def convolution_without_a_batch(x):
    y = tf.reshape(x, (-1, 6, 1))
    found = raw.Conv(input=y, filter=tf.ones((2, 1, 1, 1)), strides=[1, 1, 1, 1], padding="SAME", batch_dims=0)
    return tf.reduce_sum(tf.tanh(found), axis=0)


@sums
def patches_over_records(x):
    y = tf.reshape(x, (-1, 2, 3, 1))
    found = raw.ExtractImagePatches(
        images=y, ksizes=[2, 1, 1, 1], strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME"
    )
    return tf.reduce_sum(tf.tanh(found), axis=0)


@sums
def shared_axes_from_the_right(x):
    ids = tf.cast(x[:, :1] > 0.0, tf.int32)
    found = raw.GatherV2(params=x, indices=ids[:, 0], axis=tf.constant(0), batch_dims=-1)
    return tf.reduce_sum(found, axis=0)


# Sums of integers, and seeds that stand still


@sums
def counts_beyond_a_byte(x):
    """Of 300 entries a record: -128 and more, in a byte."""
    counts = tf.reduce_sum(tf.cast(tf.tile(x, [1, 50]) > -1e9, tf.int8))
    return tf.cast(counts, tf.float32)


@made_sums
def seed_that_goes_round_once():
    seed = tf.Variable([1, 2], dtype=tf.uint32)

    def function(x):
        own = tf.cast(tf.math.floormod(seed.read_value(), 2**31 - 1), tf.int32)
        noise = tf.random.stateless_normal(tf.shape(x), own)
        seed.assign_add([2**31, 0])
        seed.assign_add([2**31, 0])
        return tf.reduce_sum(tf.tanh(x + noise), axis=0)

    return function


@sums
def seed_drawn_from_one_number(x):
    seed = tf.random.uniform((2,), 0, 1, tf.int32)
    return tf.reduce_sum(tf.tanh(x + tf.random.stateless_normal(tf.shape(x), seed)), axis=0)
