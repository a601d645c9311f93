"""Functions of a pipeline that draw, or may: and which parts of its elements may say what is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.batches.steps import below, graphs_of, kind, steps
from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.functional import READS
from tfdp_layers.proof.outside import LOOKUPS, called_by
from tfdp_layers.proof.values import UnknownError

__all__ = [
    "BATCHES",
    "CHANGED",
    "CUTS",
    "DRAWN",
    "FILTERS",
    "FLAT",
    "KEEPING",
    "MAPS",
    "NONE",
    "PLAIN",
    "Chance",
    "is_batched",
    "is_settled",
    "only_reads",
]

BATCHES = ("Batch", "ParallelBatch", "PaddedBatch", "Rebatch")
MAPS, FILTERS = ("Map", "ParallelMap"), ("Filter", "ParallelFilter")
FLAT = ("FlatMap", "Interleave", "ParallelInterleave")
KEEPING = (
    *MAPS,
    *("Prefetch", "Options", "AssertCardinality", "CopyToDevice", "DatasetV1Adapter"),
    *("DenseToRagged", "ParseExample", "Restructured"),
)
"""Steps that give an element for each one, in their order, and keep none of them."""
CUTS = ("Take", "Skip", "Shard")
_READERS = ("TFRecord", "TextLine", "FixedLengthRecord", "Csv", "CSV", "Sql", "LMDB", "Load", "MatchingFiles")
PLAIN = (
    *(*KEEPING, *CUTS, *_READERS, *BATCHES, "Cache", "Shuffle", "Repeat", "ShuffleAndRepeat"),
    *("Tensor", "TensorSlice", "Range", "Counter", "Zip", "Concatenate", "Window", "Unbatch", "Snapshot", "Unique"),
    "IgnoreErrors",
)
"""Steps that draw nothing: each pass over them gives each record at most once."""
_SHUFFLES = ("Shuffle", "PartitionedCall", "StatefulPartitionedCall")
"""Steps in a function that shuffle, or may: a function that it calls."""
_STATES = (
    *("SeedGenerator", "MemoryCache", "PartitionedCall", "If", "While", "Case"),
    *("Assert", "Print", "PrintV2", "CheckNumerics", "CheckNumericsV2"),
)
"""Ends of the types of operations that keep a state, and draw nothing but the order of a shuffle, or say something."""
_SLICES = ("Tensor", "TensorSlice")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
"""What these give of a record says nothing that it holds."""


NONE, CHANGED, DRAWN = range(3)
"""Of a part of an element: no random numbers went into it; they changed what a record holds (augmentation, code of
Python that loads it); or it is of random numbers alone, or one number or flag for a record, by which a step may choose.
"""


class Chance:
    """What random numbers did, or may have done, to the parts of the elements of a pipeline's steps."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, list[int]]] = {}

    def parts(self, step: Any) -> list[int]:
        """Of each part of a step's elements, flattened: `NONE`, `CHANGED` or `DRAWN`."""
        if id(step) not in self._known:
            self._known[id(step)] = (step, self._parts(step))
        return self._known[id(step)][1]

    def _parts(self, step: Any) -> list[int]:
        what, sources, size = kind(step), below(step), len(tf.nest.flatten(step.element_spec))
        if not sources:
            return [self._of_source(step)] * size
        branches = [self.parts(one) for one in sources]
        parts = [one for branch in branches for one in branch]
        if what in ("Concatenate", "DirectedInterleave") and {len(one) for one in branches} == {size}:
            return [max(each) for each in zip(*branches, strict=True)]
        if what in MAPS:
            graph, *others = graphs_of(step) or [None]
            if graph is not None and not others and len(graph.outputs) == size:
                return self._of_map(graph, parts, step)
        elif what not in (*FLAT, "GroupByWindow") and len(parts) == size:
            return parts
        return [max(parts) if all(map(only_reads, graphs_of(step))) else DRAWN] * size

    def _of_source(self, step: Any) -> int:
        return NONE if kind(step) in (*PLAIN, "Variant") else DRAWN

    def _of_map(self, graph: Any, parts: Sequence[int], step: Any) -> list[int]:
        return _made(graph, parts, int(is_batched(step)))

    def decides(self, step: Any) -> bool:
        """Whether what a filter says, or by what groups are made, is a matter of chance, or may be.

        A filter by what a changed record holds (is it finite, long enough) leaves out records by what they are.
        """
        wrapped = step._key_func if kind(step) == "GroupByWindow" else step._predicate
        graph = wrapped.function.graph
        touched = _touched(graph, self.parts(below(step)[0]), DRAWN)
        return any(one.name in touched for one in graph.outputs)

    def enters(self, step: Any) -> bool:
        """Whether what was drawn enters the functions of a step, with their elements, and is not handed on alone.

        A flat map hands on what it only makes rows of.
        """
        given = self.parts(below(step)[0])
        passing = _SLICES if kind(step) in FLAT else ()
        return DRAWN in given and any(_is_used(graph, given, passing) for graph in graphs_of(step))


def _own(graph: Any, parts: Sequence[int], least: int) -> set[str]:
    """The names of a function's inputs that are this, or more."""
    own = graph.inputs[: len(graph.inputs) - len(graph.captures)]
    parts = parts if len(parts) == len(own) else [max(parts, default=NONE)] * len(own)
    return {one.name for one, level in zip(own, parts, strict=True) if level >= least}


def _made(graph: Any, parts: Sequence[int], rank: int) -> list[int]:
    """What the outputs of a map are. Args: rank: of what is one number for a record."""
    touched, drawn = _touched(graph, parts, CHANGED), _own(graph, parts, DRAWN)
    held = {one.name for one in graph.inputs} - drawn
    for operation in graph.get_operations():
        if operation.type not in _SHAPES and any(one.name in held for one in operation.inputs):
            held |= {one.name for one in operation.outputs}

    def level(one: Any) -> int:
        if one.name not in touched:
            return NONE
        number = one.dtype == tf.bool or (one.shape.rank is not None and one.shape.rank <= rank)
        return CHANGED if one.name in held and not number else DRAWN

    return [level(one) for one in graph.outputs]


def _touched(graph: Any, parts: Sequence[int], least: int) -> set[str]:
    """The names of a function's tensors that chance went into: by elements that are this, or more, or in it."""
    found = _own(graph, parts, least)
    for operation in graph.get_operations():
        if any(one.name in found for one in operation.inputs) or not _reads(operation, batched=True):
            found |= {one.name for one in operation.outputs}
    return found


def _is_used(graph: Any, parts: Sequence[int], passing: Collection[str]) -> bool:
    """Whether a function does more with what was drawn than hand it on."""
    found = _own(graph, parts, DRAWN)
    for operation in graph.get_operations():
        if any(one.name in found for one in operation.inputs):
            if operation.type != "Identity" and kind(operation) not in passing:
                return True
            found |= {one.name for one in operation.outputs if operation.type == "Identity"}
    return False


def is_batched(step: Any) -> bool:
    """Whether the elements of a step, or of one below it, hold several others."""
    return any(kind(one) in (*BATCHES, "Window") for one in steps(step))


def only_reads(graph: Any, batched: bool = False) -> bool:
    """Whether a function opens files, or data sets of what it is given, and nothing in it draws or takes by chance.

    Args:
        batched: whether its arguments may hold several records: then a map may draw some of them.
    """
    operations = graph.get_operations()
    # A filter may go by what a map below it drew.
    filtered = {step.name for one in operations if kind(one) in FILTERS for step in steps(one)}
    return all(_reads(one, batched or one.name in filtered) for one in operations)


def is_settled(graph: Any) -> bool:
    """Whether a function gives the same whenever it gets the same: all that chance does in it is by seeds of that.

    Not so: Python code, random numbers without a seed, shuffles of records, what holds data sets, and whole numbers of
    variables, by which somebody may choose the records of each pass.
    """
    held = [one for operation in graph.get_operations() if operation.type in READS for one in operation.outputs]
    if any(one.dtype == tf.variant for _, one in graph.captures) or any(map(_chooses, held)):
        return False
    return all(map(_is_settled, graph.get_operations()))


def _chooses(read: Any) -> bool:
    """Whether it is what a variable holds, and may choose records."""
    return read.op.type.startswith(("Read", "ResourceGather")) and not read.dtype.is_floating


def _is_settled(operation: Any) -> bool:
    if "Dataset" in operation.type:
        if kind(operation).startswith("Shuffle") or kind(operation) not in (*PLAIN, *FILTERS, *FLAT):
            return False
    elif _is_chance(operation) and (operation.op_def is None or operation.op_def.is_stateful):
        return False
    try:
        return all(is_settled(graph_named(operation.graph, name)) for name in called_by(operation))
    except UnknownError:
        return False


def _reads(operation: Any, batched: bool) -> bool:
    """Whether an operation draws nothing and takes nothing by chance, and neither do the functions that it calls."""
    what = kind(operation)
    if "Dataset" in operation.type:
        chosen = what in CUTS and any(kind(one) in _SHUFFLES for one in steps(operation))
        if chosen or what not in (*PLAIN, *FILTERS, *FLAT):
            return False
        if what in MAPS and not batched and not is_batched(operation):
            return True  # changes each record by itself, as it likes
    elif _is_chance(operation):
        return False
    try:
        called: Iterable[Any] = [graph_named(operation.graph, name) for name in called_by(operation)]
    except UnknownError:
        return False
    return all(only_reads(one, batched) for one in called)


def _is_chance(operation: Any) -> bool:
    """Whether an operation gives random numbers, also of a known seed, or may: Python code; not what reads weights."""
    if operation.type in READS:
        return False
    if operation.op_def is None or "Random" in operation.type:
        return True
    of_state = operation.op_def.is_stateful or operation.type.startswith("Stateless")
    return bool(of_state and operation.type not in LOOKUPS and not operation.type.endswith(_STATES))
