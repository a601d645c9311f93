"""Computes with integers that are known up to the number of records: sizes, axes, permutations, slices of shapes.

Each function does to arrays of `Number` what the operation does to integer tensors. Where the result depends on what is
not known (is B + 1 below 8?) it raises, and the result stays without entries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.proof.rules import Node, numbers, types
from tfdp_layers.proof.settling import fits, limits
from tfdp_layers.proof.sizes import Number, Size, floor_divide, is_below, larger, smaller, symbol, varies
from tfdp_layers.proof.values import Value

__all__ = ["LARGEST", "UndecidedError", "computed", "operation", "plain"]

_TYPES = frozenset({tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint32, tf.uint64, tf.bool})
LARGEST = 4096
_ORDERED = frozenset(
    types("FloorDiv FloorMod Maximum Minimum Equal NotEqual Less Greater LessEqual GreaterEqual Max Min Cast")
)
"""What it gives depends on the numbers themselves. Sums and products are right modulo the size of the type anyway."""
_MODULUS = 2**30
"""From this on a remainder counts as the number itself where seeds are told apart; see `randomness`."""

Compute = Callable[..., Any]
OPERATIONS: dict[str, Compute] = {}


class UndecidedError(ArithmeticError):
    """The result depends on the number of records, or on what is not known."""


def operation(*types: str) -> Callable[[Compute], Compute]:
    def register(function: Compute) -> Compute:
        OPERATIONS.update(dict.fromkeys(types, function))
        return function

    return register


def computed(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
    """The results as known integers, None where they are not."""
    compute = OPERATIONS.get(node.type)
    if compute is None or any(value.entries is None for value in inputs) or not inputs:
        return None
    if any(tensor.dtype not in _TYPES for tensor in node.operation.outputs):
        return None
    if node.type in _ORDERED and not all(in_range(node, n) for value in inputs for n in value.entries):
        return None
    try:
        arrays = [as_array(value) for value in inputs]
        found = compute(node, *arrays)
    except (ArithmeticError, IndexError, TypeError, ValueError):
        return None
    results = [np.asarray(one, dtype=object) for one in (found if isinstance(found, list) else [found])]
    if len(results) != len(node.operation.outputs) or any(one.size > LARGEST for one in results):
        return None
    return [numbers([int(n) if isinstance(n, np.integer) else n for n in one.flat], one.shape) for one in results]


def in_range(node: Node, number: Number) -> bool:
    """Whether a number is, in the operation's types, what it is among all integers. One by itself is in its own."""
    before, after = node.operation.inputs[0].dtype, node.dtype()
    alone = isinstance(number, Size) and len(number.terms) == 1 and number == symbol_of(number)
    if node.type == "FloorMod" and not isinstance(number, int):
        return True  # see `remainder`
    if node.type != "Cast" or after.is_bool:
        return alone or fits(number, before)
    wider = limits(after)[0] <= limits(before)[0] and limits(before)[1] <= limits(after)[1]
    return (alone and wider) or (fits(number, before) and fits(number, after))


def symbol_of(number: Size) -> Size:
    """The first atom of a number by itself."""
    return Size(((number.terms[0][0][:1], 1),))


def as_array(value: Any) -> Any:
    """The entries in the tensor's shape."""
    found = np.empty(len(value.entries), dtype=object)
    found[:] = value.entries
    return found.reshape([int(n) for n in value.shape])


def plain(array: Any) -> Any:
    """An array of plain integers. Raises UndecidedError where an entry is not."""
    if not all(isinstance(n, int | np.integer) for n in array.ravel()):
        raise UndecidedError
    return array.astype(np.int64)


def require(fine: bool) -> None:
    """Raises UndecidedError unless it is fine: TensorFlow's own kernel fails there, and others compute something."""
    if not fine:
        raise UndecidedError


def axis_of(axis: Any, rank: int) -> int:
    """An axis, counted from the front. Raises UndecidedError for one that there is not."""
    place = int(plain(np.asarray(axis)))
    require(-rank <= place < rank)
    return place % rank


def entrywise(function: Callable[..., Any]) -> Compute:
    ufunc = np.frompyfunc(function, function.__code__.co_argcount, 1)
    return lambda node, *arrays: ufunc(*arrays)


def decided(answer: bool | None) -> int:
    if answer is None:
        raise UndecidedError
    return int(answer)


def same(a: Number, b: Number) -> bool | None:
    """Whether two numbers are equal; None where that depends on the number of records."""
    if a == b:
        return True
    return False if is_below(a, b) or is_below(b, a) else None


def divisor(b: Number) -> Number:
    """The number. Raises UndecidedError where it may be 0: TensorFlow fails there, but XLA says that n / 0 is -1."""
    if b == 0 or not (is_below(0, b) or is_below(b, 0)):
        raise UndecidedError
    return b


def remainder(a: Number, b: Number) -> Number:
    if divisor(b) == 1:
        return 0
    if isinstance(b, int) and b >= _MODULUS and not isinstance(a, int):
        return symbol("remainder", varies=varies(a), least=0, most=b - 1, operands=(a, b))
    if not isinstance(a, int) and not fits(a, tf.int32):
        raise UndecidedError
    return a - floor_divide(a, b) * b


def truth(a: Number) -> bool:
    """Whether a number, that is true or false, is true."""
    if not isinstance(a, int | np.integer):
        raise UndecidedError
    return bool(a)


OPERATIONS |= {
    "Add": entrywise(lambda a, b: a + b),
    "AddV2": entrywise(lambda a, b: a + b),
    "Sub": entrywise(lambda a, b: a - b),
    "Mul": entrywise(lambda a, b: a * b),
    "Neg": entrywise(lambda a: -a),
    "FloorDiv": entrywise(lambda a, b: floor_divide(a, divisor(b))),
    "Maximum": entrywise(lambda a, b: larger(a, b)),
    "Minimum": entrywise(lambda a, b: smaller(a, b)),
    "Equal": entrywise(lambda a, b: decided(same(a, b))),
    "NotEqual": entrywise(lambda a, b: 1 - decided(same(a, b))),
    "Less": entrywise(lambda a, b: decided(is_below(a, b))),
    "Greater": entrywise(lambda a, b: decided(is_below(b, a))),
    "LessEqual": entrywise(lambda a, b: 1 - decided(is_below(b, a))),
    "GreaterEqual": entrywise(lambda a, b: 1 - decided(is_below(a, b))),
    "LogicalAnd": entrywise(lambda a, b: int(truth(a) and truth(b))),
    "LogicalOr": entrywise(lambda a, b: int(truth(a) or truth(b))),
    "LogicalNot": entrywise(lambda a: int(not truth(a))),
    "SelectV2": entrywise(lambda c, a, b: a if truth(c) else b),
    "ZerosLike": entrywise(lambda a: 0),
    "OnesLike": entrywise(lambda a: 1),
}


@operation("Identity", "StopGradient", "EnsureShape")
def identity(node: Node, a: Any) -> Any:
    return a


@operation("FloorMod")
def remainders(node: Node, a: Any, b: Any) -> Any:
    """Entry by entry; of numbers of which nothing is known, as random ones, by a plain one: some number below it."""
    found = []
    for i, (n, by) in enumerate(np.broadcast(a, b)):
        try:
            found.append(remainder(n, by))
        except UndecidedError:
            require(isinstance(by, int | np.integer) and bool(by > 0) and not varies(n))
            found.append(symbol(f"{node.key} remainder {i}", least=0, most=int(by) - 1))
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array.reshape(np.broadcast(a, b).shape)


@operation("Cast")
def cast(node: Node, a: Any) -> Any:
    if node.dtype() == tf.bool:
        return np.frompyfunc(lambda n: 1 - decided(same(n, 0)), 1, 1)(a)
    return a


@operation("Select")
def select(node: Node, condition: Any, a: Any, b: Any) -> Any:
    """A vector selects along the first axis; any other condition entry by entry."""
    require(a.shape == b.shape and condition.shape in ((), a.shape[:1], a.shape))
    if condition.ndim == 1 and a.ndim > 1:
        condition = condition.reshape([-1] + [1] * (a.ndim - 1))
    return np.frompyfunc(lambda c, x, y: x if truth(c) else y, 3, 1)(condition, a, b)


@operation("AddN")
def add_all(node: Node, *arrays: Any) -> Any:
    require(len({a.shape for a in arrays}) == 1)
    return functools.reduce(lambda a, b: a + b, arrays)


@operation("Sum", "Prod", "Max", "Min", "All", "Any")
def reduction(node: Node, a: Any, axes: Any) -> Any:
    both: dict[str, Callable[[Any, Any], Any]] = {
        "Sum": lambda x, y: x + y,
        "Prod": lambda x, y: x * y,
        "Max": larger,
        "Min": smaller,
        "All": lambda x, y: int(truth(x) and truth(y)),
        "Any": lambda x, y: int(truth(x) or truth(y)),
    }
    starts = {"Sum": 0, "Prod": 1, "All": 1, "Any": 0}
    own = sorted(axis_of(n, a.ndim) for n in plain(axes).ravel())
    require(len(set(own)) == len(own))
    keep = bool(node.attribute("keep_dims"))
    moved = np.moveaxis(a, own, range(len(own)))
    kept = moved.shape[len(own) :]
    flat = moved.reshape((-1, *kept))
    ufunc = np.frompyfunc(both[node.type], 2, 1)
    rows = list(flat)
    if node.type in starts:
        total = functools.reduce(ufunc, rows, np.full(kept, starts[node.type], dtype=object))
    else:
        total = functools.reduce(ufunc, rows)
    return np.asarray(total, object).reshape([1 if i in own else n for i, n in enumerate(a.shape)] if keep else kept)
