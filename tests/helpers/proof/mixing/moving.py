"""Other rows by their places: slices, joins, reshapes."""

import tensorflow as tf

from helpers.proof.mixing.base import copies, rows, size, sums

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
def as_many_as_a_record_has_numbers(x):
    """By parts of a shape, which are taken for each other."""
    records, width = tf.split(tf.shape(x), [1, -1])
    return x[: width[0]] + 0.0 * tf.cast(records, x.dtype)


@rows
def columns_by_a_split_shape(x):
    records, width = tf.split(tf.shape(x), 2)
    return x[:, : tf.minimum(records, width)[0]]


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
