"""Entries picked by indices, and put or added to places that indices say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.arithmetic import computed
from tfdp_layers.proof.places import plain, segments, spread
from tfdp_layers.proof.rules import (
    Node,
    dims_of,
    entries_of,
    integers_of,
    refused_kind,
    require_constants,
    rule,
    summed,
)
from tfdp_layers.proof.values import Constant, Counted, MixedError, Places, Rows, Special, Total, UnknownError, Value
from tfdp_layers.proof.walks import picked


@rule("GatherV2")
def gather(node: Node, inputs: Sequence[Any]) -> Value:
    """Slices along an axis of `data`, those that `indices` say; the first `batch_dims` axes of both are the same.

    Guarantee: a record's own indices pick from a constant, or from its own entries; constant ones from its own. The
    records' axis is never picked from, but for the row that a loop over records stands at.
    Assumes that an index that is out of range fails, gives zeros, or picks what one in range does, as XLA clamps it; in
    which of these ways, the device decides and not the other records.
    """
    data, indices = inputs[0], inputs[1]
    require_constants(inputs[2:], "the axis")
    if isinstance(indices, Special):
        return spread(data, indices)
    shared = node.attribute("batch_dims", 0)
    if isinstance(data, Rows) and isinstance(indices, Places):
        return every_row(data, indices, integers_of(inputs[2], "the axis")[0], shared)
    if isinstance(data, Total) and isinstance(indices, Constant):
        return Total(None, batch=data.batch)
    rank, places = len(dims_of(data)), dims_of(indices)
    axis, shared = integers_of(inputs[2], "the axis")[0] % rank, shared + (len(places) if shared < 0 else 0)
    shape = (*dims_of(data)[:axis], *places[shared:], *dims_of(data)[axis + 1 :])
    if isinstance(data, Rows) and isinstance(indices, Rows):
        if data.axis != indices.axis or data.axis >= shared or data.layout != indices.layout:
            raise MixedError("entries of some records picked by others")
        return laid_out(data, shape, data.axis)
    if isinstance(data, Rows) and isinstance(indices, Constant | Counted):
        return by_constants(node, data, indices, axis, shared, shape)
    if isinstance(data, Constant) and isinstance(indices, Rows):
        if indices.axis < shared:
            raise MixedError("a constant with an entry for each place in the batch")
        return laid_out(indices, shape, axis + indices.axis - shared)
    raise refused_kind(indices if isinstance(data, Rows | Constant) else data, "entries picked by indices")


def every_row(data: Rows, indices: Places, axis: int, shared: int) -> Rows:
    """All records in their order. Raises MixedError for others."""
    own = plain(indices) and indices.batch == data.batch and (data.axis, data.outer, data.inner) == (0, 1, 1)
    if not own or axis != 0 or shared != 0:
        raise MixedError("rows of the batch picked by their places")
    return data


def by_constants(node: Node, data: Rows, indices: Any, axis: int, shared: int, shape: Sequence[Any]) -> Value:
    """The same entries of every record."""
    if axis == data.axis and axis == 0 and dims_of(indices) == () and (data.outer, data.inner) == (1, 1):
        place = entries_of(indices, "an index")[0]
        return picked(node.frame.walk(), data.batch, place, tuple(dims_of(data)[1:]))
    if axis == data.axis or not isinstance(indices, Constant):
        raise MixedError("rows of the batch picked by their places")
    if data.axis < shared:
        raise MixedError("a constant with an entry for each place in the batch")
    moved = data.axis if data.axis < axis else data.axis + len(dims_of(indices)) - shared - 1
    return laid_out(data, shape, moved)


def laid_out(like: Rows, shape: Sequence[Any], axis: int) -> Rows:
    return Rows(tuple(shape), batch=like.batch, axis=axis, outer=like.outer, inner=like.inner)


@rule("GatherNd")
def gather_nd(node: Node, inputs: Sequence[Any]) -> Value:
    """Slices of a constant by the record's own indices."""
    data, indices = inputs
    if not isinstance(data, Constant) or not isinstance(indices, Rows):
        raise refused_kind(data if not isinstance(data, Constant) else indices, "entries picked by indices")
    places = dims_of(indices)
    if indices.axis == len(places) - 1 or not isinstance(places[-1], int):
        raise MixedError("an index made of several records")
    return laid_out(indices, (*places[:-1], *dims_of(data)[places[-1] :]), indices.axis)


@rule("OneHot")
def one_hot(node: Node, inputs: Sequence[Any]) -> Value:
    """Where each index is, a number on a new axis."""
    indices = inputs[0]
    require_constants(inputs[1:], "a parameter")
    if not isinstance(indices, Rows):
        raise refused_kind(indices, "classes")
    shape = list(dims_of(indices))
    place = node.attribute("axis") % (len(shape) + 1)
    shape.insert(place, None)
    return laid_out(indices, shape, indices.axis + (place <= indices.axis))


@rule("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def segment(node: Node, inputs: Sequence[Any]) -> Value:
    """Entries of `data` put together by the segments that `ids` say.

    Guarantee: of rows with their own ids a sum over records (of sums alone); with constant ids of other axes row by
    row; with ids that are of each record's own place row by row (`places`).
    """
    data, ids, count = inputs
    plain = node.type == "UnsortedSegmentSum"
    if isinstance(data, Rows) and isinstance(ids, Places):
        return segments(data, ids, entries_of(count, "the number of segments")[0])
    require_constants([count], "the number of segments")
    if isinstance(data, Total) and isinstance(ids, Constant) and plain:
        return Total(None, batch=data.batch)
    if isinstance(data, Rows) and isinstance(ids, Rows) and plain:
        if data.axis != ids.axis or data.layout != ids.layout:
            raise MixedError("rows put together by other records' segments")
        return summed(data, None)
    if isinstance(data, Rows) and isinstance(ids, Constant) and data.axis >= len(dims_of(ids)):
        rest = dims_of(data)[len(dims_of(ids)) :]
        size = None if count.entries is None else count.entries[0]
        return laid_out(data, (size, *rest), data.axis - len(dims_of(ids)) + 1)
    raise MixedError("rows of different records put together in segments")


@rule("ScatterNd")
def scatter_nd(node: Node, inputs: Sequence[Any]) -> Value:
    """Each record's updates added at its own indices: a sum over records; with constant indices sums stay sums.

    At indices among the entries of each record's own place the updates stay row by row (`places`).
    """
    indices, updates, shape = inputs
    if isinstance(indices, Places) and isinstance(updates, Rows):
        return scattered(indices, updates, entries_of(shape, "the shape"))
    require_constants([shape], "the shape")
    if isinstance(updates, Total) and isinstance(indices, Constant):
        return Total(None, batch=updates.batch)
    if not isinstance(indices, Rows) or not isinstance(updates, Rows):
        raise refused_kind(indices if not isinstance(indices, Rows) else updates, "entries put to places")
    if indices.axis != updates.axis or indices.layout != updates.layout or indices.axis == len(dims_of(indices)) - 1:
        raise MixedError("rows put to places that other records say")
    return summed(updates, None)


def scattered(indices: Places, updates: Rows, shape: Sequence[Any]) -> Rows:
    """Rows put to entries of their own record along axis 0, of indices (.., 1)."""
    places = dims_of(indices)
    if places[-1] != 1 or indices.axis == len(places) - 1:
        raise MixedError("an index made of several places of records")
    found = segments(updates, dataclasses.replace(indices, shape=places[:-1]), shape[0])
    if tuple(shape[1:]) != dims_of(found)[1:]:
        raise UnknownError("rows put to places of another size")
    return found


@rule("DynamicStitch", own=True)
def stitch(node: Node, inputs: Sequence[Any]) -> Sequence[Value]:
    """Known integers, put together by their places: of others a place may be left out, and then hold anything."""
    found = computed(node, inputs) if all(isinstance(value, Constant | Counted) for value in inputs) else None
    if found is None:
        raise UnknownError("values put together by their places, of which some may be left out")
    return found
