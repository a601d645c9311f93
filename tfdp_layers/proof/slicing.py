"""Parts of tensors. Of the records' axis only all of it, or whole copies, or a round's piece of a loop over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.rules import Node, dims_of, entries_of, refused_kind, rule, shape_of
from tfdp_layers.proof.settling import concrete
from tfdp_layers.proof.sizes import Number, at_least, divided, varies
from tfdp_layers.proof.values import Constant, MixedError, Places, Rows, Total, UnknownError, Value
from tfdp_layers.proof.walks import picked, piece


def part_of_records(node: Node, value: Any, start: Number, size: Number) -> Any:
    """Entries start ... start + size - 1 of the records' axis, which the new value has.

    Guarantee: all of them; or the same copies of the batch for all records; or the rows of a batch without those that
    it was filled up with; or the piece of this round of a loop over records.
    Raises: MixedError for any other part: which records it holds depends on their places.
    """
    batch, length = value.batch, value.length
    if start == 0 and size in (length, concrete(length, node.prover.batches)):
        return value
    if isinstance(value, Rows) and (value.outer, value.inner) == (1, 1):
        if batch.padded and batch.parent is not None and not batch.loop and start == 0 and size == batch.parent.size:
            return dataclasses.replace(value, batch=batch.parent)
        walk = node.frame.walk()
        if walk is not None and (varies(start) or varies(size)):
            own = node.prover.know(piece(walk, batch, start, size))
            return dataclasses.replace(value, batch=own)
    if isinstance(value, Rows):
        copy = batch.size * value.inner
        first, count = divided(start, copy), divided(size, copy)
        if first is not None and count is not None and within_copies(value, first, count):
            return dataclasses.replace(value, outer=count)
    raise MixedError("a part of the batch, which holds some records by their places")


def within_copies(value: Rows, first: Number, count: Number) -> bool:
    """Whether the value has these copies of the batch: `count` of them from number `first` on."""
    lows = [at_least(n) for n in (first, count - 1, value.outer - first - count)]
    return not varies(first) and not varies(count) and all(low is not None and low >= 0 for low in lows)


@rule("Slice")
def cut(node: Node, inputs: Sequence[Any]) -> Value:
    """`size` entries of each axis from `begin` on, -1 for all that are left.

    Where there are fewer it fails, or, compiled by XLA, begins so far in front that there are enough.
    """
    value = inputs[0]
    if isinstance(value, Total) and all(isinstance(v, Constant) for v in inputs[1:]):
        return Total(None, batch=value.batch)
    if not isinstance(value, Rows | Places):
        raise refused_kind(value, "a slice, or one by what depends on records")
    axis, shape = value.axis, list(shape_of(value))
    begin, size = entries_of(inputs[1], "where a slice begins"), entries_of(inputs[2], "the size of a slice")
    count = size[axis] if size[axis] != -1 else value.length - begin[axis]
    found = part_of_records(node, value, begin[axis], count)
    left = [n if s == -1 and b == 0 else None if s == -1 else s for n, b, s in zip(shape, begin, size, strict=True)]
    left = [n if n is not None and counts(n) else None for n in left]
    if any(varies(n) for i, n in enumerate(size) if i != axis):
        raise MixedError("as many entries as there are records")
    if any(varies(n) for i, n in enumerate(begin) if i != axis):
        raise MixedError("a slice that begins where the number or the places of records say")
    left[axis] = found.length
    found = dataclasses.replace(found, shape=tuple(left))
    return dataclasses.replace(found, runs=None) if isinstance(found, Rows) else found


def counts(number: Number) -> bool:
    """Whether a number is not below 0, as -1 is, which stands for another one."""
    least = at_least(number)
    return least is not None and least >= 0


@rule("StridedSlice")
def strided(node: Node, inputs: Sequence[Any]) -> Value:
    """begin:end:step of each axis, or one entry, or a new axis. Silently ends where an axis does."""
    value = inputs[0]
    if isinstance(value, Total) and all(isinstance(v, Constant) for v in inputs[1:]):
        return Total(None, batch=value.batch)
    if not isinstance(value, Rows | Places):
        raise refused_kind(value, "a slice, or one by what depends on records")
    return sliced(node, value, [entries_of(v, "a slice") for v in inputs[1:]])


def sliced(node: Node, value: Any, bounds: Sequence[Sequence[Number]]) -> Value:
    """The slices axis by axis, from the left."""
    shape: list[Number | None] = []
    found = value
    source, moved = 0, 0
    known = dims_of(value)
    for kind in expanded(node, len(bounds[0]), len(known)):
        if kind == "new":
            shape.append(1)
            continue
        begin, end, step = whole() if kind is None else own_bounds(node, bounds, int(kind))
        single = kind is not None and bool(node.attribute("shrink_axis_mask") >> int(kind) & 1)
        if source == value.axis and single:
            return one_row(node, value, bounds[0][int(kind)], known)  # type: ignore[arg-type]
        if source == value.axis:
            if step != 1:
                raise MixedError("every so many rows of the batch, or the batch backwards")
            start = 0 if begin is None else begin
            found = part_of_records(node, found, start, (value.length if end is None else end) - start)
            moved = len(shape)
            shape.append(found.length)
        elif single:
            part_size(known[source], bounds[0][int(kind)], None, 1)  # type: ignore[arg-type]
        else:
            shape.append(part_size(known[source], begin, end, step))
        source += 1
    found = dataclasses.replace(found, shape=tuple(shape), axis=moved)
    return dataclasses.replace(found, runs=None) if isinstance(found, Rows) else found


def whole() -> tuple[None, None, int]:
    return None, None, 1


def own_bounds(node: Node, bounds: Sequence[Sequence[Number]], i: int) -> tuple[Any, Any, Number]:
    """begin, end and step of one entry of the slices' description; None where the mask says so."""
    begin = None if node.attribute("begin_mask") >> i & 1 else bounds[0][i]
    end = None if node.attribute("end_mask") >> i & 1 else bounds[1][i]
    return begin, end, bounds[2][i]


def expanded(node: Node, count: int, rank: int) -> list[Any]:
    """For each axis in turn the entry that describes it, None for a whole axis, "new" for a new one."""
    new = [
        node.attribute("new_axis_mask") >> i & 1 and not node.attribute("ellipsis_mask") >> i & 1 for i in range(count)
    ]
    dots = [node.attribute("ellipsis_mask") >> i & 1 for i in range(count)]
    used = sum(not n and not d for n, d in zip(new, dots, strict=True))
    found: list[Any] = []
    for i in range(count):
        if dots[i]:
            found += [None] * (rank - used)
        else:
            found.append("new" if new[i] else i)
    left = rank - sum(kind != "new" for kind in found)
    return found + [None] * left


def part_size(size: Number | None, begin: Any, end: Any, step: Number) -> Number | None:
    """How many entries of an axis a slice has; None where that is not known, but constant.

    Raises: MixedError where it depends on the number or the places of the records.
    """
    if any(n is not None and varies(n) for n in (begin, end, step)):
        raise MixedError("a slice by the number or the places of records")
    if begin in (None, 0) and step == 1 and (end is None or end == size):
        return size
    if all(n is None or isinstance(n, int) for n in (size, begin, end, step)) and size is not None:
        return len(range(*slice(begin, end, step).indices(size)))  # type: ignore[arg-type]
    return None


def one_row(node: Node, value: Any, place: Number, known: Sequence[Any]) -> Value:
    """One record's row, without its axis; allowed where nothing else is cut."""
    plain = not any(node.attribute(f"{m}_mask") for m in ("begin", "end", "ellipsis", "new_axis"))
    if not isinstance(value, Rows) or (value.axis, value.outer, value.inner) != (0, 1, 1) or not plain:
        raise MixedError("one row of the batch, picked by its place")
    if node.attribute("shrink_axis_mask") != 1 or len(node.static() or ()) != len(known) - 1:
        raise UnknownError("one row of the batch, and a part of it, at once")
    return picked(node.frame.walk(), value.batch, place, tuple(known[1:]))


@rule("StridedSliceGrad")
def strided_gradient(node: Node, inputs: Sequence[Any]) -> Value:
    """The gradient of a slice: its entries at their places among zeros."""
    gradient, shape = inputs[4], inputs[0]
    if isinstance(gradient, Total) and all(isinstance(v, Constant) for v in inputs[:4]):
        return Total(None, batch=gradient.batch)
    sizes = entries_of(shape, "the shape")
    if not isinstance(gradient, Rows):
        raise refused_kind(gradient, "the gradient of a slice")
    bounds = [entries_of(v, "a slice") for v in inputs[1:4]]
    places = [i for i, n in enumerate(sizes) if varies(n)]
    if len(places) != 1 or sizes[places[0]] != gradient.length:
        raise MixedError("the gradient of a slice of the batch")
    # What the slice itself makes of rows in that shape must be laid out as the gradient is.
    before = Rows(tuple(sizes), batch=gradient.batch, axis=places[0], outer=gradient.outer, inner=gradient.inner)
    after = sliced(node, before, bounds)
    if not isinstance(after, Rows) or (after.axis, after.layout) != (gradient.axis, gradient.layout):
        raise MixedError("the gradient of a slice of the batch")
    return before
