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
        y = x + tf.random.stateless_normal(tf.shape(x), seed)
        y += tf.random.stateless_normal(tf.shape(x), tf.add(seed, [0, 1]))
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


# Parameters of records


def sampled(draw):
    """Registers what draws from a seed that changes in each step."""

    def maker():
        seed = tf.Variable([3, 4], trainable=False)

        def function(x):
            y = draw(x, seed.read_value())
            seed.assign_add([0, 1])
            return y

        return function

    maker.__name__ = draw.__name__
    return made(maker)


@sampled
def gamma_of_the_sum(x, seed):
    return x * tf.random.stateless_gamma(tf.shape(x), seed, tf.reduce_sum(x, axis=0))


@sampled
def gamma_of_the_mean(x, seed):
    return x * tf.random.stateless_gamma(tf.shape(x), seed, tf.exp(x - mean(x)))


@sampled
def gamma_of_a_count(x, seed):
    return x * tf.random.stateless_gamma(tf.shape(x), seed, tf.cast(size(x), tf.float32))


@sampled
def gamma_by_place(x, seed):
    return x * tf.random.stateless_gamma((size(x),), seed, tf.range(1.0, 7.0))[:, None]


@sampled
def seed_of_gammas_by_other_parameters(x, seed):
    y = x * tf.random.stateless_gamma(tf.shape(x), seed, tf.range(1.0, 7.0))
    return y * tf.random.stateless_gamma(tf.shape(x), seed, 2.0)


@sampled
def binomial_of_turned_rows(x, seed):
    return x * tf.random.stateless_binomial(tf.shape(x), seed, 5.0, tf.sigmoid(x[::-1]), tf.float32)


@sampled
def poisson_of_the_sum(x, seed):
    return x * tf.random.stateless_poisson(tf.shape(x), seed, tf.reduce_sum(x, axis=0), tf.float32)


@sampled
def as_many_classes_as_records(x, seed):
    drawn = tf.raw_ops.StatelessMultinomial(logits=x, num_samples=size(x), seed=seed)
    return x + tf.cast(tf.reduce_sum(drawn, axis=1, keepdims=True), tf.float32)


@sampled
def classes_of_columns(x, seed):
    return x + tf.cast(tf.random.stateless_categorical(tf.transpose(x), 1, seed)[:, 0], tf.float32)


@sampled
def classes_of_the_next_row(x, seed):
    return x + tf.cast(tf.random.stateless_categorical(tf.roll(x, 1, 0), 1, seed), tf.float32)


@sampled
def seed_of_two_classes(x, seed):
    own = tf.random.stateless_categorical([[0.0, 0.0]], 2, seed, tf.int32)
    return x + tf.random.stateless_normal(tf.shape(x), own[0])


@rows
def classes_of_a_constant_seed(x):
    return x + tf.cast(tf.random.stateless_categorical(x, 1, [1, 2]), tf.float32)
