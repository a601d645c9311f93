"""Operations that only put entries elsewhere: reshapes, transposes, repetitions."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.rules import (
    Node,
    all_constant,
    axes_of,
    dims_of,
    entries_of,
    integers_of,
    refused_kind,
    rule,
    shape_of,
)
from tfdp_layers.proof.settling import concrete
from tfdp_layers.proof.shapes import filled_with
from tfdp_layers.proof.sizes import Number, Size, divided, varies
from tfdp_layers.proof.values import (
    Batch,
    Constant,
    Counted,
    MixedError,
    Places,
    RefusalError,
    Rows,
    Special,
    Total,
    UnknownError,
    Value,
)


def in_shape(node: Node, value: Rows | Places, shape: Sequence[Number]) -> Value:
    """The same entries in row-major order in another shape, if the records stay together in one axis.

    Proof: entry (.., i, b, j, ..) of the records' axis stands behind `before` = (axes in front) * outer records and in
    front of `after` = inner * (axes behind). An axis of p * size * q entries, with p dividing `before` in whole axes in
    front of it and q dividing `after`, has the records in the same order.
    """
    known = shape_of(value)
    before = math.prod(known[: value.axis]) * value.outer
    after = value.inner * math.prod(known[value.axis + 1 :])
    batches = node.prover.batches
    for axis, size in enumerate(shape):
        front, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        if varies(front) or varies(behind):
            continue
        outer, inner = divided(before, front), divided(after, behind)
        if outer is None or inner is None:
            continue
        length = outer * value.batch.size * inner
        if size == length or (size == concrete(length, batches) and isinstance(size, int)):
            if isinstance(value, Places) and outer != 1:
                break
            return placed(value, shape, axis, outer, inner)
    if math.prod(shape) != math.prod(known):
        raise UnknownError(f"a reshape of {text(known)} to {text(shape)}, which fits some numbers of records alone")
    raise MixedError(f"a reshape of {text(known)} to {text(shape)}, which cuts across records")


def placed(value: Rows | Places, shape: Sequence[Number], axis: int, outer: Number, inner: Number) -> Value:
    if isinstance(value, Places):
        return dataclasses.replace(value, shape=tuple(shape), axis=axis, inner=inner)
    return dataclasses.replace(value, shape=tuple(shape), axis=axis, outer=outer, inner=inner, runs=None)


def text(shape: Sequence[Any]) -> str:
    return "(" + ", ".join(str(n) for n in shape) + ")"


@rule("Reshape", makes=True)
def reshape(node: Node, inputs: Sequence[Any]) -> Value:
    """Entries in row-major order in another shape; -1 stands for what is left over."""
    value = inputs[0]
    if isinstance(value, Total) and isinstance(inputs[1], Constant):
        return Total(None, batch=value.batch)
    shape = list(entries_of(inputs[1], "the shape"))
    if -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        total = math.prod(shape_of(value))
        left = divided(total, rest) if rest != 0 else None
        fixed = concrete(total, node.prover.batches)
        if isinstance(value, Rows) and isinstance(total, Size) and fixed is not None and isinstance(rest, int):
            left = left_of_fixed(node, value, shape, left, divided(fixed, rest) if rest else None)
        if left is None and isinstance(total, int):
            raise UnknownError("a reshape that does not fit")
        if left is None:
            raise UnknownError(f"a reshape of {text(shape_of(value))} to {text(shape)}, which fits some batches alone")
        shape[shape.index(-1)] = left
    if isinstance(value, Special):
        return blocks_joined(value, shape)
    if isinstance(value, Constant | Counted):
        return of_number(node, value, shape)
    if isinstance(value, Total):
        raise MixedError("a sum over records reshaped by the number of records")
    if not isinstance(value, Rows | Places):
        raise refused_kind(value, "a reshape")
    return in_shape(node, value, shape)


def left_of_fixed(
    node: Node, value: Rows, shape: Sequence[Number], left: Number | None, plain: Number | None
) -> Number | None:
    """What -1 stands for in a shape, of batches of a fixed size: their size times something, or a plain number.

    Both are the same number. The one that keeps records apart is taken.
    """
    for one in (left, plain):
        with contextlib.suppress(RefusalError):
            if one is not None:
                in_shape(node, value, [one if n == -1 else n for n in shape])
                return one
    return left if left is not None else plain


def of_number(node: Node, value: Constant | Counted, shape: Sequence[Number]) -> Value:
    """A constant in a shape that may hold the records."""
    if any(varies(n) for n in shape) and value.fill is not None:
        return filled_with(node, tuple(shape), value.fill)
    return type(value)(tuple(shape), entries=value.entries, fill=value.fill)


def blocks_joined(value: Special, shape: Sequence[Number]) -> Rows:
    """Blocks of rows, one behind the other: the rows of a batch that was filled up."""
    if value.idiom != "blocks" or value.shape is None:
        raise MixedError("the place of a record as a value")
    batch: Batch = value.parts[0]
    if tuple(shape) != (batch.size, *value.shape[2:]):
        raise UnknownError("blocks of rows reshaped otherwise than to rows")
    return Rows(tuple(shape), batch=batch)


@rule("ExpandDims")
def expand_dims(node: Node, inputs: Sequence[Any]) -> Value:
    """One axis more, of size 1."""
    value = inputs[0]
    shape = list(dims_of(value))
    place = integers_of(inputs[1], "the axis")[0]
    place = place if place >= 0 else place + len(shape) + 1
    return with_axes(value, [*shape[:place], 1, *shape[place:]], lambda axis: axis + (place <= axis))


@rule("Squeeze")
def squeeze(node: Node, inputs: Sequence[Any]) -> Value:
    """Fewer axes, all of size 1."""
    value = inputs[0]
    if isinstance(value, Total):
        return Total(None, batch=value.batch)
    shape = dims_of(value)
    dims = [n % len(shape) for n in node.attribute("squeeze_dims")]
    sizes = [concrete(n, node.prover.batches) for n in shape]
    if not dims and None in sizes:
        raise UnknownError("axes of size 1 dropped, which the records' axis may be")
    dims = dims or [i for i, n in enumerate(sizes) if n == 1]
    if isinstance(value, Rows | Places) and value.axis in dims:
        raise MixedError("the axis of the records dropped, as if there were one record alone")
    left = [n for i, n in enumerate(shape) if i not in dims]
    return with_axes(value, left, lambda axis: None if axis in dims else axis - sum(i < axis for i in dims))


@rule("Transpose")
def transpose(node: Node, inputs: Sequence[Any]) -> Value:
    """Axes in another order."""
    value = inputs[0]
    if isinstance(value, Total) and isinstance(inputs[1], Constant):
        return Total(None, batch=value.batch)
    order = axes_of(inputs[1], len(dims_of(value)))
    return with_axes(value, [dims_of(value)[i] for i in order], order.index)


def with_axes(value: Any, shape: Sequence[Any], moved: Any) -> Value:
    """The value with its axes moved: `moved` says where an axis goes, None for one that is dropped.

    Bounds of the sums along an axis that is dropped are of nothing then: other entries follow one another.
    """
    if isinstance(value, Rows):
        to = None if value.runs is None else moved(value.runs[0])
        runs = None if to is None or value.runs is None else (to, *value.runs[1:])
        return dataclasses.replace(value, shape=tuple(shape), axis=moved(value.axis), runs=runs)
    if isinstance(value, Places):
        return dataclasses.replace(value, shape=tuple(shape), axis=moved(value.axis))
    if isinstance(value, Total):
        return Total(tuple(shape), batch=value.batch)
    if isinstance(value, Counted):
        return Counted(tuple(shape))
    raise refused_kind(value, "axes moved")


@rule("Tile", makes=True)
def tile(node: Node, inputs: Sequence[Any]) -> Value:
    """Repeated along its axes: along that of the records, all records as often as each other."""
    value = inputs[0]
    if isinstance(value, Total) and isinstance(inputs[1], Constant):
        return Total(None, batch=value.batch)
    times = entries_of(inputs[1], "how often something is repeated")
    shape = [n * t for n, t in zip(shape_of(value), times, strict=True)]
    if isinstance(value, Constant):
        return tiled_constant(node, value, times, shape)
    if any(varies(t) for t in times):
        raise MixedError("repeated as often as there are records")
    if not isinstance(value, Rows):
        raise refused_kind(value, "repeated")
    return dataclasses.replace(value, shape=tuple(shape), outer=value.outer * times[value.axis], runs=None)


def tiled_constant(node: Node, value: Constant, times: Sequence[Number], shape: Sequence[Number]) -> Value:
    """A constant repeated, perhaps once for each record."""
    if not any(varies(t) for t in times):
        return Constant(tuple(shape), fill=value.fill)
    return filled_with(node, tuple(shape), value.fill)


@rule("SpaceToBatchND", "BatchToSpaceND")
def space_and_batch(node: Node, inputs: Sequence[Any]) -> Value:
    """Blocks of positions moved in front of the records within axis 0, or back: (block * batch, ...)."""
    value = inputs[0]
    if not all_constant(inputs[1:]) or not isinstance(value, Rows):
        raise refused_kind(value if not isinstance(value, Rows) else inputs[1], "blocks of positions")
    blocks = math.prod(integers_of(inputs[1], "the size of blocks"))
    if value.axis != 0:
        raise MixedError("records moved into another axis block by block")
    if node.type == "SpaceToBatchND":
        outer: Number | None = blocks * value.outer
    else:
        outer = divided(value.outer, blocks)
    if outer is None:
        raise MixedError("records moved out of their axis block by block")
    shape = (value.batch.size * outer * value.inner, *[None] * (node.rank() - 1))
    return Rows(shape, batch=value.batch, outer=outer, inner=value.inner)
