"""What chance, or a count that goes on, makes of the elements of a pipeline: other numbers, or a choice of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.batches.chance import CHANGED, DRAWN, FILTERS, FLAT, MAPS, NONE, Chance, is_settled
from tfdp_layers.batches.origins import FEWEST, may_be_records
from tfdp_layers.batches.repeats import ENDLESS
from tfdp_layers.batches.steps import below, graphs_of, kind, number
from tfdp_layers.proof.functional import READS
from tfdp_layers.proof.outside import outside, random_states, with_called
from tfdp_layers.proof.values import UnknownError

__all__ = ["Afresh"]

COUNTED = CHANGED
"""Of a part of an element: a count went into it that begins again where a pass ends, or random numbers that do."""
_SIZES = ("Shape", "ShapeN", "Size", "Rank")
_ENTRIES = (
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Maximum", "Minimum", "Pow", "BiasAdd"),
    *("Less", "LessEqual", "Greater", "GreaterEqual", "SquaredDifference"),
)
_TOGETHER = ("ConcatV2", "Pack", "Select", "SelectV2", "DynamicStitch", "ParallelDynamicStitch")
"""What these make of two tensors holds entries of both."""


class Afresh(Chance):
    """Which parts of elements differ from pass to pass, or from round to round, and which steps choose records by them.

    A step that only changes what records hold chooses none: what it makes has as many rows as it gets, fewer than all
    records, and no number that differs meets an array that a function holds. What is not seen to be so chooses.
    """

    def __init__(self, examples: int) -> None:
        super().__init__()
        self._examples = examples

    def _of_source(self, step: Any) -> int:
        if _ends(step):
            return NONE
        return DRAWN if kind(step) == "Random" and getattr(step, "_rerandomize", None) is True else COUNTED

    def _of_map(self, graph: Any, parts: Sequence[int], step: Any) -> list[int]:
        return _Function(graph, parts).outputs()

    def _parts(self, step: Any) -> list[int]:
        found = super()._parts(step)
        if kind(step) == "Scan" and not _ends(step):
            return [max(COUNTED, one) for one in found]  # by what it keeps
        if kind(step) == "Cache" and int(step.cardinality()) != tf.data.INFINITE_CARDINALITY:
            return [NONE for _ in found]  # whatever made them in the first pass
        return [NONE if one == COUNTED else one for one in found] if _ends(step) else found

    def chooses(self, step: Any) -> bool:
        """Whether what differs from pass to pass may have a say in which records a step gives."""
        graphs = graphs_of(step)
        parts = [part for one in below(step) for part in self.parts(one)]
        counts = kind(step) == "Scan" and not _ends(step)
        if all(map(is_settled, graphs)) and not any(parts) and not counts:
            return False
        parts = [max(COUNTED, *parts)] if counts else parts
        functions = [_Function(graph, parts) for graph in graphs]
        if kind(step) in FILTERS:
            return any(one.chooses or any(one.outputs()) for one in functions)
        if kind(step) in (*MAPS, "Scan") and len(functions) == 1:
            return functions[0].chooses or (functions[0].differs and not self._keeps(functions[0]))
        return bool(functions) and (kind(step) not in FLAT or any(one.chooses or one.differs for one in functions))

    def _keeps(self, function: _Function) -> bool:
        """Whether what a map makes has the rows that it gets, and these are not all records, which may weigh 0."""
        given, made = function.rows, _rows(function.graph.outputs)
        if None in (*given, *made) or not made:
            return not given and not made  # numbers, by which a step behind may choose
        return not set(made).isdisjoint(given) and all(
            rows < self._examples for rows in made if rows is not None and rows in given
        )


class _Function:
    """What differs from pass to pass in a function of a step, and whether it chooses records.

    Attributes:
        chooses: whether that meets an array, or a table, that the function holds, or does what is not known.
        differs: whether there is any, that more than passes through.
        rows: of its own arguments, and of what these name in arrays.
    """

    def __init__(self, graph: Any, parts: Sequence[int]) -> None:
        own = graph.inputs[: len(graph.inputs) - len(graph.captures)]
        parts = parts if len(parts) == len(own) else [max(parts, default=NONE)] * len(own)
        self.graph, self.rows = graph, _rows(own)
        self._levels = {one.name: level for one, level in zip(own, parts, strict=True)}
        self._own = {one.name for one in own}
        self._held = {inner.name for outer, inner in graph.captures if _is_large(_shape(outer))}
        self.chooses, self.differs = any(b.dtype == tf.variant for _, b in graph.captures), False
        self._writes = any("Assign" in one.type for one in graph.get_operations())
        for operation in graph.get_operations():
            if operation.type == "Const":
                one = operation.outputs[0]
                self._held |= {one.name} if _is_large(one.shape) or may_be_records(one) else set()
            elif operation.type not in (*_SIZES, "Placeholder", "VariableShape"):
                self._follow(operation)

    def outputs(self) -> list[int]:
        return [self._levels.get(one.name, NONE) for one in self.graph.outputs]

    def _follow(self, operation: Any) -> None:
        names, made = [one.name for one in operation.inputs], [one.name for one in operation.outputs]
        drawn, large = self._draws(operation), self._holds(operation)
        self.chooses |= drawn is None
        level = DRAWN if drawn else max((self._levels.get(one, NONE) for one in names), default=NONE)
        if operation.type in ("FloorMod", "Mod") and level == COUNTED and _begins_again(operation.inputs[1]):
            level = NONE
        held = [one for one in operation.inputs if one.name in self._held]
        own = [one for one in names if one in self._own]
        if level and (held or large):
            self.chooses |= not (operation.type in _ENTRIES and self._changes(operation, held))
        self.differs |= level > NONE and operation.type not in ("Identity", "NoOp")
        if held and (not own or operation.type in _TOGETHER):
            self._held.update(made)
        elif held and operation.type not in _ENTRIES:
            self.rows += _rows(operation.outputs)  # those that an element names
        if own:
            self._own.update(made)
        self._levels.update(dict.fromkeys(made, level))

    def _changes(self, operation: Any, held: list[Any]) -> bool:
        """Whether arithmetic does something to an element's own numbers, or by a constant for each row's entries."""
        others = [one for one in operation.inputs if all(one is not each for each in held)]
        ranks = [one.shape.rank for one in (*held, operation.outputs[0])]
        own = bool(others) and all(one.name in self._own for one in others)
        return own or (None not in ranks and max(ranks[:-1]) < ranks[-1])

    def _draws(self, operation: Any) -> bool | None:
        """Whether an operation, or what it calls, gives numbers that differ by themselves; None: not known."""
        if operation.type == "NoOp":
            return False
        if "Dataset" in operation.type:
            return None
        try:
            if outside([operation]) is not None:
                return None
            every = list(with_called([operation]))
        except UnknownError:
            return None
        return next(random_states([operation]), None) is not None or any(map(self._varies, every))

    def _varies(self, operation: Any) -> bool:
        """Whether it is what a variable holds, and that is not the same in each pass, or may name records."""
        read = operation.type in READS and operation.type.startswith(("Read", "ResourceGather"))
        return read and (self._writes or not all(one.dtype.is_floating for one in operation.outputs))

    def _holds(self, operation: Any) -> bool:
        """Whether the functions that it calls hold arrays."""
        try:
            inner = list(with_called([operation]))[1:]
        except UnknownError:
            return True
        return any(one.type == "Const" and _is_large(one.outputs[0].shape) for one in inner)


def _rows(tensors: Sequence[Any]) -> list[int | None]:
    """The rows of each, but for single numbers; None where they are not known."""
    return [None if one.shape.rank is None else one.shape[0] for one in tensors if one.shape.rank != 0]


def _shape(outer: Any) -> tf.TensorShape:
    """Of a tensor, or of the variable that a handle is of; unknown of other resources."""
    if outer.dtype != tf.resource:
        return outer.shape
    data = getattr(outer, "_handle_data", None)
    return tf.TensorShape(data.shape_and_type[0].shape if data and data.shape_and_type else None)


def _is_large(shape: tf.TensorShape) -> bool:
    """Whether there is room for several records, and more than a few numbers: a kernel of 4 by 4 has none."""
    if shape.rank is None or shape.num_elements() is None:
        return True
    return shape.rank > 0 and shape.num_elements() >= FEWEST and (shape[0] >= FEWEST or shape.num_elements() > 16)


def _begins_again(by: Any) -> bool:
    found = tf.get_static_value(by)
    return found is not None and bool((abs(found) < ENDLESS).all())


def _ends(step: Any) -> bool:
    """Whether a step comes to an end, so that counts below it begin again with the next pass."""
    taken = number(step, "_count") if kind(step) == "Take" else None
    return (taken is not None and int(taken) >= 0) or 0 <= int(step.cardinality()) < ENDLESS
