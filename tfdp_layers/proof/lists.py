"""TensorLists: what loops keep of their rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.joining import joined
from tfdp_layers.proof.rules import Node, entries_of, numbers, refused_kind, rule
from tfdp_layers.proof.values import (
    Carried,
    Constant,
    Counted,
    ListOf,
    MixedError,
    Refused,
    Rows,
    Single,
    Total,
    UnknownError,
    Value,
)


def a_list(value: Any) -> ListOf:
    """The list. Raises MixedError for anything else."""
    if not isinstance(value, ListOf):
        raise MixedError("a list that a loop over records carries, looked into")
    return value


def kept(node: Node, value: Value) -> Value:
    """What a list remembers of an element: nothing that may be another number in another round of a loop."""
    if not isinstance(value, Rows | Total | Constant | Counted | Single):
        raise refused_kind(value, "an element of a list")
    lasts = node.frame.lasts
    if isinstance(value, Rows) and not (lasts(value.outer) and lasts(value.inner)):
        raise UnknownError("an element of a list whose layout is that of a round")
    own = value.axis if isinstance(value, Rows) else None
    shape = value.shape and tuple(
        n if i == own or (n is not None and lasts(n)) else None for i, n in enumerate(value.shape)
    )
    entries = value.entries if isinstance(value, Constant | Counted) else None
    if entries is None or all(lasts(n) for n in entries):
        return dataclasses.replace(value, shape=shape)
    return dataclasses.replace(value, shape=shape, entries=None)  # type: ignore[arg-type, call-arg]


def without_entries(value: Value) -> dict[str, Any]:
    return {"entries": None} if isinstance(value, Constant | Counted) else {}


def listed(node: Node, old: ListOf, value: Value) -> ListOf:
    """The list with one element more, or another."""
    if old.rows is not None or old.steps is not None:
        raise UnknownError("a list of records is changed")
    element = kept(node, value)
    both = element if old.element is None else joined(old.element, element)
    if isinstance(both, Refused):
        raise (MixedError if both.mixed else UnknownError)(both.reason)
    return dataclasses.replace(old, element=both)


def constant_place(value: Any) -> None:
    if not isinstance(value, Constant):
        raise refused_kind(value, "the place in a list")


@rule("EmptyTensorList", "TensorListReserve", own=True)
def new(node: Node, inputs: Sequence[Any]) -> Value:
    """A list without elements, which may have a place for every record."""
    if node.type == "EmptyTensorList" or isinstance(inputs[1], Constant):
        return ListOf(())
    return ListOf((), length=entries_of(inputs[1], "how long a list is")[0])


@rule("TensorListPushBack", own=True)
def push(node: Node, inputs: Sequence[Any]) -> Value:
    """One element more at the end."""
    return listed(node, a_list(inputs[0]), inputs[1])


@rule("TensorListPopBack", own=True)
def pop(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """The last element, and the list without it."""
    found = a_list(inputs[0])
    return [found, element_of(found)]


@rule("TensorListSetItem", own=True)
def put(node: Node, inputs: Sequence[Any]) -> Value:
    """Another element at a place: a constant one, or that of the round of a loop over records."""
    old, place, value = inputs[:3]
    if isinstance(old, Carried):
        return put_in_round(node, old, place, value)
    constant_place(place)
    return listed(node, a_list(old), value)


def put_in_round(node: Node, old: Carried, place: Any, value: Any) -> Value:
    """The element of this round of a loop over records, at the round's own place."""
    found = node.frame.walks()
    if not found or old.loop != found[0].key or old.put is not None or found[0].step != 1:
        raise MixedError("a list that a loop over records carries, changed otherwise than by one element a round")
    if not isinstance(old.start, ListOf) or old.start != ListOf((), length=found[0].limit):
        raise UnknownError("a loop over records that puts elements to a list which has some, or other places")
    if not isinstance(place, Counted) or place.entries != (found[0].place,):
        raise MixedError("an element of a list that is not at its round's place")
    return dataclasses.replace(old, put=kept(node, value))


def element_of(value: ListOf) -> Value:
    """An element at a constant place. One that was never put there is zero."""
    if value.rows is not None or value.steps is not None:
        raise MixedError("one row of the batch, picked by its place")
    return value.element if value.element is not None else Constant(None, fill=0.0)


@rule("TensorListGetItem", own=True)
def get(node: Node, inputs: Sequence[Any]) -> Value:
    """The element at a constant place, or, of a list of records, that of the round of a loop over them."""
    found, place = a_list(inputs[0]), inputs[1]
    if found.rows is None and found.steps is None:
        constant_place(place)
        return element_of(found)
    number = entries_of(place, "the place in a list")[0]
    if found.steps is not None:
        start, step, _ = found.steps
        return numbers([start + step * number], ())
    walk, rows = next(iter(node.frame.walks()), None), found.rows
    assert rows is not None
    if walk is None or not isinstance(rows, Rows) or walk.single != rows.batch or number != walk.place:
        raise MixedError("one row of the batch, picked by its place")
    assert rows.shape is not None
    return Single(tuple(rows.shape[1:]), batch=rows.batch, place=number, loop=walk.key)


@rule("TensorListFromTensor", own=True)
def from_tensor(node: Node, inputs: Sequence[Any]) -> Value:
    """The entries along axis 0 as a list."""
    value = inputs[0]
    if isinstance(value, Counted) and value.steps is not None:
        return ListOf((), steps=value.steps)
    if isinstance(value, Rows) and value.axis == 0:
        if (value.outer, value.inner) != (1, 1) or value.batch.padded:
            raise MixedError("a list of rows that are not one a record")
        return ListOf((), rows=dataclasses.replace(value, fill=None, within=None, runs=None))
    rest = None if value.shape is None else tuple(value.shape[1:])
    if isinstance(value, Rows):
        own = Rows(rest, batch=value.batch, axis=value.axis - 1, outer=value.outer, inner=value.inner)
        return ListOf((), element=own)
    if isinstance(value, Constant | Total | Single):
        return ListOf((), element=dataclasses.replace(value, shape=rest, **without_entries(value)))
    raise refused_kind(value, "a list")


@rule("TensorListStack", own=True)
def stack(node: Node, inputs: Sequence[Any]) -> Value:
    """The elements along a new axis 0."""
    found = a_list(inputs[0])
    if found.rows is not None:
        return found.rows
    if found.steps is not None:
        return Counted(None, steps=found.steps)
    require_constant_length(found)
    element = element_of(found)
    shape = None if element.shape is None else (None, *element.shape)
    if isinstance(element, Rows):
        return Rows(shape, batch=element.batch, axis=element.axis + 1, outer=element.outer, inner=element.inner)
    return dataclasses.replace(element, shape=shape, **without_entries(element))


def require_constant_length(value: ListOf) -> None:
    if value.length is not None:
        raise MixedError("a list as long as the batch")


@rule("TensorListLength", own=True)
def length(node: Node, inputs: Sequence[Any]) -> Value:
    """How many elements a list has: a constant, unless it holds something for each record."""
    found = a_list(inputs[0])
    if found.rows is None and found.steps is None:
        return Constant(()) if found.length is None else numbers([found.length], ())
    size = found.steps[2] if found.steps is not None else known_first(found.rows)
    return numbers([size], ())


def known_first(value: Any) -> Any:
    if value is None or value.shape is None:
        raise UnknownError("how long a list is, is not known")
    return value.shape[0]


@rule("TensorListElementShape", own=True)
def element_shape(node: Node, inputs: Sequence[Any]) -> Value:
    """The shape of the elements, where it is a constant or known."""
    found = a_list(inputs[0])
    if found.rows is not None and isinstance(found.rows, Rows) and found.rows.shape is not None:
        return sizes_of(found.rows.shape[1:])
    element = found.element
    if element is None or isinstance(element, Constant):
        return Constant(None)
    return sizes_of(element.shape)


def sizes_of(shape: Any) -> Value:
    if shape is None or any(n is None for n in shape):
        raise UnknownError("the shape of a list's elements is not known")
    return numbers(shape, (len(shape),))
