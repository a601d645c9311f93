"""Arrays of records that functions of a pipeline hold, and read more of than the row of their own element."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.sketch import sketch_of
from tfdp_layers.batches.repeats import is_one_thing
from tfdp_layers.batches.steps import below, graphs_of, kind, steps
from tfdp_layers.caller import warn
from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import called_by
from tfdp_layers.proof.values import UnknownError

__all__ = ["warn_of_captured"]

_FEWEST, _AS_MANY, _COLUMNS = 8, 32, 4
"""Rows that are compared with those of records, that are told by their number; and numbers of a row to compare."""
_SAME = ("Identity", "Cast", "ReadVariableOp")
"""Operations that give an array with its rows where they were."""
_NAMED = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StridedSlice", "Pack", "StringToNumber", "AsString")
_MOVED = ("Add", "AddV2", "Sub", "Mul", "FloorMod", "FloorDiv", "Maximum", "Minimum")
"""Operations that give an element's own index, and those that give another one by a constant."""
_SIZES = ("Shape", "ShapeN", "Size", "Rank", "VariableShape")
_READERS = ("FlatMap", "Interleave", "ParallelInterleave", "TFRecord", "TextLine", "FixedLengthRecord")


class _Held(NamedTuple):
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


class _Moved(NamedTuple):
    """A row that an argument names, and a constant moves."""

    argument: Hashable
    operation: str
    by: Any


def warn_of_captured(
    dataset: tf.data.Dataset, records: int, arrays: Sequence[np.ndarray] = (), draws: bool = False
) -> None:
    """Warns where a function of a pipeline reads all of an array whose rows are other records, as far as that shows.

    That is an array of as many rows as there are records, 32 at least, or as a source of the pipeline gives; or one of
    which rows are in these. What takes from it the one row that the element names, by its index or id, is left in
    peace. Not noticed: arrays of other numbers of rows that were changed, and what Python code and tables hold.

    Args:
        records: how many there are.
        arrays: of x, as they were read.
        draws: whether it draws by itself, so that rows may be taken by any indices.
    """
    made = list(steps(dataset))
    sources = [one for one in made if not below(one)]
    files = any(kind(one) in _READERS for one in made)  # a source may list these
    sizes = {records, *(int(one.cardinality()) for one in sources if not files)}
    tensors = (each for one in sources if kind(one) == "TensorSlice" for each in one._tensors)
    given = [one for one in tensors if isinstance(one, tf.Tensor)]
    for step, graph in [(one, graph) for one in made for graph in graphs_of(one)]:
        own, arrays_held = _begin(graph, _beside(step))
        shapes = [one.shape.as_list() for one in graph.inputs if one.name in own and one.shape.rank]
        dims = {size for shape in shapes for size in shape}  # what fits a record may be a constant of that size
        for held, operation, moved in _read(graph, own, arrays_held):
            if draws and _takes_a_row(operation):
                continue
            as_many = held.shape[0] in sizes and held.shape[0] >= _AS_MANY and held.shape[0] not in dims and not moved
            # A row beside the element's own, which the source gives; elsewhere it may be named by counts from one on.
            if as_many or _shares(held, given if moved else [*arrays, *given]):
                _warn(held.shape[0], as_many, operation.name)
                return


def _warn(rows: int, as_many: bool, name: str) -> None:
    warn(
        f"A function of this pipeline holds an array of {rows:,} rows, {'as many' if as_many else 'some of them'} as"
        f" {'there are records' if as_many else 'records have'}, and reads more of it than the row that its element"
        f" names (operation {name!r}). If these are rows of other people, what they hold is in each record, and no"
        " epsilon covers that: neighbours, partners of MixUp, ranks, counts and means among them. Make each record of"
        " its own item alone, its row by tf.gather(array, index). Where the array is public, nothing is lost."
    )


def _shares(held: _Held, arrays: Sequence[Any]) -> bool:
    width = int(np.prod(held.shape[1:]))
    alike = [one for one in arrays if tuple(one.shape[1:]) == held.shape[1:] and len(one) >= _FEWEST]
    if not alike or width < _COLUMNS:
        return False
    rows = held.rows()
    alike = [one for one in map(np.asarray, alike) if one.dtype.kind in "biuf" and rows.dtype.kind in "biuf"]
    sketch = sketch_of([rows]) if alike else None
    return sketch is not None and any(sketch.shares(sketch_of([one])) for one in alike)


def _beside(step: Any) -> list[tf.Tensor | None]:
    """Of each part of the elements that a function gets the array that is given with all of them, as one element."""
    while len(below(step)) == 1 and (kind(step) != "Zip"):
        step = below(step)[0]
        if kind(step) in (*_READERS, "Map", "ParallelMap", "Batch", "Window", "Scan"):
            return []
    found: list[tf.Tensor | None] = []
    for branch in below(step):
        parts = len(tf.nest.flatten(branch.element_spec))
        found += below(branch)[0]._tensors if is_one_thing(branch) else [None] * parts
    return found


def _begin(graph: Any, beside: Sequence[Any]) -> tuple[dict[str, Hashable], dict[str, _Held]]:
    """What of a function's inputs names an element, and what is an array that it holds; by the names of tensors.

    Args:
        beside: of each part of an element the array that is the same in all.
    """
    caught = {inner.name: outer for outer, inner in graph.captures}
    held = {}
    for name, outer in caught.items():
        data = getattr(outer, "_handle_data", None) if outer.dtype == tf.resource else None
        shape = tf.TensorShape(data.shape_and_type[0].shape) if data and data.shape_and_type else outer.shape
        if shape.is_fully_defined() and shape.rank and shape[0] >= _FEWEST:
            held[name] = _Held(id(outer), outer, tuple(shape))
    own = [one for one in graph.inputs if one.name not in caught]
    for one, array in zip(own, beside if len(beside) == len(own) else [], strict=False):
        if isinstance(array, tf.Tensor) and array.shape.rank and array.shape[0] >= _FEWEST:
            held[one.name] = _Held(id(array), array, tuple(array.shape))
    return {one.name: one.name for one in own if one.name not in held}, held


def _read(graph: Any, own: dict[str, Hashable], held: dict[str, _Held]) -> Iterator[tuple[_Held, Any, bool]]:
    """Arrays, and the operations by which more than a row that an element names is read of them.

    Also those that read one row alone, moved by constants: then the third is True.

    Args:
        own: by which argument, and moved by which constants, a tensor names a row.
        held: the arrays; those of the graph's outputs are added, as are its constants.
    """
    named: dict[Hashable, Hashable] = {}
    needed = _needed(graph)
    for one in (one for one in graph.get_operations() if one.name in needed):
        if one.type == "Const":
            shape = one.outputs[0].shape
            if shape.rank and shape[0] >= _FEWEST:
                content = hash(one.get_attr("value").SerializeToString())  # each use of an array is another constant
                held[one.outputs[0].name] = _Held(content, one, tuple(shape))
        elif (index := _index(one, own)) is not None:
            own[one.outputs[0].name] = index
        elif taken := [held[each.name] for each in one.inputs if each.name in held]:
            row = own.get(one.inputs[1].name) if _takes_a_row(one) and len(taken) == 1 else None
            if one.type in _SAME:
                held[one.outputs[0].name] = taken[0]
            elif names := called_by(one):
                yield from _within(one, names, own, held)
            elif row is not None and one.inputs[0].name in held:
                if named.setdefault(taken[0].key, row) != row:
                    yield taken[0], one, False
                elif isinstance(row, _Moved):
                    yield taken[0], one, True
            elif one.type not in _SIZES and "Dataset" not in one.type:
                yield from ((each, one, False) for each in taken)


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


def _index(operation: Any, own: dict[str, Hashable]) -> Hashable | None:
    """By which argument, moved by what, an operation's output names a row; None where it names none."""
    inputs = operation.inputs
    if operation.type == "LookupTableFindV2":
        return own.get(inputs[1].name)
    if operation.type == "Pack" and any(own.get(one.name) != own.get(inputs[0].name) for one in _moving(inputs)):
        return None
    if operation.type in _NAMED:
        return own.get(inputs[0].name)
    if operation.type == "SelectV2":  # a negative index, from the end
        return own.get(inputs[2].name)
    if operation.type not in _MOVED:
        return None
    for one, other in (inputs, reversed(inputs)):
        by = tf.get_static_value(other) if one.name in own and other.shape.rank == 0 else None
        if by is not None:
            return _Moved(own[one.name], operation.type, by.item())
    return None


def _moving(inputs: Sequence[Any]) -> list[Any]:
    """Those that are no constants, such as the other axes' places are."""
    return [one for one in inputs if tf.get_static_value(one) is None]


def _takes_a_row(operation: Any) -> bool:
    """Whether it takes from its first input the row, or rows, that its second one names."""
    if operation.type == "GatherV2":
        return tf.get_static_value(operation.inputs[2]) == 0 and not operation.get_attr("batch_dims")
    if operation.type == "StridedSlice":
        return bool(operation.get_attr("shrink_axis_mask") & 1)
    return operation.type in ("Gather", "GatherNd", "ResourceGather", "ResourceGatherNd")


def _within(
    operation: Any, names: list[str], own: dict[str, Hashable], held: dict[str, _Held]
) -> Iterator[tuple[_Held, Any, bool]]:
    """What functions read that an operation calls: elements, if any, and then its own last inputs."""
    try:
        graphs = [graph_named(operation.graph, name) for name in names]
    except UnknownError:
        return
    for graph in graphs:
        given = dict(zip(reversed([one.name for one in graph.inputs]), reversed(operation.inputs), strict=False))
        arguments = [one.name for one in graph.inputs if one.name not in given or given[one.name].dtype == tf.variant]
        inner_own = {name: own[one.name] for name, one in given.items() if one.name in own}
        inner_own |= {name: (graph, name) for name in arguments}
        inner = {name: held[one.name] for name, one in given.items() if one.name in held}
        yield from _read(graph, inner_own, inner)
        if len(graph.outputs) == len(operation.outputs):
            pairs = zip(operation.outputs, graph.outputs, strict=True)
            held |= {one.name: inner[each.name] for one, each in pairs if each.name in inner}
