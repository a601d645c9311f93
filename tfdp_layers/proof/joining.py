"""What is known of a value that is one of two: after a branch, or in the rounds of a loop."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdp_layers.proof.sizes import Number, varies
from tfdp_layers.proof.values import (
    Carried,
    Constant,
    Counted,
    ListOf,
    Refused,
    Rows,
    Shape,
    Single,
    Total,
    Value,
)


def joined(a: Value, b: Value) -> Value:
    """A value that covers both; refused where they depend on the records in different ways."""
    if a == b:
        return a
    for one in (a, b):
        if isinstance(one, Refused) and one.mixed:
            return one
    for one in (a, b):
        if isinstance(one, Refused):
            return one
    if isinstance(a, ListOf) and isinstance(b, ListOf):
        return joined_lists(a, b)
    shape = joined_shapes(a.shape, b.shape)
    fill = a.fill if a.fill == b.fill else None
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Constant) and isinstance(y, Constant):
            entries = x.entries if x.entries == y.entries else None
            return Constant(shape, fill=fill, entries=entries)
        if isinstance(x, Counted) and isinstance(y, Constant | Counted):
            return Counted(shape)
        if isinstance(x, Total) and isinstance(y, Constant) and y.fill == 0.0:
            return dataclasses.replace(x, shape=shape)
        if isinstance(x, Single) and isinstance(y, Constant):
            return dataclasses.replace(x, shape=shape, fill=None)
    return joined_alike(a, b, shape, fill)


def joined_alike(a: Any, b: Any, shape: Shape, fill: float | None) -> Value:
    """Of two values of one kind."""
    if isinstance(a, Rows) and isinstance(b, Rows) and a.layout == b.layout and a.axis == b.axis and shape is not None:
        return Rows(shape, batch=a.batch, axis=a.axis, outer=a.outer, inner=a.inner, fill=fill)
    if isinstance(a, Total) and isinstance(b, Total) and a.batch == b.batch:
        return Total(shape, batch=a.batch)
    if isinstance(a, Single) and isinstance(b, Single) and (a.batch, a.place, a.loop) == (b.batch, b.place, b.loop):
        return dataclasses.replace(a, shape=shape, fill=None)
    both = isinstance(a, Carried) and isinstance(b, Carried) and None in (a.put, b.put)
    if both and dataclasses.replace(a, put=None) == dataclasses.replace(b, put=None):
        # What decides between them is a constant: in every round the same one is taken.
        return a if b.put is None else b
    return Refused(
        None,
        mixed=False,
        reason=f"a value is one of two that depend on records differently: {kind(a)}, {kind(b)}",
    )


def kind(value: Value) -> str:
    return type(value).__name__.lower()


def joined_shapes(a: Shape, b: Shape) -> Shape:
    """Sizes that both have; None, to be named, where they differ."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def joined_lists(a: ListOf, b: ListOf) -> Value:
    """Lists of elements that one value covers."""
    if (a.rows, a.steps) != (b.rows, b.steps) or (a.length != b.length and (counts(a.length) or counts(b.length))):
        return Refused(None, mixed=False, reason="a list of records is one of two")
    element = joined(a.element, b.element) if a.element is not None and b.element is not None else None
    if isinstance(element, Refused):
        return element
    return dataclasses.replace(
        a,
        element=element or a.element or b.element,
        length=a.length if a.length == b.length else None,
        unset=a.unset or b.unset,
        spare=a.spare or b.spare,
        declared=a.declared if a.declared == b.declared else None,
    )


def counts(length: Number | None) -> bool:
    return length is not None and varies(length)
