"""Random programs of integers, and whether what the prover says of the numbers in their tensors is so.

Of `Rows` it says between which integers they lie, between which the sums of the first entries along an axis lie, or
that all are one number; of `Constant` and `Counted` which numbers they are. It holds whatever the records hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from helpers.proof.random_drawing import axis_of, collected, pick
from tfdp_layers.proof import proving
from tfdp_layers.proof.sizes import Number, Size, atoms
from tfdp_layers.proof.values import Batch, Constant, Counted, Rows

WIDTH = 3
SPEC = tf.TensorSpec((None, WIDTH), tf.int32)
Tensors = list[Any]
Operation = Callable[[np.random.Generator, Tensors], Any]
OPERATIONS: list[Operation] = []
_TYPES = (tf.int8, tf.uint8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32)
_NUMBERS = (0, 1, -1, 2, 3, 100, 127, 200, 256, 257, 2048, 30000, 10**8, 2**31 - 1)


def recent(rng: np.random.Generator, tensors: Tensors) -> Any:
    """One of the last three."""
    return tensors[-1 - int(rng.integers(min(3, len(tensors))))]


@collected(OPERATIONS)
def bounded(rng: np.random.Generator, tensors: Tensors) -> Any:
    """What is made so that bounds are known of it."""
    t = recent(rng, tensors)
    axis = axis_of(rng, t)
    makers = [
        lambda: tf.cast(t > 0, t.dtype),
        lambda: tf.cast(t > 0, t.dtype),
        lambda: tf.math.floormod(t, int(rng.integers(1, 4))),
        lambda: tf.argmax(t, axis, output_type=tf.int32),
        lambda: tf.math.top_k(t, int(rng.integers(1, 3))).indices,
        lambda: tf.argsort(t, axis=-1),
        lambda: tf.where(t > int(rng.integers(-1, 2)), t, pick(rng, tensors)),
        lambda: tf.where(tf.zeros_like(t) > 0, pick(rng, tensors), t),
    ]
    return pick(rng, makers)()


@collected(OPERATIONS)
def summed(rng: np.random.Generator, tensors: Tensors) -> Any:
    t = recent(rng, tensors)
    axis = pick(rng, [-1, axis_of(rng, t)])
    return tf.cumsum(t, axis=axis, exclusive=rng.random() < 0.2, reverse=rng.random() < 0.2)


@collected(OPERATIONS)
def joined(rng: np.random.Generator, tensors: Tensors) -> Any:
    """Joined along an axis, also one of size 1 with nothing; the sums of leading entries are bounded then."""
    t = recent(rng, tensors)
    axis = axis_of(rng, t)
    others = [t, tf.ones_like(t), tf.zeros_like(t), pick(rng, tensors)]
    makers = [
        lambda: tf.concat([t, pick(rng, others)], axis),
        lambda: tf.stack([t, t], int(rng.integers(t.shape.rank + 1))),
    ]
    return pick(rng, makers)()


@collected(OPERATIONS)
def joined_and_dropped(rng: np.random.Generator, tensors: Tensors) -> Any:
    """Joined with nothing along an axis of size 1, which is dropped or is not."""
    t = tf.cast(recent(rng, tensors) > 0, tf.int32)
    axis = int(rng.integers(1, t.shape.rank + 1))
    wide = tf.expand_dims(t, axis)
    nothing = wide[(*[slice(None)] * axis, slice(0))]
    own = tf.concat([wide, nothing], axis)
    return tf.squeeze(own, axis) if rng.random() < 0.7 else own


@collected(OPERATIONS)
def moved(rng: np.random.Generator, tensors: Tensors) -> Any:
    """The same entries on other axes."""
    t = recent(rng, tensors)
    single = [a for a in range(t.shape.rank) if t.shape[a] == 1]
    makers = [
        lambda: tf.expand_dims(t, int(rng.integers(t.shape.rank + 1))),
        lambda: tf.squeeze(t, single[:1]),
        lambda: tf.squeeze(t, single),
        lambda: tf.transpose(t, list(rng.permutation(t.shape.rank))),
        lambda: tf.reshape(t, [-1, *t.shape[1:][::-1]]),
        lambda: tf.reshape(t, [-1, 1, *t.shape[1:]]),
        lambda: tf.roll(t, 1, axis_of(rng, t)),
        lambda: tf.reverse(t, [axis_of(rng, t)]),
        lambda: tf.identity(t),
        lambda: tf.ensure_shape(t, t.shape),
    ]
    return pick(rng, makers)()


@collected(OPERATIONS)
def repeated(rng: np.random.Generator, tensors: Tensors) -> Any:
    """Parts of the entries, or several times the same."""
    t = recent(rng, tensors)
    count = int(rng.integers(1, 3))
    makers = [
        lambda: tf.tile(t, [1, *rng.integers(1, 3, t.shape.rank - 1)]),
        lambda: tf.tile(t, [2, *[1] * (t.shape.rank - 1)]),
        lambda: tf.broadcast_to(t, tf.concat([[count], tf.shape(t)], 0)),
        lambda: t[:, int(rng.integers(2)) :],
        lambda: t[:, :count],
        lambda: t[:, ::-1],
        lambda: tf.split(t, t.shape[1], 1)[0],
        lambda: tf.split(t, [t.shape[1]], 1)[0],
        lambda: tf.unstack(t, axis=1)[0],
        lambda: tf.gather(t, [0], axis=axis_of(rng, t)),
        lambda: tf.pad(t, [[0, 0], *[[1, 0]] * (t.shape.rank - 1)], constant_values=int(rng.integers(-1, 3))),
    ]
    return pick(rng, makers)()


@collected(OPERATIONS)
def computed(rng: np.random.Generator, tensors: Tensors) -> Any:
    """Other numbers, some of which do not fit their type."""
    t = recent(rng, tensors)
    narrow = pick(rng, [tf.int8, tf.uint8, tf.int64, tf.bool, tf.float16])
    makers = [
        lambda: -t,
        lambda: t + pick(rng, tensors),
        lambda: tf.minimum(t, pick(rng, tensors)),
        lambda: tf.cast(tf.cast(t, narrow), t.dtype),
        lambda: tf.cast(tf.cumsum(tf.cast(tf.tile(t > 0, [1, 60, *[1] * (t.shape.rank - 2)]), tf.int8), 1), t.dtype),
        lambda: tf.reduce_max(t, axis_of(rng, t)),
    ]
    return pick(rng, makers)()


@collected(OPERATIONS)
def of_constants(rng: np.random.Generator, tensors: Tensors) -> Any:
    """A number that several steps make of constants, in one of several types, for each record."""
    dtype = pick(rng, _TYPES)
    value = tf.cast(tf.constant(pick(rng, _NUMBERS), tf.int64), dtype) + tf.zeros((2,), dtype)
    for _ in range(int(rng.integers(1, 4))):
        other = tf.constant(
            np.full(2, pick(rng, [n for n in _NUMBERS if float(dtype.min) <= n <= float(dtype.max)])), dtype
        )
        steps = [lambda: value + other, lambda: value - other, lambda: value * other, lambda: tf.add_n([value] * 3)]  # noqa: B023
        value = pick(rng, [*steps, lambda: tf.gather(value, [int(rng.integers(-1, 3))])])()  # noqa: B023
    return tf.cast(tf.fill([tf.shape(tensors[0])[0], WIDTH], value[0]), tf.int32)


def drawn_function(seed: int, length: int) -> Callable[[Any], Tensors]:
    """A function of integers (records, 3) that a seed draws; operations that do not fit are left out."""

    def function(x: Any) -> Tensors:
        rng = np.random.default_rng(seed)
        tensors = [x, tf.cast(x > 0, tf.int32)]
        for _ in range(length):
            make = pick(rng, OPERATIONS)
            try:
                found = make(rng, tensors)
            except (ValueError, TypeError, IndexError, tf.errors.OpError):
                continue
            if found.shape.rank is not None and 1 <= found.shape.rank <= 4:
                tensors.append(found)
        return tensors

    return function


def claims_of(graph: tf.Graph) -> tuple[Batch, list[tuple[Any, Any]]]:
    """The records, and each tensor of a graph with what is said of it, where that is something about its numbers."""
    batch = Batch(proving.symbol("records", varies=True, least=1))
    prover = proving.Prover([batch])
    given = proving.given(graph, {}, list(graph.inputs), batch)
    frame = proving.Frame("", proving.CALL, graph, values=given)
    prover.run(frame)
    tensors = [tensor for operation in graph.get_operations() for tensor in operation.outputs]
    found = [(tensor, frame.values[tensor.name]) for tensor in tensors]
    return batch, [(tensor, value) for tensor, value in found if says_something(value)]


def says_something(value: Any) -> bool:
    if isinstance(value, Rows):
        return not (value.within is None and value.runs is None and value.fill is None)
    return isinstance(value, Constant | Counted) and not (value.entries is None and value.fill is None)


def at(number: Number, batch: Batch, count: int) -> int | None:
    """A number where there are `count` records; None if it depends on anything else."""
    if not isinstance(number, Size):
        return number
    if atoms(number) != atoms(batch.size):
        return None
    return sum(factor * count ** len(monomial) for monomial, factor in number.terms)


def faults(value: Any, numbers: np.ndarray, batch: Batch, count: int) -> Iterator[str]:
    """What is said of a tensor and is not so of its numbers."""
    if value.fill is not None and not np.all(numbers.astype(float) == value.fill):
        yield f"all are {value.fill}"
    if not isinstance(value, Rows):
        wanted = [at(n, batch, count) for n in value.entries or ()]
        if any(n is not None and n != own for n, own in zip(wanted, numbers.ravel(), strict=bool(wanted))):
            yield f"they are {wanted}"
        return
    if value.within is not None and outside(numbers, value.within, batch, count):
        yield f"within {value.within}"
    if value.runs is not None and value.runs[0] >= numbers.ndim:
        yield f"sums along axis {value.runs[0]}"
    elif value.runs is not None:
        sums = np.cumsum(numbers.astype(object), axis=value.runs[0])
        if outside(sums, value.runs[1:], batch, count):
            yield f"sums {value.runs}"


def outside(numbers: np.ndarray, bounds: tuple[Number, Number], batch: Batch, count: int) -> bool:
    least, most = (at(n, batch, count) for n in bounds)
    below = least is not None and bool(np.any(numbers < least))
    return below or (most is not None and bool(np.any(numbers > most)))


def false_claims(seed: int, *, length: int = 12, compiled: bool = False) -> tuple[list[str], int]:
    """(what is said of tensors of the program that a seed draws and is not so; how often something was compared).

    Args:
        compiled: whether XLA runs it, which computes something also where TensorFlow's own kernels fail.
    """
    traced = tf.compat.v1.wrap_function(drawn_function(seed, length), [SPEC])
    batch, claims = claims_of(traced.graph)
    if not claims:
        return [], 0
    run = traced.prune(list(traced.graph.inputs), [tensor for tensor, _ in claims])
    if compiled:
        run = tf.function(run, jit_compile=True)
    rng, found, compared = np.random.default_rng(seed), [], 0
    for count in (1, 2, 3):
        try:
            results = run(tf.constant(rng.integers(-3, 4, (count, WIDTH)), tf.int32))
        except tf.errors.OpError:
            continue
        for (tensor, value), numbers in zip(claims, results, strict=True):
            compared += 1
            texts = faults(value, np.asarray(numbers.numpy()), batch, count)
            found += [f"seed {seed}, {count} records, {tensor.name}: {text}" for text in texts]
    return found, compared
