"""The steps of a pipeline, of tf.data or of Grain: what each does, and from which others it gets its elements."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = [
    "READERS",
    "below",
    "distances",
    "given",
    "graphs_of",
    "identity",
    "is_count",
    "is_grain",
    "kind",
    "kind_of",
    "number",
    "operations",
    "steps",
]

READERS = ("FlatMap", "Interleave", "ParallelInterleave", "TFRecord", "TextLine", "FixedLengthRecord")
"""Steps that read their elements from files, or other things, that the elements below name."""
_FEWEST = 8
"""Numbers in a row that are taken for a count."""
_GRAIN_ENDS, _ENDS = ("MapDataset", "IterDataset"), re.compile(r"Dataset(V\d)?$")


def is_grain(source: Any) -> bool:
    """Whether this is a data set of Grain, or of a class that is made from one of these: no plain source of records."""
    grain = any(one.__module__.partition(".")[0] == "grain" for one in type(source).__mro__)
    return grain and hasattr(source, "_parents")


def kind(step: Any) -> str:
    """What a step does, "Map", "Shuffle" or "Batch" say, after the name of its class; or an operation in a function."""
    if isinstance(step, tf.Operation):
        return kind_of(step.type)
    name = type(step).__name__.strip("_")
    if isinstance(step, tf.data.Dataset):
        return _ENDS.sub("", name)
    return next((name.removesuffix(end) for end in _GRAIN_ENDS if name.endswith(end)), name)


def kind_of(made: str) -> str:
    """What an operation of this type does that makes a data set within a function."""
    return _ENDS.sub("", made)


def below(step: Any) -> list[Any]:
    """The steps from which this one gets its elements; none of a source, nor what only says whose turn it is."""
    if isinstance(step, tf.Operation):
        return [one.op for one in step.inputs if one.dtype == tf.variant]
    if isinstance(step, tf.data.Dataset):
        # Of TFRecordDataset, which reads files by an interleave of its own, and of what TensorFlow 1 wraps.
        inner = getattr(step, "_dataset" if kind(step) == "DatasetV1Adapter" else "_impl", None)
        return (
            [inner]
            if isinstance(inner, tf.data.Dataset)
            else list(step._inputs())[kind(step) == "DirectedInterleave" :]
        )
    if not is_grain(step):
        return []
    wrapped = getattr(step, "_source", None)
    return [*step._parents, *([wrapped] if is_grain(wrapped) else [])]


def steps(source: Any) -> Iterator[Any]:
    """This step and all that it gets elements from, the last one first; each once."""
    seen, left = set(), [source]
    while left:
        step = left.pop(0)
        if id(step) not in seen:
            seen.add(id(step))
            yield step
            left += below(step)


def identity(step: Any) -> Hashable:
    """What two steps share that give the same elements: a source of Grain may be wrapped twice, or cut alike."""
    if is_grain(step):
        wrapped = getattr(step, "_source", None)
        if wrapped is not None and not is_grain(wrapped):
            return id(wrapped)
        if kind(step) == "Slice" and step._parents:
            return (identity(step._parents[0]), *(getattr(step, one, None) for one in ("_start", "_stop", "_step")))
    return id(step)


def number(step: Any, name: str) -> Any:
    """The value that a step keeps by this name, a tensor or not; None where it has none, or it is not known.

    Operations have it by the same name, without the first underscore.
    """
    held = next(iter(given(step, name[1:])), None) if isinstance(step, tf.Operation) else getattr(step, name, None)
    return tf.get_static_value(held) if isinstance(held, tf.Tensor) else held


def given(operation: Any, name: str) -> list[Any]:
    """The inputs of an operation that are one of its arguments, "other_arguments" say: what its function holds."""
    place = 0
    for one in operation.op_def.input_arg:
        size = operation.get_attr(one.number_attr) if one.number_attr else 1
        size = len(operation.get_attr(one.type_list_attr)) if one.type_list_attr else size
        if one.name == name:
            return list(operation.inputs[place : place + size])
        place += size
    return []


def distances(step: Any) -> list[tuple[int, int] | None]:
    """Of each part of a source that counts, 0, 1, 2, ... or in other steps, its first number, and from one to the next.

    None of a part that does not; empty of what is no source of numbers or arrays.
    """
    what = kind(step)
    if what == "Range":
        ends = number(step, "_start"), number(step, "_step")
        return [None if None in ends else (int(ends[0]), int(ends[1]))]
    return [_counts(one) for one in step._tensors] if what == "TensorSlice" else []


def is_count(step: Any) -> bool:
    """Whether it is a source that gives nothing but numbers in a row."""
    return kind(step) == "Counter" or (len(found := distances(step)) == 1 and found[0] is not None)


def _counts(tensor: Any) -> tuple[int, int] | None:
    known = isinstance(tensor, tf.Tensor) and tensor.shape.rank == 1 and tensor.dtype.is_integer
    if not known or tensor.shape[0] < _FEWEST:
        return None
    numbers = np.asarray(tensor, np.int64)
    apart = np.unique(np.diff(numbers))
    return (int(numbers[0]), int(apart[0])) if len(apart) == 1 and apart[0] else None


def graphs_of(dataset: Any) -> list[Any]:
    """The graphs of all functions of a data set of tf.data."""
    found = (getattr(getattr(one, "function", None), "graph", None) for one in vars(dataset).values())
    return [one for one in found if one is not None]


def operations(step: Any) -> Iterator[tuple[str, Any]]:
    """Type and operation of each one in the functions of a step; None for those within what these call."""
    wrapped = (getattr(step, name, None) for name in ("_map_func", "_reduce_func", "_reader_func"))
    for graph in (getattr(getattr(one, "function", None), "graph", None) for one in wrapped):
        if graph is None:
            continue
        yield from ((one.type, one) for one in graph.get_operations())
        with contextlib.suppress(Exception):  # too large for a message, by a constant that it holds
            for function in graph.as_graph_def().library.function:
                yield from ((node.op, None) for node in function.node_def)
