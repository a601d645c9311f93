"""Random operations: entry by entry, over axes, and of shapes."""

import tensorflow as tf

from helpers.proof.random_drawing import Operation, axis_of, collected, number, pick, real, rows, small

OPERATIONS: list[Operation] = []
operation = collected(OPERATIONS)


@operation
def unary(rng, tensors):
    function = pick(
        rng, [tf.tanh, tf.abs, tf.square, tf.negative, tf.nn.relu, tf.sigmoid, tf.sin, tf.identity, tf.sign]
    )
    return small(rng, function(real(rng, tensors)))


@operation
def binary(rng, tensors):
    function = pick(rng, [tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum, tf.math.squared_difference])
    return small(rng, function(real(rng, tensors), real(rng, tensors)))


@operation
def linear(rng, tensors):
    return pick(rng, [tf.add, tf.subtract])(real(rng, tensors), real(rng, tensors))


@operation
def scaled(rng, tensors):
    return real(rng, tensors) * pick(rng, [0.5, -1.0, 2.0, 0.0])


@operation
def constants(rng, tensors):
    shape = [int(n) for n in rng.integers(1, 5, rng.integers(0, 3))]
    return real(rng, tensors) + rng.normal(size=shape)


@operation
def chosen(rng, tensors):
    condition = real(rng, tensors) > pick(rng, [0.0, real(rng, tensors)])
    return tf.where(condition, real(rng, tensors), pick(rng, [0.0, real(rng, tensors)]))


@operation
def reduced(rng, tensors):
    function = pick(
        rng,
        [tf.reduce_sum, tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_prod, tf.math.reduce_euclidean_norm],
    )
    tensor = real(rng, tensors)
    axes = pick(rng, [axis_of(rng, tensor), -1, [axis_of(rng, tensor)], None])
    return function(tensor, axis=axes, keepdims=bool(rng.integers(2)))


@operation
def summed(rng, tensors):
    tensor = real(rng, tensors)
    return tf.reduce_sum(tensor, axis=axis_of(rng, tensor), keepdims=bool(rng.integers(2)))


@operation
def reshaped(rng, tensors):
    tensor = pick(rng, tensors)
    shape = [number(rng, tensors) for _ in range(rng.integers(1, 4))]
    if rng.integers(2):
        shape[int(rng.integers(len(shape)))] = -1
    return tf.reshape(tensor, shape)


@operation
def flattened(rng, tensors):
    tensor = pick(rng, tensors)
    return tf.reshape(
        tensor, pick(rng, [[-1], [-1, 2], [2, -1], [rows(tensors), -1], [-1, rows(tensors)], [-1, 4], [-1, 1]])
    )


@operation
def transposed(rng, tensors):
    tensor = pick(rng, tensors)
    return tf.transpose(tensor, [int(n) for n in rng.permutation(len(tensor.shape))])


@operation
def expanded(rng, tensors):
    tensor = pick(rng, tensors)
    return tf.expand_dims(tensor, int(rng.integers(len(tensor.shape) + 1)))


@operation
def squeezed(rng, tensors):
    tensor = pick(rng, tensors)
    return tf.squeeze(tensor, pick(rng, [None, axis_of(rng, tensor)]))


@operation
def tiled(rng, tensors):
    tensor = real(rng, tensors)
    return tf.tile(tensor, [pick(rng, [1, 1, 2, 3, rows(tensors)]) for _ in tensor.shape])


@operation
def repeated(rng, tensors):
    tensor = real(rng, tensors)
    return tf.repeat(tensor, pick(rng, [2, 3, rows(tensors)]), axis=axis_of(rng, tensor))


@operation
def broadcast(rng, tensors):
    tensor = real(rng, tensors)
    return tf.broadcast_to(
        tensor, [number(rng, tensors) for _ in range(rng.integers(0, 2))] + list(tf.unstack(tf.shape(tensor)))
    )


@operation
def joined(rng, tensors):
    tensor = real(rng, tensors)
    others = [t for t in tensors if t.dtype == tf.float64 and len(t.shape) == len(tensor.shape)]
    return tf.concat([tensor, pick(rng, others)], axis_of(rng, tensor))


@operation
def stacked(rng, tensors):
    tensor = real(rng, tensors)
    others = [t for t in tensors if t.dtype == tf.float64 and len(t.shape) == len(tensor.shape)]
    return tf.stack([tensor, pick(rng, others)], int(rng.integers(len(tensor.shape) + 1)))


@operation
def unstacked(rng, tensors):
    tensor = pick(rng, tensors)
    return pick(rng, tf.unstack(tensor, axis=axis_of(rng, tensor)))


@operation
def split(rng, tensors):
    tensor = real(rng, tensors)
    return pick(rng, tf.split(tensor, pick(rng, [2, 3]), axis=axis_of(rng, tensor)))


@operation
def sliced(rng, tensors):
    tensor = pick(rng, tensors)
    batch = rows(tensors)
    ends = [None, None, batch, batch * pick(rng, [2, -1]), 1, 2, -1, 0, batch - 1]
    cuts = [
        pick(
            rng,
            [slice(None), slice(pick(rng, ends), pick(rng, ends), pick(rng, [None, None, 1, 2, -1])), 0, -1, batch - 1],
        )
        for _ in tensor.shape
    ]
    index = [pick(rng, [cut, cut, slice(None)]) for cut in cuts]
    if rng.integers(4) == 0:
        index.insert(int(rng.integers(len(index) + 1)), tf.newaxis)
    return tensor[tuple(index[: int(rng.integers(len(index) + 1))])]


@operation
def cut(rng, tensors):
    tensor = real(rng, tensors)
    begin = [pick(rng, [0, 0, 0, 1, rows(tensors)]) for _ in tensor.shape]
    sizes = [pick(rng, [-1, -1, 1, tf.shape(tensor)[i], rows(tensors)]) for i in range(len(tensor.shape))]
    return tf.slice(tensor, begin, sizes)


@operation
def padded(rng, tensors):
    tensor = real(rng, tensors)
    pads = [
        pick(rng, [[0, 0], [0, 0], [1, 0], [0, 2], [0, rows(tensors)], [0, -rows(tensors) % 4]]) for _ in tensor.shape
    ]
    return tf.pad(tensor, pads)


@operation
def along(rng, tensors):
    tensor = real(rng, tensors)
    axis = axis_of(rng, tensor)
    function = pick(
        rng,
        [
            lambda: tf.cumsum(tensor, axis, exclusive=bool(rng.integers(2)), reverse=bool(rng.integers(2))),
            lambda: tf.reverse(tensor, [axis]),
            lambda: tf.roll(tensor, int(rng.integers(-2, 3)), axis),
            lambda: tf.nn.softmax(tensor, axis),
            lambda: tf.sort(tensor, axis),
            lambda: tf.math.l2_normalize(tensor, axis, epsilon=0.1),
            lambda: tf.cast(tf.argmax(tensor, axis), tf.float64),
            lambda: tf.linalg.band_part(tensor, 0, -1),
            lambda: tf.math.top_k(tensor, 1).values,
        ],
    )
    return function()


@operation
def multiplied(rng, tensors):
    return small(
        rng,
        tf.matmul(
            real(rng, tensors),
            real(rng, tensors),
            transpose_a=bool(rng.integers(2)),
            transpose_b=bool(rng.integers(2)),
        ),
    )


@operation
def gradient_like(rng, tensors):
    return tf.matmul(real(rng, tensors), real(rng, tensors), transpose_a=True)
