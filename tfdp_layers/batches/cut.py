"""Batches that a declared pipeline is seen to cut from passes over its records, where other draws are declared."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.batches.overlaps import may_overlap, warn_of_overlaps
from tfdp_layers.batches.repeats import repeats
from tfdp_layers.batches.steps import below, graphs_of, kind, number, steps
from tfdp_layers.caller import warn
from tfdp_layers.sampling import Sampling

__all__ = ["warn_of_cut"]

_BATCHES = ("Batch", "ParallelBatch", "PaddedBatch")
_AROUND = ("Map", "ParallelMap", "Prefetch", "Cache", "Options", "Shuffle", "Repeat", "AssertCardinality")
_PLAIN = (*_AROUND, "Zip", "TensorSlice", "Range", "TFRecord", "TextLine", "FixedLengthRecord", "Take", "Skip", "Shard")
"""Steps that draw nothing: each pass over them gives each record once."""
_BY_TURNS = "DirectedInterleave"
_OF_PASSES = ("partition", "cyclic")

_ONE_TO_ONE = ("Map", "ParallelMap", "Prefetch", "Options", "Cache", "AssertCardinality")
"""Steps that give an element for each one, in their order."""
_ORDERING = ("Prefetch", "Options", "Repeat", "AssertCardinality", "Shuffle", "Take", "Skip")
"""Steps behind which batches are the same ones."""


def warn_of_cut(dataset: tf.data.Dataset, sampling: Sampling, examples: int) -> None:
    """Warns where batches are seen not to be what is declared, once, of the first that holds:

    - epochs, and the pipeline repeats its records, in whichever way `repeats` sees it, or may (`overlaps`); not where
      an epoch takes the first round alone;
    - `.batch` cuts passes over records from arrays and files, shuffled or not, or what is taken by turns from several
      such, into batches; not where functions, generators, flat maps or filters make these, which may draw;
    - other draws, and `.cache` replays the batches in each pass.

    Nothing is said of batches of all records, which all draws of so many are.
    """
    of_passes = sampling.kind in _OF_PASSES
    if of_passes and repeats(dataset) and not _is_first_round(dataset, sampling, examples):
        warn(
            f"This pipeline is declared as {sampling}, with each record once in an epoch, and gives each several times"
            " (.repeat, or behind itself): a person in it k times costs more than is stated. Leave .repeat out, and"
            " declare as many examples as there are records."
        )
        return
    if of_passes and may_overlap(dataset):
        warn_of_overlaps(True, "record")
        return
    size = _cut_to(dataset)
    if size is not None and size != sampling.batch_size and of_passes:
        warn(
            f"This pipeline is declared as {sampling}, and its batches are of .batch({size}): what is stated is"
            f" for others. Declare {type(sampling).__name__}({size}), or the batches' true size."
        )
    if of_passes or (sampling.batch_size >= examples and size in (None, sampling.batch_size)):
        return
    if size is not None:
        _warn_of_no_draw(sampling, size, any(kind(one) == _BY_TURNS for one in steps(dataset)))
    elif _is_replayed(dataset):
        warn(
            f"This pipeline is declared as {sampling}, which draws every step afresh, and .cache keeps its batches:"
            " those of the first pass come again in each further one, which costs more than is stated. Put .cache"
            " before what draws, or leave it out. Where training ends before the first pass does, nothing is lost."
        )


def _warn_of_no_draw(sampling: Sampling, size: int, by_turns: bool) -> None:
    how, or_else = (
        "cuts passes over its records into its batches: each record is in exactly one batch of a pass",
        f"or declare Partition({size})",
    )
    if by_turns:
        how, or_else = (
            "takes records by turns from several data sets (.sample_from_datasets, .choose_from_datasets): those of a"
            " small one come more often than others",
            "let rare classes count more by weights",
        )
    warn(
        f"This pipeline is declared as {sampling}, and .batch({size}) {how}, which is no such draw, and costs more than"
        f" is stated. Give the single records to tfdp.records, and fit draws them; {or_else}."
    )


def _cut_to(dataset: tf.data.Dataset) -> int | None:
    """The size of the batches into which `.batch` cuts passes over records; None where that is not seen."""
    step: Any = dataset
    while kind(step) in _AROUND:
        step = below(step)[0]
    size = number(step, "_batch_size") if kind(step) in _BATCHES else None
    return (
        None
        if size is None or not all(kind(one) in (*_PLAIN, _BY_TURNS) for one in steps(below(step)[0]))
        else int(size)
    )


def _is_first_round(dataset: tf.data.Dataset, sampling: Sampling, examples: int) -> bool:
    """Whether an epoch ends before a single `.repeat` of the records, or of batches of them, begins again.

    An epoch has as many batches as these records fill: `declared` sees to it. Steps between the repeat and the end
    that leave elements out, or move them across rounds, are taken for a further round.
    """
    step: Any = dataset
    taken = -(-examples // sampling.batch_size)
    while kind(step) in (*_ONE_TO_ONE, *_BATCHES, "Take"):
        size = number(step, "_batch_size") if kind(step) in _BATCHES else 1
        most = number(step, "_count") if kind(step) == "Take" else None
        if size is None:
            return False
        taken = taken * int(size) if most is None or most < 0 else min(taken, int(most))
        step = below(step)[0]
    return kind(step) == "Repeat" and not repeats(below(step)[0]) and int(below(step)[0].cardinality()) >= taken


def _is_replayed(dataset: tf.data.Dataset) -> bool:
    """Whether batches, and no endless stream of them, are kept by `.cache`, and nothing behind it draws others."""
    step: Any = dataset
    while kind(step) in _ORDERING or (kind(step) in ("Map", "ParallelMap") and not _draws(step)):
        step = below(step)[0]
    return kind(step) == "Cache" and int(step.cardinality()) != tf.data.INFINITE_CARDINALITY


def _draws(step: Any) -> bool:
    """Whether a function of a step may give something else at each call: random numbers, Python code."""
    return any(
        one.op_def is None or one.op_def.is_stateful for graph in graphs_of(step) for one in graph.get_operations()
    )
