"""Pipelines whose elements are batches: each would pass for one record, with several people in it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.batches.inner import made_within
from tfdp_layers.batches.steps import below, graphs_of, is_grain, kind, number, operations
from tfdp_layers.caller import warn

__all__ = ["elements_of", "warn_of_batched"]

_APART = ("Unbatch", "FlatMap", "Interleave", "ParallelInterleave")
"""Steps whose elements are parts of what they get."""


def elements_of(source: Any, whose: bool = False) -> int | None:
    """How many elements a `.batch` put into each record of a pipeline, or of a Grain data set; 1 where there is none.

    None where their number is not known. Batches that something takes apart further on are none; those that the
    functions of flat maps make of windows or of the lines of files are.

    Args:
        whose: whether ids say whose each record is: then such windows are each one person's.
    """
    what = kind(source)
    if what in _APART:
        return _of_flat(source, whose) if what != "Unbatch" and isinstance(source, tf.data.Dataset) else 1
    if what == "GroupByWindow":  # gives what its function makes of a window
        return None if any(name.startswith("BatchDataset") for name, _ in operations(source)) else 1
    if "Batch" in what:
        size = number(source, "_batch_size")
        return None if size is None else int(size)
    found = [elements_of(one, whose) for one in below(source)]
    known = [size for size in found if size is not None]
    return max(known, default=1) if len(known) == len(found) else None


def _of_flat(step: Any, whose: bool) -> int | None:
    """How many elements are in one that a flat map, or an interleave, makes."""
    source = elements_of(below(step)[0], whose)
    names = [one.name for graph in graphs_of(step) for one in graph.inputs]
    made = made_within(step, names if source != 1 else ())
    if made.size == 1 and (made.is_whole or "window" in made.kinds):
        return source
    return 1 if whose and made.kinds & {"file", "window"} else made.size


def warn_of_batched(source: Any, whose: bool = False) -> None:
    """Warns where each record of a pipeline, or of a Grain data set, is a batch of several; see `elements_of`."""
    size = elements_of(source, whose)
    if size == 1:
        return
    apart = "" if is_grain(source) else ", or take batches apart again, .unbatch()"
    warn(
        f"Each record of this pipeline is a batch of {'several' if size is None else size} elements (.batch), and is"
        " protected as one record. If an element is a person, one person more moves others from batch to batch, and the"
        f" statement does not hold: leave .batch out (fit takes batch_size){apart}. Where each batch is one person's"
        " series, nothing is lost."
    )
