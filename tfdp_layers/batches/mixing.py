"""Pipelines in which records meet before they are drawn: then what one record holds is in those of others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp_layers.caller import warn
from tfdp_layers.proof.proving import examined, prove_rows, row_by_row

__all__ = ["Meeting", "meetings", "refuse_mixing", "warn_of_mixing"]

_IN_ORDER = (
    "Map",
    "Prefetch",
    "Cache",
    "Options",
    "Batch",
    "Unbatch",
    "Restructured",
    "Repeat",
    "_Tensor",
    "Zip",
    "Assert",
)
"""In the names of data sets that keep their records' order and leave none out."""
_FILTERS = ("Filter", "TakeWhile")
_FIX = (
    " Make each record of its own item alone: put the function into dataset.map before .batch (a filter, too), or into"
    " a layer of the model that treats each record by itself. Leave out MixUp, CutMix, .scan, and shuffles in one"
    " branch of a zip: they mix records by design. Constants of all records (means, scales, vocabularies) come from"
    " elsewhere, or with noise: tfdp.layers.PrivateNormalization, tfdp.preprocessing.quantiles (docs/data.md)."
)


class Meeting(NamedTuple):
    """Where records meet in a pipeline, or may meet.

    Attributes:
        certain: whether they do for certain.
        reason: in words.
    """

    certain: bool
    reason: str


def refuse_mixing(dataset: tf.data.Dataset) -> None:
    """Looks at what a pipeline of single records does before these are drawn; warns where that cannot be told.

    What Python code in it does (generators, `py_function`, tables) is not seen, nor what flat maps make of elements.

    Raises: ValueError where records meet for certain.
    """
    found = list(meetings(dataset, batched=False))
    certain = [one.reason for one in found if one.certain]
    if certain:
        raise ValueError(
            f"Records meet in this pipeline: {certain[0]}. What one person's record holds would be in the records of"
            f" others, and no epsilon is stated for that.{_FIX}"
        )
    if found:
        warn(
            f"Whether records meet in this pipeline is not known: {found[0].reason}. The statement assumes that each"
            f" record was made of its own item alone.{_FIX}"
        )


def warn_of_mixing(dataset: tf.data.Dataset) -> None:
    """Warns where the batches of a pipeline that draws by itself are made so that records meet; the draw is its own."""
    certain = [one.reason for one in meetings(dataset, batched=True) if one.certain]
    if certain:
        warn(
            f"Records may meet in this pipeline: {certain[0]}. Where that is more than the draw that you declare, what"
            f" one person's record holds is in the records of others, and the statement does not hold.{_FIX}"
        )


def meetings(dataset: tf.data.Dataset, batched: bool) -> Iterator[Meeting]:
    """Where records meet on the way to the elements of this pipeline, or, if `batched`, to the rows of these."""
    yield from _meetings(dataset, int(batched))


def _meetings(dataset: tf.data.Dataset, depth: int) -> Iterator[Meeting]:
    """Args: depth: how many axes of its elements are taken apart further on."""
    name, inputs = type(dataset).__name__, list(dataset._inputs())
    wrapped = getattr(dataset, "_map_func", None) or getattr(dataset, "_predicate", None)
    graph = getattr(getattr(wrapped, "function", None), "graph", None)
    slices = [] if graph is None else _sliced(graph)
    if graph is not None and _keeps_records(graph):
        yield Meeting(True, "a function of it writes what it makes of a record into a variable, which others read")
    elif graph is not None and _writes_within(graph):
        yield Meeting(False, "a function within one of its functions writes a variable")
    elif "Scan" in name:
        yield Meeting(True, ".scan (also in rejection_resample) passes on a state from record to record")
    elif depth and any(kind in name for kind in _FILTERS):
        yield Meeting(True, "a filter keeps or drops whole batches, so whether a record stays depends on others")
    elif slices and _have_rows(inputs[0]):
        yield from _of_function(inputs[0], wrapped, slices)
    elif depth and "Map" in name and "FlatMap" not in name:
        yield from _of_function(inputs[0], wrapped)
        if depth > 1:
            yield Meeting(False, "a function on batches of batches is followed for the outer ones alone")
    if "Zip" in name:
        yield from _of_zip(inputs)
    if "Unbatch" in name or slices:
        depth += 1
    elif "Batch" in name:
        depth = max(0, depth - 1)
    elif "FlatMap" in name or "Interleave" in name or "Window" in name:
        depth = 0
    for one in inputs:
        yield from _meetings(one, depth)


def _of_function(source: Any, wrapped: Any, made: Sequence[Any] | None = None) -> Iterator[Meeting]:
    """What a function makes of the rows of its batches.

    Args:
        made: tensors of its graph that are taken apart; all that it gives if left out.
    """
    specs = tf.nest.flatten(source.element_spec)
    if not _have_rows(source):
        yield Meeting(False, f"elements of {source.element_spec} are no batches of records")
        return
    function = wrapped.function
    try:
        if any(one.shape[0] is not None for one in specs):  # .batch(drop_remainder=True): traced anew, for any number
            function = _for_any_number(wrapped._func, source.element_spec)
            made = None if made is None else _sliced(function.graph)
        report = prove_rows(function) if made is None else examined(function, None, made, (), (), row_by_row)
    except Exception as error:  # of the caller's own code, traced anew
        yield Meeting(False, f"a function on batches was not followed ({type(error).__name__})")
        return
    if not report.proved:
        where = f" (operation {report.operation!r} of type {report.type})" if report.type else ""
        mixed = report.status == "mixed"
        what = "makes a row out of several records" if mixed else "is not understood"
        yield Meeting(mixed, f"a function on batches {what}: {report.reason}{where}")


def _for_any_number(function: Any, spec: Any) -> Any:
    free = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), spec)
    given = free if isinstance(free, tuple) else (free,)
    return tf.function(function, autograph=True).get_concrete_function(*given)


def _keeps_records(graph: Any) -> bool:
    """Whether a function writes what depends on its arguments into a variable; a generator's next seed does not."""
    captured = {inner.op.name for _, inner in graph.captures}
    arguments = {one.op.name for one in graph.inputs} - captured
    seen: set[str] = set()
    left = [one for one in graph.get_operations() if "Assign" in one.type]
    while left:
        operation = left.pop()
        if operation.name in arguments:
            return True
        if operation.name not in seen:
            seen.add(operation.name)
            left += [one.op for one in operation.inputs]
    return False


def _have_rows(dataset: Any) -> bool:
    specs = tf.nest.flatten(dataset.element_spec)
    return all(isinstance(one, tf.TensorSpec) and bool(one.shape.rank) for one in specs)


def _writes_within(graph: Any) -> bool:
    """Whether a function that it calls, or a branch, writes a variable."""
    return any("Assign" in node.op for one in graph.as_graph_def().library.function for node in one.node_def)


def _sliced(graph: Any) -> list[Any]:
    """What its flat map takes apart, as `Dataset.from_tensor_slices` in its function does."""
    return [one for each in graph.get_operations() if each.type == "TensorSliceDataset" for one in each.inputs]


def _of_zip(branches: list[Any]) -> Iterator[Meeting]:
    """Branches of one source that give its records in different orders: then other records stand beside each other."""
    held = [_sources(one) for one in branches]
    for one, other in itertools.combinations(held, 2):
        if any(not (one[key] and other[key]) for key in one.keys() & other.keys()):
            yield Meeting(
                True,
                "a zip puts records of one source beside others of it (.shuffle, .skip or another order in a branch),"
                " so that one is in several",
            )
            return


def _sources(dataset: Any, in_order: bool = True) -> dict[int, bool]:
    """The data sets below one, by their ids, and whether they come in their order, each once."""
    name = type(dataset).__name__
    if "Repeat" in name and all("TensorDataset" in type(one).__name__ for one in dataset._inputs()):
        return {}  # one thing beside all others: what windows are cut from, say
    found = {id(dataset): in_order}
    kept = in_order and any(kind in name for kind in _IN_ORDER) and "FlatMap" not in name
    for one in dataset._inputs():
        for key, ordered in _sources(one, kept).items():
            found[key] = found.get(key, True) and ordered
    return found
