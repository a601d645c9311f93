"""Pipelines whose elements are batches: each would pass for one record, with several people in it."""

from __future__ import annotations

from typing import Any

from tfdp_layers.batches.steps import below, is_grain, kind, number, operations
from tfdp_layers.caller import warn

__all__ = ["elements_of", "warn_of_batched"]

_APART = ("Unbatch", "FlatMap", "Interleave", "ParallelInterleave")
"""Steps whose elements are parts of what they get."""


def elements_of(source: Any) -> int | None:
    """How many elements a `.batch` put into each record of a pipeline, or of a Grain data set; 1 where there is none.

    None where their number is not known. Batches that something takes apart further on are none.
    """
    what = kind(source)
    if what in _APART:
        return 1
    if what == "GroupByWindow":  # gives what its function makes of a window
        return None if any(name.startswith("BatchDataset") for name, _ in operations(source)) else 1
    if "Batch" in what:
        size = number(source, "_batch_size")
        return None if size is None else int(size)
    found = [elements_of(one) for one in below(source)]
    known = [size for size in found if size is not None]
    return max(known, default=1) if len(known) == len(found) else None


def warn_of_batched(source: Any) -> None:
    """Warns where each record of a pipeline, or of a Grain data set, is a batch of several elements."""
    size = elements_of(source)
    if size == 1:
        return
    apart = "" if is_grain(source) else ", or take batches apart again, .unbatch()"
    warn(
        f"Each record of this pipeline is a batch of {'several' if size is None else size} elements (.batch), and is"
        " protected as one record. If an element is a person, one person more moves others from batch to batch, and the"
        f" statement does not hold: leave .batch out (fit takes batch_size){apart}. Where each batch is one person's"
        " series, nothing is lost."
    )
