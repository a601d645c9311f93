"""Further functions that mix records, each aimed at one check of one rule: see `test_mutations`."""

from __future__ import annotations

import tensorflow as tf
from mixing import loop, made, made_sums, mean, pieces, rows, size, sums, total

raw = tf.raw_ops


def hidden(x, number):
    """A number of which TensorFlow's own shapes show nothing."""
    return tf.shape(x)[1] * number // 6


def turned(x):
    """The records along axis 1."""
    return tf.reshape(tf.transpose(x), tf.stack([hidden(x, 6), size(x)]))


def copies(x):
    """The records twice, each twice in a row, and all of them twice: of one shape."""
    return tf.repeat(x, 2, axis=0), tf.tile(x, [2, 1])


def by_twos(y):
    return tf.reshape(y, (-1, 2 * y.shape[-1]))


# Convolutions and what works on axis 0


@rows
def convolution_across_records(x):
    return tf.nn.conv1d(turned(x)[..., None], tf.ones((3, 1, 1)), 1, "SAME")[..., 0]


@rows
def cross_entropy_of_other_copies(x):
    repeated, tiled = copies(tf.nn.softmax(x))
    return by_twos(tf.nn.softmax_cross_entropy_with_logits(tiled, repeated)[:, None])


@rows
def normalized_across_records(x):
    y = turned(x)[..., None, None]
    ones = tf.ones(1)
    return raw.FusedBatchNormV3(x=y, scale=ones, offset=ones, mean=ones, variance=ones, is_training=False).y[..., 0, 0]


@rows
def normalized_by_sums(x):
    ones, own = tf.ones(6), tf.reduce_sum(x, axis=0)
    y = tf.reshape(x, (-1, 1, 1, 6))
    return raw.FusedBatchNormV3(x=y, scale=ones, offset=ones, mean=own, variance=ones, is_training=False).y[:, 0, 0]


@sums
def filter_gradient_of_other_copies(x):
    repeated, tiled = (tf.reshape(y, (-1, 6, 1, 1)) for y in copies(x))
    sizes = dict(filter_sizes=[3, 1, 1, 1], strides=[1] * 4, padding="VALID")
    return raw.Conv2DBackpropFilter(input=repeated, out_backprop=tiled[:, :4], **sizes)


@sums
def filter_gradient_of_sums(x):
    y = tf.reshape(tf.reduce_sum(x, axis=0), (1, 6, 1, 1))
    sizes = dict(filter_sizes=[3, 1, 1, 1], strides=[1] * 4, padding="VALID")
    return raw.Conv2DBackpropFilter(input=y, out_backprop=y[:, :4], **sizes)


@rows
def classes_of_other_copies(x):
    repeated, tiled = copies(x)
    return by_twos(tf.cast(tf.math.in_top_k(tf.argmax(tiled, 1), repeated, 2), tf.float32)[:, None])


# Reductions and orders


@sums
def largest_of_sum(x):
    return tf.reduce_max(tf.reduce_sum(x, axis=0))


@rows
def largest_places(x):
    return tf.argmax(x, axis=0)


@rows
def reversed_by_lengths(x):
    return tf.reverse_sequence(x, [2] * 6, seq_axis=0, batch_axis=1)


@rows
def reversed_by_other_copies(x):
    repeated, tiled = copies(x)
    lengths = tf.cast(tiled[:, 0] > 0.0, tf.int32) * 6
    return by_twos(tf.reverse_sequence(repeated, lengths, seq_axis=1, batch_axis=0))


# Slices, joins, reshapes


@rows
def column_of_size(x):
    return tf.tile(x, [1, 9])[:, size(x)]


@rows
def columns_up_to_size(x):
    return tf.reduce_sum(tf.tile(x, [1, 9])[:, : size(x)], axis=1)


@rows
def columns_from_size(x):
    return tf.slice(tf.tile(x, [1, 9]), [0, size(x)], [-1, 3])


@rows
def as_many_columns(x):
    return tf.reduce_sum(tf.slice(tf.tile(x, [1, 9]), [0, 0], [-1, size(x)]), axis=1)


@rows
def shifted_by_padding(x):
    missing = -size(x) % 4
    return tf.pad(x, [[1, missing], [0, 0]])[: size(x)]


@rows
def mirrored_padding(x):
    missing = -size(x) % 4
    return tf.reduce_sum(tf.pad(x, [[0, missing], [0, 0]], "SYMMETRIC"), axis=0)[None] + x


@rows
def joined_copies(x):
    return tf.reshape(tf.concat(copies(x), 1), (-1, 24))


@rows
def packed_copies(x):
    return tf.reshape(tf.stack(copies(x), 1), (-1, 24))


@rows
def halves_swapped(x):
    first, second = tf.split(x, 2)
    return tf.concat([second, first], 0)


@rows
def first_half(x):
    return tf.split(x, 2)[0]


@rows
def last_copy_and_more(x):
    return tf.tile(x, [3, 1])[size(x) * 2 : size(x) * 4]


@sums
def tiled_by_size(x):
    return tf.reduce_sum(tf.tile(x, [size(x), 1]), axis=0)


@rows
def squeezed(x):
    return tf.squeeze(x[:, :1])


@rows
def batch_to_space(x):
    return tf.batch_to_space(tf.reshape(x, (-1, 1, 1, 6)), [2, 1], [[0, 0], [0, 0]])


@rows
def blocks_of_space_taken_for_rows(x):
    return tf.space_to_batch(tf.reshape(x, (-1, 6, 1, 1)), [2, 1], [[0, 0], [0, 0]])


@rows
def sum_to_all(x):
    return tf.broadcast_to(tf.reduce_sum(x, axis=0), tf.shape(x))


@rows
def rows_to_all(x):
    return tf.broadcast_to(x[None], tf.stack([size(x), size(x), 6]))


@sums
def four_rows_to_all(x):
    return tf.reduce_sum(tf.broadcast_to(tf.range(4.0)[:, None], tf.shape(x)) * x, axis=0)


@sums
def four_weights_of_rows(x):
    return tf.linalg.matvec(x, tf.range(4.0), transpose_a=True)


# Indices, segments, scatters


@rows
def picked_by_other_copies(x):
    repeated, tiled = copies(x)
    return by_twos(tf.gather(repeated, tf.argmax(tiled, 1)[:, None], batch_dims=1))


@rows
def four_tables(x):
    own = tf.cast(x > 0.0, tf.int32)
    return tf.gather(tf.random.stateless_normal((4, 2), [1, 2]), own, batch_dims=1)


@rows
def four_own_indices(x):
    return tf.gather(x, [[0], [1], [2], [3]], batch_dims=1)


@sums
def segments_of_other_copies(x):
    repeated, tiled = copies(x)
    return tf.math.unsorted_segment_sum(repeated, tf.cast(tiled[:, 0] > 0.0, tf.int32), 2)


@sums
def scattered_by_other_copies(x):
    repeated, tiled = copies(x)
    return tf.scatter_nd(tf.cast(tiled[:, :1] > 0.0, tf.int32), repeated, (2, 6))


def segmented(x, own, width, data=None):
    data = tf.reshape(x if data is None else data, (-1,))
    found = tf.math.unsorted_segment_sum(data, tf.reshape(own, (-1,)), size(x) * width)
    return tf.reshape(found, (-1, width))


def bits(x):
    return tf.cast(x > 0.0, tf.int32)


def place(x, width):
    return tf.range(size(x))[:, None] * width


@rows
def segments_below(x):
    return segmented(x, tf.maximum(place(x, 7) + tf.cumsum(bits(x), axis=1) - 1, 0), 7)


@rows
def segments_one_below(x):
    return segmented(x, place(x, 7) + tf.cumsum(bits(x), axis=1) - 1, 7)


@rows
def segments_too_narrow(x):
    return segmented(x, place(x, 3) + tf.cumsum(bits(x), axis=1), 3)


@rows
def joined_segments_too_narrow(x):
    own = tf.concat([tf.zeros((size(x), 1), tf.int32), bits(x)[:, 1:]], 1)
    return segmented(x, place(x, 3) + tf.cumsum(own, axis=1), 3)


@rows
def segments_by_backward_sums(x):
    return segmented(x, place(x, 3) + tf.cumsum(bits(x), axis=1, reverse=True), 3)


@rows
def segments_of_turned(x):
    return segmented(x, place(x, 7) + tf.cumsum(bits(x), axis=1), 7, tf.transpose(x))


@rows
def segments_without_stride(x):
    return segmented(x, tf.range(size(x))[:, None] + bits(x), 2)


@rows
def segments_of_unknown_size(x):
    return segmented(x, place(x, 7) + tf.cast(tf.abs(x), tf.int32), 7)


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


# Loops


@sums
def pieces_from_ones(x):
    def body(i, found):
        return i + 3, found + total(x[i : i + tf.minimum(3, size(x) - i)])

    return tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), tf.ones(6)])[1]


@sums
def pieces_swapped(x):
    def body(i, a, b):
        return i + 3, b, a + total(x[i : i + tf.minimum(3, size(x) - i)])

    return tf.while_loop(lambda i, *_: i < size(x), body, [tf.constant(0), tf.zeros(6), tf.zeros(6)])[1]


@sums
def pieces_joined_with_all(x):
    return pieces(x, lambda rows, i: tf.concat([total(rows)[:3], total(x)[:3]], 0))


@sums
def pieces_less_what_was_before(x):
    return pieces(x, total, add=lambda before, i, found: found - before)


@sums
def pieces_doubled(x):
    return pieces(x, total, add=lambda before, i, found: tf.add_n([before, before, found]))


@sums
def rows_of_next_place(x):
    turn = lambda i: (i + 1) % tf.maximum(size(x) - 1, 1)  # noqa: E731
    return loop(lambda i, y: [y + tf.tanh(x[turn(i)])], tf.zeros(6), x=x)[0]


@rows
def rounds_up_to_size(x):
    return tf.while_loop(lambda i, y: i <= size(x), lambda i, y: (i + 1, y * 0.9), [0, x])[1]


@rows
def rounds_by_records(x):
    most = tf.cast(tf.reduce_sum(tf.abs(x)), tf.int32)
    return tf.while_loop(lambda i, y: i < most, lambda i, y: (i + 1, y * 0.9), [0, x])[1]


@rows
def case_on_size(x):
    return tf.switch_case(tf.cast(size(x) > 3, tf.int32), [lambda: x, lambda: 2.0 * x])


@rows
def put_back_one_off(x):
    index = tf.range(size(x))

    def body(i, found):
        length = tf.minimum(3, size(x) - i)
        own = tf.tanh(tf.slice(x, [i, 0], [length, 6]))[:, 0]
        places = index - i - 1
        mine = (places >= 0) & (places < length)
        return i + 3, tf.where(mine, tf.gather(own, tf.clip_by_value(places, 0, length - 1)), found)

    return tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), tf.zeros_like(x[:, 0])])[1]


@rows
def put_back_elsewhere(x):
    index = tf.range(size(x))

    def body(i, found):
        length = tf.minimum(3, size(x) - i)
        own = tf.tanh(tf.slice(x, [i, 0], [length, 6]))[:, 0]
        places, others = index - i, index - i - 1
        mine = (places >= 0) & (places < length)
        return i + 3, tf.where(mine, tf.gather(own, tf.clip_by_value(others, 0, length - 1)), found)

    return tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), tf.zeros_like(x[:, 0])])[1]


@rows
def put_back_in_part(x):
    index = tf.range(size(x))

    def body(i, found):
        length = tf.minimum(3, size(x) - i)
        own = tf.tanh(tf.slice(x, [i, 0], [length, 6]))[:, 0]
        places = index - i
        mine = (places >= 0) & (places < length - 1)
        return i + 3, tf.where(mine, tf.gather(own, tf.clip_by_value(places, 0, length - 1)), found)

    return tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), tf.zeros_like(x[:, 0])])[1]


@rows
def branch_of_another_record(x):
    last = size(x) - 1

    def one(i):
        return tf.cond(x[tf.minimum(i + 1, last), 0] > 0.0, lambda: x[i], lambda: -x[i])

    return tf.map_fn(one, tf.range(size(x)), fn_output_signature=tf.float32)


@sums
def branch_of_the_next_record(x):
    last = size(x) - 1

    def body(i, y):
        own, other = tf.tanh(x[i]), x[tf.minimum(i + 1, last)]
        return [tf.cond(other[0] > 0.0, lambda: y + own, lambda: y)]

    return loop(body, tf.zeros(6), x=x)[0]


@made_sums
def pieces_weighted_by_state():
    weight = tf.Variable(1.0)

    def run(x):
        def part(rows, i):
            found = total(rows) * weight
            raw.ResourceApplyGradientDescent(var=weight.handle, alpha=1.0, delta=1.0)
            return found

        return pieces(x, part)

    return run


@made_sums
def pieces_weighted_by_count():
    weight = tf.Variable(1.0)

    def run(x):
        def part(rows, i):
            found = total(rows) * weight.read_value()
            weight.assign_add(1.0)
            return found

        found = pieces(x, part)
        weight.assign(1.0)
        return found

    return run


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
        y = x + tf.random.stateless_normal(tf.shape(x), seed + [0, 1])
        y += tf.random.stateless_normal(tf.shape(x), seed + [-1, 0])
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
