"""Operations on integers, called with arguments that a seed draws: also with such as TensorFlow's kernels refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.proof import proving
from tfdp_layers.proof.rules import numbers, types

raw = tf.raw_ops
Draw = Callable[[np.random.Generator], Sequence[Any]]


def ints(rng: np.random.Generator, *shape: int, low: int = -3, high: int = 4) -> np.ndarray:
    return np.asarray(rng.integers(low, high, shape), np.int32)


def two(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays, mostly of shapes that fit each other."""
    return ints(rng, *rng.integers(1, 3, 2)), ints(rng, *rng.integers(1, 3, 2))


def table(rng: np.random.Generator) -> np.ndarray:
    return ints(rng, 2, 3)


def with_ints(*shape: int, low: int = -3, high: int = 4) -> Draw:
    """A table, and integers that say what is done to it."""
    return lambda rng: (table(rng), ints(rng, *shape, low=low, high=high))


def entrywise(function: Callable[..., Any]) -> tuple[Callable[..., Any], Draw]:
    return function, two


def stitched(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    first, other = ints(rng, 2, low=-1, high=3), ints(rng, 1, low=0, high=3)
    return first, other, ints(rng, 2, 2), ints(rng, 1, 2)


CALLS: dict[str, tuple[Callable[..., Any], Draw]] = {
    "Pack": entrywise(lambda a, b: raw.Pack(values=[a, b])),
    "Unpack": (lambda a: tf.unstack(a, axis=1), lambda rng: (table(rng),)),
    "Split": (lambda a, n: raw.Split(axis=n, value=a, num_split=2), with_ints(low=-4)),
    "SplitV": (
        lambda a, s, n: raw.SplitV(value=a, size_splits=s, axis=n, num_split=2),
        lambda rng: (*with_ints(2, low=-1, high=3)(rng), ints(rng, low=-2, high=3)),
    ),
    "ConcatV2": (lambda a, b, n: raw.ConcatV2(values=[a, b], axis=n), lambda rng: (*two(rng), ints(rng))),
    "Reshape": (lambda a, s: tf.reshape(a, s), with_ints(2, low=-2, high=7)),
    "ExpandDims": (lambda a, n: raw.ExpandDims(input=a, axis=n), with_ints(low=-5, high=5)),
    "Squeeze": (lambda a: raw.Squeeze(input=a), lambda rng: (ints(rng, *rng.integers(1, 3, 2)),)),
    "Transpose": (lambda a, n: tf.transpose(a, n), with_ints(2, low=-1, high=3)),
    "ReverseV2": (lambda a, n: raw.ReverseV2(tensor=a, axis=n), with_ints(2, low=-1, high=3)),
    "Tile": (lambda a, n: tf.tile(a, n), with_ints(2, low=-1)),
    "Pad": (lambda a, n: raw.Pad(input=a, paddings=n), with_ints(2, 2, low=-1)),
    "PadV2": (lambda a, n: raw.PadV2(input=a, paddings=n, constant_values=7), with_ints(2, 2, low=-1)),
    "Fill": (lambda s, n: raw.Fill(dims=s, value=n), lambda rng: (ints(rng, 2, low=-1), ints(rng))),
    "BroadcastTo": (lambda a, s: tf.broadcast_to(a, s), lambda rng: (ints(rng, 1, 3), ints(rng, 2, low=-1))),
    "BroadcastArgs": (
        lambda a, b: raw.BroadcastArgs(s0=a, s1=b),
        lambda rng: [ints(rng, int(rng.integers(4)), low=-1) for _ in range(2)],
    ),
    "Range": (lambda a, b, c: raw.Range(start=a, limit=b, delta=c), lambda rng: [ints(rng) for _ in range(3)]),
    "Slice": (
        lambda a, b, s: tf.slice(a, b, s),
        lambda rng: (*with_ints(2, low=-1, high=3)(rng), ints(rng, 2, low=-2, high=3)),
    ),
    "StridedSlice": (
        lambda a, b, e, s: raw.StridedSlice(input=a, begin=b, end=e, strides=s, shrink_axis_mask=1, begin_mask=2),
        lambda rng: (*with_ints(2)(rng), ints(rng, 2), ints(rng, 2, low=-1, high=3)),
    ),
    "GatherV2": (
        lambda a, i, n: raw.GatherV2(params=a, indices=i, axis=n),
        lambda rng: (*with_ints(2, low=-1, high=3)(rng), ints(rng, low=-2, high=3)),
    ),
    "InvertPermutation": (lambda a: raw.InvertPermutation(x=a), lambda rng: (ints(rng, 2, low=-1, high=3),)),
    "ConcatOffset": (
        lambda n, a, b: raw.ConcatOffset(concat_dim=n, shape=[a, b]),
        lambda rng: (ints(rng), ints(rng, 2, low=1, high=3), ints(rng, 2, low=1, high=3)),
    ),
    "DynamicStitch": (lambda i, j, a, b: raw.DynamicStitch(indices=[i, j], data=[a, b]), stitched),
    "Select": (
        lambda c, a, b: raw.Select(condition=c > 0, x=a, y=b),
        lambda rng: (ints(rng, *pick_shape(rng)), *two(rng)),
    ),
    "SelectV2": (lambda c, a, b: raw.SelectV2(condition=c > 0, t=a, e=b), lambda rng: (ints(rng, 2), *two(rng))),
    "AddN": entrywise(lambda a, b: raw.AddN(inputs=[a, b])),
    **{
        name: (lambda a, n, name=name: getattr(raw, name)(input=a, axis=n), with_ints(1))
        for name in ("Sum", "Prod", "Max", "Min")
    },
    **{
        name: (lambda a, n, name=name: getattr(raw, name)(input=a > 0, axis=n), with_ints(2, low=-1, high=3))
        for name in ("All", "Any")
    },
    **{
        name: entrywise(lambda a, b, name=name: getattr(raw, name)(x=a, y=b))
        for name in types(
            "Add AddV2 Sub Mul FloorDiv FloorMod Maximum Minimum Equal NotEqual Less Greater LessEqual GreaterEqual"
        )
    },
    **{
        name: entrywise(lambda a, b, name=name: getattr(raw, name)(x=a > 0, y=b > 0))
        for name in ("LogicalAnd", "LogicalOr")
    },
    "LogicalNot": (lambda a: raw.LogicalNot(x=a > 0), lambda rng: (table(rng),)),
    "Cast": (lambda a: tf.cast(a, tf.uint8), lambda rng: (table(rng),)),
    **{
        name: (lambda a, name=name: getattr(raw, name)(x=a), lambda rng: (table(rng),))
        for name in ("Neg", "ZerosLike", "OnesLike")
    },
    **{
        name: (lambda a, name=name: getattr(raw, name)(input=a), lambda rng: (table(rng),))
        for name in ("Identity", "StopGradient")
    },
    "EnsureShape": (lambda a: tf.ensure_shape(a, (2, 3)), lambda rng: (table(rng),)),
}
"""By type of operation: a call of it, and how its arguments are drawn."""


def pick_shape(rng: np.random.Generator) -> tuple[int, ...]:
    return ((), (1,), (2,), (2, 2))[int(rng.integers(4))]


def said_and_computed(name: str, seed: int) -> tuple[list[Any], list[Any] | None, bool] | None:
    """What the prover says of the results of a call, and what the kernel computes, None where it refuses.

    Returns:
        (entries of each result, None where nothing is said; the results, None where the kernel fails; whether there is
        such an operation in the graph), or None where TensorFlow does not even make a graph.
    """
    call, draw = CALLS[name]
    arguments = draw(np.random.default_rng(seed))
    try:
        traced = tf.compat.v1.wrap_function(
            lambda *tensors: call(*tensors), [tf.TensorSpec(one.shape, one.dtype) for one in arguments]
        )
    except (ValueError, tf.errors.OpError):
        return None
    graph = traced.graph
    prover = proving.Prover([proving.Batch(proving.symbol("records", varies=True, least=1))])
    frame = proving.Frame("", proving.CALL, graph)
    for tensor, one in zip(graph.inputs, arguments, strict=True):
        frame.values[tensor.name] = numbers([int(n) for n in one.ravel()], one.shape)
    prover.run(frame)
    said = [known(frame.values[tensor.name]) for tensor in graph.outputs]
    try:
        results = traced(*[tf.constant(one) for one in arguments])
    except tf.errors.OpError:
        return said, None, True
    found = results if isinstance(results, list | tuple) else [results]
    return said, [one.numpy() for one in found], any(one.type == name for one in graph.get_operations())


def known(value: Any) -> Any:
    """The entries that are said to be in a result, all integers; None if that is not said."""
    entries = getattr(value, "entries", None)
    return entries if entries is not None and all(isinstance(n, int) for n in entries) else None
