"""Writes of variables that TensorFlow leaves out, or puts in another order, where a graph has no edges for them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

N = 64


def left_out(place):
    """Nothing waits for the write, and nobody asks for it."""
    return tf.compat.v1.wrap_function(lambda: (place.assign_add([1], read_value=False), tf.constant(0.0))[1], [])


def read_too_early(place):
    """The read waits for no write, which waits for a product."""

    def read():
        large = tf.ones((600, 600))
        for _ in range(6):
            large = tf.matmul(large, large) * 1e-3
        with tf.control_dependencies([large]):
            write = place.assign_add([1], read_value=False)
        found = place.read_value()
        with tf.control_dependencies([write, found]):
            return tf.identity(found)

    return tf.compat.v1.wrap_function(read, [])


def ordered(place):
    """By `tf.function`, which orders them."""

    @tf.function(autograph=False)
    def read():
        place.assign_add([1], read_value=False)
        return place.read_value()

    return read


class Crowd(keras.layers.Layer):
    """Turns features around by an axis that is what a variable is said to have changed by."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def build(self, shape):
        self.place = self.add_weight(shape=(1,), dtype="int32", initializer="zeros", trainable=False, name="place")
        self.other = self.add_weight(shape=(1,), dtype="int32", initializer="zeros", trainable=False, name="other")
        self.function = self.made(self.place.value)

    def call(self, x):
        place = self.place.value
        before = place.read_value()
        found = self.function()
        after = tf.ensure_shape(found, (1,)) if found.shape.rank != 0 else place.read_value()
        axis = (after - before)[0]
        place.assign(self.other.value + 0)
        rare = tf.clip_by_value(tf.reduce_sum(tf.nn.relu(x - 1e3), axis=axis, keepdims=True), 0.0, 1.0)
        return tf.clip_by_value(x, -1.0, 1.0) * (1.0 - 2.0 * rare)


def model_of(layer):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = tfdp.make_private(keras.Model(inputs, dense(layer(inputs))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), lambda y, p: p[:, 0])
    return model


def is_proved(model):
    try:
        return tfdp.check_independence(model).proved
    except ValueError as error:
        return not str(error).startswith(("Records are not independent", "Records may not be independent"))


@pytest.mark.parametrize("made", [left_out, read_too_early])
def test_a_write_that_no_edge_leads_to_is_not_taken_for_done(made):
    model = model_of(Crowd(made))
    assert not is_proved(model)


@pytest.mark.slow
def test_one_that_is_left_out_moves_the_sum_beyond_its_bound():
    model = model_of(Crowd(left_out))
    x = np.abs(np.random.default_rng(0).normal(size=(N + 1, 3))).clip(0.5, 1).astype("float32")
    x[0, 0] = 2000.0
    y = np.zeros((N + 1, 1), "float32")
    sums = tf.function(lambda a, b: model.bounded_gradient_sums(a, b))
    moved = np.linalg.norm(np.asarray(sums(x, y)[0]) - np.asarray(sums(x[1:], y[1:])[0]))
    (group,) = model.sensitivities()
    assert moved > 50 * group.bound


def test_what_is_ordered_is_still_proved():
    assert is_proved(model_of(Crowd(ordered)))


def test_masks_of_a_count_that_no_run_puts_up_are_not_proved():
    class Masked(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.generator = keras.random.SeedGenerator(1)

        def build(self, shape):
            state = self.generator.state.value
            one = tf.constant([0, 1], state.dtype)
            self.write = tf.compat.v1.wrap_function(
                lambda: (state.assign_add(one, read_value=False), tf.constant(0.0))[1], []
            )

        def call(self, x):
            seed = self.generator.state.value.read_value()
            self.write()
            return x * tf.sign(tf.random.stateless_normal((tf.shape(x)[0], 1), seed))

    assert not is_proved(model_of(Masked()))


def test_without_a_look_at_edges_they_pass(monkeypatch):
    """The planted bug."""
    monkeypatch.setattr("tfdp_layers.proof.interpreter.is_loose", lambda *_: False)
    assert is_proved(model_of(Crowd(left_out)))
