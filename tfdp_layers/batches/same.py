"""Pipelines that give the same batches in each pass, which no draw does: nothing in them draws, or it is kept."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.batches.afresh import Afresh
from tfdp_layers.batches.chance import CUTS, FILTERS, FLAT, KEEPING, MAPS, PLAIN
from tfdp_layers.batches.steps import below, is_count, kind, steps
from tfdp_layers.caller import warn
from tfdp_layers.sampling import Sampling

__all__ = ["WHOLE", "numbers_elements", "warn_of_same"]

_ORDERING = ("Prefetch", "Options", "Repeat", "AssertCardinality", "Shuffle", "Take", "Skip")
"""Steps behind which batches are the same ones."""
WHOLE = (*KEEPING, *CUTS, *FILTERS, *("Cache", "Shuffle", "Repeat", "ShuffleAndRepeat", "Snapshot", "IgnoreErrors"))
"""Steps that hand on each element as a whole, or leave it out, in whichever order."""
_SETTLED = (*PLAIN, *FILTERS, *FLAT, "Random", "Variant", "Scan", "TakeWhile", "DirectedInterleave")
_SHUFFLES = ("Shuffle", "ShuffleAndRepeat")


def warn_of_same(dataset: tf.data.Dataset, sampling: Sampling, examples: int) -> bool:
    """Warns where a pipeline gives the same batches in each pass, and a draw of each step afresh is declared.

    So does one that `.cache` keeps behind what draws; and one in which nothing chooses records anew: what is shuffled
    are whole batches, and random numbers, and counts that go on, only change what records hold (`Afresh`), or come
    again in each pass. What made batches does not matter: arrays of whole batches, slices, tables of indices. Not seen:
    what Python code gives, and what goes by whole numbers of variables, which may draw; random changes in flat maps, or
    by an array that a function holds; and streams by the seeds of an endless count do draw.

    Returns: whether it warned.
    """
    afresh = Afresh(examples)
    replayed = _is_replayed(dataset, afresh)
    settled = not replayed and _is_settled(dataset, afresh)
    if replayed:
        warn(
            f"This pipeline is declared as {sampling}, which draws every step afresh, and .cache keeps its batches:"
            " those of the first pass come again in each further one, which costs more than is stated. Put .cache"
            " before what draws, or leave it out. Where training ends before the first pass does, nothing is lost."
        )
    elif settled:
        warn(
            f"This pipeline is declared as {sampling}, which draws every step afresh, and nothing in it draws"
            " records: batches of the same ones come in each pass (from arrays of whole batches, slices, a table of"
            " indices, or seeds of a count that begins again; random changes of records draw none), which costs more"
            " than is stated. Give the single records to tfdp.records,"
            f" and fit draws them; declare Partition({sampling.batch_size}) where a pass has each record in one batch;"
            " or let seeds go by tf.data.Dataset.counter(), which never begins again. Where each batch was drawn from"
            " all records, and training ends before the first pass does, nothing is lost."
        )
    return replayed or settled


def _is_settled(dataset: tf.data.Dataset, afresh: Afresh) -> bool:
    """Whether the records of each of its elements, one by one, are the same in every pass."""
    left: list[tuple[Any, bool]] = [(dataset, True)]  # each with whether its elements are handed on as they are
    while left:
        step, whole = left.pop()
        what = kind(step)
        if what not in _SETTLED or (what in _SHUFFLES and not whole):
            return False
        if afresh.chooses(step):
            return False
        parts = [one for one in below(step) if not numbers_elements(one)]
        whole = whole and (what in (*WHOLE, "Concatenate", "DirectedInterleave") or (what == "Zip" and _in_step(parts)))
        left += [(one, whole) for one in parts]
    return True


def _in_step(parts: list[Any]) -> bool:
    """Whether at most one of what a zip puts beside each other comes in another order in each pass."""
    return sum(any(kind(one) in _SHUFFLES for one in steps(part)) for part in parts) <= 1


def numbers_elements(step: Any) -> bool:
    """Whether it gives the numbers of elements, those of .enumerate say."""
    return is_count(step) or (kind(step) == "Variant" and step.element_spec == tf.TensorSpec((), tf.int64))


def _is_replayed(dataset: tf.data.Dataset, afresh: Afresh) -> bool:
    """Whether batches, and no endless stream of them, are kept by `.cache`, and nothing behind it draws others."""
    step: Any = dataset
    while kind(step) in _ORDERING or (kind(step) in MAPS and not afresh.chooses(step)):
        step = below(step)[0]
    return kind(step) == "Cache" and int(step.cardinality()) != tf.data.INFINITE_CARDINALITY
