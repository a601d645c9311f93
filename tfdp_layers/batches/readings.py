"""Which rows the functions of a pipeline read of the arrays that they hold, by what their elements name."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp_layers.batches.origins import FEWEST
from tfdp_layers.batches.repeats import shared_of
from tfdp_layers.batches.steps import READERS, below, distances, given, graphs_of, kind, number
from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import called_by
from tfdp_layers.proof.values import UnknownError

__all__ = ["PLACE", "Held", "Reading", "Row", "readings_of", "takes_a_row", "takes_own_rows"]

PLACE = "place"
"""In the stead of an argument: how many elements there were before this one."""
_SAME = ("Identity", "Cast", "ReadVariableOp")
"""Operations that give an array with its rows where they were."""
_NAMED = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StridedSlice", "Pack", "StringToNumber", "AsString")
_MOVED = ("Add", "AddV2", "Sub", "Mul", "FloorMod", "FloorDiv", "Maximum", "Minimum")
"""Operations that give an element's own index, and those that give another one by a constant."""
_KEEPING = (
    "Take",
    "Prefetch",
    "Cache",
    "Options",
    "Repeat",
    "AssertCardinality",
    "Restructured",
    "MaxIntraOpParallelism",
)
_SIZES = ("Shape", "ShapeN", "Size", "Rank", "VariableShape")


class Held(NamedTuple):
    """An array that a function holds: a constant, a tensor or a variable."""

    key: Hashable
    given: Any
    shape: tuple[int, ...]

    def rows(self) -> np.ndarray:
        if isinstance(self.given, tf.Operation):
            return tf.make_ndarray(self.given.get_attr("value"))
        if self.given.dtype == tf.resource:
            dtype = tf.as_dtype(self.given._handle_data.shape_and_type[0].dtype)
            return np.asarray(tf.raw_ops.ReadVariableOp(resource=self.given, dtype=dtype))
        return np.asarray(self.given)


class Row(NamedTuple):
    """A row that an argument names: times * argument + plus; `times` is None where it is another function of it.

    Of a pipeline of numbers the argument is (PLACE, which moves come behind the numbers).
    """

    argument: Hashable
    times: Any = 1
    plus: Any = 0

    @property
    def is_own(self) -> bool:
        return self[1:] == (1, 0)

    @property
    def by_place(self) -> bool:
        return isinstance(self.argument, tuple) and self.argument[0] == PLACE


class Reading(NamedTuple):
    """An operation that reads of an array that a function holds.

    Attributes:
        graph: which function's.
        first, last: the rows that the element names, from the first one to before the last; None if it names none.
        derived: whether it names none, and yet what is read follows from the element's place.
    """

    held: Held
    operation: Any
    graph: Any
    first: Row | None = None
    last: Row | None = None
    derived: bool = False

    @property
    def span(self) -> int | None:
        """How many rows that follow one another it takes."""
        known = self.first and self.last and self.first.times is not None and self.first[:2] == self.last[:2]
        return self.last.plus - self.first.plus if known else None  # type: ignore[union-attr]


def readings_of(step: Any, graph: Any) -> tuple[list[Reading], set[int]]:
    """What a function of a step reads of arrays that it holds; and the sizes of the parts of its elements' axes."""
    places = places_of(below(step)[0]) if below(step) else []
    own, held = _begin(graph, shared_of(step), places)
    shapes = [one.shape.as_list() for one in graph.inputs if one.name in own and one.shape.rank]
    return list(_read(graph, own, held)), {size for shape in shapes for size in shape}


def places_of(step: Any) -> list[Row | None]:
    """Of each part of an element what it is of the element's place, where it counts these; else None."""
    what, inputs = kind(step), below(step)
    unknown: list[Row | None] = [None] * len(tf.nest.flatten(step.element_spec))
    if found := distances(step):
        return [None if one is None else Row((PLACE,), one[1], one[0]) for one in found]
    if what == "Zip":
        return [row for one in inputs for row in places_of(one)]
    if len(inputs) != 1 or what in READERS:
        return unknown
    below_it, graphs = places_of(inputs[0]), graphs_of(step)
    if "Map" in what and any(below_it) and len(graphs) == 1:
        own, held = _begin(graphs[0], shared_of(step), below_it)
        list(_read(graphs[0], own, held))
        named = [own.get(one.name) for one in graphs[0].outputs]
        return [row if row and row.by_place else None for row in named] if len(named) == len(unknown) else unknown
    if len(below_it) != len(unknown) or "Map" in what:
        return unknown
    return [row and row._replace(argument=(*row.argument, *_moves(step, what))) for row in below_it]  # type: ignore


def _moves(step: Any, what: str) -> tuple[Hashable, ...]:
    """What tells a step that puts elements to other places from others; nothing of those that keep them."""
    if what in _KEEPING or "Batch" in what:
        return ()
    return ((what, number(step, "_count")) if what == "Skip" else (what, id(step)),)


def _begin(
    graph: Any, beside: Sequence[Any], places: Sequence[Row | None] = ()
) -> tuple[dict[str, Row], dict[str, Held]]:
    """What of a function's inputs names an element, and what is an array that it holds; by the names of tensors.

    Args:
        beside: of each part of an element the array that is the same in all.
        places: of each part what it is of the element's place.
    """
    caught = {inner.name: outer for outer, inner in graph.captures}
    held = {}
    for name, outer in caught.items():
        data = getattr(outer, "_handle_data", None) if outer.dtype == tf.resource else None
        shape = tf.TensorShape(data.shape_and_type[0].shape) if data and data.shape_and_type else outer.shape
        if shape.is_fully_defined() and shape.rank and shape[0] >= FEWEST:
            held[name] = Held(id(outer), outer, tuple(shape))
    own = [one for one in graph.inputs if one.name not in caught]
    for one, array in zip(own, beside if len(beside) == len(own) else [], strict=False):
        if isinstance(array, tf.Tensor) and array.shape.rank and array.shape[0] >= FEWEST:
            held[one.name] = Held(id(array), array, tuple(array.shape))
    rows = dict(zip((one.name for one in own), places, strict=True)) if len(places) == len(own) else {}
    return {one.name: rows.get(one.name) or Row(one.name) for one in own if one.name not in held}, held


def _read(graph: Any, own: dict[str, Row], held: dict[str, Held]) -> Iterator[Reading]:
    """What reads of arrays.

    Args:
        own: which row a tensor names.
        held: the arrays; those of the graph's outputs are added, as are its constants.
    """
    needed = _needed(graph)
    placed = {name for name, row in own.items() if row.by_place}
    for one in (one for one in graph.get_operations() if one.name in needed):
        if one.type == "Const":
            shape = one.outputs[0].shape
            if shape.rank and shape[0] >= FEWEST:
                content = hash(one.get_attr("value").SerializeToString())  # each use of an array is another constant
                held[one.outputs[0].name] = Held(content, one, tuple(shape))
        elif (index := _index(one, own)) is not None:
            own[one.outputs[0].name] = index
            placed |= {one.outputs[0].name} if index.by_place else set()
        elif taken := [held[each.name] for each in one.inputs if each.name in held]:
            if one.type in _SAME:
                held[one.outputs[0].name] = taken[0]
            elif names := called_by(one):
                yield from _within(one, names, own, held)
            elif one.inputs[0].name in held and len(taken) == 1 and (rows := _rows_of(one, own)) is not None:
                yield Reading(taken[0], one, graph, *rows)
            elif one.type not in _SIZES and "Dataset" not in one.type:
                derived = any(each.name in placed for each in one.inputs)
                yield from (Reading(each, one, graph, derived=derived) for each in taken)
        elif any(each.name in placed for each in one.inputs):
            placed |= {each.name for each in one.outputs}


def _rows_of(operation: Any, own: dict[str, Row]) -> tuple[Row, Row] | None:
    """From which row to before which one it takes those that elements name; None where they name none."""
    if len(operation.inputs) < 2:
        return None
    if takes_a_row(operation) and (several := _in_a_row(operation.inputs[1].op, own)):
        return several
    row, what = own.get(operation.inputs[1].name), operation.type
    if row is None or not (takes_a_row(operation) or what in ("StridedSlice", "Slice")):
        return None
    if takes_a_row(operation):
        return row, row._replace(plus=row.plus + 1) if row.times is not None else row
    unknown = row._replace(times=None)
    if what == "Slice":
        size = tf.get_static_value(operation.inputs[2])
        return row, row._replace(
            plus=row.plus + int(size[0])
        ) if size is not None and row.times is not None else unknown
    by = tf.get_static_value(operation.inputs[3])
    end = own.get(operation.inputs[2].name) if by is not None and by[0] == 1 else None
    return row, end or unknown


def _in_a_row(named: Any, own: dict[str, Row]) -> tuple[Row, Row] | None:
    """The first row, and that behind the last, of indices that follow one another from a place of an element on."""
    if named.type == "Range" and tf.get_static_value(named.inputs[2]) == 1:
        first, last = (own.get(one.name) for one in named.inputs[:2])
        return (first, last) if first and last and first.argument == last.argument and first.by_place else None
    if named.type not in ("Add", "AddV2"):
        return None
    for one, other in (named.inputs, reversed(named.inputs)):
        row, by = own.get(one.name), tf.get_static_value(other)
        if row and row.by_place and row.times is not None and np.ndim(by) == 1 and np.all(np.diff(by) == 1):
            return row._replace(plus=row.plus + int(by[0])), row._replace(plus=row.plus + int(by[-1]) + 1)
    return None


def _needed(graph: Any) -> set[str]:
    """The names of operations that its outputs are made of."""
    found: set[str] = set()
    left = [one.op for one in graph.outputs]
    while left:
        one = left.pop()
        if one.name not in found:
            found.add(one.name)
            left += [each.op for each in one.inputs]
    return found


def _index(operation: Any, own: dict[str, Row]) -> Row | None:
    """Which row an operation's output names; None where it names none."""
    inputs = operation.inputs
    if operation.type == "LookupTableFindV2":
        return own.get(inputs[1].name)
    if operation.type == "Pack" and any(own.get(one.name) != own.get(inputs[0].name) for one in _moving(inputs)):
        return None
    if operation.type == "StridedSlice" and inputs[0].shape.rank and inputs[0].name in own:
        row, at = own[inputs[0].name], tf.get_static_value(inputs[1])
        return None if at is None else row._replace(argument=("entry", row.argument, *map(int, at)))
    if operation.type in _NAMED:
        return own.get(inputs[0].name)
    if operation.type == "SelectV2":  # a negative index, from the end
        return own.get(inputs[2].name)
    if operation.type not in _MOVED:
        return None
    for place, (one, other) in enumerate((inputs, reversed(inputs))):
        adds = one.name in own and other.shape.rank == 0 and other.dtype != tf.string
        by = tf.get_static_value(other) if adds else None
        if by is not None:
            return _moved(own[one.name], operation.type, by.item(), place == 1)
    return None


def _moved(row: Row, how: str, by: Any, last: bool) -> Row:
    """The row that arithmetic with a number makes.

    Args:
        last: whether the row is the second operand.
    """
    if how == "FloorDiv" and not last and row.times is not None and by and row.times % by == row.plus % by == 0:
        return Row(row.argument, row.times // by, row.plus // by)
    if row.times is None or how not in ("Add", "AddV2", "Sub", "Mul"):
        return Row(row.argument, None, (how, by, last, row))
    if how == "Mul":
        return Row(row.argument, row.times * by, row.plus * by)
    if how != "Sub":
        return row._replace(plus=row.plus + by)
    return Row(row.argument, -row.times, by - row.plus) if last else row._replace(plus=row.plus - by)


def _moving(inputs: Sequence[Any]) -> list[Any]:
    """Those that are no constants, such as the other axes' places are."""
    return [one for one in inputs if tf.get_static_value(one) is None]


def takes_a_row(operation: Any) -> bool:
    """Whether it takes from its first input the row, or rows, that its second one names."""
    if operation.type == "GatherV2":
        return tf.get_static_value(operation.inputs[2]) == 0 and not operation.get_attr("batch_dims")
    if operation.type == "StridedSlice":
        return bool(operation.get_attr("shrink_axis_mask") & 1)
    return operation.type in ("Gather", "GatherNd", "ResourceGather", "ResourceGatherNd")


def takes_own_rows(graph: Any, array: Any) -> bool:
    """Whether a function on numbers takes of this input the row alone that its element names."""
    own = {graph.inputs[0].name: Row(graph.inputs[0].name)}
    held = {array.name: Held(array.name, array, tuple(array.shape))} if array.shape.rank else {}
    found = [one for one in _read(graph, own, held) if one.held.key == array.name]
    whole = any(held[one.name].key == array.name for one in graph.outputs if one.name in held)
    return bool(found) and not whole and all(map(_is_own_row, found))


def _is_own_row(one: Reading) -> bool:
    return one.first is not None and one.first.is_own and takes_a_row(one.operation)


def _within(operation: Any, names: list[str], own: dict[str, Row], held: dict[str, Held]) -> Iterator[Reading]:
    """What functions read that an operation calls: elements, if any, and then its own last inputs."""
    try:
        graphs = [graph_named(operation.graph, name) for name in names]
    except UnknownError:
        return
    for graph in graphs:
        caught = given(operation, "other_arguments") if "Dataset" in operation.type else operation.inputs
        handed = dict(zip(reversed([one.name for one in graph.inputs]), reversed(caught), strict=False))
        arguments = [one.name for one in graph.inputs if one.name not in handed or handed[one.name].dtype == tf.variant]
        inner_own = {name: own[one.name] for name, one in handed.items() if one.name in own}
        inner_own |= {name: Row((graph, name)) for name in arguments}
        inner = {name: held[one.name] for name, one in handed.items() if one.name in held}
        yield from _read(graph, inner_own, inner)
        if len(graph.outputs) == len(operation.outputs):
            pairs = zip(operation.outputs, graph.outputs, strict=True)
            held |= {one.name: inner[each.name] for one, each in pairs if each.name in inner}
