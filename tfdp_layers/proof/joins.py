"""Tensors joined, filled up and taken apart. Along the records' axis only by whole batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.rules import Node, dims_of, entries_of, integers_of, refused_kind, rule
from tfdp_layers.proof.sizes import Number, divided, varies
from tfdp_layers.proof.values import Constant, MixedError, Rows, Total, Value
from tfdp_layers.proof.walks import padded


@rule("Pad", "PadV2", "MirrorPad")
def pad(node: Node, inputs: Sequence[Any]) -> Value:
    """Entries put before and after, constants or reflections; of the records' axis only rows that fill it up."""
    value, by = inputs[0], inputs[1]
    if len(inputs) > 2 and not isinstance(inputs[2], Constant):
        raise refused_kind(inputs[2], "what is padded with")
    zero = node.type == "Pad" or (len(inputs) > 2 and inputs[2].fill == 0.0)
    if isinstance(value, Total) and isinstance(by, Constant) and (zero or node.type == "MirrorPad"):
        return Total(None, batch=value.batch)
    if not isinstance(value, Rows):
        raise refused_kind(value, "padding")
    pads = entries_of(by, "the padding")
    pairs = list(zip(pads[::2], pads[1::2], strict=True))
    if any(varies(n) for i, pair in enumerate(pairs) for n in pair if i != value.axis):
        raise MixedError("padding by the number of records")
    shape = [None if n is None else n + sum(pair) for n, pair in zip(dims_of(value), pairs, strict=True)]
    if pairs[value.axis] == (0, 0):
        return dataclasses.replace(value, shape=tuple(shape), fill=None, within=None, runs=None)
    return filled_up(node, value, tuple(shape), pairs[value.axis])


def filled_up(node: Node, value: Rows, shape: Any, pair: tuple[Number, Number]) -> Rows:
    """Rows with others behind them, up to a multiple of a constant: no sum may go over those."""
    whole = padded(value.batch, value.batch.size + pair[1]) if pair[0] == 0 and node.type != "MirrorPad" else None
    if whole is None or (value.axis, value.outer, value.inner) != (0, 1, 1) or value.batch.padded:
        raise MixedError("rows of padding among the records")
    return Rows((whole.size, *shape[1:]), batch=node.prover.know(whole))


@rule("ConcatV2")
def concat(node: Node, inputs: Sequence[Any]) -> Value:
    """One behind the other along an axis: along the records' whole batches, else the parts of each record."""
    *parts, where = inputs
    if any(isinstance(v, Total) for v in parts):
        return totals_joined(parts) if isinstance(where, Constant) else mixed_axis()
    axis = integers_of(where, "the axis")[0] % len(dims_of(parts[0]))
    if other := [v for v in parts if not isinstance(v, Rows)]:
        raise refused_kind(other[0], "joined with rows")
    rows: Sequence[Rows] = parts
    if len({(v.batch, v.axis, v.inner) for v in rows}) > 1:
        raise MixedError("records along one axis joined with records along another")
    if rows[0].axis == axis:
        outer = sum(v.outer for v in rows)
        shape = tuple(
            None if i != axis else rows[0].batch.size * outer * rows[0].inner for i in range(len(dims_of(rows[0])))
        )
        return Rows(merged_sizes(rows, shape, axis), batch=rows[0].batch, axis=axis, outer=outer, inner=rows[0].inner)
    if len({v.outer for v in rows}) > 1:
        raise MixedError("records laid out in one order joined with records laid out in another")
    total = added_sizes(rows, axis)
    sizes = list(dims_of(rows[0]))
    sizes[axis] = total
    result = Rows(tuple(sizes), batch=rows[0].batch, axis=rows[0].axis, outer=rows[0].outer, inner=rows[0].inner)
    return dataclasses.replace(result, within=hull(rows), runs=runs_of(rows, axis))


def mixed_axis() -> Value:
    raise MixedError("an axis that depends on records")


def merged_sizes(rows: Sequence[Rows], shape: Sequence[Any], axis: int) -> tuple[Any, ...]:
    return tuple(n if i == axis else dims_of(rows[0])[i] for i, n in enumerate(shape))


def added_sizes(parts: Sequence[Any], axis: int) -> Number | None:
    sizes = [dims_of(v)[axis] for v in parts]
    return None if None in sizes else sum(n for n in sizes if n is not None)


def totals_joined(parts: Sequence[Any]) -> Value:
    """Sums over records (or zeros) side by side."""
    totals = [v for v in parts if isinstance(v, Total)]
    if not all(isinstance(v, Total) or (isinstance(v, Constant) and v.fill == 0.0) for v in parts):
        raise refused_kind(next(v for v in parts if not isinstance(v, Total)), "joined with a sum over records")
    if len({v.batch for v in totals}) > 1:
        raise MixedError("sums over different records joined")
    return Total(None, batch=totals[0].batch)


def hull(rows: Sequence[Rows]) -> tuple[Number, Number] | None:
    """Bounds of all, where they are plain integers; a constant of one number is bounded by it."""
    found = [bounds_of(v) for v in rows]
    flat = [n for pair in found if pair is not None for n in pair]
    if None in found or not all(isinstance(n, int) for n in flat):
        return None
    return min(flat, key=int), max(flat, key=int)  # type: ignore[arg-type]


def bounds_of(value: Rows) -> tuple[Number, Number] | None:
    if value.fill is not None and float(value.fill).is_integer():
        return int(value.fill), int(value.fill)
    return value.within


def runs_of(rows: Sequence[Rows], axis: int) -> tuple[int, Number, Number] | None:
    """Bounds of the sum of any leading entries along the axis, from those of the parts."""
    least: Number = 0
    most: Number = 0
    for value in rows:
        own, size = bounds_of(value), dims_of(value)[axis]
        if own is None or size is None or not all(isinstance(n, int) for n in own):
            return None
        least, most = least + min(own[0], 0) * size, most + max(own[1], 0) * size  # type: ignore[type-var]
    return axis, least, most


@rule("Pack")
def pack(node: Node, inputs: Sequence[Any]) -> Value:
    """Tensors of one shape along a new axis."""
    if any(isinstance(v, Total) for v in inputs):
        return totals_joined(inputs)
    rows = [v for v in inputs if isinstance(v, Rows)]
    if len(rows) < len(inputs) or len({(v.layout, v.axis) for v in rows}) > 1:
        other = next((v for v in inputs if not isinstance(v, Rows)), None)
        raise (
            refused_kind(other, "joined with rows")
            if other is not None
            else MixedError("records in different orders joined")
        )
    place = node.attribute("axis") % (len(dims_of(rows[0])) + 1)
    shape = list(dims_of(rows[0]))
    shape.insert(place, len(rows))
    axis = rows[0].axis + (place <= rows[0].axis)
    return Rows(tuple(shape), batch=rows[0].batch, axis=axis, outer=rows[0].outer, inner=rows[0].inner)


@rule("Unpack")
def unpack(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """The entries along an axis one by one."""
    value, count = inputs[0], len(node.operation.outputs)
    if isinstance(value, Total):
        return [Total(None, batch=value.batch)] * count
    if not isinstance(value, Rows):
        raise refused_kind(value, "taken apart")
    shape = dims_of(value)
    axis = node.attribute("axis") % len(shape)
    if axis == value.axis:
        raise MixedError("the batch taken apart into its rows")
    left = tuple(n for i, n in enumerate(shape) if i != axis)
    own = value.axis - (axis < value.axis)
    return [Rows(left, batch=value.batch, axis=own, outer=value.outer, inner=value.inner)] * count


@rule("Split", "SplitV")
def split(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Parts along an axis, of equal sizes (`Split`) or given ones: of the records' axis only whole copies of it."""
    plain = node.type == "Split"
    value, where = (inputs[1], inputs[0]) if plain else (inputs[0], inputs[2])
    count = len(node.operation.outputs)
    others = [v for v in inputs if v is not value]
    if isinstance(value, Total) and all(isinstance(v, Constant) for v in others):
        return [Total(None, batch=value.batch)] * count
    if not isinstance(value, Rows):
        raise refused_kind(value, "split")
    shape = list(dims_of(value))
    axis = integers_of(where, "the axis")[0] % len(shape)
    if axis == value.axis:
        outer = divided(value.outer, count) if plain else None
        if outer is None:
            raise MixedError("the batch split by places")
        shape[axis] = value.batch.size * outer * value.inner
        return [dataclasses.replace(value, shape=tuple(shape), outer=outer, within=None, runs=None)] * count
    if not plain and not isinstance(inputs[1], Constant):
        raise refused_kind(inputs[1], "sizes of parts")
    shape[axis] = None
    return [dataclasses.replace(value, shape=tuple(shape), runs=None)] * count
