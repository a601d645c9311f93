"""Noise and seeds."""

import tensorflow as tf

from helpers.proof.mixing.base import made, mean, rows, size

# Noise and seeds


@rows
def constant_seed(x):
    return x + tf.random.stateless_normal(tf.shape(x), [1, 2])


@made
def seed_that_nobody_changes():
    seed = tf.Variable([3, 4], trainable=False)
    return lambda x: x + tf.random.stateless_normal(tf.shape(x), seed)


@made
def seed_put_back():
    seed = tf.Variable([3, 4], trainable=False)

    def noisy(x):
        y = x + tf.random.stateless_normal(tf.shape(x), seed)
        seed.assign_add([0, 1])
        seed.assign([3, 4])
        return y

    return noisy


@made
def seed_assigned_to_itself():
    seed = tf.Variable([3, 4], trainable=False)

    def noisy(x):
        y = x + tf.random.stateless_normal(tf.shape(x), seed)
        seed.assign(seed + 0)
        return y

    return noisy


@made
def seed_used_again_next_step():
    seed = tf.Variable([3, 4], trainable=False)

    def noisy(x):
        y = x + tf.random.stateless_normal(tf.shape(x), seed) + tf.random.stateless_normal(tf.shape(x), seed + 1)
        seed.assign_add([0, 1])
        return y

    return noisy


@made
def seed_of_two_shapes():
    seed = tf.Variable([3, 4], trainable=False)

    def noisy(x):
        y = x + tf.random.stateless_normal(tf.shape(x), seed)
        y += tf.random.stateless_normal((size(x), 1), seed)
        seed.assign_add([0, 1])
        return y

    return noisy


@made
def seed_that_goes_back_and_forth():
    seed = tf.Variable([3, 4], trainable=False)

    def noisy(x):
        y = x + tf.random.stateless_normal(tf.shape(x), seed)
        seed.assign(7 - seed)
        return y

    return noisy


@made
def seed_changed_sometimes():
    seed, flag = tf.Variable([3, 4], trainable=False), tf.Variable(True)

    def noisy(x):
        y = x + tf.random.stateless_normal(tf.shape(x), seed)
        tf.cond(flag, lambda: seed.assign_add([0, 1]), lambda: seed.read_value())
        return y

    return noisy


@rows
def seed_of_records(x):
    return x + tf.random.stateless_normal(tf.shape(x), tf.cast(x[0, :2], tf.int32))


@rows
def shuffled(x):
    return tf.random.shuffle(x)


@rows
def shuffled_columns(x):
    return tf.transpose(tf.random.shuffle(tf.transpose(tf.random.shuffle(x))))


@rows
def noise_of_batch_deviation(x):
    return x + tf.random.normal(tf.shape(x)) * tf.math.reduce_std(x)


@rows
def noise_of_another_size(x):
    return x + tf.random.normal((size(x), size(x)))[:, :1]


@rows
def mixed_up(x):
    weight = tf.random.uniform((size(x), 1))
    return weight * x + (1.0 - weight) * tf.random.shuffle(x)


# Shapes and seeds


@rows
def size_of_what_is_found(x):
    def one(row):
        return row * tf.cast(tf.size(tf.where(x[:, 0] > 0.0)), tf.float32)

    return tf.map_fn(one, x)


@made
def seed_that_meets_the_next_one():
    seed = tf.Variable([3, 4], trainable=False)

    def noisy(x):
        y = x + tf.random.stateless_normal(tf.shape(x), tf.add(seed, [0, 1]))
        y += tf.random.stateless_normal(tf.shape(x), tf.add(seed, [-1, 0]))
        seed.assign_add([1, 1])
        return y

    return noisy


@made
def seed_of_constant_noise():
    def noisy(x):
        seed = tf.random.stateless_uniform((2,), [1, 2], None, None, tf.int32)
        return x + tf.random.stateless_normal(tf.shape(x), seed)

    return noisy


@made
def variable_seed_of_one_noise_for_all():
    seed = tf.Variable([3, 4], trainable=False)

    def noisy(x):
        y = x + tf.random.stateless_normal(tf.shape(x), seed)
        y += tf.random.stateless_normal((1, 6), seed)
        seed.assign_add([0, 1])
        return y

    return noisy


@rows
def seed_of_sums(x):
    seed = tf.reduce_sum(tf.cast(x[:, :2], tf.int32), axis=0)
    return x + tf.random.stateless_normal(tf.shape(x), seed)


@rows
def noise_shaped_by_records(x):
    most = tf.cast(tf.reduce_sum(x), tf.int32)
    return x + tf.reduce_sum(tf.random.normal((most,)))


@rows
def equal_to_mean(x):
    return tf.cast(tf.equal(x, mean(x)), tf.float32)
