"""Random small functions of records, and whether what is proved of them is so in numbers.

A function is drawn operation by operation, with axes, permutations, shapes and indices drawn alike from sensible and
mixing ones. Where a proof says yes, numbers must agree: in batches of several sizes and orders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.proof import prove, prove_rows

FEATURES = 4
SPECS = [tf.TensorSpec((None, FEATURES), tf.float64), tf.TensorSpec((None, 3), tf.int32)]
Tensors = list[Any]
Operation = Callable[[np.random.Generator, Tensors], Any]
OPERATIONS: list[Operation] = []


def operation(function: Operation) -> Operation:
    OPERATIONS.append(function)
    return function


def pick(rng: np.random.Generator, values: Any) -> Any:
    values = list(values)
    return values[int(rng.integers(len(values)))]


def real(rng: np.random.Generator, tensors: Tensors) -> Any:
    return pick(rng, [t for t in tensors if t.dtype == tf.float64])


def whole(rng: np.random.Generator, tensors: Tensors) -> Any:
    return pick(rng, [t for t in tensors if t.dtype == tf.int32])


def axis_of(rng: np.random.Generator, tensor: Any) -> int:
    return int(rng.integers(len(tensor.shape)))


def small(rng: np.random.Generator, tensor: Any) -> Any:
    """The tensor, bounded, so that sums stay comparable."""
    return tf.tanh(tensor) * 2.0


def rows(tensors: Tensors) -> Any:
    return tf.shape(tensors[0])[0]


def number(rng: np.random.Generator, tensors: Tensors) -> Any:
    """A size: of the batch or a multiple, of an axis of a tensor, or a small constant."""
    tensor = pick(rng, tensors)
    own = [lambda n: n, lambda n: n, lambda n: n * 2, lambda n: n * FEATURES, lambda n: n + 1, lambda n: n // 2]
    found = pick(rng, [*own, 1, 2, 3, FEATURES, -1, *[("axis", i) for i in range(len(tensor.shape))]])
    if isinstance(found, tuple):
        return tf.shape(tensor)[found[1]]
    return found(rows(tensors)) if callable(found) else found


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


def drawn_function(seed: int, length: int = 8) -> Callable[..., Any]:
    """A function drawn from a seed; operations that do not fit are left out."""

    def function(x, ids):
        rng = np.random.default_rng(seed)
        tensors = [x, ids, tf.reduce_sum(x, axis=1)]
        for _ in range(length):
            make = pick(rng, OPERATIONS)
            try:
                found = make(rng, tensors)
            except (ValueError, TypeError, IndexError, NotImplementedError, tf.errors.OpError):
                continue
            if found.shape.rank is not None and found.shape.rank <= 4:
                tensors.append(found)
        return [t for t in tensors[3:] if t.dtype == tf.float64] or [x]

    return function


def batch(rng: np.random.Generator, count: int) -> Tensors:
    return [tf.constant(rng.normal(size=(count, FEATURES))), tf.constant(rng.integers(-1, 4, (count, 3)), tf.int32)]


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Inside the block functions run operation by operation.

    Grappler takes it for granted that none fails: of a product that fits one record alone it infers that there is one,
    and drops the sums over records.
    """
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


def false_proof(seed: int, length: int = 8) -> tuple[str, int]:
    """(what is proved of the function drawn from a seed, but is not so: "" if nothing; how much was proved)."""
    with as_written():
        return checked(seed, length)


def checked(seed: int, length: int) -> tuple[str, int]:
    traced = tf.function(drawn_function(seed, length), autograph=False).get_concrete_function(*SPECS)
    row_findings, sum_findings = prove_rows(traced).findings, prove(traced).findings
    proofs = [f.status == "proved" for f in (*row_findings, *sum_findings)]
    if not any(proofs):
        return "", 0
    rng = np.random.default_rng(seed)
    for count in (3, 5, 2, 4, 1):
        data = batch(rng, count)
        order = rng.permutation(count)
        try:
            together = traced(*data)
            turned = traced(*[tf.gather(t, order) for t in data])
            alone = [traced(*[t[i : i + 1] for t in data]) for i in range(count)]
        except tf.errors.OpError:
            continue
        for i, (own, one) in enumerate(zip(row_findings, sum_findings, strict=True)):
            values = [np.asarray(v[i]) for v in (together, turned)]
            parts = [np.asarray(v[i]) for v in alone]
            if own.status == "proved" and not rows_agree(values, parts, order):
                return f"output {i} ({own.name}) is not row by row at {count} records", sum(proofs)
            if one.status == "proved" and not sums_agree(values, parts):
                return f"output {i} ({one.name}) is not a sum over {count} records", sum(proofs)
    return "", sum(proofs)


def rows_agree(values: list[np.ndarray], parts: list[np.ndarray], order: np.ndarray) -> bool:
    together, turned = values
    if together.shape[:1] != (len(parts),) or any(p.shape != (1, *together.shape[1:]) for p in parts):
        return False
    return close(together, np.concatenate(parts)) and close(turned, together[order])


def sums_agree(values: list[np.ndarray], parts: list[np.ndarray]) -> bool:
    together, turned = values
    if any(p.shape != together.shape for p in parts):
        return False
    return close(together, sum(parts)) and close(turned, together)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, 1e-6, 1e-6, equal_nan=True))
