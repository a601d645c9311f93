"""Integers that tell the place of a record, and the few things that may be done with them.

That a result is the same wherever a record stands cannot be said of a place itself. It can be said of rows that were
put into a segment of each record's own (`tf.math.unsorted_segment_sum` over place * stride + v with 0 <= v < stride),
and of rows of a piece that a loop over records puts back at their places. Anything else is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.intervals import interval_of
from tfdp_layers.proof.rules import Node, dims_of
from tfdp_layers.proof.sizes import Number, at_least, is_below, varies
from tfdp_layers.proof.values import Carried, Constant, Counted, MixedError, Places, Rows, Special, UnknownError, Value
from tfdp_layers.proof.walks import piece

_WHY = "the place of a record as a value"
FROM, BEFORE, OWN, CUT, OWN_PLACE, SPREAD, PLACED = "from", "before", "own", "cut", "own place", "spread", "placed"


def with_places(node: Node, inputs: Sequence[Any]) -> Value:
    """Arithmetic of places, and the idiom that puts a piece's rows back: see `put_back`."""
    if node.type in ("Cast", "Neg") or len(inputs) == 1:
        if node.type == "Cast" and node.dtype().is_integer and isinstance(inputs[0], Places):
            return inputs[0]
        raise MixedError(_WHY)
    if any(isinstance(value, Special) for value in inputs):
        return put_back(node, inputs)
    if node.type in ("Select", "SelectV2"):
        return selected(node, inputs)
    first, second = inputs[0], inputs[1]
    if len(inputs) != 2 or (not isinstance(first, Places) and node.type not in ("Add", "AddV2", "Mul")):
        raise MixedError(_WHY)
    places, other = (first, second) if isinstance(first, Places) else (second, first)
    if isinstance(other, Rows) and node.type in ("Add", "AddV2"):
        if other.within is None:
            own = node.operation.inputs[0 if other is first else 1]
            other = dataclasses.replace(other, within=interval_of(node.frame.values, own))
        return plus_rows(places, other)
    number = scalar(other)
    if node.type in ("Add", "AddV2", "Sub"):
        by = number if node.type != "Sub" else -number
        return dataclasses.replace(places, least=places.least + by, most=places.most + by)
    if node.type == "Mul" and not varies(number) and (at_least(number) or 0) >= 1:
        low, high = places.least * number, places.most * number
        return dataclasses.replace(places, stride=places.stride * number, least=low, most=high)
    return compared(node, places, number)


def selected(node: Node, inputs: Sequence[Any]) -> Places:
    """A place, where it is the same as what is taken otherwise, or nothing is: two steps of `tf.vectorized_map`.

    `tf.where(count > 1, place, 0)`, since the only record of one stands at 0; `tf.where(own >= 0, place + own, own)`,
    where `own` is known to be at least 0.
    """
    condition, places, other = node.operation.inputs[0].op, inputs[1], inputs[2]
    if not isinstance(places, Places) or condition.type not in ("Greater", "GreaterEqual"):
        raise MixedError(_WHY)
    first, second = (node.frame.values[tensor.name] for tensor in condition.inputs)
    if condition.type == "Greater":
        alike = plain(places) and scalar(other) == 0 and (scalar(first), scalar(second)) == (places.batch.size, 1)
    else:
        bounded = isinstance(first, Rows) and first.within is not None and (at_least(first.within[0]) or 0) >= 0
        alike = bounded and at_least(first.within[0]) is not None and scalar(second) == 0
        alike = alike and dims_of(first) == dims_of(other) == dims_of(places)
    if not alike:
        raise MixedError(_WHY)
    return places


def plain(places: Places) -> bool:
    """Whether entry i is i, of an integer for each record."""
    return len(dims_of(places)) == 1 and (places.stride, places.least, places.most, places.inner) == (1, 0, 0, 1)


def scalar(value: Any) -> Number:
    """The one entry of an integer without axes. Raises MixedError where it is something else."""
    if not isinstance(value, Constant | Counted) or value.entries is None or dims_of(value) != ():
        raise MixedError(_WHY)
    return value.entries[0]


def plus_rows(places: Places, rows: Rows) -> Places:
    """place * stride + v, v of the record's own and within bounds."""
    rank = max(len(dims_of(places)), len(dims_of(rows)))
    shapes = [(1,) * (rank - len(dims_of(v))) + dims_of(v) for v in (places, rows)]
    axes = {v.axis + rank - len(dims_of(v)) for v in (places, rows)}
    alike = rows.batch == places.batch and len(axes) == 1 and (rows.outer, rows.inner) == (1, places.inner)
    if not alike or rows.within is None:
        raise MixedError(_WHY)
    if any(a != b and 1 not in (a, b) for a, b in zip(*shapes, strict=True)):
        raise UnknownError("sizes that may differ")
    sizes = [b if a == 1 else a for a, b in zip(*shapes, strict=True)]
    low, high = places.least + rows.within[0], places.most + rows.within[1]
    return dataclasses.replace(places, shape=tuple(sizes), axis=axes.pop(), least=low, most=high)


def compared(node: Node, places: Places, number: Number) -> Special:
    """Steps of the idiom: of places less `start`, whether they are from 0 on, or before a length; or cut to those."""
    start = -places.least if places.stride == 1 and places.least == places.most else None
    if start is None or len(dims_of(places)) != 1:
        raise MixedError(_WHY)
    idioms = {"GreaterEqual": FROM, "Less": BEFORE, "Minimum": CUT}
    if node.type not in idioms or (node.type == "GreaterEqual" and number != 0):
        raise MixedError(_WHY)
    return Special(places.shape, idiom=idioms[node.type], parts=(places.batch, start, number))


def put_back(node: Node, inputs: Sequence[Any]) -> Value:
    """Where a place is in this round's piece, the piece's row; elsewhere what was carried along.

    `tf.where((place - start >= 0) & (place - start < size), tf.gather(own, cut(place - start)), carried)`, with
    cut(p) = max(min(p, size - 1), 0). Every round puts the rows of its own piece; so in the end each row is its own.
    """
    idioms = [value.idiom for value in inputs if isinstance(value, Special)]
    first = inputs[0]
    if node.type == "LogicalAnd" and sorted(idioms) == [BEFORE, FROM]:
        before, after = sorted(inputs, key=lambda value: value.idiom)
        if before.parts[:2] != after.parts[:2]:
            raise MixedError(_WHY)
        return Special(first.shape, idiom=OWN, parts=before.parts)
    if node.type == "Maximum" and idioms == [CUT] and isinstance(first, Special) and scalar(inputs[1]) == 0:
        batch, start, most = first.parts
        return Special(first.shape, idiom=OWN_PLACE, parts=(batch, start, most + 1))
    if node.type == "SelectV2" and idioms == [OWN, SPREAD] and isinstance(inputs[2], Carried):
        return placed(node, first, inputs[1], inputs[2])
    raise MixedError(_WHY)


def spread(rows: Any, place: Special) -> Special:
    """`tf.gather(rows, place)`: at the places of the piece its rows, anything elsewhere."""
    if place.idiom != OWN_PLACE or not isinstance(rows, Rows) or len(dims_of(rows)) != 1:
        raise MixedError(_WHY)
    batch, start, size = place.parts
    own = rows.batch
    fits = (own.parent, own.start, own.size) == (batch, start, size) or (
        own.parent,
        own.start,
        own.static,
    ) == place.parts
    if not fits or (rows.outer, rows.inner) != (1, 1):
        raise MixedError(_WHY)
    return Special(place.shape, idiom=SPREAD, parts=(batch, start, size))


def placed(node: Node, own: Special, values: Special, carried: Carried) -> Carried:
    """The carried rows with this round's in their places."""
    walk = node.frame.walk()
    if walk is None or carried.loop != walk.key or own.parts != values.parts or carried.put is not None:
        raise MixedError(_WHY)
    batch, start, size = own.parts
    piece(walk, batch, start, size)  # raises unless the rounds' pieces make up the batch
    if carried.start.shape != (batch.size,):
        raise UnknownError("a shape is not known")
    return dataclasses.replace(carried, put=Special(None, idiom=PLACED, parts=(batch, ())))


def segments(data: Rows, places: Places, count: Number) -> Rows:
    """Rows put into segments of their own record. Raises MixedError where they might be put into another's."""
    inside = (at_least(places.least) or 0) >= 0 and at_least(places.least) is not None
    if not inside or not is_below(places.most, places.stride) or count != places.batch.size * places.stride:
        raise MixedError("rows put into segments that are not each record's own")
    if (data.batch, data.axis, data.outer, data.inner) != (places.batch, 0, 1, places.inner):
        raise MixedError("rows of one record put into another's segments")
    if places.axis != 0:
        raise UnknownError("segments along several axes")
    return Rows((count, *dims_of(data)[len(dims_of(places)) :]), batch=data.batch, inner=places.stride)
