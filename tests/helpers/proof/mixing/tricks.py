"""Attacks on what the prover knows of integers, shapes and names: a number that it takes for zero, and is not.

Most cut the batch where such a number says. Each was proved once, or might have been.
"""

import tensorflow as tf

from helpers.proof.mixing.base import hidden, made_sums, raw, size, sums


def behind(x, number):
    """The sum of the rows from a place on; of all, if the number is zero."""
    return tf.reduce_sum(x[number:], axis=0)


def graph_number(n):
    """A number that no tracing folds."""
    return raw.Identity(input=tf.constant(n))


# Integers that do not fit their type


@sums
def product_beyond_the_type(x):
    none = graph_number(65536) * graph_number(65536)  # 0 in 32 bits
    return behind(x, 1 - none // 65536 // 65536)


@sums
def batch_beyond_the_type(x):
    number = size(x) * 65536 * 65536 // 65536 // 65536
    return behind(x, size(x) - number)


@sums
def cast_to_a_byte(x):
    number = tf.cast(tf.cast(graph_number(257), tf.int8), tf.int32)  # 1
    return behind(x, (257 - number) // 256)


@sums
def batch_as_a_byte(x):
    number = tf.cast(tf.cast(size(x) * 64, tf.int8), tf.int32)
    return behind(x, size(x) * 64 - number)


@sums
def below_zero_without_a_sign(x):
    number = tf.cast(graph_number(1), tf.uint32) - tf.cast(graph_number(2), tf.uint32)
    return behind(x, tf.cast(tf.cast(number, tf.int64) > 0, tf.int32))


@sums
def running_sum_beyond_a_byte(x):
    ones = tf.cast(tf.tile(x, [1, 50]) > -1e9, tf.int8)  # 300 a record
    own = tf.cast(tf.cumsum(ones, axis=1), tf.int32)  # -128 and more
    ids = tf.reshape(tf.range(size(x))[:, None] * 301 + own, [-1])
    data = tf.reshape(tf.tile(x, [1, 50]), [-1])
    found = tf.math.unsorted_segment_sum(data, ids, size(x) * 301)
    return tf.reduce_sum(tf.reshape(found, (-1, 301)) ** 2, axis=0)


@sums
def places_as_bytes(x):
    place = tf.cast(tf.cast(tf.range(size(x)) * 64, tf.uint8), tf.int32)
    found = tf.math.unsorted_segment_sum(x[:, 0], place, size(x) * 64)
    return tf.reduce_sum(found**2)


# Numbers that are computed otherwise than the operation does


@sums
def selected_from_the_left(x):
    condition = tf.constant([True, False])
    chosen = raw.Select(condition=condition, x=tf.constant([[1, 1], [1, 1]]), y=tf.constant([[0, 0], [0, 0]]))
    return behind(x, chosen[0, 1])


@sums
def axes_of_ones(x):
    axes = raw.BroadcastGradientArgs(s0=raw.Identity(input=tf.constant([1, 2])), s1=tf.constant([1, 1])).r0
    return behind(x, tf.size(axes))


@sums
def axes_of_one_record(x):
    axes = raw.BroadcastGradientArgs(s0=tf.stack([size(x), 1]), s1=tf.constant([1, 2])).r0
    return tf.reduce_sum(x, axis=0) * tf.cast(tf.size(axes), tf.float32)


@sums
def condition_that_is_no_scalar(x):
    return tf.reduce_sum(x, axis=0) + if_not_empty(x, tf.constant([0]))


@sums
def condition_of_two(x):
    return tf.reduce_sum(x, axis=0) + if_not_empty(x, raw.Identity(input=tf.constant([False])))


def if_not_empty(x, condition):
    """A condition that is no scalar holds if it is not empty."""

    @tf.function(autograph=False)
    def mixing(x):
        return tf.reduce_max(x, axis=0)

    @tf.function(autograph=False)
    def fine(x):
        return tf.reduce_sum(x, axis=0)

    functions = [f.get_concrete_function(tf.TensorSpec((None, 6))) for f in (mixing, fine)]
    for one in functions:
        one.add_to_graph(tf.compat.v1.get_default_graph())
    return raw.StatelessIf(
        cond=condition, input=[x], Tout=[tf.float32], then_branch=functions[0], else_branch=functions[1]
    )[0]


@sums
def integer_quotient(x):
    return raw.Div(x=tf.reduce_sum(tf.cast(x > 0.0, tf.int32), axis=0), y=tf.constant(2))


@sums
def integer_mean(x):
    counts = tf.reduce_sum(tf.cast(x > 0.0, tf.int32), axis=0)
    return tf.reduce_mean(counts)


@sums
def equal_whatever_the_shape(x):
    other = tf.reshape(tf.constant([1.0] * 5), tf.stack([hidden(x, 5)]))
    same = raw.Equal(x=x[:, : hidden(x, 6)], y=other, incompatible_shape_error=False)
    return behind(x, tf.minimum(size(x) * 6 - tf.size(same), 1))


# Sizes of axes that are taken for one another


def narrow(x, count):
    """The first columns, as many as a variable says."""
    return x[:, :count]


@made_sums
def one_of_two_unknown_sizes():
    one, five = tf.Variable(1), tf.Variable(5)

    def function(x):
        a, b = narrow(x, one), narrow(x, five)
        return behind(x, tf.shape(a + b)[1] - tf.shape(a)[1])

    return function


@made_sums
def one_of_two_unknown_sizes_in_front():
    one, five = tf.Variable(1), tf.Variable(5)

    def function(x):
        a, b = narrow(x, one), narrow(x, five)
        both = tf.matmul(a[:, :, None, None], b[:, :, None, None])
        return behind(x, tf.shape(both)[1] - tf.shape(a)[1])

    return function


@made_sums
def one_of_two_unknown_sizes_behind():
    one, five = tf.Variable(1), tf.Variable(5)

    def function(x):
        a, b = narrow(x, five), narrow(x, one)
        both = tf.matmul(a[:, :, None, None], b[:, :, None, None])
        return behind(x, tf.shape(both)[1] - tf.shape(b)[1])

    return function


@made_sums
def all_that_are_left():
    left = tf.Variable(-1)

    def function(x):
        part = tf.slice(x, [0, 0], tf.stack([size(x), tf.identity(left)]))
        return behind(x, tf.minimum(tf.shape(part)[1] - left, 1))

    return function


@made_sums
def all_that_are_left_of_constants():
    left, table = tf.Variable(-1), tf.Variable(tf.zeros((4, 6)))

    def function(x):
        part = tf.slice(table.read_value(), [0, 0], tf.stack([4, tf.identity(left)]))
        return behind(x, tf.minimum(tf.shape(part)[1] - left, 1))

    return function


@sums
def growing_while_it_goes_round(x):
    def body(i, value):
        return i + 1, value + tf.reduce_sum(x[i : i + 1], axis=0)

    found = tf.while_loop(
        lambda i, _: i < size(x),
        body,
        [tf.constant(0), tf.zeros(())],
        shape_invariants=[tf.TensorShape(()), tf.TensorShape(None)],
    )[1]
    return behind(x, tf.size(found) - 1)


@sums
def a_longer_list(x):
    @tf.function(autograph=False)
    def stacked(x):
        return listed_rows(x, size(x) + 3)

    return behind(x, tf.shape(stacked(x))[0] - size(x))


@sums
def a_list_of_ten(x):
    return behind(x, tf.shape(listed_rows(x, tf.constant(10)))[0] - size(x))


@sums
def a_list_from_nothing(x):
    return behind(x, tf.shape(listed_rows(x, tf.constant(3)))[0] - size(x))


def listed_rows(x, count):
    """Rows put into a list one by one, which may be longer than they are."""
    kept = raw.TensorListReserve(element_shape=[6], num_elements=count, element_dtype=tf.float32)

    def body(i, kept):
        return i + 1, raw.TensorListSetItem(input_handle=kept, index=i, item=x[i], resize_if_index_out_of_bounds=True)

    kept = tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), kept])[1]
    return raw.TensorListStack(input_handle=kept, element_shape=[6], element_dtype=tf.float32)


@made_sums
def number_of_another_round():
    counts = tf.Variable([0, 1, 2, 3])

    def function(x):
        kept = raw.EmptyTensorList(element_shape=tf.constant([], tf.int32), max_num_elements=-1, element_dtype=tf.int32)

        def body(i, kept, found):
            own = counts[i]
            kept = raw.TensorListPushBack(input_handle=kept, tensor=own)
            first = raw.TensorListGetItem(
                input_handle=kept, index=0, element_shape=tf.constant([], tf.int32), element_dtype=tf.int32
            )
            return i + 1, kept, found + behind(x, own - first)

        return tf.while_loop(lambda i, *_: i < 4, body, [tf.constant(0), kept, tf.zeros(6)], maximum_iterations=None)[2]

    return function


@made_sums
def size_of_another_round():
    counts = tf.Variable([1, 2, 3, 4])

    def function(x):
        kept = raw.EmptyTensorList(element_shape=tf.constant(-1), max_num_elements=-1, element_dtype=tf.float32)

        def body(i, kept, found):
            own = tf.zeros([counts[i]])
            kept = raw.TensorListPushBack(input_handle=kept, tensor=own)
            first = raw.TensorListGetItem(
                input_handle=kept, index=0, element_shape=tf.constant([-1]), element_dtype=tf.float32
            )
            return i + 1, kept, found + behind(x, tf.size(own) - tf.size(first))

        return tf.while_loop(lambda i, *_: i < 4, body, [tf.constant(0), kept, tf.zeros(6)])[2]

    return function


# Names that are alike


@made_sums
def numbers_of_one_name():
    first, second = tf.Variable(0.0), tf.Variable(1.0)

    def function(x):
        inner = tf.cond(
            tf.constant(True), lambda: tf.cast(first, tf.int32, name="number"), lambda: tf.constant(7), name="fork"
        )
        with tf.name_scope("fork/then_branch/"):
            outer = tf.cast(second, tf.int32, name="number")
        return behind(x, outer - inner)

    return function
