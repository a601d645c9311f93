"""Random operations: products, indices, whole numbers, branches and loops."""

import tensorflow as tf

from helpers.proof.random_drawing import FEATURES, Operation, collected, number, pick, real, rows, small, whole

OPERATIONS: list[Operation] = []
operation = collected(OPERATIONS)


@operation
def weighted(rng, tensors):
    tensor = real(rng, tensors)
    return tf.tensordot(tensor, rng.normal(size=(tensor.shape[-1], 3)), 1)


@operation
def einsum(rng, tensors):
    a, b = real(rng, tensors), real(rng, tensors)
    letters = "abcd"
    first = "".join(pick(rng, letters) for _ in a.shape)
    second = "".join(pick(rng, letters) for _ in b.shape)
    result = "".join(c for c in letters if c in first + second and rng.integers(3))
    return small(rng, tf.einsum(f"{first},{second}->{result}", a, b))


@operation
def gathered(rng, tensors):
    tensor, indices = (
        real(rng, tensors),
        pick(rng, [whole(rng, tensors), tf.constant([0]), tf.constant(0), tf.range(rows(tensors))]),
    )
    shared = pick(rng, [0, 0, 1])
    axis = int(rng.integers(shared, len(tensor.shape)))
    return tf.gather(tensor, indices % tf.shape(tensor)[axis], axis=axis, batch_dims=shared)


@operation
def from_table(rng, tensors):
    return tf.gather(tf.constant(rng.normal(size=(5, 2))), tf.abs(whole(rng, tensors)) % 5)


@operation
def classes(rng, tensors):
    return tf.one_hot(whole(rng, tensors) % 3, 3, dtype=tf.float64, axis=pick(rng, [-1, 0]))


@operation
def segments(rng, tensors):
    data, own = real(rng, tensors), whole(rng, tensors)
    count = pick(rng, [3, rows(tensors), rows(tensors) * 3])
    function = pick(rng, [tf.math.unsorted_segment_sum, tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max])
    found = function(data, own % count, count)
    return tf.maximum(found, -9.0)


@operation
def scattered(rng, tensors):
    return tf.scatter_nd(
        whole(rng, tensors)[..., None] % 3, real(rng, tensors), pick(rng, [[3], [3, FEATURES], [3, 2]])
    )


@operation
def places(rng, tensors):
    return pick(rng, [lambda i: i, lambda i: i * 3, lambda i: i[:, None]])(tf.range(rows(tensors)))


@operation
def integers(rng, tensors):
    a, b = whole(rng, tensors), whole(rng, tensors)
    function = pick(
        rng,
        [
            lambda: a + b,
            lambda: a * 3 + b,
            lambda: a * 2,
            lambda: a % 3,
            lambda: tf.cumsum(a, -1),
            lambda: tf.minimum(a, 2),
            lambda: tf.cast(a > b, tf.int32),
            lambda: a - b,
        ],
    )
    return function()


@operation
def own_segments(rng, tensors):
    own = tf.range(rows(tensors))[:, None] * pick(rng, [2, 3, 4])
    within = pick(rng, [whole(rng, tensors) % 3, tf.cumsum(tf.cast(whole(rng, tensors) > 0, tf.int32), axis=-1)])
    data = tf.reshape(real(rng, tensors), [-1])
    width = pick(rng, [3, 4])
    return tf.math.unsorted_segment_sum(data, tf.reshape(own + within, [-1]), rows(tensors) * width)


@operation
def numbers(rng, tensors):
    return tf.cast(pick(rng, [rows(tensors), whole(rng, tensors)]), tf.float64)


@operation
def filled(rng, tensors):
    shape = [number(rng, tensors) for _ in range(rng.integers(0, 3))]
    return tf.fill(shape, tf.constant(float(rng.integers(-1, 2)), tf.float64))


@operation
def alike(rng, tensors):
    return pick(rng, [tf.zeros_like, tf.ones_like])(real(rng, tensors))


@operation
def branch(rng, tensors):
    a, b = real(rng, tensors), real(rng, tensors)
    condition = pick(
        rng,
        [
            lambda: tf.reduce_all(real(rng, tensors) > 0.0),
            lambda: tf.reduce_any(real(rng, tensors) > 0.0),
            lambda: rows(tensors) > 2,
            lambda: rows(tensors) > 0,
            lambda: tf.constant(True),
        ],
    )
    return tf.cond(condition(), lambda: a, lambda: pick(rng, [b, a, a * 2.0]))


@operation
def shortcut(rng, tensors):
    a, fine = real(rng, tensors), real(rng, tensors)[..., 0] > pick(rng, [0.0, -1.0])
    shaped = tf.reshape(fine, [-1] + [1] * (len(a.shape) - 1))
    other = pick(rng, [0.0, tf.zeros_like(a), 1.0])
    careful = lambda: tf.reduce_sum(tf.tanh(tf.where(pick(rng, [shaped, shaped, ~shaped]), a, other)), -1)  # noqa: E731
    quick = lambda: tf.reduce_sum(tf.tanh(a), -1)  # noqa: E731
    pair = pick(rng, [(quick, careful), (quick, careful), (careful, quick)])
    return tf.cond(pick(rng, [tf.reduce_all, tf.reduce_any])(fine), *pair)


@operation
def rounds(rng, tensors):
    a, b = real(rng, tensors), real(rng, tensors)
    count = pick(rng, [2, 3, rows(tensors)])
    body = pick(
        rng, [lambda i, y: (i + 1, y + tf.tanh(b)), lambda i, y: (i + 1, tf.tanh(y + b)), lambda i, y: (i + 1, y * 0.5)]
    )
    return tf.while_loop(lambda i, y: i < count, body, [tf.constant(0), a])[1]


@operation
def pieces(rng, tensors):
    a = real(rng, tensors)
    step, length = pick(rng, [(2, 2), (3, 3), (2, 3), (3, 2), (1, 1)])
    limit = pick(rng, [tf.shape(a)[0], rows(tensors), rows(tensors) - 1])
    first = pick(rng, [0, 0, 0, 1])
    how = pick(rng, range(4))

    def body(i, total):
        own = a[i : i + tf.minimum(length, tf.shape(a)[0] - i)]
        found = tf.reduce_sum(tf.tanh(own), axis=0)
        found = found * tf.cast(i, tf.float64) if how == 1 else found
        return i + step, total * 0.5 + found if how == 2 else total + found

    start = tf.zeros(a.shape[1:], tf.float64)
    return tf.while_loop(lambda i, _: i < limit, body, [tf.constant(first), start])[1]


@operation
def mapped(rng, tensors):
    a, b = real(rng, tensors), real(rng, tensors)
    function = pick(
        rng,
        [
            lambda v: tf.reduce_sum(tf.tanh(v)),
            lambda v: v / (1.0 + tf.reduce_max(tf.abs(v))),
            lambda v: v + tf.reduce_mean(b),
            lambda v: tf.reduce_sum(v) + b[0],
        ],
    )
    return tf.map_fn(function, a)


@operation
def mapped_places(rng, tensors):
    a = real(rng, tensors)
    shift = pick(rng, [0, 0, 1])
    last = tf.shape(a)[0] - 1
    return tf.map_fn(
        lambda i: tf.tanh(a[tf.minimum(i + shift, last)]), tf.range(tf.shape(a)[0]), fn_output_signature=tf.float64
    )


@operation
def in_blocks(rng, tensors):
    """Blocks of records filled up, mapped, and cut back: as the convolutions do."""
    a = real(rng, tensors)
    count, together = tf.shape(a)[0], pick(rng, [2, 4])
    missing = tf.maximum(-(-count // together), 1) * together - count
    filled_up = tf.pad(a, [[0, missing]] + [[0, 0]] * (len(a.shape) - 1))
    shift = pick(rng, [0, 0, 1])
    mixing = pick(rng, [False, False, True])

    def block(start):
        own = tf.slice(filled_up, [start] + [0] * (len(a.shape) - 1), [together, *a.shape[1:]])
        return tf.tanh(own - tf.reduce_mean(own, axis=0) if mixing else own)

    found = tf.map_fn(block, tf.range(0, count + missing, together), fn_output_signature=tf.float64)
    whole_again = tf.reshape(found, (-1, *a.shape[1:]))
    return whole_again[shift : count + shift]
