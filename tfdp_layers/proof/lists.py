"""TensorLists: what loops keep of their rounds.

A place where nothing was put gives zeros, of a shape that the list was declared with, or that an operation asks for. So
what is said of the elements of such a list holds of zeros, too; of entries that are all alike, of bounds and of known
integers nothing is left then. XLA, under which lists do not grow, has more places than elements in a list that was
pushed to, and takes the next one for a place that there is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.joining import counts, joined
from tfdp_layers.proof.never_put import OF_ELEMENTS, never_put, told_sizes, zeros_beside
from tfdp_layers.proof.rules import Node, entries_of, numbers, refused_kind, rule
from tfdp_layers.proof.shapes import filled_with
from tfdp_layers.proof.sizes import Number, is_below, varies
from tfdp_layers.proof.values import (
    Carried,
    Constant,
    Counted,
    ListOf,
    MixedError,
    Refused,
    Rows,
    Single,
    Special,
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
    lasts = node.frame.lasts
    if isinstance(value, Special) and value.idiom == OF_ELEMENTS:
        return value if value.parts and all(map(lasts, value.parts[0])) else Special(None, idiom=OF_ELEMENTS)
    if not isinstance(value, Rows | Total | Constant | Counted | Single):
        raise refused_kind(value, "an element of a list")
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


def constant_place(value: Any, found: ListOf) -> bool:
    """Whether a place that is a constant is shown to be one of the list's.

    Raises: UnknownError where it is not, and how many there are depends on the number of records: XLA then takes
        another one, by that number.
    """
    if not isinstance(value, Constant):
        raise refused_kind(value, "the place in a list")
    shown = bool(value.entries) and within(value.entries[0], found.length)  # type: ignore[index]
    if not shown and counts(found.length):
        raise UnknownError("a place that a list as long as the batch may not have")
    return shown


def within(place: Number, length: Number | None) -> bool:
    """Whether a list of this length is shown to have the place."""
    return length is not None and is_below(-1, place) is True and is_below(place, length) is True


@rule("EmptyTensorList", "TensorListReserve", own=True)
def new(node: Node, inputs: Sequence[Any]) -> Value:
    """A list without elements, or with places (perhaps one for every record) where nothing was put yet."""
    told, number = inputs
    declared = told if isinstance(told, Constant | Counted | Special) else None
    if node.type == "EmptyTensorList":
        if not isinstance(number, Constant):
            raise refused_kind(number, "how many elements a list may have")
        return ListOf((), length=0, declared=declared, spare=True)
    plain = isinstance(number, Constant) and number.entries is None
    length = None if plain else entries_of(number, "how long a list is")[0]
    return ListOf((), length=length, declared=declared, unset=True)


@rule("TensorListPushBack", own=True)
def push(node: Node, inputs: Sequence[Any]) -> Value:
    """One element more at the end."""
    old = a_list(inputs[0])
    if counts(old.length):
        raise UnknownError("an element behind a list as long as the batch")
    return dataclasses.replace(listed(node, old, inputs[1]), length=longer(old, 1), spare=True)


@rule("TensorListPopBack", own=True)
def pop(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """The last element, and the list without it."""
    found = a_list(inputs[0])
    if counts(found.length) and found.element is not None:
        raise MixedError("the last element of a list as long as the batch")
    return [
        dataclasses.replace(found, length=longer(found, -1), spare=True),
        element_of(node, found, inputs[1], found.unset),
    ]


def longer(found: ListOf, by: int) -> Number | None:
    return None if found.length is None else found.length + by


@rule("TensorListSetItem", own=True)
def put(node: Node, inputs: Sequence[Any]) -> Value:
    """Another element at a place: a constant one, or that of the round of a loop over records."""
    old, place, value = inputs[:3]
    if isinstance(old, Carried):
        return put_in_round(node, old, place, value)
    shown = constant_place(place, a_list(old))
    if not shown and node.attribute("resize_if_index_out_of_bounds", False):
        old = dataclasses.replace(old, length=None, unset=True)
    return listed(node, dataclasses.replace(old, unset=old.unset or (old.spare and not shown)), value)


def put_in_round(node: Node, old: Carried, place: Any, value: Any) -> Value:
    """The element of this round of a loop over records, at the round's own place."""
    found = node.frame.walks()
    if not found or old.loop != found[0].key or old.put is not None or found[0].step != 1:
        raise MixedError("a list that a loop over records carries, changed otherwise than by one element a round")
    start = old.start
    if not isinstance(start, ListOf) or start != ListOf((), length=found[0].limit, declared=start.declared, unset=True):
        raise UnknownError("a loop over records that puts elements to a list which has some, or other places")
    if not isinstance(place, Counted) or place.entries != (found[0].place,):
        raise MixedError("an element of a list that is not at its round's place")
    return dataclasses.replace(old, put=kept(node, value))


def element_of(node: Node, value: ListOf, asked: Value, zeros: bool) -> Value:
    """An element at a constant place.

    Args:
        asked: the shape that the operation is told, of an element that was never put.
        zeros: whether it may be one.
    """
    if value.rows is not None or value.steps is not None:
        raise MixedError("one row of the batch, picked by its place")
    if value.element is None:
        return filled_with(node, never_put(value, asked), 0.0)
    return zeros_beside(value.element, [asked, value.declared]) if zeros else value.element


@rule("TensorListGetItem", own=True)
def get(node: Node, inputs: Sequence[Any]) -> Value:
    """The element at a constant place, or, of a list of records, that of the round of a loop over them."""
    found, place = a_list(inputs[0]), inputs[1]
    if found.rows is None and found.steps is None:
        shown = constant_place(place, found)
        return element_of(node, found, inputs[2], found.unset or (found.spare and not shown))
    number = entries_of(place, "the place in a list")[0]
    if found.steps is not None:
        start, step, count = found.steps
        if not within(number, count):
            raise UnknownError("a place that a list of places may not have")
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
    value, told = inputs
    declared = told if isinstance(told, Constant | Counted | Special) else None
    if isinstance(value, Counted) and value.steps is not None:
        return ListOf((), steps=value.steps, declared=declared)
    if isinstance(value, Rows) and value.axis == 0:
        if (value.outer, value.inner) != (1, 1) or value.batch.padded:
            raise MixedError("a list of rows that are not one a record")
        return ListOf((), rows=dataclasses.replace(value, fill=None, within=None, runs=None), declared=declared)
    rest, length = (None, None) if value.shape is None else (tuple(value.shape[1:]), value.shape[0])
    if isinstance(value, Single) and (length is None or varies(length)):
        raise UnknownError("a list as long as a record says")
    if isinstance(value, Rows):
        own = Rows(rest, batch=value.batch, axis=value.axis - 1, outer=value.outer, inner=value.inner)
        return ListOf((), element=own, length=length, declared=declared)
    if isinstance(value, Constant | Total | Single):
        element = dataclasses.replace(value, shape=rest, **without_entries(value))
        return ListOf((), element=element, length=length, declared=declared)
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
    element = element_of(node, found, inputs[1], found.unset or found.spare)
    if isinstance(element, Special):
        raise refused_kind(element, "a list")
    shape = None if element.shape is None else (None if found.spare else found.length, *element.shape)
    if isinstance(element, Rows):
        return Rows(shape, batch=element.batch, axis=element.axis + 1, outer=element.outer, inner=element.inner)
    steps = {"steps": None} if isinstance(element, Counted) else {}
    return dataclasses.replace(element, shape=shape, **without_entries(element), **steps)


def require_constant_length(value: ListOf) -> None:
    if counts(value.length):
        raise MixedError("a list as long as the batch")


@rule("TensorListLength", own=True)
def length(node: Node, inputs: Sequence[Any]) -> Value:
    """How many elements a list has: a constant, unless it holds something for each record."""
    found = a_list(inputs[0])
    if found.rows is None and found.steps is None:
        if found.spare and counts(found.length):
            raise UnknownError("how long a list is, which may be longer under XLA")
        return Constant(()) if found.length is None or found.spare else numbers([found.length], ())
    size = found.steps[2] if found.steps is not None else known_first(found.rows)
    return numbers([size], ())


def known_first(value: Any) -> Any:
    if value is None or value.shape is None:
        raise UnknownError("how long a list is, is not known")
    return value.shape[0]


@rule("TensorListElementShape", own=True)
def element_shape(node: Node, inputs: Sequence[Any]) -> Value:
    """The shape that a list was declared with. Sizes that it was not declared with are -1, but under XLA the elements':
    of those no more is said than that they fit, to declare other lists.
    """
    found = a_list(inputs[0])
    of_rows = isinstance(found.rows, Rows)
    element = found.rows if of_rows else found.element
    if element is None or found.declared is None:
        return found.declared or Special(None, idiom=OF_ELEMENTS)
    declared, own = told_sizes(found.declared), element.shape and element.shape[of_rows:]
    if declared is not None and None not in declared:
        return numbers(declared, (len(declared),))  # type: ignore[arg-type]
    known = own is not None and None not in own
    return Special(None, idiom=OF_ELEMENTS, parts=(own,) if known else ())


def lists_added(node: Node, inputs: Sequence[ListOf]) -> Value:
    """Lists added entry by entry: gradients of a list that is used several times."""
    if any((value.rows, value.steps) != (None, None) or counts(value.length) for value in inputs):
        raise UnknownError("lists of records added")
    elements = [value.element for value in inputs if value.element is not None]
    settled = [element for element in elements if element.fill != 0.0]
    if not settled:
        return sum_of_lists(inputs, elements[0] if elements else None)
    first = settled[0]
    if not isinstance(first, Rows | Total) or any(place_of(other) != place_of(first) for other in settled):
        raise UnknownError("lists of different values added")
    if isinstance(first, Total):
        return sum_of_lists(inputs, Total(None, batch=first.batch))
    return sum_of_lists(inputs, dataclasses.replace(first, fill=None, within=None, runs=None))


def sum_of_lists(inputs: Sequence[ListOf], element: Value | None) -> ListOf:
    """Where nothing was put into one list, the sum has the elements of the others."""
    first = inputs[0]
    return ListOf(
        (),
        element=element,
        length=first.length if all(value.length == first.length for value in inputs) else None,
        unset=all(value.unset for value in inputs),
        spare=any(value.spare for value in inputs),
        declared=first.declared if all(value.declared == first.declared for value in inputs) else None,
    )


def place_of(value: Value) -> Any:
    """Where the records are in a value, to tell whether two are laid out alike."""
    return (value.layout, value.axis) if isinstance(value, Rows) else getattr(value, "batch", None)
