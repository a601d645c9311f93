"""Between which integers the entries of a tensor lie, whatever the records hold: from the operations that make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Interval = tuple[int, int]
_DEPTH = 24


def interval_of(
    values: dict[str, Any], tensor: Any, depth: int = _DEPTH, known: dict[tuple[str, int], Interval] | None = None
) -> Interval:
    """Integers that every entry of an integer tensor lies between; at worst those of its type.

    Guarantee: holds for every entry. What may leave its type, and wrap around, has the whole of it.

    Args:
        values: what is known of the tensors of the same graph, by their names.
        depth: how many operations are looked back.
        known: what was found on this look, by tensors and depths.
    """
    known, key = {} if known is None else known, (tensor.name, depth)
    if key not in known:
        known[key] = _found(values, tensor, depth, known)
    return known[key]


def _found(values: dict[str, Any], tensor: Any, depth: int, known: dict[tuple[str, int], Interval]) -> Interval:
    whole = (tensor.dtype.min, tensor.dtype.max)
    entries = getattr(values.get(tensor.name), "entries", None)
    if entries and all(isinstance(n, int) for n in entries):
        return min(entries), max(entries)
    low, high = getattr(values.get(tensor.name), "within", None) or (None, None)
    if isinstance(low, int) and isinstance(high, int):
        return low, high
    if tensor.op.type == "SelectV2" and depth:
        return chosen(values, tensor.op, depth - 1, known)
    rule, inputs = _RULES.get(tensor.op.type), list(tensor.op.inputs)
    if rule is None or depth == 0 or not all(one.dtype.is_integer for one in inputs):
        return whole
    low, high = rule(*[interval_of(values, one, depth - 1, known) for one in inputs])
    return (low, high) if whole[0] <= low and high <= whole[1] else whole


def chosen(values: dict[str, Any], operation: Any, depth: int, known: dict[tuple[str, int], Interval]) -> Interval:
    """What either side of `tf.where` gives; where it is asked whether v < n, of v on each side what is left there.

    So `tf.where(v < 0, v + size, v)`, Keras' places from the end, lies in [0, size) for v in [-size, size). Both sides
    and the question go by the same entry of v, also where shapes are broadcast: they are v itself, or v plus another.
    """

    def within(tensor: Any) -> Interval:
        return interval_of(values, tensor, depth, known)

    def side(tensor: Any, compared: Any, left: Interval) -> Interval:
        if tensor.name == compared.name:
            return left
        terms = list(tensor.op.inputs) if tensor.op.type == "AddV2" else []
        others = [term for term in terms if term.name != compared.name]
        if len(terms) != 2 or len(others) != 1:
            return within(tensor)
        low, high = left[0] + within(others[0])[0], left[1] + within(others[0])[1]
        return (low, high) if tensor.dtype.min <= low and high <= tensor.dtype.max else within(tensor)

    condition, *sides = operation.inputs
    found = [within(tensor) for tensor in sides]
    if condition.op.type == "Less" and condition.op.inputs[0].dtype.is_integer:
        compared, bound = condition.op.inputs
        (low, high), (least, most) = within(compared), within(bound)
        if low <= tf.int32.min and tf.int32.max <= high:  # of what nothing is known, nothing becomes known
            return operation.outputs[0].dtype.min, operation.outputs[0].dtype.max
        parts = [(low, min(high, most - 1)), (max(low, least), high)]
        taken = zip(sides, parts, strict=True)
        found = [side(tensor, compared, left) for tensor, left in taken if left[0] <= left[1]]
    return min(low for low, _ in found), max(high for _, high in found)


def first(one: Interval, *others: Interval) -> Interval:
    """Of what moves, repeats or picks entries of its first input."""
    return one


def product(a: Interval, b: Interval) -> Interval:
    ends = [m * n for m in a for n in b]
    return min(ends), max(ends)


def ranged(start: Interval, limit: Interval, step: Interval) -> Interval:
    """start, start + step ... before the limit, upwards."""
    return (
        (start[0], max(limit[1] - 1, start[0])) if step[0] > 0 else (min(start[0], limit[0]), max(start[1], limit[1]))
    )


_MOVES = ("BroadcastTo", "Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StridedSlice", "Tile", "Transpose")
_RULES: dict[str, Callable[..., Interval]] = {
    **dict.fromkeys(_MOVES, first),
    **dict.fromkeys(["Add", "AddV2"], lambda a, b: (a[0] + b[0], a[1] + b[1])),
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "Neg": lambda a: (-a[1], -a[0]),
    "Mul": product,
    "Minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "Maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "Range": ranged,
}
