"""What lists give where nothing was put: zeros, of a shape that the list and the operation are told.

The kernel puts both together, a size of -1 being one that is not told, and takes what is left from other elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.sizes import Number, varies
from tfdp_layers.proof.values import Constant, Counted, ListOf, Rows, Special, UnknownError, Value

OF_ELEMENTS = "shape of a list's elements"
"""Of a `Special`: what a list was declared with, or the sizes of its elements, which are its only part if known."""
_WHY = "the shape of an element of a list that was never put is not known"


def never_put(value: ListOf, asked: Value) -> tuple[Number, ...]:
    """The shape of an element of a list to which nothing was put. Raises UnknownError where it is not known."""
    told = [sizes for sizes in map(told_sizes, (asked, value.declared)) if sizes is not None]
    if not told or len({len(sizes) for sizes in told}) > 1:
        raise UnknownError(_WHY)
    return tuple(told_size([n for n in sizes if n is not None]) for sizes in zip(*told, strict=True))


def told_size(told: list[Number]) -> Number:
    """What a size is of which this was told: the kernel fails where that is not one and the same."""
    plain = [n for n in told if isinstance(n, int)]
    if not told or (not plain and len(set(told)) > 1):
        raise UnknownError(_WHY)
    return (plain or told)[0]


def told_sizes(value: Value | None) -> tuple[Number | None, ...] | None:
    """Sizes that an operation is told, None for one that it is not (-1); None for no rank either.

    Raises: UnknownError where it is not known what it is told.
    """
    if isinstance(value, Special) and value.idiom == OF_ELEMENTS and value.parts:
        return value.parts[0]  # type: ignore[no-any-return]
    if not isinstance(value, Constant | Counted) or value.entries is None or value.shape is None:
        raise UnknownError(_WHY)
    return None if value.shape == () else tuple(None if n == -1 else n for n in value.entries)


def zeros_beside(element: Value, told: Sequence[Value | None]) -> Value:
    """What covers an element and, in its place, zeros of the shape that the list and an operation are told.

    A size that may be another one than the element's is not known then. Raises UnknownError where it may depend on the
    number of records.
    """
    shape = element.shape
    for sizes in map(told_sizes, told):
        if sizes is None:
            continue
        own = shape if shape is not None and len(shape) == len(sizes) else (None,) * len(sizes)
        other = {i: n for i, n in enumerate(sizes) if n is not None and n != own[i]}
        if any(varies(n) or (isinstance(element, Rows) and i == element.axis) for i, n in other.items()):
            raise UnknownError(_WHY)
        shape = None if own is not shape else tuple(None if i in other else n for i, n in enumerate(own))
    return dataclasses.replace(or_zero(element), shape=shape)


def or_zero(value: Any) -> Any:
    """What covers a value and zeros of its shape: nothing is left of entries that are all alike, known or bounded."""
    fill = 0.0 if value.fill == 0.0 else None
    if isinstance(value, Constant | Counted):
        return type(value)(value.shape, fill=fill)
    if isinstance(value, Rows):
        return dataclasses.replace(value, fill=fill, within=None, runs=None)
    if isinstance(value, Special):  # a shape, of which nothing is known then
        return dataclasses.replace(value, parts=())
    return dataclasses.replace(value, fill=fill)
