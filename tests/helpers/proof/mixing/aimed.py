"""Each aimed at one rule: records meet in that operation first, so that nothing but its refusal is in the way."""

import tensorflow as tf

from helpers.proof.mixing.base import made, raw, rows, size, sums


def counts(x):
    """Of all records, as an integer."""
    return tf.reduce_sum(tf.cast(x[:, :2] > 0.0, tf.int32), axis=0)


@rows
def placeholder_for_what_mixes(x):
    return raw.PlaceholderWithDefault(input=x - tf.reduce_mean(x, axis=0), shape=(None, 6))


@rows
def sum_as_a_bias(x):
    return tf.nn.bias_add(x, tf.reduce_sum(x, axis=0))


@rows
def rows_by_index(x):
    return tf.gather_nd(x, tf.cast(x[:, :1] > 0.0, tf.int32))


@rows
def sum_where_the_class_is(x):
    return tf.one_hot(tf.cast(x[:, 0] > 0.0, tf.int32), 6, on_value=tf.reduce_sum(x))


@rows
def among_as_many_as_there_are(x):
    return raw.InTopKV2(predictions=x, targets=tf.cast(x[:, 0] > 0.0, tf.int32), k=size(x))


@sums
def ones_behind_the_records(x):
    return tf.reduce_sum(tf.concat([x, tf.ones((2, 6))], axis=0), axis=0)


@sums
def one_beside_the_sum(x):
    return tf.stack([tf.reduce_sum(x), tf.constant(1.0)])


@sums
def first_of_two_records(x):
    return raw.Unpack(value=x, num=2, axis=0)[0]


@rows
def weighted_by_the_sum(x):
    return tf.matmul(x[:, None, :], tf.reduce_sum(x, axis=0)[None, :, None])[:, 0] * x


@rows
def noise_of_a_counted_seed(x):
    return x + tf.random.stateless_normal((6,), counts(x))


@rows
def random_below_a_count(x):
    number = raw.RandomUniformInt(shape=[6], minval=-1, maxval=counts(x)[0])
    return x + tf.cast(number, tf.float32)


@sums
def bias_of_padded_records(x):
    return raw.BiasAddGrad(out_backprop=tf.pad(x, [[0, -size(x) % 4], [0, 0]], constant_values=1.0))


@sums
def squares_of_the_sum(x):
    return tf.nn.l2_loss(tf.reduce_sum(x, axis=0))


@rows
def anyone_with_one_axis_more(x):
    return x * tf.cast(tf.expand_dims(tf.reduce_any(x > 1.0), 0), tf.float32)


@sums
def the_only_record(x):
    return tf.reduce_sum(raw.Squeeze(input=x, axis=[0]))


@rows
def turned_if_the_batch_is_odd(x):
    return tf.transpose(x, tf.stack([size(x) % 2, 1 - size(x) % 2]))


@rows
def as_far_as_a_count(x):
    return x + tf.cast(tf.reduce_sum(tf.range(counts(x)[0])), tf.float32)


@rows
def filled_with_a_sum(x):
    return x + tf.fill([6], tf.reduce_sum(x))


@rows
def moved_down_by_a_gradient(x):
    shape = tf.stack([size(x) + 1, 6])
    return raw.StridedSliceGrad(shape=shape, begin=[1, 0], end=[0, 0], strides=[1, 1], dy=x, end_mask=3)


@made
def row_of_a_variable_by_a_count():
    table = tf.Variable(tf.random.normal((30, 6)))
    return lambda x: x + tf.gather(table, counts(x)[0])


@rows
def one_of_two_by_the_number(x):
    """Of a list of two, the first, where a third was put at a place that the number of records says."""
    kept = raw.TensorListReserve(element_shape=[-1, 6], num_elements=2, element_dtype=tf.float32)
    for place, value in ((0, x), (1, x * 2.0), (size(x) % 2, x * 3.0)):
        kept = raw.TensorListSetItem(input_handle=kept, index=place, item=value)
    return raw.TensorListGetItem(input_handle=kept, index=0, element_shape=[-1, 6], element_dtype=tf.float32)
