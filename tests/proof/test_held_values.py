"""Generators of seeds, and lists that loops fill, in every place: what the rules of variables and lists must let in."""

import keras
import pytest
import tensorflow as tf

from tfdp_layers.proof import prove_rows

SPEC = tf.TensorSpec((None, 3))


def in_a_branch(layer, count, x):
    return tf.cond(tf.constant(True), lambda: layer(x), lambda: x)


def in_branches(layer, count, x):
    def inner():
        return tf.cond(count[0] > -1.0, lambda: layer(x), lambda: x)

    return tf.cond(count[0] > -2.0, inner, lambda: x)


def in_a_loop(layer, count, x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, layer(y)), [0, x])[1]


def twice_in_functions(layer, count, x):
    inner = tf.function(lambda y: layer(y), autograph=False)
    return inner(inner(x))


class Drops(keras.layers.Dropout):
    def __init__(self):
        super().__init__(0.5)
        self.count = tf.Variable(tf.zeros((1,)), trainable=False)


@pytest.mark.parametrize("way", [in_a_branch, in_branches, in_a_loop, twice_in_functions])
def test_dropout_in_branches_loops_and_functions(way):
    layer = Drops()
    report = prove_rows(lambda x: way(lambda y: layer(y, training=True), layer.count, x), SPEC)
    assert report.proved, report


def of_a_map(x):
    return tf.map_fn(lambda row: tf.cumsum(row) * 2.0, x)


def of_a_scan(x):
    return tf.transpose(tf.scan(lambda total, column: total + column, tf.transpose(x)))


def of_a_vectorized_map(x):
    return tf.vectorized_map(lambda row: tf.nn.softmax(row), x)


def of_columns(x):
    """An array that a loop fills."""
    start = tf.TensorArray(tf.float32, size=3, element_shape=(None,))
    found = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a.write(i, x[:, i] * 2.0)), [0, start])[1]
    return tf.transpose(tf.ensure_shape(found.stack(), (3, None)))


@pytest.mark.parametrize("way", [of_a_map, of_a_scan, of_a_vectorized_map, of_columns])
def test_lists_that_loops_fill(way):
    report = prove_rows(way, SPEC)
    assert report.proved, report


@pytest.mark.parametrize("way", [of_a_scan, of_columns])
def test_gradients_of_lists_that_loops_fill(way):
    def gradient(x):
        return tf.gradients(tf.tanh(way(x)), x)[0]

    report = prove_rows(gradient, SPEC)
    assert report.proved, report
