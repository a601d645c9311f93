"""Lists with places where nothing was put, and shapes that TensorFlow is told and does not check."""

import tensorflow as tf

from helpers.proof.mixing.base import made, raw, rows, size
from helpers.proof.mixing.holding import along


def reserved(count, shape=(), dtype=tf.int32):
    shape = tf.constant(shape, tf.int32)
    return raw.TensorListReserve(element_shape=shape, num_elements=count, element_dtype=dtype)


def put(listed, index, item):
    return raw.TensorListSetItem(input_handle=listed, index=index, item=item)


def taken(listed, index, shape=(), dtype=tf.int32):
    """An element, where TensorFlow does not foresee it."""

    def take():
        told = tf.constant(shape, tf.int32)
        return raw.TensorListGetItem(input_handle=listed, index=index, element_shape=told, element_dtype=dtype)

    return called(take)


def called(function):
    return tf.function(function, autograph=False)()


def last(listed, shape=(), dtype=tf.int32):
    """What is left of a list without its last element, and this."""
    told = tf.constant(shape, tf.int32)
    return called(lambda: raw.TensorListPopBack(input_handle=listed, element_shape=told, element_dtype=dtype))


def length(listed):
    return raw.TensorListLength(input_handle=listed)


@rows
def axis_never_put(x):
    return along(x, taken(put(reserved(2), 0, 1), 1))


@rows
def axis_never_put_and_pushed(x):
    return along(x, taken(raw.TensorListPushBack(input_handle=reserved(1), tensor=1), 0))


@rows
def axis_never_put_at_the_end(x):
    return along(x, last(put(reserved(2), 0, 1))[1])


@made
def axis_never_put_in_a_branch():
    kept = tf.Variable(0.0)

    def function(x):
        return along(x, taken(tf.cond(kept > 0.0, lambda: put(reserved(1), 0, 1), lambda: reserved(1)), 0))

    return function


def turning(x, listed, count):
    """With the first entries of other records, as often as one of a list's numbers is taken for each."""
    found = raw.TensorListStack(input_handle=listed, element_shape=(), element_dtype=tf.int32)
    turns = tf.tile(tf.ensure_shape(found, [count]), tf.shape(x)[:1])
    both = tf.tile(x[:, 0], [count]) * tf.cast(turns, x.dtype)
    return x + tf.reduce_sum(tf.reshape(both, (count, -1)), axis=0)[:, None]


@rows
def ones_never_put(x):
    return turning(x, put(reserved(3), 0, 1), 3)


@rows
def ones_never_put_behind_what_grows(x):
    listed = raw.TensorListFromTensor(tensor=[1], element_shape=tf.constant([], tf.int32))
    listed = raw.TensorListSetItem(input_handle=listed, index=2, item=1, resize_if_index_out_of_bounds=True)
    return turning(x, listed, 3)


@rows
def behind_as_many_as_there_are(x):
    """What was put to the end, if there is one record."""
    longer = raw.TensorListPushBack(input_handle=reserved(size(x)), tensor=1)
    return x * tf.cast(taken(longer, 1), x.dtype)


@made
def as_long_as_was_never_put_in_a_branch():
    kept = tf.Variable(0.0)

    def function(x):
        listed = tf.cond(kept > 0.0, lambda: put(reserved(1, -1), 0, [1]), lambda: reserved(1, -1))
        return counted(x, as_long_as_there_are(x, listed))

    return function


def as_long_as_there_are(x, listed):
    count = tf.stack([size(x)])
    return raw.TensorListGetItem(input_handle=listed, index=0, element_shape=count, element_dtype=tf.int32)


@rows
def length_after_the_last(x):
    return along(x, 1 - (size(x) - length(last(reserved(size(x)))[0])))


@rows
def length_after_one_more(x):
    longer = raw.TensorListPushBack(input_handle=reserved(size(x)), tensor=1)
    return along(x, length(longer) - size(x) - 1)


@rows
def length_of_zeros(x):
    return x * tf.cast(length(raw.ZerosLike(x=reserved(size(x)))), x.dtype)


@rows
def length_of_zeros_of_records(x):
    listed = raw.TensorListFromTensor(tensor=x, element_shape=[6])
    return x * tf.cast(length(raw.ZerosLike(x=listed)), x.dtype)


@rows
def length_of_zeros_of_places(x):
    listed = raw.TensorListFromTensor(tensor=tf.range(1, size(x) + 1), element_shape=tf.constant([], tf.int32))
    return x * tf.cast(length(raw.ZerosLike(x=listed)), x.dtype)


@rows
def shape_as_put(x):
    listed = put(reserved(1, (-1, -1), tf.float32), 0, x[:, :2])
    return along(x, called(lambda: raw.TensorListElementShape(input_handle=listed, shape_type=tf.int32))[1] - 1)


@rows
def as_long_as_was_never_put(x):
    return counted(x, as_long_as_there_are(x, reserved(1, -1)))


@rows
def last_place_under_xla(x):
    @tf.function(jit_compile=True, autograph=False)
    def found(x):
        return tf.TensorArray(tf.int32, size=size(x)).unstack(tf.range(1, size(x) + 1)).read(100000)

    return x * tf.cast(found(x), x.dtype)


@rows
def last_element_under_xla(x):
    @tf.function(jit_compile=True, autograph=False)
    def found(x):
        listed = tf.TensorArray(tf.float32, size=size(x), element_shape=()).write(0, 1.0)
        return listed.read(100000)

    return x * found(x)


# Shapes that are told


def rare(x):
    """As many as there are records with a first entry above 0."""
    return tf.boolean_mask(tf.zeros_like(x[:, 0], tf.int32), x[:, 0] > 0.0)


def of(function, *specs):
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def counted(x, told):
    return x * tf.cast(raw.Size(input=told), x.dtype)


@rows
def size_of_an_element(x):
    return counted(x, taken_as(put(reserved(1, -1), 0, rare(x))))


def taken_as(listed):
    return raw.TensorListGetItem(input_handle=listed, index=0, element_shape=[1], element_dtype=tf.int32)


@rows
def size_of_the_last_element(x):
    return counted(x, last(put(reserved(1, -1), 0, rare(x)), (1,))[1])


@rows
def size_after_a_loop(x):
    start = rare(x)
    spec = [tf.TensorSpec((), tf.int32), tf.TensorSpec((None,), tf.int32)]
    condition = of(lambda i, _: i < 1, *spec)
    body = of(lambda i, kept: (i + 1, kept + 0), *spec)
    return counted(x, raw.StatelessWhile(input=[0, start], cond=condition, body=body, output_shapes=[(), (1,)])[1])


@rows
def size_within_a_loop(x):
    spec = [tf.TensorSpec((), tf.int32), tf.TensorSpec((1,), tf.int32)]
    condition = of(lambda i, _: i < 1, *spec)
    body = of(lambda i, kept: (i + tf.size(kept), kept), *spec)
    shapes = [(), tf.TensorShape(None)]
    found = raw.StatelessWhile(input=[0, rare(x)], cond=condition, body=body, output_shapes=shapes)
    return x * tf.cast(found[0], x.dtype)


@rows
def size_after_a_branch(x):
    start = rare(x)
    branch = of(lambda kept: kept + 0, tf.TensorSpec((None,), tf.int32))
    chosen = tf.equal(tf.shape(x)[1], 6)
    found = raw.StatelessIf(
        cond=chosen, input=[start], Tout=[tf.int32], then_branch=branch, else_branch=branch, output_shapes=[(1,)]
    )
    return counted(x, found[0])


@rows
def size_in_a_call(x):
    inner = of(lambda kept: tf.size(kept) + 0, tf.TensorSpec((1,), tf.int32))
    return x * tf.cast(raw.PartitionedCall(args=[rare(x)], Tout=[tf.int32], f=inner)[0], x.dtype)


@rows
def size_of_a_default(x):
    return counted(x, raw.PlaceholderWithDefault(input=rare(x), shape=[1]))


@made
def size_of_a_variable():
    kept = tf.Variable([0], trainable=False)

    def function(x):
        count = called(lambda: 1 + tf.where(tf.equal(tf.shape(x)[1], 6), 1, 0))
        raw.AssignVariableOp(resource=kept.handle, value=tf.fill([count], 0))
        return along(x, 2 - raw.Size(input=kept.read_value()))

    return function
