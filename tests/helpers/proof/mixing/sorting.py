"""The gradient of a sort, nearly: offsets of rows plus indices within a row, that lead to another record's entries."""

import tensorflow as tf

from helpers.proof.mixing.base import copies, hidden, rows, size


def order(x, count=6):
    """Where the largest entries of each row stand: (records, count)."""
    return tf.math.top_k(x, count)[1]


def offsets(x, step=6, start=0, width=6):
    return tf.range(start, size(x) * width, step)[:, None]


def scattered(own, updates, count):
    return tf.scatter_nd(tf.reshape(own, (-1,))[:, None], tf.reshape(updates, (-1,)), tf.reshape(count, (1,)))


def put(x, own, width=6, updates=None):
    return tf.reshape(scattered(own, x if updates is None else updates, size(x) * width), (-1, width))


@rows
def sorted_with_a_stride_too_small(x):
    return put(x, order(x) + offsets(x, 3, width=3))


@rows
def sorted_indices_of_wider_rows(x):
    wide = tf.concat([x, -x], 1)
    return put(x, order(wide, 6) + offsets(x))


@rows
def sorted_from_the_middle(x):
    return put(x, order(x) + offsets(x, start=3))


@rows
def sorted_from_the_second(x):
    return put(x, order(x) + tf.range(6, size(x) * 6 + 6, 6)[:, None])


@rows
def sorted_indices_one_further(x):
    return put(x, order(x) + 1 + offsets(x))


@rows
def sorted_indices_one_before(x):
    return put(x, tf.maximum(order(x) - 1 + offsets(x), 0))


@rows
def sorted_with_offsets_reversed(x):
    return put(x, order(x) + tf.reverse(offsets(x), [0]))


@rows
def sorted_with_offsets_rolled(x):
    return put(x, order(x) + tf.roll(offsets(x), 1, 0))


@rows
def sorted_with_offsets_shuffled(x):
    return put(x, order(x) + tf.random.shuffle(offsets(x)))


@rows
def sorted_with_offsets_of_a_class(x):
    return put(x, order(x) + tf.gather(offsets(x), tf.cast(x[:, 0] > 0.0, tf.int32)))


@rows
def sorted_with_the_next_offset_by_class(x):
    return put(x, order(x) + tf.minimum(offsets(x) + 6 * tf.cast(x[:, :1] > 0.0, tf.int32), size(x) * 6 - 6))


@rows
def sorted_updates_of_turned(x):
    return put(x, order(x) + offsets(x), updates=tf.transpose(x))


@rows
def sorted_updates_of_other_copies(x):
    repeated, tiled = copies(x)
    found = scattered(order(repeated) + tf.range(0, size(x) * 12, 6)[:, None], tiled, size(x) * 12)
    return tf.reshape(found, (-1, 12))


@rows
def sorted_into_wider_rows(x):
    return put(x, order(x) + offsets(x), 12)


@rows
def sorted_blocks_across_rows(x):
    """Two blocks a record, of 6 entries each, 3 apart."""
    blocks = tf.reshape(tf.concat([x, -x], 1), (-1, 6))
    found = scattered(order(blocks) + offsets(x, 3), blocks, size(x) * 6)
    return tf.reshape(found, (-1, 6))


@rows
def sorted_by_what_is_not_below(x):
    own = order(x)
    return put(x, tf.where(own < 1, own + 6, own) + offsets(x))


@rows
def sorted_by_what_is_greater(x):
    own = order(x)
    return put(x, tf.where(own > 0, own + 6, own) + offsets(x))


@rows
def sorted_by_a_choice(x):
    own = order(x)
    return put(x, tf.where(x > 0.0, 6 + own, own) + offsets(x))


@rows
def sorted_by_a_hidden_choice(x):
    own = order(x)
    return put(x, tf.where(own > hidden(x, 4), own + 1, own) + offsets(x))


@rows
def sorted_by_numbers_of_records(x):
    return put(x, tf.cast(tf.abs(x), tf.int32) + offsets(x))


@rows
def sorted_by_places_as_numbers(x):
    return x + tf.cast(order(x) + offsets(x), tf.float32)


@rows
def sorted_offsets_alone(x):
    return x + tf.cast(offsets(x), tf.float32)


@rows
def sorted_by_pairs_of_places(x):
    pairs = tf.reshape(order(x) + offsets(x), (-1, 2))
    found = tf.scatter_nd(pairs, tf.reshape(x[:, :3], (-1,)), tf.stack([size(x) * 6, 6]))
    return tf.reshape(tf.reduce_sum(found, 1), (-1, 6))


@rows
def sorted_in_the_batch(x):
    across = tf.transpose(x)
    own = order(across, size(x)) + tf.range(0, 6 * size(x), size(x))[:, None]
    return tf.transpose(put(across, own))


@rows
def sorted_entries_of_the_next(x):
    found = scattered(order(x) + offsets(x), x, size(x) * 6)
    return tf.reshape(tf.roll(found, 1, 0), (-1, 6))


@rows
def sorted_in_bytes(x):
    own = tf.cast(order(x) + offsets(x), tf.int8)
    return put(x, tf.maximum(tf.cast(own, tf.int32), 0))
