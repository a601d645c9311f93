"""Sizes of axes as values, and tensors filled with one number."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.rules import Node, dims_of, entries_of, numbers, only_rows, require_constants, rule
from tfdp_layers.proof.settling import MOST_RECORDS, batch_of, fits
from tfdp_layers.proof.sizes import Number, divided, floor_divide, varies
from tfdp_layers.proof.values import (
    Batch,
    Constant,
    Counted,
    ListOf,
    MixedError,
    Places,
    Refused,
    Rows,
    Shape,
    Single,
    Total,
    UnknownError,
    Value,
)


def known_shape(node: Node, value: Value, index: int) -> tuple[Number, ...]:
    """The sizes of an input's axes. Of a refused value those that TensorFlow knows: they cannot depend on records."""
    if value.shape is not None and not any(n is None for n in value.shape) and not isinstance(value, Refused):
        return value.shape  # type: ignore[return-value]
    static = node.operation.inputs[index].shape
    if static.rank is None or None in static.as_list():
        if isinstance(value, Refused) and value.mixed:
            raise MixedError(value.reason)
        raise UnknownError("a shape is not known")
    return tuple(static.as_list())


def hides_its_shape(node: Node, value: Value, index: int) -> bool:
    """Whether an input was refused, and its shape with it: the fault is where it was found, not where this is asked."""
    return isinstance(value, Refused) and not node.operation.inputs[index].shape.is_fully_defined()


@rule("Shape", "ShapeN", any_input=True)
def shape(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Sizes of axes."""
    return [
        value if hides_its_shape(node, value, i) else of_sizes(value, known_shape(node, value, i), True)
        for i, value in enumerate(inputs)
    ]


@rule("Size", any_input=True)
def size(node: Node, inputs: Sequence[Any]) -> Value:
    """The number of entries."""
    if hides_its_shape(node, inputs[0], 0):
        return inputs[0]
    return of_sizes(inputs[0], known_shape(node, inputs[0], 0), False)


def of_sizes(value: Value, sizes: Sequence[Number], each: bool) -> Value:
    """The sizes, each or multiplied. What is computed from one record may have as many entries as that record says."""
    shape = (len(sizes),) if each else ()
    if isinstance(value, Single) and not all(isinstance(n, int) for n in sizes):
        return dataclasses.replace(value, shape=shape, fill=None)
    return numbers(sizes if each else [math.prod(sizes)], shape)


@rule("Rank", any_input=True)
def rank(node: Node, inputs: Sequence[Any]) -> Value:
    """The number of axes."""
    found = node.operation.inputs[0].shape.rank
    if found is None:
        found = len(dims_of(inputs[0]))
    return numbers([found], ())


def filled_with(node: Node, sizes: Shape, fill: float | None) -> Value:
    """Entries that are all alike (`fill`, where known), in a shape that may hold the records once.

    Raises: MixedError for a shape that depends on the number of records in any other way.
    """
    if sizes is None or any(n is None for n in sizes):
        raise UnknownError("a shape is not known")
    places = [i for i, n in enumerate(sizes) if varies(n)]  # type: ignore[arg-type]
    if not places:
        return Constant(sizes, fill=fill)
    found = batch_of(sizes[places[0]], node.prover.batches)
    if len(places) > 1 or found is None:
        return Counted(sizes)
    batch, inner = found
    return Rows(sizes, batch=batch, axis=places[0], inner=inner, fill=fill)


@rule("ZerosLike", "OnesLike", any_input=True)
def alike(node: Node, inputs: Sequence[Any]) -> Value:
    """Zeros or ones, whatever the input holds."""
    fill, value = float(node.type == "OnesLike"), inputs[0]
    if isinstance(value, ListOf) and node.type == "ZerosLike":
        return zeros_of_list(node, value)
    if isinstance(value, ListOf):
        raise UnknownError("a list of ones")
    if isinstance(value, Rows):
        return Rows(value.shape, batch=value.batch, axis=value.axis, outer=value.outer, inner=value.inner, fill=fill)
    if isinstance(value, Single):
        return dataclasses.replace(value, fill=fill)
    sizes = value.shape if isinstance(value, Constant | Total) else known_shape(node, value, 0)
    if sizes is None and isinstance(value, Constant | Total):
        return Constant(None, fill=fill)
    result = filled_with(node, sizes, fill)
    if isinstance(value, Constant) and value.entries is not None:
        return dataclasses.replace(result, entries=(int(fill),) * len(value.entries))  # type: ignore[call-arg]
    return result


def zeros_of_list(node: Node, value: ListOf) -> ListOf:
    """As many zeros as elements."""
    if value.steps is not None:
        zeros = Constant((), fill=0.0)
        return ListOf((), element=zeros, length=value.steps[2], declared=value.declared)
    rows = None if value.rows is None else zeros_of(node, value.rows)
    element = None if value.element is None else zeros_of(node, value.element)
    return dataclasses.replace(value, element=element, rows=rows)


def zeros_of(node: Node, value: Value) -> Value:
    """Zeros of the shape of a list's element."""
    if isinstance(value, Rows):
        return dataclasses.replace(value, fill=0.0, within=None, runs=None)
    if isinstance(value, Single):
        return dataclasses.replace(value, fill=0.0)
    return filled_with(node, value.shape, 0.0)


@rule("Fill", makes=True)
def fill(node: Node, inputs: Sequence[Any]) -> Value:
    """One number in every entry of a shape."""
    require_constants(inputs[1:], "the number to fill with")
    return filled_with(node, entries_of(inputs[0], "the shape"), inputs[1].fill)


@rule("BroadcastTo", makes=True)
def broadcast_to(node: Node, inputs: Sequence[Any]) -> Value:
    """Repeats along axes of size 1, or in front. The records stay where they are."""
    value, sizes = inputs[0], entries_of(inputs[1], "the shape")
    if isinstance(value, Constant):
        repeated(dims_of(value), sizes)
        return filled_with(node, sizes, value.fill)
    if isinstance(value, Total):
        if any(varies(n) for n in sizes):
            raise MixedError("a sum over records given to every record")
        return dataclasses.replace(value, shape=sizes)
    rows = only_rows(value, "repeated")
    shift = len(sizes) - len(dims_of(rows))
    if any(varies(n) for i, n in enumerate(sizes) if i != rows.axis + shift):
        raise MixedError("every record repeated for every record")
    return dataclasses.replace(rows, shape=sizes, axis=rows.axis + shift, runs=None)


def repeated(given: Shape, wanted: Sequence[Number]) -> None:
    """Raises MixedError where entries that may differ would stand along the axis of the records."""
    assert given is not None
    for i, n in enumerate(reversed(wanted)):
        if varies(n) and i < len(given) and given[-1 - i] != 1:
            if not isinstance(given[-1 - i], int):
                raise UnknownError("a size that may be the number of records")
            raise MixedError("a constant with an entry for each place in the batch")


@rule("Range", makes=True)
def arange(node: Node, inputs: Sequence[Any]) -> Value:
    """From 0 by 1 to the number of records: the places of the records; by more, where their blocks of entries begin.

    Of what varies otherwise no more is said.
    """
    start, limit, step = (entries_of(value, "a range")[0] for value in inputs)
    found = batch_of(limit, node.prover.batches)
    if start == 0 and found is not None:
        blocks = blocks_of(found[0], found[1], step, node.dtype())
        if blocks is not None:
            return blocks
    if isinstance(step, int) and step > 0:
        return stepped(start, limit, step)
    return Counted(None)


def blocks_of(batch: Batch, width: Number, step: Number, dtype: Any) -> Places | None:
    """0, step, 2 step ... below batch.size * width: (batch.size * width / step,), None unless step divides the width.

    Entry b * (width / step) + j is width * b + step * j: of a record's width entries, where its j-th block begins.
    """
    inner = None if varies(step) or step == 0 else divided(width, step)
    if inner is None or not fits(width * MOST_RECORDS, dtype):
        return None
    return Places((batch.size * inner,), batch=batch, inner=inner, stride=width, most=(inner - 1) * step)


def stepped(start: Number, limit: Number, step: int) -> Value:
    count = 0 - floor_divide(start - limit, step)
    return Counted((count,), steps=(start, step, count)) if varies(count) else Counted(None)
