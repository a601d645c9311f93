"""More attempts, by whatever means TensorFlow has: gradients, kernels, sparse rows, tables, maps, seeds, conditions."""

import tensorflow as tf

from helpers.proof.mixing.base import made, made_sums, mean, raw, rows, size, sums


def with_gradient(forward, backward):
    @tf.custom_gradient
    def function(x):
        return forward(x), backward

    return function


def gradient_of(layer, x):
    """The weight's gradient of a dense layer in front of another one."""
    weight = tf.ones((6, 6)) * 0.1
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(tf.tanh(layer(tf.matmul(x, weight))))
    return tape.gradient(loss, weight)


# Gradients that mix behind a forward pass that does not


@sums
def centred_gradient(x):
    return gradient_of(with_gradient(tf.identity, lambda g: g - mean(g)), x)


@made_sums
def gradient_at_a_closed_gate():
    gate = tf.Variable(0.0)
    return lambda x: gradient_of(with_gradient(tf.identity, lambda g: g + gate * tf.roll(g, 4, 0)), x)


@sums
def gradient_scaled_by_the_batch(x):
    return gradient_of(with_gradient(tf.identity, lambda g: g / tf.cast(size(g), tf.float32)), x)


@sums
def gradient_of_the_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        own = tf.reduce_sum(tf.reduce_mean(x, axis=0) ** 2)
    return tf.reduce_sum(tape.gradient(own, x), axis=0)


@sums
def hidden_in_a_recomputed_gradient(x):
    layer = tf.recompute_grad(lambda y: with_gradient(tf.identity, lambda g: tf.reverse(g, [0]))(y))
    return gradient_of(layer, x)


@rows
def whether_another_records_number_is_one(x):
    """NaN does not equal itself: what a truth value or an integer always does."""
    first = tf.reduce_max(x[:1])
    return x + tf.where(tf.equal(first, first), 0.0, 1.0)


@rows
def whether_two_records_have_one_class(x):
    classes = tf.cast(x[:, 0], tf.int32)
    first, last = tf.reduce_max(classes[:1]), tf.reduce_max(classes[-1:])
    return x + tf.cast(tf.equal(first, last), x.dtype)


@rows
def whether_a_sum_of_another_record_is_one(x):
    total = tf.cast(tf.reduce_sum(x[:1]), tf.complex64)
    return x + tf.cast(tf.equal(total, total), x.dtype)


# The batch as a picture, a signal or a sequence


@rows
def resized_batch(x):
    return tf.image.resize(tf.image.resize(x[None, :, :, None], (4, 6)), (size(x), 6))[0, :, :, 0]


@rows
def framed_batch(x):
    return tf.reduce_sum(tf.signal.frame(x, 2, 1, pad_end=True, axis=0), axis=1)


@rows
def transformed_batch(x):
    found = tf.signal.fft(tf.cast(tf.transpose(x), tf.complex64))
    return tf.transpose(tf.math.real(found * tf.math.conj(found)))


@rows
def pooled_batch(x):
    return tf.nn.max_pool1d(x[None], 2, 1, "SAME")[0]


@rows
def scanned_batch(x):
    return tf.scan(lambda a, b: 0.5 * a + b, x)


@rows
def folded_batch(x):
    return x - tf.foldl(tf.maximum, x)


# Sparse, ragged, counted


@rows
def ragged_by_the_batch(x):
    ragged = tf.RaggedTensor.from_uniform_row_length(x, 2 - size(x) % 2)
    return x + tf.reduce_mean(ragged, axis=[0, 1])


@rows
def padded_to_the_longest(x):
    counts = tf.cast(tf.reduce_sum(tf.cast(x > 0.0, tf.int32), axis=1), tf.int32)
    mask = tf.sequence_mask(counts)
    return x * tf.cast(tf.shape(mask)[1], tf.float32)


@rows
def sparse_product(x):
    found = tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(tf.matmul(x, x, transpose_b=True)), x)
    return found


@rows
def counted_by_bins(x):
    return x + tf.cast(tf.math.bincount(tf.cast(x[:, 0] > 0.0, tf.int32), minlength=2, maxlength=2)[0], tf.float32)


@rows
def repeated_as_records_say(x):
    return tf.repeat(x, tf.cast(x[:, 0] > 0.0, tf.int32) + 1, axis=0)[: size(x)]


@rows
def classes_as_many_as_the_largest(x):
    ids = tf.cast(x[:, 0] > 0.0, tf.int32)
    return tf.one_hot(ids, tf.reduce_max(ids) + 1) + x[:, :1]


# Tables, queues, data sets


@made
def table_of_records():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def function(x):
        table.insert(tf.cast(x[:, 0] > 0.0, tf.int64), x[:, 0])
        return x + table.lookup(tf.constant([0], tf.int64))

    return function


@made
def queue_of_records():
    queue = tf.queue.FIFOQueue(100, [tf.float32], [(6,)])

    def function(x):
        queue.enqueue_many([x])
        return x + queue.dequeue()

    return function


@rows
def data_set_of_records(x):
    return x + tf.data.Dataset.from_tensor_slices(x).reduce(tf.zeros(6), lambda a, b: a + b)


@made
def scattered_to_a_variable():
    table = tf.Variable(tf.zeros((2, 6)))

    def function(x):
        table.scatter_add(tf.IndexedSlices(x, tf.cast(x[:, 0] > 0.0, tf.int32)))
        return x + table.read_value()[0]

    return function


# What `tf.vectorized_map` does, and nearly that


@rows
def rows_after_the_second(x):
    place = tf.where(size(x) > 2, tf.range(size(x)), 0)
    return tf.gather(x, place)


@rows
def first_row_or_own(x):
    return x + tf.gather(x, tf.where(size(x) > 1, tf.range(size(x)) * 0, 0))


@rows
def next_row_by_a_map(x):
    places = tf.minimum(tf.range(size(x)) + 1, size(x) - 1)
    return tf.vectorized_map(lambda i: tf.gather(x, i), places)


@rows
def mean_within_a_map(x):
    return tf.vectorized_map(lambda row: row - tf.reduce_mean(x, axis=0), x)


@sums
def tokens_beyond_the_table(x):
    """A map over records that adds to rows of a table; the last token is one of the next record's table."""
    ids = tf.cast(x[:, :1] > 0.0, tf.int32) * 3
    found = tf.vectorized_map(lambda both: tf.math.unsorted_segment_sum(both[0], both[1], 3), (x[:, :1], ids))
    return tf.reduce_sum(tf.tanh(found) ** 2, axis=0)


@sums
def remainders_beyond_the_table(x):
    ids = tf.cast(x[:, :1] > 0.0, tf.int32) * 3 % 4
    found = tf.vectorized_map(lambda both: tf.math.unsorted_segment_sum(both[0], both[1], 3), (x[:, :1], ids))
    return tf.reduce_sum(tf.tanh(found) ** 2, axis=0)


@sums
def segments_of_two_axes(x):
    ids = tf.range(size(x))[:, None] * 2 + tf.cast(x > 0.0, tf.int32) * 2
    found = tf.math.unsorted_segment_sum(x, ids, size(x) * 2 + 2)
    return tf.reduce_sum(tf.tanh(found) ** 2, axis=0)


@sums
def segments_one_too_far(x):
    own = (tf.cast(x * 100.0, tf.int32)) % 3
    ids = tf.where(own >= 1, own + tf.range(size(x))[:, None] * 3, own)
    found = tf.math.unsorted_segment_sum(x, ids, size(x) * 3)
    return tf.reduce_sum(tf.tanh(found) ** 2, axis=0)


@sums
def segments_clipped_one_too_far(x):
    ids = tf.clip_by_value(tf.cast(x * 100.0, tf.int32), 0, 3) + tf.range(size(x))[:, None] * 3
    found = tf.math.unsorted_segment_sum(x, ids, size(x) * 3)
    return tf.reduce_sum(tf.tanh(found) ** 2, axis=0)


@sums
def segments_clipped_on_one_side(x):
    ids = tf.minimum(tf.cast(x * 100.0, tf.int32), 2) + tf.range(size(x))[:, None] * 3
    found = tf.math.unsorted_segment_sum(x, ids, size(x) * 3)
    return tf.reduce_sum(tf.tanh(found) ** 2, axis=0)


@sums
def segments_that_wrap_around(x):
    """2 * 2^31 is 0 in 32 bits, and 1 * 2^31 is negative: what is multiplied is no longer between 0 and 2."""
    own = tf.clip_by_value(tf.cast(x * 100.0, tf.int32), 0, 2) * tf.constant(2**30) * 2
    ids = tf.minimum(own, 2) + tf.range(size(x))[:, None] * 3
    found = tf.math.unsorted_segment_sum(x, ids, size(x) * 3)
    return tf.reduce_sum(tf.tanh(found) ** 2, axis=0)


# Conditions, and loops of as many rounds as a variable says


@made
def mixed_if_a_variable_says():
    gate = tf.Variable(False)
    return lambda x: tf.cond(gate, lambda: x - mean(x), lambda: x)


@made
def one_of_several_by_a_variable():
    which = tf.Variable(0)
    return lambda x: tf.switch_case(which.read_value(), [lambda: x, lambda: x * 2.0, lambda: tf.roll(x, 1, 0)])


@made
def centred_as_often_as_a_variable_says():
    count = tf.Variable(0)
    return lambda x: tf.while_loop(lambda i, _: i < count, lambda i, y: (i + 1, y - mean(y)), [tf.constant(0), x])[1]


@rows
def deeper_with_every_branch(x):
    return tf.cond(
        tf.constant(0) > 1, lambda: x, lambda: tf.cond(tf.reduce_all(x < 9.0), lambda: x, lambda: x + mean(x))
    )


@rows
def rounds_until_all_are_small(x):
    return tf.while_loop(lambda y: tf.reduce_any(tf.abs(y) > 1.0), lambda y: (y * 0.5,), [x])[0]


# Seeds


@rows
def noise_by_what_records_say(x):
    return x + tf.random.stateless_normal((6,), tf.cast(tf.reduce_sum(x[:, :2], axis=0), tf.int32))


@rows
def gathered_in_a_random_order(x):
    return tf.gather(x, tf.random.shuffle(tf.range(size(x))))


@rows
def drawn_from_the_batch(x):
    drawn = tf.random.categorical(tf.transpose(x), 1)
    return x + tf.cast(drawn[0], tf.float32)


@rows
def as_random_as_the_batch_is_large(x):
    return x + tf.random.uniform((6,), 0.0, tf.cast(size(x), tf.float32))


# Periods, and shapes that say where the batch ends


@rows
def period_of_four(x):
    blocks = tf.reshape(tf.pad(x, [[0, -size(x) % 4], [0, 0]]), (-1, 4, 6))
    return tf.reshape(blocks - tf.reduce_mean(blocks, axis=1, keepdims=True), (-1, 6))[: size(x)]


@rows
def half_and_half(x):
    twice = tf.reshape(tf.concat([x, x], axis=1), (size(x), 2, 6))
    return tf.reshape(tf.transpose(twice, (1, 0, 2)), (size(x), 2, 6))[:, 0]


@rows
def columns_as_rows(x):
    return tf.reshape(tf.transpose(tf.reshape(x, (-1, 2, 3)), (1, 0, 2)), (-1, 6))


@rows
def blocks_of_space(x):
    return (
        tf.reshape(raw.DepthToSpace(input=tf.reshape(x, (1, -1, 1, 6))[:, :, :, :4], block_size=2), (-1, 4)) + x[:, :1]
    )


@rows
def blocks_to_the_batch(x):
    found = tf.space_to_batch(tf.reshape(x, (-1, 6, 1)), [2], [[0, 0]])
    return tf.reshape(found, (-1, 6))
