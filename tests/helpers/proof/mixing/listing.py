"""Loops over the records, and the lists that they fill."""

import tensorflow as tf

from helpers.proof.mixing.base import by_twos, copies, loop, raw, rows, size

# Loops over the records


@rows
def map_of_neighbours(x):
    return tf.map_fn(
        lambda i: x[i] + x[tf.minimum(i + 1, size(x) - 1)], tf.range(size(x)), fn_output_signature=tf.float32
    )


@rows
def map_of_places(x):
    return tf.map_fn(lambda i: x[i] * tf.cast(i, tf.float32), tf.range(size(x)), fn_output_signature=tf.float32)


@rows
def map_backwards(x):
    return tf.map_fn(lambda i: x[size(x) - 1 - i], tf.range(size(x)), fn_output_signature=tf.float32)


@rows
def map_of_all(x):
    return tf.map_fn(lambda row: row - tf.reduce_mean(x, axis=0), x)


@rows
def map_of_first(x):
    return tf.map_fn(lambda row: row - x[0], x)


@rows
def scanned(x):
    return tf.scan(lambda total, row: 0.5 * total + row, x)


@rows
def folded(x):
    return x - tf.foldl(lambda total, row: tf.maximum(total, row), x)


@rows
def last_round_left(x):
    return x + loop(lambda i, y: [x[i]], tf.zeros(6), x=x)[0]


@rows
def decayed(x):
    return x + loop(lambda i, y: [0.5 * y + x[i]], tf.zeros(6), x=x)[0]


@rows
def counted_rounds(x):
    return x * loop(lambda i, y: [y + 1.0], tf.constant(0.0), x=x)[0]


# Lists


@rows
def first_of_list_changed(x):
    listed = raw.TensorListFromTensor(tensor=x, element_shape=[6])
    changed = raw.TensorListSetItem(input_handle=listed, index=0, item=tf.zeros(6))
    return raw.TensorListStack(input_handle=changed, element_shape=[6], element_dtype=tf.float32)


@rows
def first_of_list(x):
    listed = raw.TensorListFromTensor(tensor=x, element_shape=[6])
    return x - raw.TensorListGetItem(input_handle=listed, index=0, element_shape=[6], element_dtype=tf.float32)


@rows
def last_of_list(x):
    listed = raw.TensorListFromTensor(tensor=x, element_shape=[6])
    return x - raw.TensorListPopBack(input_handle=listed, element_shape=[6], element_dtype=tf.float32).tensor


@rows
def lists_of_other_copies(x):
    lists = [
        raw.TensorListPushBack(
            input_handle=raw.EmptyTensorList(element_shape=[-1, 6], max_num_elements=-1, element_dtype=tf.float32),
            tensor=y,
        )
        for y in copies(x)
    ]
    both = raw.AddN(inputs=lists)
    return by_twos(raw.TensorListPopBack(input_handle=both, element_shape=[-1, 6], element_dtype=tf.float32).tensor)


@rows
def one_of_two_in_a_list(x):
    empty = raw.EmptyTensorList(element_shape=[-1, 6], max_num_elements=-1, element_dtype=tf.float32)
    for y in copies(x):
        empty = raw.TensorListPushBack(input_handle=empty, tensor=y)
    return by_twos(raw.TensorListPopBack(input_handle=empty, element_shape=[-1, 6], element_dtype=tf.float32).tensor)


@rows
def as_long_a_list(x):
    found = tf.TensorArray(tf.float32, size(x), element_shape=()).stack()
    return x + tf.reduce_sum(tf.ones_like(found))


@rows
def length_of_a_list(x):
    return x * tf.cast(tf.TensorArray(tf.float32, size(x), element_shape=()).size(), tf.float32)


@rows
def last_row_in_a_list(x):
    start = tf.TensorArray(tf.float32, size(x), element_shape=(6,))
    return tf.while_loop(lambda i, _: i < size(x), lambda i, a: (i + 1, a.write(0, x[i])), [0, start])[1].stack()


@rows
def next_place_in_a_list(x):
    start = tf.TensorArray(tf.float32, size(x), element_shape=(6,))
    turn = lambda i: (i + 1) % size(x)  # noqa: E731
    return tf.while_loop(lambda i, _: i < size(x), lambda i, a: (i + 1, a.write(turn(i), x[i])), [0, start])[1].stack()


@rows
def every_second_in_a_list(x):
    start = tf.TensorArray(tf.float32, size(x), element_shape=(6,))
    return tf.while_loop(lambda i, _: i < size(x), lambda i, a: (i + 2, a.write(i, x[i])), [0, start])[1].stack()


@rows
def blocks_swapped(x):
    last = size(x) - 1

    def block(start):
        return tf.stack([x[tf.minimum(start + 1, last)], x[tf.minimum(start, last)]])

    found = tf.map_fn(block, tf.range(0, size(x), 2), fn_output_signature=tf.float32)
    return tf.reshape(found, (-1, 6))[: size(x)]


@rows
def blocks_too_short(x):
    last = size(x) - 1

    def block(start):
        return tf.stack([x[tf.minimum(start, last)], x[tf.minimum(start + 1, last)]])

    found = tf.map_fn(block, tf.range(0, size(x), 4), fn_output_signature=tf.float32)
    return tf.reshape(found, (-1, 6))[: size(x)]


@rows
def blocks_mixed(x):
    missing = -size(x) % 4
    padded = tf.pad(x, [[0, missing], [0, 0]])

    def block(start):
        own = tf.slice(padded, [start, 0], [4, 6])
        return own - tf.reduce_sum(own, axis=0)

    found = tf.map_fn(block, tf.range(0, size(x) + missing, 4), fn_output_signature=tf.float32)
    return tf.reshape(found, (-1, 6))[: size(x)]
