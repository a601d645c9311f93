"""Pipelines in which records meet before they are drawn: then what one record holds is in those of others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.batches.apart import (
    gives_parts,
    have_rows,
    is_batched,
    may_be_batches,
    rows_in,
    sliced,
    sliced_within,
    wholes,
)
from tfdp_layers.batches.effects import keeps_elsewhere, keeps_records, keeps_within
from tfdp_layers.batches.fixed import beside_numbers, followed, report_of
from tfdp_layers.batches.handed import handed_on
from tfdp_layers.batches.inner import made_within
from tfdp_layers.batches.made import Made
from tfdp_layers.batches.padding import pads_to_longest
from tfdp_layers.batches.parted import makes_several
from tfdp_layers.batches.places import is_loose
from tfdp_layers.batches.repeats import is_one_number
from tfdp_layers.batches.steps import below, graphs_of
from tfdp_layers.batches.zips import crossing, out_of_step
from tfdp_layers.caller import warn
from tfdp_layers.proof.report import Report

__all__ = ["Meeting", "meetings", "refuse_mixing", "warn_of_mixing"]

_BATCHING, _MAPPING = ("BatchDataset", "BatchDatasetV2"), ("MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2")
_FIX = (
    " Make each record of its own item alone: put the function into dataset.map before .batch (a filter, too), or into"
    " a layer of the model that treats each record by itself. Leave out MixUp, CutMix, .scan, and shuffles in one"
    " branch of a zip: they mix records by design. Constants of all records (means, scales, vocabularies) come from"
    " elsewhere, or with noise: tfdp.layers.PrivateNormalization, tfdp.preprocessing.quantiles (docs/data.md)."
)
_OWN = " Make each record of its own item alone (docs/data.md)."
_BEFORE = (
    " Put the function into dataset.map before .batch, where it sees one record alone: tf.io.parse_single_example in"
    " place of tf.io.parse_example, say. In a shape or a slice of a batch write -1 for the number of records."
)
_WITHIN = "a function within a flat map's function takes batches apart, and is not followed"
_MADE = " Let a function on single records, dataset.map before .batch, make each of its own item (docs/data.md)."
_WHOSE = (
    " Say whose each record is, tfdp.records(..., unit_ids=...), or let the windows move by at least their size. Of one"
    " long series of one person nothing hides the person. Where the series is public, nothing is lost."
)
_LENGTH = (
    " Pad and cut each record to one length that is public, .padded_batch(n, padded_shapes=([200, 3], [])) or"
    " .to_tensor(shape=(None, 200)) say. Where masks keep the model from the padding, as those of Embedding(...,"
    " mask_zero=True) and Masking before recurrent layers do, nothing is lost."
)
_CROSSED = (
    "a zip puts records of one source beside others of it (.shuffle, .skip or another order in a branch), so that one"
    " is in several"
)
_ZIPPED = (
    " Zip first, and then leave out, add or move whole records: tf.data.Dataset.zip((x, y)).filter(...), or"
    " .map(...).ignore_errors(). Shuffle after the zip, if at all. Where it is public what is left out (a file's"
    " header), nothing is lost."
)
_PARTS = (
    f" Where an element is one person's, the person {AS_SO_MANY} Say whose each record is, tfdp.records(...,"
    " unit_ids=...). Random changes of a record belong into layers of the model, with views=k. Where no element is one"
    " person's, nothing is lost."
)
_IN = (
    " Let a flat map read the file, or take the rows of the array, that its element names, and put other steps behind"
    " it, where they are followed: files.interleave(tf.data.TFRecordDataset).map(...) (docs/data.md)."
)
_AGAIN = (
    " One that it gives for each number comes several times, and so do its records: say whose each record is,"
    " tfdp.records(..., unit_ids=...), or leave the flat map out."
)
"""In batches that are drawn as declared nothing is to be said: the records of a draw come again in the next."""
_READING = ("DatasetTo", "Iterator", "OneShotIterator", "MakeIterator")
"""How the operations begin that give what a data set holds: its one element, say."""
_DOUBTED = {"windows": _WHOSE, "again": _PARTS}
_OF_A_PERSON = (_WHOSE, _PARTS)
"""What ids of people settle."""


class Meeting(NamedTuple):
    """Where records meet in a pipeline, or may meet.

    Attributes:
        certain: whether they do for certain.
        reason: in words.
        fix: what helps where it is not certain.
    """

    certain: bool
    reason: str
    fix: str = _OWN


def refuse_mixing(dataset: tf.data.Dataset, whose: bool = False) -> None:
    """Looks at what a pipeline of single records does before these are drawn; warns where that cannot be told.

    What Python code in it does (generators, `py_function`) is not seen, nor all that flat maps make of an element which
    is taken for one record.

    Args:
        whose: whether ids say whose each record is: windows may then overlap, and an element become several records.

    Raises: ValueError where records meet for certain.
    """
    found = [one for one in meetings(dataset, batched=False) if not (whose and one.fix in _OF_A_PERSON)]
    certain = [one.reason for one in found if one.certain]
    if certain:
        raise ValueError(
            f"Records meet in this pipeline: {certain[0]}. What one person's record holds would be in the records of"
            f" others, and no epsilon is stated for that.{_FIX}"
        )
    if found:
        warn(
            _of_one_person(found[0])
            or f"Whether records meet in this pipeline is not known: {found[0].reason}. The statement assumes that each"
            f" record was made of its own item alone.{found[0].fix}"
        )


def warn_of_mixing(dataset: tf.data.Dataset) -> None:
    """Warns where records meet, or may meet, in the batches of a pipeline that draws by itself; the draw is its own.

    Silent are functions whose rows are proved to be each of one record, and those that make a batch of a number or of a
    name: what they take is no batch. What is certain is said first, then what is about more than one function.
    """
    told = (*_OF_A_PERSON, _LENGTH, _ZIPPED)
    doubts = [one for one in meetings(dataset, batched=True) if one.fix not in (_MADE, _AGAIN)]
    if doubts:
        found = min(doubts, key=lambda one: (not one.certain, one.fix not in told))
        warn(
            _of_one_person(found)
            or f"Records may meet in this pipeline: {found.reason}. Where that is more than the draw that you declare,"
            " what one person's record holds is in the records of others, and the statement does not hold."
            f"{_FIX if found.certain else found.fix}"
        )


def _of_one_person(found: Meeting) -> str:
    return f"Several records may be one person's: {found.reason}.{found.fix}" if found.fix == _PARTS else ""


def meetings(dataset: tf.data.Dataset, batched: bool) -> Iterator[Meeting]:
    """Where records meet on the way to the elements of this pipeline, or, if `batched`, to the rows of these."""
    yield from _meetings(dataset, int(batched), is_loose(dataset))


def _meetings(dataset: tf.data.Dataset, depth: int, loose: bool) -> Iterator[Meeting]:
    """Args:
    depth: how many axes of its elements are taken apart further on.
    loose: whether the pipeline's options let parallel steps give elements in any order.
    """
    name, inputs = type(dataset).__name__, list(dataset._inputs())
    graphs, flat = graphs_of(dataset), gives_parts(dataset)
    slices = [one for graph in graphs for one in sliced(graph)]
    made = _made_by(dataset) if flat or "GroupBy" in name else None
    for graph in graphs:
        yield from _of_graph(graph, flat, loose, depth)
    if "Scan" in name and not is_one_number(inputs[0]):
        yield Meeting(True, ".scan (also in rejection_resample) passes on a state from record to record")
    elif "TakeWhile" in name:
        yield Meeting(True, ".take_while lets one record decide about all behind it")
    elif "Unique" in name:
        yield Meeting(False, ".unique leaves out records that equal others")
    elif depth and "Filter" in name:
        yield Meeting(True, "a filter keeps or drops whole batches, so whether a record stays depends on others")
    elif slices and hasattr(dataset, "_map_func") and (flat or not depth):
        yield from _of_parts(inputs[0], dataset._map_func)
    elif depth and flat and made is not None and made.is_whole:
        yield from _of_function(inputs[0], dataset._map_func, wholes)  # type: ignore[attr-defined]
    elif depth and "Map" in name and not flat:
        yield from _of_function(inputs[0], dataset._map_func)  # type: ignore[attr-defined]
        if depth > 1:
            yield Meeting(False, "a function on batches of batches is followed for the outer ones alone")
    if "Zip" in name:
        if (certain := crossing(inputs)) is not None:
            yield Meeting(certain, _CROSSED)
        else:
            yield from _of_branches(inputs, loose)
    if made is not None:
        yield from _of_made(dataset, made, depth, loose)
    if flat or slices:
        yield from _of_pieces(dataset, made)
    if isinstance(found := _windows(dataset), str):
        yield Meeting(False, found, _WHOSE)
    if depth and pads_to_longest(dataset, graphs):
        yield Meeting(False, "records are padded to the longest of their batch, whose length all get", _LENGTH)
    depth = _below(dataset, depth, made, bool(slices))
    turns = "DirectedInterleave" in name  # the first input says whose turn it is, in numbers
    for one, of_each in zip(inputs, [0 if turns else depth, *[depth] * len(inputs)], strict=False):
        yield from _meetings(one, of_each, loose)


def _made_by(dataset: Any) -> Made:
    """What a flat map, or groups, make of their elements."""
    source = dataset._inputs()[0]
    return made_within(dataset, {name for graph in graphs_of(dataset) for name in may_be_batches(source, graph)})


def _below(dataset: Any, depth: int, made: Made | None, slices: bool) -> int:
    """How many axes of the elements of a step's source are taken apart, where so many of its own are."""
    name, grouped = type(dataset).__name__, made is not None and made.size != 1
    rows = made is not None and "count" in made.kinds and is_batched(dataset._inputs()[0])
    if "Unbatch" in name or slices or rows:
        return max(0, depth + 1 - grouped)
    if made is None:
        return max(0, depth - 1) if "Batch" in name else depth
    whole = made.is_whole or "window" in made.kinds
    return max(0, depth - grouped) if whole else 0


def _of_made(dataset: Any, made: Made, depth: int, loose: bool) -> Iterator[Meeting]:
    """What is not known to keep records apart in the data sets that a function makes; one handed on is looked at."""
    if (handed := handed_on(dataset)) is not None:
        held, batches = handed
        yield from _meetings(held, max(0, depth - batches), loose)
    for one in made.doubts:
        fix = _AGAIN if handed else _DOUBTED.get(one.of, _IN)
        yield Meeting(False, f"a function of a flat map, an interleave or groups {one.reason}", fix)
    for one in made.zips:
        if crossing(below(one)) is not None:
            yield Meeting(False, f"in a function of a flat map, an interleave or groups {_CROSSED}")
    if depth and made.is_whole and not made.direct:
        yield Meeting(False, "functions on batches within its functions (a flat map, a group) are not followed")


def _windows(dataset: Any) -> str | None:
    """What is wrong with windows that `Dataset.window` cuts, None if no element is in several.

    With shift k and every d-th element taken, window i has the elements i k + j d, j below the size: two windows have
    one in common where the size is larger than k / gcd(k, d).
    """
    if not hasattr(dataset, "_shift") or not hasattr(dataset, "_stride"):
        return None
    size, shift, stride = (tf.get_static_value(one) for one in (dataset._size, dataset._shift, dataset._stride))
    if None in (size, shift, stride):
        return ".window cuts by numbers that are not constants, and windows may overlap"
    common = math.gcd(shift, stride)
    if size * common <= shift:
        return None
    return (
        f".window({size}, shift={shift}{'' if stride == 1 else f', stride={stride}'}) puts one record of its source"
        f" into several windows, up to {-(-int(size * common) // int(shift)):,}, and so into as many records"
    )


def _of_graph(graph: Any, flat: bool, loose: bool, depth: int) -> Iterator[Meeting]:
    """What shows in a function whatever its elements are.

    Args:
        flat: whether it gives data sets, which may read others (a shard of each, say); see `_of_made`, too.
        depth: how many axes of its elements are taken apart further on: what functions make of rows of the elements of
            a data set that it holds is not followed.
    """
    types = {one.type for one in graph.get_operations()}
    if keeps_records(graph):
        where = "a variable, a table or a queue"
        yield Meeting(True, f"a function of it writes what it makes of a record into {where}, which others read")
    if keeps_within(graph):
        yield Meeting(False, "a function within one of its functions writes a variable or a table")
    if kept := keeps_elsewhere(graph):
        yield Meeting(False, f"a function of it may keep what it makes of a record where others read it ({kept})")
    for one in graph.get_operations():
        if one.type == "ZipDataset":
            yield from _of_branches(below(one), loose)
    reads = any(outer.dtype == tf.variant for outer, _ in graph.captures)
    read = any(one == "ReduceDataset" or one.startswith(_READING) for one in types)
    if read or (reads and not (flat and (not depth or types.isdisjoint(_MAPPING)))):
        yield Meeting(False, "a function of it reads another data set, perhaps all records of it")
    if "UnbatchDataset" in types or (types.intersection(_BATCHING) and types.intersection(_MAPPING)):
        yield Meeting(False, "functions on batches within its functions (a flat map, a group) are not followed")


def _of_branches(branches: list[Any], loose: bool) -> Iterator[Meeting]:
    """Branches of a zip, of several sources, of which one leaves out or moves elements by itself."""
    if called := out_of_step(branches, loose):
        beside = "all behind them stand beside labels, say, of others"
        yield Meeting(
            False, f"one branch of a zip leaves out, adds or moves elements ({called}), and {beside}", _ZIPPED
        )


def _of_parts(source: Any, wrapped: Any) -> Iterator[Meeting]:
    """What a flat map makes of the rows of its elements, where these are batches, or may be."""
    if is_batched(source):
        if have_rows(source):
            yield from _of_function(source, wrapped, sliced)
        return
    for found in rows_in(source, wrapped.function.graph):
        if found.beside:
            text = "a flat map makes records of rows of its elements and of what stands beside these rows"
            yield Meeting(False, text, _BEFORE)
        elif found.all:
            yield from _of_function(source, wrapped, found.taken, certain=False)
        else:
            report = followed(wrapped.function.graph, found.taken, found.size, found.members)
            yield from _of_report(report, certain=False)


def _of_pieces(dataset: Any, made: Made | None) -> Iterator[Meeting]:
    """What a flat map makes of its elements where that is none of their rows, or is made within another function."""
    if sliced_within(dataset):
        yield Meeting(False, _WITHIN, _BEFORE)
    if several := makes_several(dataset, made):
        yield Meeting(False, several, _PARTS)


def _of_function(source: Any, wrapped: Any, outputs: Any = None, certain: bool = True) -> Iterator[Meeting]:
    """What a function makes of the rows of its batches.

    Args:
        outputs: gives the tensors of a graph whose rows are meant, its outputs if left out.
        certain: whether its elements are batches for certain.
    """
    specs = tf.nest.flatten(source.element_spec)
    if not have_rows(source, beside_numbers(source)):
        alone = all(isinstance(one, tf.TensorSpec) and one.shape.rank == 0 for one in specs)
        text = f"elements of {source.element_spec} are no batches of records"
        odd = f"a function on batches is not followed ({text}: ragged or sparse tensors, or numbers beside rows)"
        yield Meeting(False, text if alone else odd, _MADE if alone else _BEFORE)
        return
    try:
        report, sure = report_of(source, wrapped, outputs or (lambda graph: graph.outputs))
    except Exception as error:  # of a graph that TensorFlow cannot copy, say
        yield Meeting(False, f"a function on batches was not followed ({type(error).__name__})", _BEFORE)
        return
    if report is None:
        yield Meeting(False, "a function on batches of a fixed size does what may depend on that size", _BEFORE)
    else:
        yield from _of_report(report, sure and certain)


def _of_report(report: Report, certain: bool) -> Iterator[Meeting]:
    if not report.proved:
        where = f" (operation {report.operation!r} of type {report.type})" if report.type else ""
        sure = certain and report.status == "mixed"
        unsure = "is not understood" if report.status != "mixed" else "may make a row out of several records"
        what = "makes a row out of several records" if sure else unsure
        yield Meeting(sure, f"a function on batches {what}: {report.reason}{where}", _BEFORE)
