"""Functions in which records meet, or places or the number of records count: none may be proved.

Each takes records (batch, 6) and gives a row for each. `SUMS` are of what is released instead: sums that are not
additive though every row may be.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

Function = Callable[..., Any]
ROWS: dict[str, Callable[[], Function]] = {}
SUMS: dict[str, Callable[[], Function]] = {}


def rows(function: Function) -> Function:
    """Registers a function of records."""
    ROWS[function.__name__] = lambda: function
    return function


def made(function: Callable[[], Function]) -> Callable[[], Function]:
    """Registers a maker of one, which may make variables first."""
    ROWS[function.__name__] = function
    return function


def sums(function: Function) -> Function:
    SUMS[function.__name__] = lambda: function
    return function


def made_sums(function: Callable[[], Function]) -> Callable[[], Function]:
    SUMS[function.__name__] = function
    return function


def mean(x: Any) -> Any:
    return tf.reduce_mean(x, axis=0, keepdims=True)


def size(x: Any) -> Any:
    return tf.shape(x)[0]


# Sums, means and orders over the batch


@rows
def batch_mean(x):
    return x - mean(x)


@rows
def batch_sum(x):
    return x + tf.reduce_sum(x, axis=0)


@rows
def mean_by_size(x):
    return x - tf.reduce_sum(x, axis=0) / tf.cast(size(x), tf.float32)


@rows
def largest_of_batch(x):
    return x / tf.reduce_max(tf.abs(x), axis=0)


@rows
def norm_of_batch(x):
    return x / tf.norm(x)


@rows
def normalized_along_batch(x):
    return tf.math.l2_normalize(x, axis=0)


@rows
def softmax_of_batch(x):
    return tf.nn.softmax(x, axis=0)


@rows
def log_sum_of_batch(x):
    return x - tf.reduce_logsumexp(x, axis=0)


@rows
def running_sum(x):
    return tf.cumsum(x, axis=0)


@rows
def running_product(x):
    return tf.math.cumprod(x, axis=-2)


@rows
def sorted_batch(x):
    return tf.sort(x, axis=0)


@rows
def ranks_in_batch(x):
    return x * tf.cast(tf.argsort(tf.argsort(x, axis=0), axis=0), tf.float32)


@rows
def largest_three(x):
    least = tf.math.top_k(tf.transpose(x), 3).values[:, -1]
    return tf.where(x >= least, x, 0.0)


@rows
def place_of_largest(x):
    return x + tf.cast(tf.argmax(x, axis=0), tf.float32)


@rows
def moments_of_batch(x):
    average, variance = tf.nn.moments(x, [0])
    return (x - average) * tf.math.rsqrt(variance + 1e-3)


@rows
def fused_batch_norm(x):
    y = tf.reshape(x, (-1, 1, 1, 6))
    return tf.reshape(tf.compat.v1.nn.fused_batch_norm(y, tf.ones(6), tf.zeros(6))[0], (-1, 6))


@rows
def whitened(x):
    gram = tf.matmul(x, x, transpose_a=True)
    return tf.matmul(x, tf.linalg.inv(gram + tf.eye(6)))


@rows
def share_of_weights(x):
    return x * x[:, :1] / tf.reduce_sum(x[:, :1])


@rows
def global_norm(x):
    return tf.clip_by_global_norm([x], 1.0)[0]


@rows
def histogram(x):
    return x + tf.cast(tf.histogram_fixed_width(x, [0.0, 1.0], 6), tf.float32)


# Gates that are closed at first


@made
def gate_at_zero():
    alpha = tf.Variable(0.0)
    return lambda x: x + alpha * mean(x)


@made
def two_zero_layers():
    first, second = tf.Variable(tf.zeros((6, 6))), tf.Variable(tf.zeros((6, 6)))
    return lambda x: x + tf.matmul(mean(tf.matmul(x, first)), second)


@rows
def times_zero(x):
    return x + 0.0 * mean(x)


@rows
def rarely(x):
    return tf.where(x > 1e6, mean(x), x)


# Other rows, by their places


@rows
def backwards(x):
    return tf.reverse(x, [0])


@rows
def backwards_by_slice(x):
    return x[::-1]


@rows
def rolled(x):
    return x + tf.roll(x, 1, axis=0)


@rows
def rolled_by_four(x):
    return x + tf.roll(x, 4, axis=0)


@rows
def rolled_by_slices(x):
    return x + tf.concat([x[1:], x[:1]], 0)


@rows
def first_row(x):
    return x - x[0]


@rows
def first_row_kept(x):
    return x - x[:1]


@rows
def last_row(x):
    return x - x[-1]


@rows
def last_row_by_size(x):
    return x - tf.gather(x, size(x) - 1)


@rows
def second_half(x):
    half = size(x) // 2
    return x + tf.concat([x[half:], x[:half]], 0)


@rows
def every_other(x):
    return x + tf.repeat(x[::2], 2, axis=0)[: size(x)]


@rows
def own_place(x):
    return x + tf.cast(tf.range(size(x)), tf.float32)[:, tf.newaxis]


@rows
def own_place_by_running_sum(x):
    return x + tf.cumsum(tf.ones_like(x), axis=0)


@rows
def place_as_class(x):
    return tf.matmul(tf.one_hot(tf.range(size(x)) % 4, 4), tf.ones((4, 6))) * x


@rows
def table_by_place(x):
    return x + tf.gather(tf.random.stateless_normal((64, 6), [1, 2]), tf.range(size(x)) % 64)


@rows
def neighbours(x):
    i = tf.range(size(x))
    return x + tf.gather(x, tf.maximum(i - 1, 0))


@rows
def even_places(x):
    even = tf.equal(tf.range(size(x)) % 2, 0)
    return tf.where(even[:, tf.newaxis], x, -x)


@rows
def identity_matrix(x):
    return tf.matmul(tf.eye(size(x)) * 2.0, x)


@rows
def lower_triangle(x):
    ones = tf.ones((size(x), size(x)))
    return tf.matmul(tf.linalg.band_part(ones, -1, 0), x)


@rows
def four_rows_at_a_time(x):
    y = tf.reshape(x, (-1, 4, 6))
    return tf.reshape(y - tf.reduce_mean(y, axis=1, keepdims=True), (-1, 6))


@rows
def cut_across(x):
    return tf.reshape(tf.transpose(tf.reshape(x, (6, -1))), tf.shape(x))


@rows
def hidden_by_transposing(x):
    y = tf.transpose(x)
    return tf.transpose(y / tf.reduce_sum(y, axis=1, keepdims=True))


@rows
def hidden_by_merging(x):
    y = tf.reshape(x, (-1,))
    return tf.reshape(y - tf.roll(y, 6, 0), (-1, 6))


@rows
def merged_and_halved(x):
    y = tf.reshape(x, (-1, 3))
    return tf.concat([y[: size(x)], y[size(x) :]], 1)


@rows
def tiled_and_cut(x):
    y = tf.tile(x, [3, 1])
    return y[1 : size(x) + 1]


@rows
def repeated_and_tiled(x):
    return tf.reshape(tf.repeat(x, 2, axis=0) + tf.tile(x, [2, 1]), (-1, 12))


@rows
def stacked_and_shifted(x):
    y = tf.concat([x, x], 0)
    return y[2 : 2 + size(x)]


@rows
def picked_by_own_index(x):
    return tf.gather(x, tf.cast(tf.abs(x[:, 0]), tf.int32) % size(x))


@rows
def picked_by_constants(x):
    return x + tf.gather(x, [0])


@rows
def masked_out(x):
    kept = tf.boolean_mask(x, x[:, 0] > 0.0)
    return x + tf.reduce_sum(kept[:1], axis=0)


@rows
def where_is_it(x):
    return x + tf.cast(tf.where(x[:, :1] > -1e9)[:, :1], tf.float32)


@rows
def unique_rows(x):
    return x + tf.cast(tf.unique(x[:, 0]).idx, tf.float32)[:, tf.newaxis]


@rows
def partitioned(x):
    parts = tf.dynamic_partition(x, tf.cast(x[:, 0] > 0.0, tf.int32), 2)
    return tf.concat(parts, 0)


# Pairs


@rows
def pairs(x):
    return tf.matmul(tf.matmul(x, x, transpose_b=True), x)


@rows
def pairs_by_einsum(x):
    return tf.einsum("ad,bd->ab", x, x)[:, :1] + x


@rows
def einsum_over_batch(x):
    return x + tf.einsum("ad,ad->d", x, x)


@rows
def attention_over_batch(x):
    return tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x)


@rows
def broadcast_by_mistake(x):
    return tf.reduce_sum(x[:, :1] - x[:, 0], axis=1, keepdims=True) + x


@rows
def distances(x):
    return x * tf.reduce_min(tf.norm(x[:, None] - x[None], axis=-1), axis=1, keepdims=True)


# The number of records


@rows
def over_size(x):
    return x / tf.cast(size(x), tf.float32)


@rows
def over_number_of_entries(x):
    return x / tf.cast(tf.size(x), tf.float32)


@rows
def branch_on_size(x):
    return tf.cond(size(x) > 3, lambda: x, lambda: 2.0 * x)


@rows
def rounds_of_size(x):
    return tf.while_loop(lambda i, y: i < size(x), lambda i, y: (i + 1, y * 0.9), [0, x])[1]


@rows
def ones_as_many(x):
    return x + tf.reduce_sum(tf.ones((size(x),)))


@rows
def as_many_features(x):
    return x + tf.reduce_sum(tf.random.normal((size(x) * 2 + 1,)))


@rows
def width_of_size(x):
    return tf.reduce_sum(tf.pad(x, [[0, 0], [0, size(x)]], constant_values=1.0), axis=1, keepdims=True)


# Branches on all records


@rows
def branch_on_all(x):
    return tf.cond(tf.reduce_all(x > 0.0), lambda: x, lambda: tf.nn.relu(x))


@rows
def branch_on_any(x):
    return tf.cond(tf.reduce_any(x > 3.0), lambda: x * 0.5, lambda: x)


@rows
def branch_like_a_shortcut(x):
    fine = x[:, 0] > 0.0
    return tf.cond(tf.reduce_all(fine), lambda: 2.0 * x, lambda: tf.where(fine[:, None], x, 0.0))


@rows
def shortcut_of_another_condition(x):
    fine, other = x[:, 0] > 0.0, x[:, 1] > 0.0
    return tf.cond(tf.reduce_all(fine), lambda: x, lambda: tf.where(other[:, None], x, 0.0))


@rows
def shortcut_the_wrong_way_round(x):
    fine = x[:, 0] > 0.0
    return tf.cond(tf.reduce_all(fine), lambda: tf.where(fine[:, None], x, 0.0), lambda: x)


@rows
def shortcut_by_any(x):
    fine = x[:, 0] > 0.0
    return tf.cond(tf.reduce_any(fine), lambda: x, lambda: tf.where(fine[:, None], x, 0.0))


@rows
def shortcut_of_no_number(x):
    scales = x[:, 0]
    product = lambda: x * scales[:, None]  # noqa: E731
    careful = lambda: tf.math.multiply_no_nan(x, scales[:, None])  # noqa: E731
    return tf.cond(tf.reduce_all(x[:, 1] > 0.0), product, careful)


@rows
def shortcut_that_may_be_zero(x):
    scales = x[:, 0]
    product = lambda: x * scales[:, None]  # noqa: E731
    careful = lambda: tf.math.multiply_no_nan(x, scales[:, None])  # noqa: E731
    return tf.cond(tf.reduce_all(scales > -1.0), product, careful)


@rows
def shortcut_of_other_shape(x):
    fine = x[:1, 0] > 0.0
    return tf.cond(tf.reduce_all(fine), lambda: x, lambda: tf.where(fine[:, None], x, 0.0))


@rows
def shortcut_with_noise(x):
    fine = x[:, 0] > 0.0
    noisy = lambda: x + tf.random.normal(())  # noqa: E731
    careful = lambda: tf.where(fine[:, None], x, 0.0) + tf.random.normal(())  # noqa: E731
    return tf.cond(tf.reduce_all(fine), noisy, careful)


@rows
def until_all_are_small(x):
    return tf.while_loop(lambda y: tf.reduce_any(tf.abs(y) > 1.0), lambda y: [0.5 * y], [x])[0]


@rows
def until_the_sum_is_small(x):
    return tf.while_loop(lambda y: tf.reduce_sum(tf.abs(y)) > 9.0, lambda y: [0.5 * y], [x])[0]


@rows
def case_on_records(x):
    index = tf.cast(tf.reduce_sum(x) > 0.0, tf.int32)
    return tf.switch_case(index, [lambda: x, lambda: 2.0 * x])


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


def loop(body, *start, step=1, x=None, until=None):
    limit = size(x) if until is None else until
    return tf.while_loop(lambda i, *_: i < limit, lambda i, *v: (i + step, *body(i, *v)), [tf.constant(0), *start])[1:]


@rows
def last_round_left(x):
    return x + loop(lambda i, y: [x[i]], tf.zeros(6), x=x)[0]


@rows
def decayed(x):
    return x + loop(lambda i, y: [0.5 * y + x[i]], tf.zeros(6), x=x)[0]


@rows
def counted_rounds(x):
    return x * loop(lambda i, y: [y + 1.0], tf.constant(0.0), x=x)[0]


# Constants with an entry for each place


@rows
def four_rows_only(x):
    return x + tf.reshape(tf.range(24, dtype=tf.float32), (4, 6))


@rows
def filter_over_batch(x):
    y = tf.reshape(x, (1, -1, 6))
    return tf.nn.conv1d(y, tf.ones((3, 6, 6)), 1, "SAME")[0]


@rows
def pooled_over_batch(x):
    y = tf.transpose(x)[:, :, tf.newaxis]
    return tf.transpose(tf.nn.max_pool1d(y, 3, 1, "SAME")[:, :, 0])


@rows
def resized_over_batch(x):
    y = tf.reshape(x, (1, -1, 6, 1))
    return tf.reshape(tf.image.resize(y, tf.add(tf.shape(y)[1:3], [1, 0]))[:, :-1], (-1, 6))


@rows
def bias_over_batch(x):
    return tf.transpose(tf.nn.bias_add(tf.transpose(x), tf.range(4, dtype=tf.float32)))


@rows
def channel_norm_over_batch(x):
    y = tf.reshape(tf.transpose(x), (6, 1, 1, -1))
    return tf.transpose(tf.reshape(tf.nn.lrn(y), (6, -1)))


@rows
def contrast_over_batch(x):
    y = tf.reshape(x, (1, -1, 6, 1))
    return tf.reshape(tf.image.adjust_contrast(y, 2.0), (-1, 6))


# Segments and scatters by place


@rows
def centre_of_class(x):
    own = tf.cast(x[:, 0] > 0.0, tf.int32)
    return x - tf.gather(tf.math.unsorted_segment_mean(x, own, 2), own)


@rows
def segments_of_two(x):
    own = tf.range(size(x)) // 2
    return x - tf.gather(tf.math.unsorted_segment_sum(x, own, size(x)), own)


@rows
def segments_of_neighbours(x):
    own = tf.minimum(tf.range(size(x)) + tf.cast(x[:, 0] > 0.0, tf.int32), size(x) - 1)
    return tf.math.unsorted_segment_sum(x, own, size(x))


@rows
def segments_just_too_wide(x):
    own = tf.range(size(x))[:, None] * 5 + tf.cumsum(tf.cast(x > 0.0, tf.int32), axis=1)
    found = tf.math.unsorted_segment_sum(tf.reshape(x, (-1,)), tf.reshape(own, (-1,)), size(x) * 5)
    return tf.reshape(found, (-1, 5))


@rows
def largest_of_segments(x):
    own = tf.cast(x[:, 0] > 0.0, tf.int32)
    return x - tf.gather(tf.math.unsorted_segment_max(x, own, 2), own)


@rows
def scattered_to_next(x):
    i = (tf.range(size(x)) + 1) % size(x)
    return tf.scatter_nd(i[:, None], x, tf.shape(x))


@rows
def updated_by_place(x):
    return tf.tensor_scatter_nd_update(x, [[0]], tf.zeros((1, 6)))


@rows
def added_by_class(x):
    own = tf.cast(x[:, :1] > 0.0, tf.int32)
    return x + tf.reduce_max(tf.scatter_nd(own, x, (2, 6)), axis=0)


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


# Sums


@sums
def a_mean(x):
    return tf.reduce_mean(x, axis=0)


@sums
def mean_of_all(x):
    return tf.reduce_mean(x)


@sums
def largest(x):
    return tf.reduce_max(x, axis=0)


@sums
def square_of_sum(x):
    return tf.square(tf.reduce_sum(x, axis=0))


@sums
def rounded_sum(x):
    return tf.round(tf.reduce_sum(x, axis=0))


@sums
def sum_as_integer(x):
    return tf.cast(tf.reduce_sum(x, axis=0), tf.int32)


@sums
def sum_is_positive(x):
    return tf.cast(tf.cast(tf.reduce_sum(x, axis=0), tf.bool), tf.float32)


@sums
def clipped_sum(x):
    return tf.clip_by_norm(tf.reduce_sum(x, axis=0), 1.0)


@sums
def product_of_sums(x):
    return tf.reduce_sum(x[:, :3], axis=0) * tf.reduce_sum(x[:, 3:], axis=0)


@sums
def matrix_of_sums(x):
    total = tf.reduce_sum(x, axis=0)
    return tf.tensordot(total, total, 0)


@sums
def sum_of_some(x):
    return tf.reduce_sum(x[:3], axis=0)


@sums
def sum_by_place(x):
    return tf.reduce_sum(x * tf.cast(tf.range(size(x)), tf.float32)[:, None], axis=0)


@sums
def sum_of_pairs(x):
    return tf.reduce_sum(tf.matmul(x, x, transpose_b=True))


@sums
def sum_over_size(x):
    return tf.reduce_sum(x, axis=0) / tf.cast(size(x), tf.float32)


@sums
def sum_chosen_by_itself(x):
    total = tf.reduce_sum(x, axis=0)
    return tf.where(total > 0.0, total, 0.0)


@sums
def sum_chosen_by_records(x):
    total = tf.reduce_sum(x, axis=0)
    return tf.cond(tf.reduce_all(x > 0.0), lambda: total, lambda: 2.0 * total)


@sums
def picked_by_sums(x):
    total = tf.reduce_sum(x, axis=0)
    return tf.gather(tf.range(6.0), tf.cast(total, tf.int32) % 6)


@sums
def largest_by_segments(x):
    return tf.math.unsorted_segment_max(x, tf.cast(x[:, 0] > 0.0, tf.int32), 2)


@sums
def mean_by_segments(x):
    return tf.math.unsorted_segment_mean(x, tf.cast(x[:, 0] > 0.0, tf.int32), 2)


@sums
def last_by_scatter(x):
    return tf.tensor_scatter_nd_update(tf.zeros((2, 6)), tf.cast(x[:, :1] > 0.0, tf.int32), x)


@sums
def rows_padded_and_summed(x):
    missing = -size(x) % 4
    return tf.reduce_sum(tf.pad(x, [[0, missing], [0, 0]], constant_values=1.0), axis=0)


@sums
def rows_padded_with_zeros_and_counted(x):
    missing = -size(x) % 4
    return tf.reduce_sum(tf.exp(tf.pad(x, [[0, missing], [0, 0]])), axis=0)


@sums
def sum_plus_one(x):
    return tf.reduce_sum(x, axis=0) + 1.0


@sums
def batch_mean_in_gradient(x):
    @tf.custom_gradient
    def same(v):
        return tf.identity(v), lambda upstream: upstream - mean(upstream)

    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(same(tf.matmul(x, weight)) ** 2)
    return tape.gradient(loss, weight)


@sums
def rows_swapped_in_gradient(x):
    @tf.custom_gradient
    def same(v):
        return tf.identity(v), lambda upstream: tf.reverse(upstream, [0])

    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(same(tf.matmul(x, weight)) ** 2)
    return tape.gradient(loss, weight)


@sums
def contrastive_loss(x):
    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        y = tf.matmul(x, weight)
        scores = tf.matmul(y, y, transpose_b=True)
        loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(tf.eye(size(x)), scores))
    return tape.gradient(loss, weight)


@sums
def gradient_clipped_together(x):
    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(tf.matmul(x, weight) ** 2)
    return tf.clip_by_norm(tape.gradient(loss, weight), 1.0)


@sums
def mean_loss(x):
    weight = tf.ones((6, 6))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_mean(tf.matmul(x, weight) ** 2)
    return tape.gradient(loss, weight)


# Loops over pieces that are not all of the batch, or more


def pieces(x, part, start=None, step=3, length=3, limit=None, first=0, add=None):
    """A loop over slices of x; `part(slice, start)` is added to what is carried."""
    limit = size(x) if limit is None else limit
    add = add or (lambda total, i, found: total + found)

    def body(i, total):
        here = tf.minimum(length, size(x) - i)
        own = tf.slice(x, [i if start is None else start(i), 0], [here, 6])
        return i + step, add(total, i, part(own, i))

    return tf.while_loop(lambda i, _: i < limit, body, [tf.constant(first), tf.zeros(6)])[1]


def total(rows, _=None):
    return tf.reduce_sum(tf.tanh(rows), axis=0)


@sums
def pieces_that_overlap(x):
    return pieces(x, total, step=2)


@sums
def pieces_with_gaps(x):
    return pieces(x, total, step=4)


@sums
def pieces_from_the_second(x):
    return pieces(x, total, first=1)


@sums
def pieces_without_the_last(x):
    return pieces(x, total, limit=size(x) - 1)


@sums
def pieces_of_the_first(x):
    return pieces(x, total, start=lambda i: 0)


@sums
def pieces_weighted_by_place(x):
    return pieces(x, lambda rows, i: total(rows) * tf.cast(i + 1, tf.float32))


@sums
def pieces_over_their_length(x):
    return pieces(x, lambda rows, i: tf.reduce_mean(rows, axis=0))


@sums
def pieces_decayed(x):
    return pieces(x, total, add=lambda before, i, found: 0.5 * before + found)


@sums
def last_piece(x):
    return pieces(x, total, add=lambda before, i, found: found)


@sums
def every_second_piece(x):
    return pieces(x, total, add=lambda before, i, found: tf.where(i % 2 == 0, before + found, before))


@sums
def pieces_and_all(x):
    return pieces(x, lambda rows, i: total(x))


@sums
def largest_of_pieces(x):
    return pieces(x, total, add=lambda before, i, found: tf.maximum(before, found))


@sums
def pieces_less_their_first(x):
    return pieces(x, lambda rows, i: total(rows - rows[:1]))


@sums
def pieces_with_noise_of_their_own(x):
    return pieces(x, lambda rows, i: total(rows * tf.random.normal((6,))))


@sums
def pieces_with_one_noise_for_their_rows(x):
    return pieces(x, lambda rows, i: total(rows + tf.random.stateless_normal(tf.shape(rows), [1, 2])))


@made_sums
def pieces_with_one_seed():
    seed = tf.Variable([1, 2])

    def run(x):
        own = seed.read_value()
        seed.assign_add([0, 1])
        return pieces(x, lambda rows, i: total(rows + tf.random.stateless_normal(tf.shape(rows), own)))

    return run


@made_sums
def pieces_counted_in_state():
    count = tf.Variable(0.0)

    def run(x):
        found = pieces(x, lambda rows, i: total(rows) * count.assign_add(1.0))
        count.assign(0.0)
        return found

    return run


@sums
def pieces_by_a_step_of_records(x):
    return pieces(x, total, step=tf.maximum(1, tf.cast(x[0, 0], tf.int32)))
