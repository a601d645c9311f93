"""Fills in what a rule left out of a shape, and checks it against what TensorFlow knows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdp_layers.proof.rules import unknown_numbers
from tfdp_layers.proof.sizes import Number, Size, at_least, atoms, floor_divide, symbol, varies
from tfdp_layers.proof.values import (
    Batch,
    Constant,
    Counted,
    MixedError,
    Places,
    Rows,
    Shape,
    Single,
    Total,
    UnknownError,
    Value,
)

Sizes: TypeAlias = "tuple[Number | None, ...]"
_PLACES = frozenset({tf.int32, tf.int64, tf.uint32, tf.uint64})
_REDUCTIONS = ("All", "Any", "Max", "Mean", "Min", "Prod", "Sum")
MOST_RECORDS = 4096
"""In a batch, as far as integers of 32 bits that are computed from their number are concerned: see `fits`."""
_INTEGERS = frozenset({*_PLACES, tf.bool})
_WITHOUT_ENTRIES = frozenset({tf.resource, tf.variant})


def settle(value: Value, tensor: Any, key: str, batches: Sequence[Batch]) -> Value:
    """The value with every size of an axis that can be known.

    An axis of `Rows` other than that of the records, and every axis of a `Constant` or `Total`, has a constant size by
    definition: where nothing is known of it, it gets a name.

    Raises: UnknownError where the rule and TensorFlow contradict each other, or TensorFlow does not know the rank.
    """
    if not isinstance(value, Constant | Counted | Rows | Places | Total | Single):
        return value
    if tensor.dtype in _WITHOUT_ENTRIES:
        return value
    static = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    given: Shape = value.shape if value.shape is not None or static is None else (None,) * len(static)
    if given is None:
        if isinstance(value, Rows | Places):
            raise UnknownError("the rank is not known")
        return value
    if static is None and not told_by_axes(tensor.op):
        return of_unknown_rank(value)
    shape = merged(given, static, batches)
    value = within_type(value, tensor.dtype)
    if isinstance(value, Rows | Places):
        shape = with_records(value, shape, batches)
    if not isinstance(value, Counted):
        shape = named(value, shape, key)
    if isinstance(value, Constant | Counted) and value.entries is None and tensor.dtype in _INTEGERS:
        found = unknown_numbers(key, shape, type(value))
        return dataclasses.replace(value, shape=shape, entries=found.entries)
    return value if shape == value.shape else dataclasses.replace(value, shape=shape)


def told_by_axes(operation: Any) -> bool:
    """Whether a result's rank follows from axes, which a rule knows as numbers: those of a broadcast's gradient."""
    return operation.type in _REDUCTIONS and operation.inputs[0].shape.rank is not None


def of_unknown_rank(value: Value) -> Value:
    """What is left of a value whose rank a rule says and TensorFlow does not: nothing shows that the rule is right.

    A wrong rank would put the records along another axis than they are on, or make one number of several.

    Raises: UnknownError for what has an axis of the records.
    """
    if isinstance(value, Rows | Places):
        raise UnknownError("TensorFlow does not know the rank: say it, keras.ops.reshape or tf.ensure_shape")
    known: dict[str, Any] = {"entries": None} if isinstance(value, Constant | Counted) else {}
    return dataclasses.replace(value, shape=None, **known)


def within_type(value: Any, dtype: Any) -> Any:
    """The value without integers that do not fit their type: what the operation gives is something else then.

    Raises: MixedError for places of records that do not fit: what is there may be another record's. No made-up records
        can show that they stay inside.
    """
    if isinstance(value, Places):
        if dtype not in _PLACES or not all(fits(n, dtype) for n in (value.stride, value.least, value.most)):
            raise MixedError("places of records that may not fit their type, and so lie in another record")
        return value if isinstance(value.stride, Size) or fits(value.stride * MOST_RECORDS, dtype) else too_wide()
    if isinstance(value, Constant | Counted) and value.entries is not None:
        plain = [n for n in value.entries if isinstance(n, int)]
        return value if all(fits(n, dtype) for n in plain) else dataclasses.replace(value, entries=None, fill=None)
    if isinstance(value, Rows) and (value.within or value.runs):
        bounds = [*(value.within or ()), *(value.runs or (0,))[1:]]
        return value if all(fits(n, dtype) for n in bounds) else dataclasses.replace(value, within=None, runs=None)
    return value


def too_wide() -> Value:
    raise UnknownError("places of records that may not fit their type")


def fits(number: Number, dtype: Any) -> bool:
    """Whether an integer is in the range of its type, as it is computed among all integers.

    Assumes of sizes of axes, alone or multiplied, that they fit in 32 bits as often as this number has them, as long as
    that is not more than 2^19 times: batches of 4,096 records do then. Of other numbers nothing is assumed.
    """
    low, high = limits(dtype)
    if isinstance(number, int):
        return low <= number <= high
    sized = all(atom.least is not None and atom.least >= 0 for atom in atoms(number))
    few = all(abs(n) * MOST_RECORDS <= 2**31 for monomial, n in number.terms if monomial)
    return high >= 2**31 - 1 and sized and few and (low < 0 or (at_least(number) or 0) >= 0)


@functools.cache
def limits(dtype: Any) -> tuple[int, int]:
    """The least and the largest number of a type."""
    return (0, 1) if dtype.is_bool else (int(dtype.min), int(dtype.max))


def with_records(value: Rows | Places, shape: Sizes, batches: Sequence[Batch]) -> Sizes:
    """The shape with the size of the records' axis, which must not contradict it."""
    if value.axis >= len(shape):
        raise UnknownError("the axis of the records is out of range")
    given = shape[value.axis]
    if given is not None and given != value.length and concrete(value.length, batches) != given:
        raise UnknownError(f"the axis of the records has size {given} instead of {value.length}")
    return (*shape[: value.axis], value.length, *shape[value.axis + 1 :])


def named(value: Value, shape: Sizes, key: str) -> Sizes:
    """The shape with names for unknown sizes. Raises UnknownError where one depends on the number of records."""
    if isinstance(value, Single):  # What is computed from one record may have as many entries as that record says.
        return tuple(symbol(f"{key} axis {i}", varies=True, least=0) if n is None else n for i, n in enumerate(shape))
    found = tuple(symbol(f"{key} axis {i}", least=0) if n is None else n for i, n in enumerate(shape))
    axis = value.axis if isinstance(value, Rows | Places) else None
    if any(varies(n) for i, n in enumerate(found) if i != axis):
        raise UnknownError("an axis that should have a constant size depends on the number of records")
    return found


def merged(shape: Sizes, static: Sequence[int | None] | None, batches: Sequence[Batch]) -> Sizes:
    """Both together; a number that TensorFlow knows takes the place of a name."""
    if static is None:
        return shape
    if len(static) != len(shape):
        raise UnknownError(f"the rule gives rank {len(shape)}, TensorFlow {len(static)}")
    found: list[Number | None] = []
    for mine, theirs in zip(shape, static, strict=True):
        if mine is None or theirs is None:
            found.append(theirs if mine is None else mine)
        elif isinstance(mine, int):
            if mine != theirs:
                raise UnknownError(f"the rule gives size {mine}, TensorFlow {theirs}")
            found.append(mine)
        elif varies(mine):
            if concrete(mine, batches) != theirs:
                raise UnknownError(f"the rule gives size {mine}, TensorFlow {theirs}")
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
