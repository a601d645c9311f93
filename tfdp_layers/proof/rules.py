"""The rules: what each operation makes of what is known of its inputs.

A whitelist: an operation that no rule vouches for is refused as unknown. A rule is a function (node, values) -> a value
for each output, or one for all. It raises `UnknownError` where it cannot vouch for the result, `MixedError` where
records meet. Its docstring states what it assumes of the operation; all assume that kernels do what TensorFlow says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.functional import is_functional
from tfdp_layers.proof.sizes import Number, symbol, varies
from tfdp_layers.proof.values import (
    Batch,
    Carried,
    Constant,
    Counted,
    Everyone,
    MixedError,
    Places,
    Rows,
    Shape,
    Single,
    Total,
    UnknownError,
    Value,
)

__all__ = ["ANY_INPUT", "MAKERS", "OWN", "REPEATED", "RULES", "WHOLE", "Node", "numbers", "rule"]

Rule = Callable[["Node", Sequence[Any]], "Value | Sequence[Value]"]
RULES: dict[str, Rule] = {}
ANY_INPUT: set[str] = set()
"""Operations whose rules look at every input themselves, also at refused ones."""
OWN: set[str] = set()
"""Operations whose rules look at every input themselves, but for refused ones: also at those of one record."""

MAKERS: set[str] = set()
"""Operations that may make rows, or places, of numbers alone."""

REPEATED = "written in every round of a loop over the records, so it tells how many there were"
WHOLE = 2**53
"""Integers up to this one are numbers of Python's type `float`."""
_SMALL = 64
"""Entries up to which unknown integers of a tensor get names."""


def types(text: str) -> tuple[str, ...]:
    """The types of operations that a text names."""
    return tuple(text.split())


def rule(*types: str, any_input: bool = False, own: bool = False, makes: bool = False) -> Callable[[Rule], Rule]:
    """Registers a rule for operations of these types. Raises ValueError where one has a rule already."""

    def register(function: Rule) -> Rule:
        for one in types:
            if one in RULES:
                raise ValueError(f"Operation type {one} has a rule already.")
            RULES[one] = function
            if any_input:
                ANY_INPUT.add(one)
            if own:
                OWN.add(one)
            if makes:
                MAKERS.add(one)
        return function

    return register


@dataclass(eq=False)
class Node:
    """An operation in the function that is interpreted.

    Attributes:
        operation: the `tf.Operation`.
        frame: where it is: see `frames`.
        prover: what interprets it: see `interpreter`.
        type: of the operation.
    """

    operation: Any
    frame: Any
    prover: Any
    type: str = field(init=False)

    def __post_init__(self) -> None:
        self.type = str(self.operation.type)

    @property
    def key(self) -> str:
        """A name for this operation at this place among nested functions, the same in every round of a loop."""
        return f"{self.frame.path}/{self.operation.name}"

    @property
    def functional(self) -> bool:
        return is_functional(self.operation)

    def attribute(self, name: str, default: Any = None) -> Any:
        try:
            return self.operation.get_attr(name)
        except ValueError:
            return default

    def static(self, index: int = 0) -> tuple[int | None, ...] | None:
        """The shape of an output as TensorFlow knows it."""
        shape = self.operation.outputs[index].shape
        return None if shape.rank is None else tuple(shape.as_list())

    def rank(self, index: int = 0) -> int:
        """The rank of an output. Raises UnknownError if TensorFlow does not know it."""
        shape = self.static(index)
        if shape is None:
            raise UnknownError("the rank of the result is not known")
        return len(shape)

    def dtype(self, index: int = 0) -> tf.DType:
        return self.operation.outputs[index].dtype


def numbers(values: Sequence[Number], shape: Sequence[Number]) -> Constant | Counted:
    """An integer tensor of known entries."""
    entries = tuple(v if not isinstance(v, bool) else int(v) for v in values)
    kind = Counted if any(varies(v) for v in entries) else Constant
    first = entries[0] if entries else None
    same = isinstance(first, int) and all(v == first for v in entries) and abs(first) <= WHOLE
    return kind(tuple(shape), entries=entries, fill=float(first) if same else None)  # type: ignore[arg-type]


def unknown_numbers(key: str, shape: Shape, kind: type[Constant] | type[Counted]) -> Constant | Counted:
    """An integer tensor whose entries are not known but named, so that sums and differences of them are."""
    if shape is None or not all(isinstance(n, int) for n in shape):
        return kind(shape)
    count = 1
    for n in shape:
        count *= n  # type: ignore[operator, assignment]
    if count > _SMALL:
        return kind(shape)
    counted = kind is Counted
    return kind(shape, entries=tuple(symbol(f"{key}[{i}]", varies=counted) for i in range(count)))


def entries_of(value: Any, what: str) -> tuple[Number, ...]:
    """The entries of an integer tensor.

    Raises: UnknownError where they are not known, MixedError where records decide them.
    """
    if not isinstance(value, Constant | Counted):
        raise MixedError(f"{what} depends on records")
    if value.entries is None:
        if isinstance(value, Counted):
            raise MixedError(f"{what} depends on the number or the places of the records")
        raise UnknownError(f"{what} is not known")
    return value.entries


def integers_of(value: Any, what: str) -> tuple[int, ...]:
    """The same for numbers that must be plain integers."""
    found = entries_of(value, what)
    if any(varies(n) for n in found):
        raise MixedError(f"{what} depends on the number or the places of the records")
    if not all(isinstance(n, int) for n in found):
        raise UnknownError(f"{what} is not known")
    return found  # type: ignore[return-value]


def axes_of(value: Any, rank: int) -> tuple[int, ...]:
    """Axes, counted from the front. Raises UnknownError for one that there is not."""
    found = integers_of(value, "the axis")
    if not all(-rank <= n < rank for n in found):
        raise UnknownError("an axis that there is not")
    return tuple(n % rank for n in found)


def shape_of(value: Value) -> tuple[Number, ...]:
    """The shape of a value. Raises UnknownError where it is not known."""
    if value.shape is None or any(n is None for n in value.shape):
        raise UnknownError("a shape is not known")
    return value.shape  # type: ignore[return-value]


def dims_of(value: Value) -> tuple[Number | None, ...]:
    """The sizes of the axes, None where not known. Raises UnknownError where the rank is not known."""
    if value.shape is None:
        raise UnknownError("a rank is not known")
    return value.shape


def all_constant(values: Sequence[Any]) -> bool:
    return all(isinstance(v, Constant) for v in values)


def require_constants(values: Sequence[Any], what: str) -> None:
    """Raises MixedError unless all values are constants."""
    if not all_constant(values):
        raise MixedError(f"{what} depends on records, on their number or on their places")


def same_batch(rows: Sequence[Any]) -> Batch:
    """The batch of all values. Raises MixedError if they are of several."""
    found = {value.batch for value in rows}
    if len(found) != 1:
        raise MixedError("records of different pieces of the batch meet")
    return found.pop()


def only_rows(value: Any, what: str) -> Rows:
    """The value, which must be row by row."""
    if not isinstance(value, Rows):
        raise refused_kind(value, what)
    return value


def summed(rows: Rows, shape: Shape) -> Total:
    """What a sum over all records of rows is.

    Raises: MixedError for a batch that was filled up: the rows behind the records hold anything.
    """
    if rows.batch.padded:
        raise MixedError("a sum over records and the rows that the batch was filled up with")
    return Total(shape, batch=rows.batch)


def refused_kind(value: Any, what: str) -> Exception:
    """What to raise for a value that a rule does not take."""
    if isinstance(value, Counted):
        return MixedError(f"{what}: the number or the places of the records as a value")
    if not isinstance(value, Rows | Total | Places | Single | Carried | Everyone):
        return UnknownError(f"{what}: {NAMES.get(type(value).__name__, 'something else')}")
    return MixedError(f"{what}: {NAMES.get(type(value).__name__, 'something else')}")


def refused_with_total(value: Any, what: str) -> Exception:
    """What to raise for a value that meets a sum over records."""
    if isinstance(value, Counted):
        return MixedError(f"{what} of a sum over records with the number or the places of the records")
    return MixedError(f"{what} of a sum over records with {NAMES.get(type(value).__name__, 'something else')}")


NAMES = {
    "Rows": "one value a record",
    "Total": "a sum over records",
    "Places": "the places of records as a value",
    "Single": "one record of the batch",
    "Carried": "what a loop over records carried along",
    "ListOf": "a list",
    "Everyone": "what holds of all records together, as a value",
    "Constant": "a constant",
}
