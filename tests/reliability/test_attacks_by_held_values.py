"""Layers that find out what a variable holds after a write, what a list gives where nothing was put, or a size.

Each was "proved" to keep records apart, with one record that moves the sum by 60 to 121 bounds: the proof took a
variable to hold what it held, an element of a list for another one, and a shape that TensorFlow is told for the one
that is.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

N = 64
raw = tf.raw_ops
SCALAR = tf.constant([], tf.int32)


class Crowd(keras.layers.Layer):
    """Turns features around where `found` gives 1 for a record, by what others hold."""

    def __init__(self, found):
        super().__init__()
        self.found = found

    def build(self, shape):
        self.place = self.add_weight(shape=(1,), dtype="int32", initializer="zeros", trainable=False, name="place")
        self.other = self.add_weight(shape=(1,), dtype="int32", initializer="zeros", trainable=False, name="other")

    def call(self, x):
        return tf.clip_by_value(x, -1.0, 1.0) * (1.0 - 2.0 * self.found(self, x))


def rare_along(x, axis):
    return tf.clip_by_value(tf.reduce_sum(tf.nn.relu(x - 1e3), axis=axis, keepdims=True), 0.0, 1.0)


def held(write):
    """By an axis that is 1 less what a variable of the layer changed by; it is set back then."""

    def found(layer, x):
        place, other = layer.place.value, layer.other.value
        before = place.read_value()
        write(place, other)
        axis = 1 - (place.read_value() - before)[0]
        place.assign(other + 0)
        return rare_along(x, axis)

    return found


def in_a_condition(place, other):
    def once(i):
        with tf.control_dependencies([place.assign_add([1])]):
            return i < 0

    tf.while_loop(once, lambda i: i + 1, [tf.constant(0)])


def nested(place, other):
    def inner():
        return tf.cond(other[0] < 6, lambda: place.assign_add([1]), lambda: place + 0)

    tf.cond(other[0] < 5, inner, lambda: place + 0)


VARIABLES = {
    "scatter_add": lambda v, w: v.scatter_add(tf.IndexedSlices([1], [0])),
    "scatter_nd_add": lambda v, w: v.scatter_nd_add([[0]], [1]),
    "a slice": lambda v, w: v[0:1].assign(w + 1),
    "a known branch": lambda v, w: tf.cond(tf.constant(True), lambda: v.assign_add([1]), lambda: v.read_value()),
    "a branch in a branch": nested,
    "the condition of a loop": in_a_condition,
    "less in a branch": lambda v, w: tf.cond(w[0] < 5, lambda: v.assign_sub([-1]), lambda: tf.zeros(1, tf.int32)),
    "a branch that did not read": lambda v, w: tf.cond(w[0] < 5, lambda: v.assign(w + 1), lambda: w + 0),
}


def reserved(count, shape=SCALAR, dtype=tf.int32):
    return raw.TensorListReserve(element_shape=shape, num_elements=count, element_dtype=dtype)


def put(listed, item):
    return raw.TensorListSetItem(input_handle=listed, index=0, item=item)


def called(function):
    return tf.function(function, autograph=False)()


def never_put(layer, x):
    kept = tf.TensorArray(tf.int32, size=2, element_shape=()).write(0, 1)
    return rare_along(x, called(lambda: kept.read(1)))


def without_the_last(layer, x):
    count = tf.shape(x)[0]
    fewer = raw.TensorListPopBack(input_handle=reserved(count), element_shape=SCALAR, element_dtype=tf.int32)[0]
    return rare_along(x, 1 - (count - raw.TensorListLength(input_handle=fewer)))


def shape_of_what_was_put(layer, x):
    listed = put(reserved(1, tf.constant([-1, -1]), tf.float32), x[:, :2])
    shape = called(lambda: raw.TensorListElementShape(input_handle=listed, shape_type=tf.int32))
    return rare_along(x, shape[1] - 1)


def half_of_them(layer, x):
    two = tf.TensorArray(tf.float32, size=2, element_shape=()).write(0, 1.0).stack()
    turns = tf.tile(tf.ensure_shape(two, [2]), tf.shape(x)[:1])
    large = tf.cast(x[:, 0] > 1e3, x.dtype)
    found = tf.reduce_sum(tf.reshape(tf.concat([large, large], 0) * turns, (2, -1)), axis=0)
    return ((1.0 - found * (2.0 - found)) / 2.0)[:, tf.newaxis]


def odd(count, x):
    return tf.cast(count % 2, x.dtype) * tf.cast(x > 1e3, x.dtype)


def length_of_zeros(layer, x):
    return odd(raw.TensorListLength(input_handle=raw.ZerosLike(x=reserved(tf.shape(x)[0]))), x)


def last_under_xla(layer, x):
    @tf.function(jit_compile=True, autograph=False)
    def last(x):
        count = tf.shape(x)[0]
        return tf.TensorArray(tf.int32, size=count).unstack(tf.range(1, count + 1)).read(100000)

    return odd(last(x), x)


def size_that_is_told(layer, x):
    """Of no record with a large first feature 1, of one 0: in a step of eager TensorFlow."""
    rare = tf.boolean_mask(tf.zeros_like(x[:, 0], tf.int32), x[:, 0] > 1e3)
    listed = put(reserved(1, tf.constant(-1)), rare)
    ones = raw.TensorListGetItem(input_handle=listed, index=0, element_shape=[1], element_dtype=tf.int32)
    return 1.0 - tf.cast(tf.size(ones), x.dtype)


ONE, ALL = "one", "all"
"""Who holds a large first feature: the record that comes in beside the others; or all of them, in an odd batch."""
LISTS = {
    "an element that was never put": (never_put, ONE),
    "a list without its last element": (without_the_last, ONE),
    "the shape of what was put": (shape_of_what_was_put, ONE),
    "elements that are not all alike": (half_of_them, ALL),
    "as many zeros as records": (length_of_zeros, ALL),
    "a place that there is not": (last_under_xla, ALL),
    "a size that is told": (size_that_is_told, ONE),
}
FOUND = {f"held: {name}": (held(write), ONE) for name, write in VARIABLES.items()} | LISTS


def model_with(layer):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = tfdp.make_private(keras.Model(inputs, dense(layer(inputs))))
    model.compile(
        tfdp.optimizers.ClippedOptimizer("sgd", l2_norm_clip=1.0, noise_multiplier=1.0),
        loss=lambda y, p: keras.ops.sum(p, axis=-1),
    )
    return model


def is_proved(model):
    """Whether the proof says so; a layer that is seen to mix records is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tfdp.check_independence(model).proved
    except ValueError as refusal:
        if "Records are not independent" not in str(refusal):
            raise
        return False


def records(who):
    x = np.abs(np.random.default_rng(0).normal(size=(N + 1, 3))).clip(0.5, 1).astype("float32")
    x[: 1 if who == ONE else N + 1, 0] = 2000.0
    return x, np.zeros((N + 1, 1), "float32")


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", FOUND)
def test_a_layer_that_finds_it_out_is_not_proved(name):
    found, who = FOUND[name]
    model = model_with(Crowd(found))
    assert not is_proved(model)
    x, y = records(who)
    sums = (
        model.bounded_gradient_sums if "told" in name else tf.function(lambda a, b: model.bounded_gradient_sums(a, b))
    )
    moved = np.linalg.norm(np.asarray(sums(x, y)[0]) - np.asarray(sums(x[1:], y[1:])[0]))
    (group,) = model.sensitivities()
    assert moved > 50 * group.bound


class Masked(keras.layers.Layer):
    """Draws a sign for each record, of a generator whose state `write` sets first."""

    def __init__(self, write=None):
        super().__init__()
        self.generator, self.write = keras.random.SeedGenerator(1), write

    def call(self, x):
        if self.write is not None:
            self.write(self.generator.state.value)
        return x * tf.sign(keras.random.normal((tf.shape(x)[0], 1), seed=self.generator))


def sevens(state):
    return tf.constant([7, 7], state.dtype)


SET_BACK = {
    "by a slice": lambda state: state[0:2].assign(sevens(state)),
    "in a branch": lambda state: tf.cond(
        tf.constant(True), lambda: state[0:2].assign(sevens(state)), lambda: state.read_value()
    ),
    "by rows": lambda state: state.scatter_nd_update([[0], [1]], sevens(state)),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", SET_BACK)
def test_masks_of_a_state_that_is_set_back_are_not_proved(name):
    model = model_with(Masked(SET_BACK[name]))
    assert not is_proved(model)
    x, y = records(ALL)
    x = np.clip(x, 0.0, 1.0)
    sums = tf.function(lambda a, b: model.bounded_gradient_sums(a, b))
    each = [np.asarray(sums(x[:n], y[:n])[0]) for n in (N, N, N + 1)]
    np.testing.assert_array_equal(each[0], each[1])  # the same masks in every step, at the same places
