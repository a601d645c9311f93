"""Numbers of more axes than a rule might take them for, where TensorFlow does not know how many there are."""

import tensorflow as tf

from helpers.proof.mixing.base import raw, rows, size, sums


def shapeless(shape):
    """The shape, of a length that TensorFlow does not know."""
    invariants = (tf.TensorShape([]), tf.TensorShape([None]))
    return tf.while_loop(lambda i, _: i < 1, lambda i, s: (i + 1, s), (tf.constant(0), shape), invariants)[1]


def hidden_places(x):
    return tf.reshape(tf.range(size(x)), shapeless(tf.constant([-1])))


def hidden_count(x):
    """As many as there are records, but for one."""
    return tf.reshape(tf.range(1, size(x)), shapeless(tf.constant([-1])))


def of_the_crowd(x, places):
    """Places along axis 1 pick all records for each."""
    crowd = tf.reduce_sum(tf.gather(x, places), axis=1, keepdims=True)
    return tf.reshape(crowd + x, tf.shape(x))


@rows
def clamped_to_as_many_as_there_are(x):
    rare = tf.boolean_mask(tf.zeros_like(x[:, 0], tf.int32), x[:, 0] > 1.0)
    flat = tf.reshape(rare, tf.unique(tf.shape(rare))[0])
    return x * tf.cast(tf.size(tf.minimum(1, tf.maximum(1, flat))), tf.float32)


@rows
def shape_of_a_hidden_count(x):
    return x * tf.cast(tf.shape(hidden_count(x))[0], tf.float32)


@rows
def size_of_a_hidden_count(x):
    return x * tf.cast(tf.size(hidden_count(x)), tf.float32)


@rows
def places_along_another_axis(x):
    return of_the_crowd(x, hidden_places(x) + tf.constant([[0]]))


@rows
def places_times_a_table(x):
    return of_the_crowd(x, hidden_places(x) * tf.constant([[1]]))


@rows
def places_chosen_by_a_table(x):
    return of_the_crowd(x, tf.where(size(x) > tf.constant([[1]]), hidden_places(x), 0))


@rows
def rows_along_another_axis(x):
    own = tf.reshape(x, shapeless(tf.constant([-1, 6]))) + tf.zeros([1, 1, 1])
    return tf.reshape(tf.reduce_sum(own, axis=1, keepdims=True) * x, tf.shape(x))


@sums
def growing_along_an_axis_while_it_goes_round(x):
    found = tf.while_loop(
        lambda i, _: i < size(x),
        lambda i, value: (i + 1, value + tf.reduce_sum(x[i : i + 1], axis=0)),
        [tf.constant(0), tf.zeros(1)],
        shape_invariants=[tf.TensorShape(()), tf.TensorShape([None])],
    )[1]
    return tf.reduce_sum(x[tf.size(found) - 1 :], axis=0)


@sums
def axes_that_a_function_gives_back(x):
    found = tf.function(lambda n: raw.BroadcastGradientArgs(s0=n, s1=tf.constant([1])), autograph=False)(
        tf.shape(x)[:1]
    )
    return tf.reduce_sum(x, axis=0) * tf.cast(tf.size(found[1]), tf.float32)


@sums
def axes_that_a_branch_gives_back(x):
    count = tf.shape(x)[:1]

    def axes():
        return tf.identity(raw.BroadcastGradientArgs(s0=count, s1=tf.constant([1])).r1)

    found = tf.cond(raw.Identity(input=tf.constant(True)), axes, lambda: tf.zeros([0], tf.int32))
    return tf.reduce_sum(x, axis=0) * tf.cast(tf.size(found), tf.float32)
