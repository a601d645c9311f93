"""Numbers that a pipeline gives a record by its place: counts, and draws that follow one another from a known seed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp_layers.batches.effects import is_kept
from tfdp_layers.batches.repeats import shared_of
from tfdp_layers.batches.steps import below, is_count, kind, number
from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import PYTHON, called_by
from tfdp_layers.proof.values import UnknownError

__all__ = ["Counted", "counted_in"]

_COUNT = "a count of elements (.enumerate, .range, or a zip with numbers)"
_ROUND = "a count of elements, modulo a number"
_VARIABLE = "numbers that a variable or a table counts, or draws from a seed that is known"
_COUNTS = (_COUNT, _ROUND)
_SMALL = 64
"""Numbers of a constant that a map makes other counts by; larger ones may be records."""
_SIZES = ("Shape", "ShapeN", "Size", "Rank")
_GATHERS = ("GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd", "StridedSlice", "Slice")
_FROM_ARRAYS, _FROM_OUTSIDE = (*_GATHERS, "LookupTableFindV2"), ("ReadFile", *PYTHON)
_TURNING = ("FloorMod", "Mod", "TruncateMod", "BitwiseAnd")
"""Operations that give the same number at many places: what it names belongs to none of them."""
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_FOLLOWED = (*_BRANCHES, "PartitionedCall", "StatefulPartitionedCall")
_READS = ("ReadVariableOp", "TableFind", "RngReadAndSkip", "RngSkip", "Stateful")
_APART = ("FlatMap", "Interleave", "ParallelInterleave", "GroupByWindow")
_MADE = ("LookupTableImport", "InitializeTable")
"""What fills a table that a function makes, with what stands in it."""
_LARGEST, _LIKELY = 1 << 40, 100_000
"""Words of a generator's state below this are a seed that somebody wrote, as whole numbers of Keras' below that: it
draws the seeds that nobody gave from a thousand million."""


class Counted(NamedTuple):
    """By which numbers that its place decides, in words, or empty.

    Attributes:
        chosen: a record stays or goes.
        counted: it holds something else: by a count.
        drawn: the same by draws.
    """

    chosen: str = ""
    counted: str = ""
    drawn: str = ""


def counted_in(dataset: tf.data.Dataset, ids: str | None = None) -> Counted:
    """Where a record of a pipeline stays, or what it holds, by how many others there were before it.

    A row that the count names in an array which a function holds is that record's own, as beside it in a zip.
    Not noticed: counts within the functions of flat maps, and of what Python code does.

    Args:
        ids: the entry of x that says whose a record is, and may be counted.
    """
    chosen: list[str] = []
    marks = tf.nest.pack_sequence_as(dataset.element_spec, _marks(dataset, chosen))
    if ids is not None:
        x, *rest = marks if isinstance(marks, tuple) else (marks,)
        marks = ({name: mark for name, mark in x.items() if name != ids}, *rest)
    held = [mark for mark in tf.nest.flatten(marks) if mark]
    counted = next((mark for mark in held if mark in _COUNTS), "")
    return Counted(next(iter(chosen), ""), counted, next((mark for mark in held if mark not in _COUNTS), ""))


def _marks(step: Any, chosen: list[str]) -> list[str]:
    """By which number of its place each part of an element is made, or empty."""
    inputs, what = below(step), kind(step)
    given = [_marks(one, chosen) for one in inputs]
    parts = len(tf.nest.flatten(step.element_spec))
    if is_count(step):
        return [_COUNT]
    if what in _APART and _nature(inputs[0]) == "count":
        given = [[""] * len(given[0])]  # which files, or blocks, records come from
    if what == "Zip":
        natures = [_nature(one) for one in inputs]
        beside = "records" in natures
        pairs = zip(given, natures, strict=True)
        return [mark or (_COUNT if beside and each == "count" else "") for marks, each in pairs for mark in marks]
    given = given or [[""] * parts]
    whole: list[str] = []
    for name in ("_map_func", "_predicate", "_key_func", "_reduce_func", "_scan_func"):
        graph = getattr(getattr(getattr(step, name, None), "function", None), "graph", None)
        made = [] if graph is None else _made(graph, given[0], shared_of(step))
        if name == "_predicate":
            chosen += filter(None, made)
        elif name == "_map_func" and what not in _APART and len(made) == parts:
            return made
        else:
            whole += made
    if not whole and all(len(marks) == parts for marks in given):
        return [next(filter(None, each), "") for each in zip(*given, strict=True)]
    return [next(filter(None, whole or itertools.chain(*given)), "")] * parts


def _nature(step: Any) -> str:
    """What a pipeline gives: "records"; a "count", or draws of a known seed; again and again one "thing", or "data"."""
    what, inputs = kind(step), below(step)
    if what in ("Range", "Counter") or (what == "Variant" and step.element_spec == tf.TensorSpec((), tf.int64)):
        return "count"
    if what == "Random":
        return "count" if number(step, "_seed") or number(step, "_seed2") else "thing"
    if what == "Tensor":
        sizes = [one.shape.num_elements() for one in step._tensors if isinstance(one, tf.Tensor)]
        return "thing" if sizes == [1] * len(step._tensors) else "data"
    natures = {_nature(one) for one in inputs}
    if not inputs or "records" in natures or natures == {"count", "data"} or what in _APART or _makes_more(step):
        return "records"
    return "count" if "count" in natures or what == "Scan" else next(iter(natures))


def _makes_more(step: Any) -> bool:
    """Whether a map makes more of a number than other numbers: what it holds, or reads, may be records."""
    graph = getattr(getattr(getattr(step, "_map_func", None), "function", None), "graph", None)
    if graph is None:
        return False
    made = _all(graph)
    large = (one.type == "Const" and (one.outputs[0].shape.num_elements() or 0) > _SMALL for one in made)
    rows = (one.type in _GATHERS and one.inputs[0].op.type == "Const" for one in made)
    reads = (one.type == "ReadFile" or one.type in PYTHON for one in made)
    return bool(graph.captures) or any(reads) or any(large) or any(rows)


def _all(graph: Any) -> list[Any]:
    """The operations of a graph and of the functions that it calls."""
    own = graph.get_operations()
    return [*own, *(one for each in own for inner in _inner(each) for one in _all(inner))]


def _inner(operation: Any) -> list[Any]:
    """The graphs of the functions that an operation calls, as far as they are to be had."""
    with contextlib.suppress(UnknownError):
        return [graph_named(operation.graph, name) for name in called_by(operation)]
    return []


def _made(
    graph: Any, marks: Sequence[str], shared: Sequence[Any] = (), given: frozenset[str] = frozenset()
) -> list[str]:
    """The marks of what a function makes of an element with these.

    What a count names is its own: a row of an array that is no part of an element, a file, what Python code gives.

    Args:
        shared: of each part the array that is the same in all elements, or None.
        given: of a function that another one calls, the names of inputs that are no part of an element.
    """
    caught = {inner.name: outer for outer, inner in graph.captures}
    arguments = [one for one in graph.inputs if one.name not in caught]
    if len(arguments) != len(marks):
        marks = [next(filter(None, marks), "")] * len(arguments)
    held = {one.name: mark for one, mark in zip(arguments, marks, strict=True) if mark}
    parts = {one.name for one in arguments} - given
    if len(shared) == len(arguments):
        parts -= {one.name for one, array in zip(arguments, shared, strict=True) if array is not None}
    written = _written(graph, caught)
    for one in graph.get_operations():
        mark = _source(one, written)
        made = [mark] * len(one.outputs)
        names = called_by(one)
        if not mark and names and one.type in _FOLLOWED:
            made = _called(one, held, parts)
        elif not mark and one.type not in _SIZES:
            made = [_passed(one, held, parts)] * len(one.outputs)
        held |= {each.name: own for each, own in zip(one.outputs, made, strict=True) if own}
        if any(each.name in parts for each in one.inputs):
            parts |= {each.name for each in one.outputs}
    return [held.get(one.name, "") for one in graph.outputs]


def _passed(operation: Any, held: dict[str, str], parts: set[str]) -> str:
    """The mark that an operation passes on; none where it gets what a count names from elsewhere than an element."""
    mark = next((held[each.name] for each in operation.inputs if each.name in held), "")
    if mark == _COUNT and operation.type in _TURNING:
        return _ROUND
    own = operation.type in _FROM_ARRAYS and operation.inputs[0].name not in parts
    return "" if operation.type in _FROM_OUTSIDE or (own and mark != _ROUND) else mark


def _called(operation: Any, held: dict[str, str], parts: set[str]) -> list[str]:
    """The marks of what the functions make that an operation calls: a branch, or the function itself."""
    inputs = operation.inputs[1:] if operation.type in _BRANCHES else operation.inputs
    chosen = held.get(operation.inputs[0].name, "") if operation.type in _BRANCHES else ""
    given = [held.get(one.name, "") for one in inputs]
    found = [[chosen] * len(operation.outputs)]
    for graph in _inner(operation):
        if len(graph.inputs) == len(given) and len(graph.outputs) == len(operation.outputs):
            pairs = zip(inputs, graph.inputs, strict=True)
            found.append(_made(graph, given, given=frozenset(own.name for one, own in pairs if one.name not in parts)))
        else:
            found.append([next(filter(None, given), "")] * len(operation.outputs))
    return [next(filter(None, each), "") for each in zip(*found, strict=True)]


def _source(operation: Any, written: Callable[[str], bool]) -> str:
    """By which number of its own, in words, an operation decides by the place; or empty."""
    for one in (operation, *(each for graph in _inner(operation) for each in _all(graph))):
        seeds = [one.node_def.attr[name].i for name in ("seed", "seed2") if name in one.node_def.attr]
        if len(seeds) == 2 and any(seeds):
            return f"draws from a seed that is known (operation {one.name!r})"
    reads = any(name in operation.type for name in _READS) or bool(_inner(operation))
    return _VARIABLE if reads and any(written(each.name) for each in operation.inputs) else ""


def _written(graph: Any, caught: dict[str, Any]) -> Callable[[str], bool]:
    """Tells of the name of what a function caught whether it counts on there, from numbers that are known."""
    found = set()
    for one in graph.get_operations():
        if one.type.startswith(_MADE) and all(each.op.type == "Const" for each in one.inputs[1:]):
            continue
        kinds = [one.type, *(each.type for inner in _inner(one) for each in _all(inner))]
        if any(is_kept(each) or each.startswith(("Rng", "Stateful")) for each in kinds):
            found |= {each.name for each in one.inputs if each.dtype == tf.resource}
    known = {name for name in found if name in caught and _is_known(caught[name], graph.seed)}
    return known.__contains__


def _is_known(handle: Any, seed: Any) -> bool:
    """Whether it is no generator of random numbers whose seed nobody knows.

    Args:
        seed: that the program set for all, if any.
    """
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or not data.shape_and_type:
        return True  # a table
    shape, dtype = tf.TensorShape(data.shape_and_type[0].shape), tf.as_dtype(data.shape_and_type[0].dtype)
    if shape.rank != 1 or shape[0] not in (2, 3) or not dtype.is_integer:
        return True
    words = np.asarray(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)).tolist()
    if len(words) == 2:  # a seed of Keras, and how often it was drawn from
        return seed is not None or abs(words[0]) < _LIKELY
    return all(abs(one) < _LARGEST for one in words)
