"""Python, strings, state; Keras' layers."""

from typing import Any

import keras
import tensorflow as tf

from helpers.proof.mixing.base import (
    Function,
    loop,
    made,
    mean,
    rows,
    size,
)

# Python, strings, state


@rows
def python_function(x):
    return tf.ensure_shape(tf.py_function(lambda v: v - tf.reduce_mean(v, axis=0), [x], tf.float32), (None, 6))


@rows
def numpy_function(x):
    return tf.ensure_shape(tf.numpy_function(lambda v: v - v.mean(0), [x], tf.float32), (None, 6))


@rows
def strings_joined(x):
    text = tf.strings.reduce_join(tf.strings.as_string(x[:, 0]))
    return x + tf.cast(tf.strings.length(text), tf.float32)


@rows
def strings_hashed(x):
    text = tf.strings.reduce_join(tf.strings.as_string(x))
    return x + tf.cast(tf.strings.to_hash_bucket_fast(text, 7), tf.float32)


@made
def looked_up():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def look(x):
        keys = tf.cast(x[:, 0], tf.int64)
        table.insert(keys, x[:, 1])
        return x + table.lookup(keys)[:, None]

    return look


@made
def state_written():
    kept = tf.Variable(tf.zeros(6))

    def write(x):
        kept.assign(tf.reduce_sum(x, axis=0))
        return x

    return write


@made
def state_counted():
    kept = tf.Variable(0)

    def write(x):
        kept.assign_add(size(x))
        return x

    return write


@made
def state_written_sometimes():
    kept = tf.Variable(0.0)

    def write(x):
        tf.cond(tf.reduce_sum(x) > 0.0, lambda: kept.assign_add(1.0), lambda: kept.read_value())
        return x

    return write


@made
def state_written_in_rounds():
    kept = tf.Variable(0.0)

    def write(x):
        loop(lambda i, y: [y + 0.0 * kept.assign_add(1.0)], tf.constant(0.0), x=x)
        return x

    return write


@made
def counted_by_scatter_add():
    kept = tf.Variable(tf.zeros((1,)))

    def write(x):
        def one(row):
            kept.scatter_add(tf.IndexedSlices(tf.ones((1,)), tf.constant([0])))
            return row

        return tf.map_fn(one, x)

    return write


@made
def counted_by_an_optimizer():
    kept = tf.Variable(tf.zeros((1,)))

    def write(x):
        def one(row):
            tf.raw_ops.ResourceApplyGradientDescent(var=kept.handle, alpha=-1.0, delta=tf.ones((1,)))
            return row

        return tf.map_fn(one, x)

    return write


@made
def added_in_place():
    """What looks like new zeros for each record is one constant, which all add to."""

    def one(row):
        return row + tf.raw_ops.InplaceAdd(x=tf.zeros((1, 6)), i=[0], v=row[None])[0]

    return lambda x: tf.map_fn(one, x)


@made
def stitched_by_half():
    """Each record at twice its place: the row before it is nobody's."""
    return lambda x: tf.dynamic_stitch([2 * tf.range(size(x))], [x])[: size(x)]


@made
def state_of_rows():
    kept = tf.Variable(tf.zeros((64, 6)))

    def write(x):
        kept.scatter_nd_update(tf.range(size(x))[:, None], x)
        return x

    return write


@made
def moving_average():
    average = tf.Variable(tf.zeros(6))

    def write(x):
        average.assign(0.9 * average + 0.1 * mean(x)[0])
        return x - average

    return write


@made
def written_then_read():
    kept = tf.Variable(tf.zeros(6))

    def write(x):
        kept.assign(mean(x)[0])
        y = x - kept
        kept.assign(tf.zeros(6))
        return y

    return write


# Keras' layers


@made
def batch_normalization():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 6))
    return lambda x: layer(x, training=True)


def images(layer: Any) -> Function:
    return lambda x: tf.reshape(layer(tf.reshape(x, (-1, 1, 2, 3)), training=True), (-1, 6))


@made
def equalization():
    return images(keras.layers.Equalization(value_range=(0, 1)))


@made
def pipeline_with_equalization():
    return images(keras.layers.Pipeline([keras.layers.Equalization(value_range=(0, 1))]))


@made
def rand_augment():
    return images(keras.layers.RandAugment(value_range=(0, 1)))


@made
def mix_up():
    layer = keras.layers.MixUp()
    return lambda x: tf.reshape(layer({"images": tf.reshape(x, (-1, 1, 2, 3))}, training=True)["images"], (-1, 6))


@made
def cut_mix():
    layer = keras.layers.CutMix()
    return lambda x: tf.reshape(
        layer({"images": tf.reshape(x, (-1, 1, 2, 3)), "labels": x}, training=True)["images"], (-1, 6)
    )


@made
def stateful_rnn():
    layer = keras.layers.SimpleRNN(6)
    layer.build((None, 1, 6))
    kept = tf.Variable(tf.zeros((1, 6)))

    def run(x):
        y = layer(x[:, None], initial_state=tf.repeat(kept, size(x), axis=0))
        kept.assign(y[:1])
        return y

    return run
