"""Pipelines that put records at other places: ids or owners given by place would be those of other records."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from tfdp_layers.batches.steps import below, kind, number, operations, steps

__all__ = ["moved_by", "refuse_moved"]

_KEPT = re.compile(
    r"(Random|Parallel|Flat)?Map|MapWithIndex|MapOnGpu|MapAndBatch|ParseExample|Zip|Concatenate|Repeat|Scan|TFRecord"
    r"|Source|With[A-Z]\w+"
    "|(Parallel|Padded|DenseToSparse|Re|Un)?[Bb]atch|DenseToRagged|Window|Slice|Take|Skip|Shard|Filter"
    "|TakeWhile|Unique|IgnoreErrors|Cache|Prefetch|Options|Restructured|CopyToDevice|AssertCardinality|AssertNext"
)
"""Steps that keep the order. Where they leave some out, the number of ids is another one than that of records."""
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
_WITHIN = ("Shuffle", "Interleave", "GroupBy")
"""In the types of operations that move elements, within the functions of flat maps."""


def moved_by(source: Any) -> str:
    """Which operation of a pipeline of tf.data, or of a Grain data set, moves elements; empty where all keep the order.

    Every operation that is not known to keep it counts as one that moves them. What Python code does (generators,
    sources, a `map` that keeps what it saw) is not seen.
    """
    loose = isinstance(source, tf.data.Dataset) and source.options().deterministic is False
    return next(filter(None, (_moves(step, loose) for step in steps(source))), "")


def _moves(step: Any, loose: bool) -> str:
    """Args: loose: whether the pipeline's options let parallel steps give elements in any order."""
    what = kind(step)
    if getattr(step, "_deterministic", "") in (("false", "default") if loose else ("false",)):
        return f"{'.interleave' if 'Interleave' in what else '.map or .batch'} with deterministic=False"
    if "Interleave" in what and number(step, "_cycle_length") == 1:
        what = "FlatMap"
    if what == "FlatMap":
        inner = next((name for name, _ in operations(step) if any(one in name for one in _WITHIN)), "")
        return f"{inner.removesuffix('Dataset')} within a function of it" if inner else ""
    if what == "Slice" and (getattr(step, "_step", None) or 1) < 0:
        return "a slice that runs backwards"
    return "" if _KEPT.fullmatch(what) or not below(step) else _CALLED.get(what, what)


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
