"""Data sets that functions of a pipeline make, those of flat maps and groups say: followed as the pipeline itself is.

A flat map may hold anything: all records, one of them, their mean. So what it makes is known to keep records apart only
where each step is one of those below, from a file or an array that the element names on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp_layers.batches.effects import arguments
from tfdp_layers.batches.made import OF_MANY, Doubt, Made
from tfdp_layers.batches.numbers_within import most_behind, most_of, most_together
from tfdp_layers.batches.origins import is_changed, may_be_records, name_of, reached
from tfdp_layers.batches.readings import takes_own_rows
from tfdp_layers.batches.steps import below, distances, given, kind, number
from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import called_by
from tfdp_layers.proof.values import UnknownError

__all__ = ["made_within"]

_READERS = ("TFRecord", "TextLine", "FixedLengthRecord", "CSV", "Sql", "LMDB", "MatchingFiles")
_FLAT = ("FlatMap", "Interleave", "ParallelInterleave", "LegacyParallelInterleave")
_ENTRIES = ("TFRecord", "TextLine")
"""Readers whose elements are single records or lines, and no names, tables or batches."""
_PARTED = {"whole": "parts", "entry": "pieces"}
_MAPS = ("Map", "ParallelMap", "Filter", "ParallelFilter")
_BATCHES = ("Batch", "ParallelBatch", "PaddedBatch", "Rebatch", "DenseToRaggedBatch")
_KEEPING = ("Prefetch", "Cache", "Options", "MaxIntraOpParallelism", "PrivateThreadPool", "AssertCardinality")
_WHOLE = ("Shuffle", "Repeat", "Take", "Skip", "Shard", "Unbatch", "IgnoreErrors", "AssertNext", "Model")
"""Steps that hand on whole elements, which others look at: `choices`, `repeats`, `zips`."""
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_ASIDE = ("Shuffle", "Prefetch", "Cache", "Options")
_HELD = "holds a data set, perhaps all records of it"
_READ = "reads a data set within it, perhaps all records of that"
_ALL_ROWS = "makes records of all rows of what it gets, which may be a batch, in a function within it"
_SAME = "reads files, or makes a data set of an array, that its elements do not name"


class _Within(NamedTuple):
    """A function's graph, and of the names of its inputs: what decides them, which hold several records.

    Attributes:
        windows: those that are data sets.
        turns: how many elements the flat map's source has, where these are 0, 1, 2, ... (`first` names them); else 0.
        outermost: whether it is the flat map's own function, whose slices are followed as functions on batches are.
    """

    own: dict[str, frozenset[str]]
    several: frozenset[str]
    windows: dict[str, Made]
    turns: int = 0
    first: str = ""
    outermost: bool = False


def made_within(step: Any, several: Iterable[str] = ()) -> Made:
    """What the function makes that gives data sets, of a flat map, an interleave or groups.

    Args:
        several: the names of the function's arguments that may hold several records each, one in each row.
    """
    wrapped = getattr(step, "_map_func", None) or getattr(step, "_reduce_func", None)
    graph = getattr(getattr(wrapped, "function", None), "graph", None)
    if graph is None or not graph.outputs or graph.outputs[0].dtype != tf.variant:
        return Made(frozenset())
    mine = arguments(graph)
    windows = {one.name: Made(frozenset({"window"}), of=frozenset({one.name})) for one in mine if _is_data(one)}
    windows = {name: one._replace(sources=frozenset({name})) for name, one in windows.items()}
    turns = _turns(below(step)[0])
    own = {one.name: frozenset({one.name}) for one in mine}
    within = _Within(own, frozenset(several), windows, turns, mine[0].name if mine else "", True)
    return _made(within, graph.outputs[0])


def _is_data(tensor: Any) -> bool:
    return tensor.dtype == tf.variant


def _turns(source: Any) -> int:
    while kind(source) in _ASIDE and below(source):
        source = below(source)[0]
    return max(0, int(source.cardinality())) if distances(source) == [(0, 1)] else 0


def _decided(within: _Within, tensors: Iterable[Any]) -> frozenset[str]:
    """The arguments of the outermost function that decide these tensors."""
    return frozenset().union(*(within.own.get(name, ()) for name in reached(tensors)))


def _of_several(within: _Within, tensors: Iterable[Any]) -> bool:
    """Whether they are made of what may hold several records, sizes left out."""
    return not within.several.isdisjoint(reached(tensors, lambda made: made in ("Shape", "Size", "Rank")))


def _made(within: _Within, tensor: Any) -> Made:
    operation, what = tensor.op, kind(tensor.op)
    if tensor.name in within.windows:
        return within.windows[tensor.name]
    if what == "Placeholder":
        return Made(frozenset({"file"}), doubts=(Doubt(_HELD),), sources=frozenset({tensor.name}))
    if what == "Identity":
        return _made(within, operation.inputs[0])
    if what in _CALLS:
        return _called(within, operation, tensor.value_index)
    if what in ("TensorSlice", "Tensor", "SparseTensorSlice", "Range", "Generator", *_READERS):
        return _source(within, operation, what)
    inputs = [_made(within, one) for one in operation.inputs if _is_data(one)]
    if not inputs or what in ("Zip", "Concatenate"):
        return _joined(operation, what, inputs)
    return _step(within, operation, what, inputs[0])


def _step(within: _Within, operation: Any, what: str, made: Made) -> Made:
    """What a step makes of one data set."""
    many = bool(made.kinds & (OF_MANY | {"all"}))
    if what == "Shard" and within.turns and _is_turn(within, operation):
        return made._replace(doubts=tuple(one for one in made.doubts if one.reason not in (_HELD, _SAME)))
    made = made._replace(most=most_behind(operation, what, made.most))
    if what == "Unbatch":
        return made._replace(size=1)
    if what in (*_KEEPING, *_WHOLE):
        return made
    if what in _BATCHES:
        size = number(operation, "_batch_size")
        both = None if size is None or made.size is None else max(made.size, int(size))
        return made._replace(size=both) if made.kinds & OF_MANY else made
    if what == "Window":
        return made.doubted("cuts windows that overlap", "windows") if many and _overlap(operation) else made
    if what in _FLAT:
        return _flat(within, operation, made)
    if what in _MAPS:
        return _mapped(within, operation, what, made)
    return made.doubted(f"does what is not followed there (.{what.lower()})") if many else made


def _is_turn(within: _Within, shard: Any) -> bool:
    """Whether it takes the one of as many shards as there are elements that the element says."""
    index = given(shard, "index")[0]
    while index.op.type in ("Identity", "Cast"):
        index = index.op.inputs[0]
    return index.name == within.first and number(shard, "_num_shards") == within.turns


def _overlap(window: Any) -> bool:
    size, shift, stride = (number(window, name) for name in ("_size", "_shift", "_stride"))
    return None in (size, shift, stride) or size * math.gcd(int(shift), int(stride)) > shift


def _source(within: _Within, operation: Any, what: str) -> Made:
    of, inputs = _decided(within, operation.inputs), [*operation.inputs]
    several = _of_several(within, inputs)
    if what == "Generator":
        return Made(frozenset({"file"}), of=of)  # Python code, which nobody sees into
    if what == "Range":
        return Made(frozenset({"count"}), of=of, most=most_of(operation, what))
    sources = frozenset(name_of(one) for one in inputs if what not in _READERS or _decided(within, [one]))
    if what in _READERS:
        kinds = {"file", "entry"} if what in _ENTRIES else {"file"}
        made = Made(frozenset(kinds), of=of, sources=sources)
        return made if of else made.doubted(_SAME)
    held = any(not _decided(within, [one]) and may_be_records(one) for one in inputs)
    if what == "Tensor":
        kinds = {("all" if several else "whole") if of else "constant"}
    else:
        kinds = {("rows" if several else "parts") if of else "constant"}
    made = Made(frozenset(kinds), of=of, sources=sources, most=most_of(operation, what))
    changed = several and what != "Tensor" and not within.outermost and any(is_changed(one) for one in inputs)
    made = made.doubted("takes batches apart, and is not followed there") if changed else made
    return made.doubted(_SAME) if held else made


def _joined(operation: Any, what: str, inputs: list[Made]) -> Made:
    """A zip of data sets, or one behind the other; or a source of a kind that is not known."""
    if not inputs:
        return Made(frozenset({"file"})).doubted(f"makes a data set in a way that is not followed ({what})")
    kinds = frozenset().union(*(one.kinds for one in inputs))
    sizes = {one.size for one in inputs}
    made = Made(
        kinds,
        None if None in sizes else max(one for one in sizes if one is not None),
        frozenset().union(*(one.of for one in inputs)),
        tuple(doubt for one in inputs for doubt in one.doubts),
        tuple(each for one in inputs for each in one.zips),
        frozenset().union(*(one.sources for one in inputs)),
        all(one.direct for one in inputs),
        most_together([one.most for one in inputs], what),
    )
    many = bool(kinds & OF_MANY)
    if what == "Concatenate":
        again = inputs[0].sources & inputs[1].sources or ("file" not in kinds and inputs[0].of & inputs[1].of)
        return made.doubted("puts a data set behind itself, changed or not", "again") if again else made
    if many and "all" in kinds:
        made = made.doubted("puts what is made of a whole batch beside its rows")
    if many and "count" in kinds:
        made = made.doubted("numbers records by their places (.enumerate, or a zip with a range)")
    return made._replace(zips=(*made.zips, operation)) if many else made


def _mapped(within: _Within, operation: Any, what: str, made: Made) -> Made:
    """What a map, or a filter, makes of elements and of what its function holds."""
    held = given(operation, "other_arguments")
    made = made._replace(direct=made.direct and "Filter" in what)
    if any(map(_is_data, held)):
        return made.doubted(_READ)
    graphs = _graphs(operation)
    if graphs is None:
        return made.doubted("calls a function that is not to be had")
    if any(
        "Dataset" in one.type or one.type.startswith("Iterator") for graph in graphs for one in graph.get_operations()
    ):
        return made.doubted("calls a function that reads a data set, perhaps all records of it")
    caught = graphs[0].inputs[len(graphs[0].inputs) - len(held) :]
    whole = [one for one, each in zip(caught, held, strict=True) if _of_several(within, [each])]
    if whole and not (made.kinds == {"count"} and all(takes_own_rows(graphs[0], one) for one in whole)):
        made = made.doubted(_ALL_ROWS)
    return made.doubted("calls a function on batches, which is not followed there") if made.size != 1 else made


def _graphs(operation: Any) -> list[Any] | None:
    try:
        return [graph_named(operation.graph, name) for name in called_by(operation)]
    except UnknownError:
        return None


def _flat(within: _Within, operation: Any, made: Made) -> Made:
    """A flat map of a data set within the function."""
    held, graphs = given(operation, "other_arguments"), _graphs(operation)
    if not graphs:
        return made.doubted("calls a function that is not to be had")
    graph = graphs[0]
    mine, caught = graph.inputs[: len(graph.inputs) - len(held)], graph.inputs[len(graph.inputs) - len(held) :]
    if any(map(_is_data, held)):
        made = made.doubted(_READ)
    of = made.of | ({"count"} if "count" in made.kinds else set())
    pairs = [*zip(caught, held, strict=True)]
    own = {one.name: of for one in mine} | {one.name: _decided(within, [each]) for one, each in pairs}
    several = {one.name for one in mine if made.size != 1 and one.shape.rank != 0}
    whole = {one.name for one, each in pairs if _of_several(within, [each])}
    clear = made._replace(doubts=(), zips=(), most=None)
    windows = {one.name: clear._replace(sources=frozenset({one.name})) for one in mine if _is_data(one)}
    found = _made(_Within(own, frozenset(several | whole), windows), graph.outputs[0])
    if whole and found.kinds & {"all", "rows"}:
        made = made.doubted(_ALL_ROWS)
    kinds, size = found.kinds, found.size
    if not found.kinds & {"file", "window"}:
        kinds = made.kinds if "count" not in found.kinds else made.kinds | {"count"}
        size = made.size if found.is_whole and found.size == 1 else found.size
    if found.kinds & {"parts", "count"} and found.most != 1:
        kinds = kinds - {"whole"} | {_PARTED[one] for one in made.kinds & _PARTED.keys()}
    return made._replace(
        kinds=kinds,
        size=size,
        of=found.of,
        doubts=(*made.doubts, *found.doubts),
        zips=(*made.zips, *found.zips),
        direct=made.direct and found.direct,
        most=None if made.most is None or found.most is None else made.most * found.most,
    )


def _called(within: _Within, operation: Any, output: int) -> Made:
    """What a function gives that is called within the function."""
    graphs = _graphs(operation)
    if not graphs or len(graphs[0].inputs) != len(operation.inputs) or len(graphs[0].outputs) <= output:
        return Made(frozenset({"file"})).doubted("calls a function that is not to be had")
    pairs = [*zip(graphs[0].inputs, operation.inputs, strict=True)]
    own = {one.name: _decided(within, [each]) for one, each in pairs}
    several = {one.name for one, each in pairs if _of_several(within, [each])}
    windows = {one.name: _made(within, each) for one, each in pairs if _is_data(one)}
    return _made(_Within(own, frozenset(several), windows), graphs[0].outputs[output])
