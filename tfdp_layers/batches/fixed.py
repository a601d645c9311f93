"""What is proved of functions on batches, of any number of records or of the one number that all have.

Those of `.batch(drop_remainder=True)` all have one: then a number in a function may be meant as theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.batches.effects import arguments, arguments_of
from tfdp_layers.batches.origins import reached
from tfdp_layers.batches.steps import below, given, kind
from tfdp_layers.batches.zips import holds_records
from tfdp_layers.proof.narrowing import BEYOND
from tfdp_layers.proof.proving import examined, row_by_row
from tfdp_layers.proof.redrawn import with_drawn_rows
from tfdp_layers.proof.report import Finding, Report
from tfdp_layers.proof.retraced import same_computation

__all__ = ["beside_numbers", "followed", "is_written", "looked_at", "records_of", "report_of"]

Outputs = Callable[[Any], Sequence[Any]]
_SIZED = ("Reshape", "Slice", "StridedSlice", "BroadcastTo")
"""Operations that are told the number of records, perhaps as a plain number that others made of it."""
_SIZES = frozenset(("Shape", "Size", "Rank"))
_GIVING_THE_SAME = frozenset(
    ("Prefetch", "Shuffle", "Repeat", "Take", "Skip", "Cache", "Options", "AssertCardinality", "DirectedInterleave")
)
"""Steps that hand on their elements as they are."""


def report_of(source: Any, wrapped: Any, outputs: Outputs) -> tuple[Report | None, bool]:
    """What is proved of the rows that a function makes of the batches of a data set; see `looked_at`.

    Numbers beside the batch (of a count, a seed) are constants.

    Args:
        source: gives the batches.
        wrapped: the function, as TensorFlow's data sets hold it.
        outputs: the tensors of a graph whose rows are meant.

    Returns: the report, None if nothing is known; and whether mixing in it is certain.
    """
    numbers = beside_numbers(source)
    specs = [one for one, plain in zip(tf.nest.flatten(source.element_spec), numbers, strict=True) if not plain]
    records = records_of(specs)
    if records is not None:
        return looked_at(wrapped, source.element_spec, records, outputs, numbers)
    graph = wrapped.function.graph
    report = _of_rows(graph, outputs, numbers)
    size = _batch_size(source)
    return report, size is None or report.type not in _SIZED or not is_written(graph, size, report, outputs)


def beside_numbers(source: Any) -> list[bool]:
    """For each component of the elements of a data set, whether it is a number of a count or a draw, zipped to them."""
    specs = tf.nest.flatten(source.element_spec)
    if kind(source) == "Zip":
        return [one for each in source._inputs() for one in beside_numbers(each)]
    if kind(source) in _GIVING_THE_SAME:
        return [all(part) for part in zip(*map(beside_numbers, below(source)), strict=True)]
    plain = all(isinstance(one, tf.TensorSpec) and one.shape.rank == 0 and one.dtype.is_integer for one in specs)
    return [plain and not holds_records(source)] * len(specs)


def looked_at(
    wrapped: Any, spec: Any, records: int, outputs: Outputs, numbers: Sequence[bool] = ()
) -> tuple[Report | None, bool]:
    """What is proved of the graph that runs, or of one for any number of records that computes the same.

    A function may ask how many records there are, and do something else where it is told. So the graph that the
    pipeline runs is looked at first, for this number of records alone. What it says of their number as a plain number
    cannot always be told from others. So random numbers are drawn a row for each record, and then the function is
    traced anew for any number: what is proved of that counts only if both graphs are shown to compute the same. One
    record alone meets no other.

    Args:
        wrapped: the function, as TensorFlow's data sets hold it.
        spec: of its arguments, which have `records` rows.
        outputs: the tensors of a graph whose rows are meant.
        numbers: which of the arguments are plain numbers, and no rows; none if left out.

    Returns: the report, None if the two graphs are not shown to be the same; and whether mixing in it is certain.
    """
    graph = wrapped.function.graph
    report = _of_rows(graph, outputs, numbers, records)
    if records == 1:
        report = dataclasses.replace(report, findings=())
    if report.proved:
        return report, False
    anew, free = None, None
    with contextlib.suppress(Exception):  # of a graph that cannot be copied
        drawn = with_drawn_rows(graph, _of_so_many(graph, numbers, records), records)
        anew = None if drawn is None else _of_rows(drawn, outputs, numbers, records)
    if anew is not None and anew.proved:
        return anew, False
    anew = None
    with contextlib.suppress(Exception):  # of the caller's own code, traced anew
        free = _for_any_number(wrapped._func, spec).graph
        anew = _of_rows(free, outputs, numbers) if same_computation(graph, free, outputs) else None
    if anew is not None and anew.proved:
        return anew, False
    if report.status == "mixed" and records > 1 and not is_written(graph, records, report, outputs, numbers):
        return report, True
    if anew is None and report.status == "unknown":
        return report, False
    if anew is not None and anew.status == "unknown" and report.status == "mixed":
        return report, False
    return anew, anew is not None and records > 1 and not is_written(free, records, anew, outputs, numbers)


def _of_so_many(graph: Any, numbers: Sequence[bool], records: int) -> Any:
    """An argument that has so many rows."""
    return next(one for one in _rows(graph, numbers) if one.shape.rank and one.shape[0] == records)


def _rows(graph: Any, numbers: Sequence[bool]) -> list[Any]:
    """The arguments that are no plain numbers."""
    given = arguments(graph)
    return [one for one, plain in zip(given, numbers or [False] * len(given), strict=True) if not plain]


def _of_rows(graph: Any, outputs: Outputs, numbers: Sequence[bool], records: int | None = None) -> Report:
    """What is proved where some arguments are numbers beside the batch: of a count, a seed of noise is another each."""
    if not any(numbers):
        return followed(graph, outputs, records)
    report = followed(graph, outputs, records, _rows(graph, numbers))
    left = tuple(one for one in report.writes if (one.name, one.status) != ("noise", "unknown"))
    return dataclasses.replace(report, writes=left)


_ONE_AFTER_THE_OTHER = frozenset(
    {"TensorSliceDataset", "TensorDataset", "RepeatDataset", "MapDataset", "ParallelMapDatasetV2", "PrefetchDataset"}
)


def followed(
    graph: Any,
    outputs: Outputs,
    records: int | None = None,
    among: Sequence[Any] | None = None,
) -> Report:
    """What is proved of the rows of a graph's outputs, for this number of records, or for any.

    That a flat map hands them to `Dataset.from_tensor_slices` or `from_tensors`, and maps or repeats these, is no
    write: it gives one row, or batch, after the other, unless what the batch holds says how often. What the data sets
    in it do is looked at by itself (`inner`).

    Args:
        among: the arguments that hold the records; all if left out.
    """
    report = examined(graph, among, outputs(graph), (), (), row_by_row, fixed=records)
    writes = [one for one in report.writes if one.type not in _ONE_AFTER_THE_OTHER]
    rows = {one.name for one in (arguments(graph) if among is None else among)}
    found = tuple(map(_doubted, report.findings))
    return dataclasses.replace(report, findings=found, writes=(*writes, *_counted_by(graph, rows)))


def _doubted(found: Finding) -> Finding:
    """What is found; a cast of numbers that may be beyond a type is doubt: whether any are is not known."""
    return dataclasses.replace(found, status="unknown") if found.reason.startswith(BEYOND) else found


def _counted_by(graph: Any, rows: set[str]) -> Iterator[Finding]:
    """The repeats of a flat map's data sets whose number follows from what these arguments hold, sizes left out."""
    for one in graph.get_operations():
        if one.type == "RepeatDataset" and rows & reached(given(one, "count"), _SIZES.__contains__).keys():
            reason = "how often rows come depends on what records hold"
            yield Finding("repeated", "mixed", reason, one.name, one.type)


def records_of(spec: Any) -> int | None:
    """How many rows the elements of a data set all have; None where that is not known.

    Raises: ValueError where some have another number than others.
    """
    found = {one.shape[0] for one in tf.nest.flatten(spec)} - {None}
    if len(found) > 1:
        raise ValueError(f"Batches of several numbers of records beside each other: {sorted(found)}.")
    return next(iter(found), None)


def is_written(graph: Any, records: int, report: Report, outputs: Outputs, numbers: Sequence[bool] = ()) -> bool:
    """Whether the operation at fault takes a number, or a size, that may be meant as the number of records.

    A number elsewhere in the function changes nothing: a mean of the records is that beside any size of pictures. All
    count where the operation takes sizes, which others may have made, where an output is at fault as it lies, and where
    the operation is not found (in a function that this one calls).
    """
    fault = next((one for one in graph.get_operations() if one.name == report.operation), None)
    if fault is None or report.type in _SIZED or fault in [one.op for one in outputs(graph)]:
        definition = graph.as_graph_def()
        nodes = [*definition.node, *(one for each in definition.library.function for one in each.node_def)]
        return _holds(nodes, (), records)
    rows = {one.name for one in _rows(graph, numbers)}
    given = [one for one in fault.inputs if not rows & arguments_of(graph, [one.op])]
    return _holds([fault.node_def, *(one.node_def for one in reached(given).values())], given, records)


def _holds(nodes: Iterable[Any], tensors: Iterable[Any], records: int) -> bool:
    """Whether a number in these nodes, or a size of these tensors, is the number of records, or a multiple."""
    sizes = (size for one in tensors for size in one.shape.as_list() or () if one.shape.rank and size)
    return any(n != 0 and n % records == 0 for n in (*sizes, *_numbers(nodes)))


def _numbers(nodes: Iterable[Any]) -> Iterator[int]:
    """The integers in nodes of a graph: in small constants, as sizes of these, and in attributes of operations."""
    for node in nodes:
        yield from (one.i for name, one in node.attr.items() if not name.startswith("_") and one.HasField("i"))
        if node.op == "Const":
            value = node.attr["value"].tensor
            yield from (dim.size for dim in value.tensor_shape.dim)
            if tf.as_dtype(value.dtype).is_integer and len(value.tensor_content) <= 1 << 12:
                yield from map(int, tf.make_ndarray(value).ravel()[: 1 << 12])


def _batch_size(dataset: Any) -> int | None:
    """The number of records in the batches of a data set, where the last `.batch` says one."""
    if type(dataset).__name__ in ("_BatchDataset", "_ParallelBatchDataset"):
        size = tf.get_static_value(dataset._batch_size)
        return None if size is None else int(size)
    sizes = {_batch_size(one) for one in below(dataset)}
    return sizes.pop() if len(sizes) == 1 else None


def _for_any_number(function: Any, spec: Any) -> Any:
    free = tf.nest.map_structure(
        lambda one: tf.TensorSpec([None, *one.shape[1:]] if one.shape.rank else one.shape, one.dtype), spec
    )
    given = free if isinstance(free, tuple) else (free,)
    return tf.function(function, autograph=True).get_concrete_function(*given)
