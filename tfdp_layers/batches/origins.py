"""What tensors within a function are made of: its arguments, what it holds, and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["FEWEST", "is_changed", "may_be_records", "name_of", "reached"]

FEWEST = 8
"""Rows that are compared with those of records: fewer are a constant."""


def reached(tensors: Iterable[Any], stops: Callable[[str], bool] = lambda name: False) -> dict[str, Any]:
    """The operations that these tensors are made of, by the names of their first outputs."""
    found: dict[str, Any] = {}
    left = [one.op for one in tensors]
    while left:
        one = left.pop()
        if one.name not in found and not stops(one.type):
            found[one.name] = one
            left += [each.op for each in one.inputs]
    return {f"{name}:0": one for name, one in found.items()}


def name_of(tensor: Any) -> str:
    """What names a tensor, or the one that it is, perhaps in another shape: a reader puts its file into a list."""
    while tensor.op.type in ("Identity", "Reshape", "ExpandDims", "Cast") and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return str(tensor.name)


def is_changed(tensor: Any) -> bool:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor.op.type != "Placeholder"


def may_be_records(tensor: Any) -> bool:
    """Whether what is the same for all elements is more than a few numbers, a count, or one row again and again."""
    if not _is_large(tensor.shape):
        return False
    held = [one for one in reached([tensor]).values() if one.type in ("Const", "Placeholder")]
    large = [one for one in held if _is_large(one.outputs[0].shape)]
    return any(one.type == "Placeholder" or _differs(tf.make_ndarray(one.get_attr("value"))) for one in large)


def _is_large(shape: tf.TensorShape) -> bool:
    return shape.rank is None or (shape.rank > 0 and (shape[0] is None or shape[0] >= FEWEST))


def _differs(rows: np.ndarray) -> bool:
    counts = rows.ndim == 1 and rows.dtype.kind in "iu" and len(np.unique(np.diff(rows.astype(np.int64)))) == 1
    return not counts and bool((rows != rows[:1]).any())
