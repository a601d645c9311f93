"""Pipelines that put records at other places: ids or owners given by place would be those of other records."""

from __future__ import annotations

import os
import re
from typing import Any

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import snapshot_pb2

from tfdp_layers.batches.steps import below, kind, number, operations, steps

__all__ = ["moved_by", "moves", "refuse_moved"]

_KEPT = re.compile(
    r"(Random|Parallel|Flat)?Map|MapWithIndex|MapOnGpu|MapAndBatch|ParseExample|Zip|Concatenate|Repeat|Scan"
    r"|TFRecord|TextLine|FixedLengthRecord|Source|With[A-Z]\w+"
    "|(Parallel|Padded|DenseToSparse|Re|Un)?[Bb]atch|DenseToRagged|Window|Slice|Take|Skip|Shard|Filter"
    "|TakeWhile|Unique|IgnoreErrors|Cache|Prefetch|Options|Restructured|CopyToDevice|AssertCardinality|AssertNext"
)
"""Steps that keep the order. Where they leave some out, the number of ids is another one than that of records."""
_SOURCES = re.compile(
    "TensorSlice|Tensor|SparseTensorSlice|List|Range|Counter|Random|Generator|MatchingFiles|Variant|Csv|CSV|Sql"
)
"""Sources of tf.data that give their elements in one order, beside the readers of files above."""
_CALLED = {
    "Shuffle": ".shuffle",
    "WindowShuffle": ".window_shuffle",
    "ShuffleAndRepeat": ".shuffle",
    "GlobalShuffle": "a global shuffle",
    "Interleave": ".interleave of several sources at once",
    "ParallelInterleave": ".interleave of several sources at once",
    "DirectedInterleave": ".sample_from_datasets or .choose_from_datasets",
    "GroupByWindow": ".group_by_window or .bucket_by_sequence_length",
    "Mixed": "a mix of several data sets",
}
_MAKES = re.compile(r"(\w+?)Dataset(V\d)?")
"""Types of operations that make data sets, within functions."""
_READ_ONCE = ("FlatMap", "Interleave", "ParallelInterleave", "Reduce")
"""Those that keep the order of one source, or give no data set."""


def moved_by(source: Any) -> str:
    """Which operation of a pipeline of tf.data, or of a Grain data set, moves elements; empty where all keep the order.

    Every operation that is not known to keep it counts as one that moves them, and so does every source of tf.data.
    What Python code does (generators, sources, a `map` that keeps what it saw) is not seen, and neither is what a flat
    map reads of a data set that its function holds.
    """
    loose = isinstance(source, tf.data.Dataset) and source.options().deterministic is False
    return next(filter(None, (moves(step, loose) for step in steps(source))), "")


def moves(step: Any, loose: bool) -> str:
    """How a step moves elements; empty where it does not.

    Args:
        loose: whether the pipeline's options let parallel steps give elements in any order.
    """
    what = kind(step)
    if getattr(step, "_deterministic", "") in (("false", "default") if loose else ("false",)):
        return f"{'.interleave' if 'Interleave' in what else '.map or .batch'} with deterministic=False"
    if "Interleave" in what and number(step, "_cycle_length") == 1:
        what = "FlatMap"
    if what == "FlatMap":
        inner = _unknown_in(step, ("FlatMap", "Reduce"))
        return f"{inner} within a function of it" if inner else ""
    if what == "Slice" and (getattr(step, "_step", None) or 1) < 0:
        return "a slice that runs backwards"
    if isinstance(step, tf.data.Dataset) and not below(step):
        return _loaded(step) if what == "Load" else "" if _keeps(what) else what
    return "" if _KEPT.fullmatch(what) or not below(step) else _CALLED.get(what, what)


def _keeps(what: str) -> bool:
    return bool(_KEPT.fullmatch(what) or _SOURCES.fullmatch(what))


def _unknown_in(step: Any, besides: tuple[str, ...]) -> str:
    """What a step's functions do with data sets, other than keep their order, or do what `besides` names."""
    for name, operation in operations(step):
        made = _MAKES.fullmatch(name)
        if made and made[1] not in besides and not _keeps(made[1]):
            return made[1]
        if made and operation is not None and _gives_any_order(operation):
            return f"{made[1]} with deterministic=False"
    return ""


def _gives_any_order(operation: Any) -> bool:
    parallel = any(one.name == "deterministic" for one in operation.op_def.attr)
    return parallel and operation.get_attr("deterministic") == b"false"


def _loaded(step: Any) -> str:
    """What `Dataset.load` does to the order: it reads the shards in turns, so that only one keeps it.

    `Dataset.save` without shard_func writes one shard, in order.
    """
    inner = _unknown_in(step, _READ_ONCE)
    if inner:
        return f".load with a reader_func that may move elements, by {inner}"
    try:
        with tf.io.gfile.GFile(os.path.join(step._path, "snapshot.metadata"), "rb") as file:
            run = snapshot_pb2.SnapshotMetadataRecord.FromString(file.read()).run_id
        shards = [one for one in tf.io.gfile.listdir(os.path.join(step._path, run)) if ".shard" in one]
    except (OSError, TypeError, ValueError, tf.errors.OpError, message.DecodeError):
        return ".load of a data set whose shards cannot be counted"
    return "" if len(shards) < 2 else f".load of {len(shards)} shards in turns: without shard_func .save writes one"


def refuse_moved(how: str, argument: str) -> None:
    """Raises ValueError for ids or owners by place beside a pipeline that moves records.

    Args:
        how: what `moved_by` found.
        argument: by which they were given, "unit_ids" or "owners".
    """
    if not how:
        return
    inside = (
        " Or put the ids into the records, where they stay with them: of a tf.data pipeline, an entry of x,"
        " tfdp.records(dataset, unit_ids='patient') (docs/data.md)."
    )
    raise ValueError(
        f"`{argument}` says by place whose each record is, and this pipeline moves records to other places ({how}): a"
        " record would be protected as somebody else's, and one person would enter a step with several contributions."
        " Leave that operation out: it is not needed, the library draws at random itself, in every step afresh."
        f"{inside if argument == 'unit_ids' else ''} Or read records and {argument} together, in one pass, into arrays:"
        f" x, y, {argument} = map(numpy.stack, zip(*items)), where each of the items is (x, y, whose it is)."
    )
