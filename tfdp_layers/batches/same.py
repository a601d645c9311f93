"""Pipelines that give the same batches in each pass, which no draw does: nothing in them draws, or it is kept."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.batches.chance import CUTS, FILTERS, FLAT, KEEPING, PLAIN, is_settled
from tfdp_layers.batches.repeats import ENDLESS
from tfdp_layers.batches.steps import below, graphs_of, is_count, kind, steps
from tfdp_layers.caller import warn
from tfdp_layers.sampling import Sampling

__all__ = ["WHOLE", "numbers_elements", "warn_of_same"]

_ORDERING = ("Prefetch", "Options", "Repeat", "AssertCardinality", "Shuffle", "Take", "Skip")
"""Steps behind which batches are the same ones."""
WHOLE = (*KEEPING, *CUTS, *FILTERS, *("Cache", "Shuffle", "Repeat", "ShuffleAndRepeat", "Snapshot", "IgnoreErrors"))
"""Steps that hand on each element as a whole, or leave it out, in whichever order."""
_SETTLED = (*PLAIN, *FILTERS, *FLAT, "Variant", "Scan", "TakeWhile", "DirectedInterleave")
_SHUFFLES = ("Shuffle", "ShuffleAndRepeat")


def warn_of_same(dataset: tf.data.Dataset, sampling: Sampling) -> None:
    """Warns where a pipeline gives the same batches in each pass, and a draw of each step afresh is declared.

    So does one that `.cache` keeps behind what draws; and one in which nothing draws: no function of it has random
    numbers but of seeds that come again, or Python code, and what is shuffled are whole batches. What made them does
    not matter: arrays of whole batches, slices, tables of indices. Not seen: what Python code gives, and what goes by
    whole numbers of variables, which may draw; and streams by the seeds of an endless count do draw.
    """
    if _is_replayed(dataset):
        warn(
            f"This pipeline is declared as {sampling}, which draws every step afresh, and .cache keeps its batches:"
            " those of the first pass come again in each further one, which costs more than is stated. Put .cache"
            " before what draws, or leave it out. Where training ends before the first pass does, nothing is lost."
        )
    elif _is_settled(dataset) and _comes_again(dataset):
        warn(
            f"This pipeline is declared as {sampling}, which draws every step afresh, and nothing in it draws: batches"
            " of the same records come in each pass (from arrays of whole batches, slices, a table of indices, or seeds"
            " of a count that begins again), which costs more than is stated. Give the single records to tfdp.records,"
            f" and fit draws them; declare Partition({sampling.batch_size}) where a pass has each record in one batch;"
            " or let seeds go by tf.data.Dataset.counter(), which never begins again. Where each batch was drawn from"
            " all records, and training ends before the first pass does, nothing is lost."
        )


def _is_settled(dataset: tf.data.Dataset) -> bool:
    """Whether the records of each of its elements, one by one, are the same in every pass."""
    left: list[tuple[Any, bool]] = [(dataset, True)]  # each with whether its elements are handed on as they are
    while left:
        step, whole = left.pop()
        what = kind(step)
        if what not in _SETTLED or (what in _SHUFFLES and not whole):
            return False
        if not all(map(is_settled, graphs_of(step))):
            return False
        parts = [one for one in below(step) if not numbers_elements(one)]
        whole = whole and (what in (*WHOLE, "Concatenate", "DirectedInterleave") or (what == "Zip" and _in_step(parts)))
        left += [(one, whole) for one in parts]
    return True


def _in_step(parts: list[Any]) -> bool:
    """Whether at most one of what a zip puts beside each other comes in another order in each pass."""
    return sum(any(kind(one) in _SHUFFLES for one in steps(part)) for part in parts) <= 1


def _comes_again(step: Any) -> bool:
    """Whether a pipeline comes to an end, or begins again: not by a count without end, alone or beside its elements."""
    parts, ends = below(step), not _is_endless(step)
    if not parts or kind(step) == "Scan":
        return ends
    return any(map(_comes_again, parts)) if kind(step) == "Zip" and ends else all(map(_comes_again, parts))


def _is_endless(step: Any) -> bool:
    return int(step.cardinality()) == tf.data.INFINITE_CARDINALITY or int(step.cardinality()) >= ENDLESS


def numbers_elements(step: Any) -> bool:
    """Whether it gives the numbers of elements, those of .enumerate say."""
    return is_count(step) or (kind(step) == "Variant" and step.element_spec == tf.TensorSpec((), tf.int64))


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
