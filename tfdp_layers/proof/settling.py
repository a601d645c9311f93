"""Fills in what a rule left out of a shape, and checks it against what TensorFlow knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.rules import unknown_numbers
from tfdp_layers.proof.sizes import Number, Size, floor_divide, symbol, varies
from tfdp_layers.proof.values import (
    Batch,
    Constant,
    Counted,
    Places,
    Rows,
    Shape,
    Single,
    Total,
    Unknown,
    Value,
)

_INTEGERS = (tf.int32, tf.int64, tf.uint32, tf.uint64, tf.bool)


def settle(value: Value, tensor: Any, key: str, batches: Sequence[Batch]) -> Value:
    """The value with every size of an axis that can be known.

    An axis of `Rows` other than that of the records, and every axis of a `Constant` or `Total`, has a constant size by
    definition: where nothing is known of it, it gets a name.

    Raises: Unknown where the rule and TensorFlow contradict each other, or the rank is not known.
    """
    if not isinstance(value, Constant | Counted | Rows | Places | Total | Single):
        return value
    static = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    if tensor.dtype in (tf.resource, tf.variant):
        return value
    shape = value.shape if value.shape is not None else (None if static is None else (None,) * len(static))
    if shape is None:
        if isinstance(value, Constant | Total | Counted | Single):
            return value
        raise Unknown("the rank is not known")
    shape = merged(shape, static, batches)
    if isinstance(value, Rows | Places):
        if value.axis >= len(shape):
            raise Unknown("the axis of the records is out of range")
        given = shape[value.axis]
        if given is not None and given != value.length and concrete(value.length, batches) != given:
            raise Unknown(f"the axis of the records has size {given} instead of {value.length}")
        shape = (*shape[: value.axis], value.length, *shape[value.axis + 1 :])
    named = tuple(symbol(f"{key} axis {i}", least=0) if n is None else n for i, n in enumerate(shape))
    if isinstance(value, Counted):
        named = shape
    elif any(varies(n) for i, n in enumerate(named) if not (isinstance(value, Rows | Places) and i == value.axis)):
        raise Unknown("an axis that should have a constant size depends on the number of records")
    if isinstance(value, Constant | Counted) and value.entries is None and tensor.dtype in _INTEGERS:
        found = unknown_numbers(key, named, type(value))
        return dataclasses.replace(value, shape=named, entries=found.entries)
    return dataclasses.replace(value, shape=named)


def merged(shape: Shape, static: Sequence[int | None] | None, batches: Sequence[Batch]) -> Shape:
    """Both together; a number that TensorFlow knows takes the place of a name."""
    assert shape is not None
    if static is None:
        return shape
    if len(static) != len(shape):
        raise Unknown(f"the rule gives rank {len(shape)}, TensorFlow {len(static)}")
    found: list[Number | None] = []
    for mine, theirs in zip(shape, static, strict=True):
        if mine is None or theirs is None:
            found.append(theirs if mine is None else mine)
        elif isinstance(mine, int):
            if mine != theirs:
                raise Unknown(f"the rule gives size {mine}, TensorFlow {theirs}")
            found.append(mine)
        elif varies(mine):
            if concrete(mine, batches) != theirs:
                raise Unknown(f"the rule gives size {mine}, TensorFlow {theirs}")
            found.append(mine)
        else:
            found.append(theirs)
    return tuple(found)


def concrete(number: Number | None, batches: Sequence[Batch]) -> int | None:
    """The number with the sizes of pieces of a fixed size put in; None where that leaves an unknown."""
    if number is None or isinstance(number, int):
        return number
    fixed = {batch.size.terms[0][0][0]: batch.static for batch in batches if batch.static is not None}
    total = 0
    for monomial, count in number.terms:
        for atom in monomial:
            if atom not in fixed:
                return None
            count *= fixed[atom]
        total += count
    return total


def batch_of(number: Number | None, batches: Sequence[Batch]) -> tuple[Batch, Number] | None:
    """(batch, n) where the number is n times the size of a batch; None where it is not."""
    if not isinstance(number, Size):
        return None
    for batch in batches:
        share = floor_divide(number, batch.size)
        if not varies(share) and share * batch.size == number:
            return batch, share
    return None
