"""Digests of what variables hold: by these, numbers are recognised wherever they are copied to."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = [
    "begin_alike",
    "digest",
    "digest_of_noisy",
    "first_of",
    "is_recognised",
    "numbers_of",
    "size_of",
    "unchanged",
]

_SMALLEST, _SMALLEST_BYTES = 3, 8
"""Weights of fewer numbers, or bytes of quantized ones, are not recognised by their values: a few may be anyone's."""

_here = threading.local()


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Inside, in this thread, nobody writes to a variable: each is read, and digested, once."""
    if getattr(_here, "known", None) is not None:
        yield
        return
    _here.known, _here.firsts = {}, {}
    try:
        yield
    finally:
        _here.known = _here.firsts = None


def digest(array: Any) -> bytes:
    """Of the type and the numbers, or texts, of an array or of a variable, in order: whatever its shape.

    A kernel keeps its numbers where a `Dense` layer becomes a convolution: a copy is one in every shape.
    """
    return _looked(array)[0]


def digest_of_noisy(array: Any) -> bytes | None:
    """The same; None for what may be equal by chance: few numbers, equal ones, and those that count something."""
    found, noisy = _looked(array)
    return found if noisy else None


def is_recognised(held: Any) -> bool:
    """Whether a copy of what this variable may hold would be recognised by its values."""
    kind, size = np.dtype(held.dtype.as_numpy_dtype), held.shape.num_elements()
    return (kind.kind in "fV" and size >= _SMALLEST) or (kind.itemsize == 1 and size >= _SMALLEST_BYTES)


def size_of(array: Any) -> int:
    """How many numbers an array or a variable holds; -1 where a variable may hold any number of them."""
    shape = tuple(array.shape)
    return -1 if None in shape else math.prod(shape)


def numbers_of(array: Any) -> np.ndarray:
    """The numbers of an array, or of a variable of TensorFlow: also while that traces a function around this."""
    tensorflow = sys.modules.get("tensorflow")
    if isinstance(array, np.ndarray) or tensorflow is None or tensorflow.executing_eagerly():
        return _read(array)
    with tensorflow.init_scope():
        return _read(array)


def _read(array: Any) -> np.ndarray:
    """By its own method: NumPy cannot read a single number that replicas hold copies of."""
    method = getattr(array, "numpy", None)
    return np.asarray(array if method is None else method())


def begin_alike(first: bytes, other: bytes) -> bool:
    """Whether arrays may hold the same numbers in order, in any two shapes, by what `first_of` gave of each."""
    return first.startswith(other) or other.startswith(first)


def first_of(array: Any) -> bytes:
    """The numbers at the first place of the first axis: those that differ are other arrays, and need not be read."""
    known = getattr(_here, "firsts", None)
    if known is not None and id(array) in known:
        return known[id(array)][0]  # type: ignore[no-any-return]
    found = _first_of(getattr(array, "values", (array,))[0])  # of the copies that replicas hold
    if known is not None:
        known[id(array)] = found, array
    return found


def _first_of(one: Any) -> bytes:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not hasattr(one, "handle"):
        return numbers_of(one[:1]).tobytes()
    with tensorflow.init_scope():  # no gather: TensorFlow copies a variable at each read from its first one on
        return np.asarray(tensorflow.raw_ops.ReadVariableOp(resource=one.handle, dtype=one.dtype)[:1]).tobytes()


def _looked(array: Any) -> tuple[bytes, bool]:
    known = getattr(_here, "known", None)
    if known is not None and id(array) in known:
        return known[id(array)][:2]  # type: ignore[no-any-return]
    value = numbers_of(array)
    found = hashlib.blake2b(repr((value.size, value.dtype.str)).encode(), digest_size=16)
    if value.dtype.hasobject:
        found.update(repr(value.tolist()).encode())
    else:
        found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)  # without a copy
    looked = found.digest(), _is_noisy(value)
    if known is not None:
        known[id(array)] = (*looked, array)
    return looked


def _is_noisy(value: np.ndarray) -> bool:
    quantized = value.dtype.kind in "iu" and value.dtype.itemsize == 1  # longer ones count something
    least = _SMALLEST_BYTES if quantized else _SMALLEST
    # Equal numbers, such as the zeros that a bias starts from, were not made by noise either, nor was an identity.
    made = (quantized or value.dtype.kind in "fV") and value.size >= least and not _are_equal(value.reshape(-1))
    return made and not _is_identity(value)


def _is_identity(value: np.ndarray) -> bool:
    rows, numbers = math.isqrt(value.size), value.reshape(-1)
    square = rows > 1 and rows * rows == value.size and numbers[0] == 1 and numbers[1] == 0
    return square and bool(np.array_equal(numbers.reshape(rows, rows), np.eye(rows, dtype=value.dtype)))


def _are_equal(values: np.ndarray) -> bool:
    return bool(np.all(values[:_SMALLEST] == values[0]) and np.all(values == values[0]))
