"""Functions on batches that all have one number of records, as `.batch(drop_remainder=True)` makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.proving import examined, row_by_row
from tfdp_layers.proof.report import Report
from tfdp_layers.proof.retraced import same_computation

__all__ = ["followed", "is_written", "looked_at", "records_of"]


def looked_at(
    wrapped: Any, spec: Any, records: int, outputs: Callable[[Any], Sequence[Any]]
) -> tuple[Report | None, bool]:
    """What is proved of the graph that runs, or of one for any number of records that computes the same.

    A function may ask how many records there are, and do something else where it is told. So the graph that the
    pipeline runs is looked at first, for this number of records alone. What it says of their number as a plain number
    cannot always be told from others. Then the function is traced anew for any number, and what is proved of that
    counts only if both graphs are shown to compute the same.

    Args:
        wrapped: the function, as TensorFlow's data sets hold it.
        spec: of its arguments, which have `records` rows.
        outputs: the tensors of a graph whose rows are meant.

    Returns: the report, None if the two graphs are not shown to be the same; and whether mixing in it is certain.
    """
    graph = wrapped.function.graph
    report = followed(graph, outputs, records)
    if report.proved:
        return report, False
    if report.status == "mixed" and records > 1 and not is_written(graph, records):
        return report, True
    try:
        free = _for_any_number(wrapped._func, spec).graph
        if not same_computation(graph, free, outputs):
            return None, False
        report = followed(free, outputs)
    except Exception:  # of the caller's own code, traced anew
        return None, False
    return report, records > 1 and not is_written(free, records)


_ONE_AFTER_THE_OTHER = frozenset({"TensorSliceDataset", "MapDataset", "ParallelMapDatasetV2", "PrefetchDataset"})


def followed(
    graph: Any,
    outputs: Callable[[Any], Sequence[Any]],
    records: int | None = None,
    among: Sequence[Any] | None = None,
) -> Report:
    """What is proved of the rows of a graph's outputs, for this number of records, or for any.

    That a flat map hands them to `Dataset.from_tensor_slices`, and maps these, is no write: it gives one row after the
    other. What the data sets in it do is looked at by itself (see `inner`).

    Args:
        among: the arguments that hold the records; all if left out.
    """
    report = examined(graph, among, outputs(graph), (), (), row_by_row, fixed=records)
    return dataclasses.replace(
        report, writes=tuple(one for one in report.writes if one.type not in _ONE_AFTER_THE_OTHER)
    )


def records_of(spec: Any) -> int | None:
    """How many rows the elements of a data set all have; None where that is not known.

    Raises: ValueError where some have another number than others.
    """
    found = {one.shape[0] for one in tf.nest.flatten(spec)} - {None}
    if len(found) > 1:
        raise ValueError(f"Batches of several numbers of records beside each other: {sorted(found)}.")
    return next(iter(found), None)


def is_written(graph: Any, records: int) -> bool:
    """Whether a function holds a number, or a size, that may be meant as its number of records, or a multiple."""
    return any(n != 0 and n % records == 0 for n in _numbers(graph))


def _numbers(graph: Any) -> Iterator[int]:
    """The integers in a graph: in small constants, as sizes of these, and in attributes of operations."""
    definition = graph.as_graph_def()
    for node in (*definition.node, *(one for each in definition.library.function for one in each.node_def)):
        yield from (one.i for name, one in node.attr.items() if not name.startswith("_") and one.HasField("i"))
        if node.op == "Const":
            value = node.attr["value"].tensor
            yield from (dim.size for dim in value.tensor_shape.dim)
            if tf.as_dtype(value.dtype).is_integer and len(value.tensor_content) <= 1 << 12:
                yield from map(int, tf.make_ndarray(value).ravel()[: 1 << 12])


def _for_any_number(function: Any, spec: Any) -> Any:
    free = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), spec)
    given = free if isinstance(free, tuple) else (free,)
    return tf.function(function, autograph=True).get_concrete_function(*given)
