"""How many elements a data set has at most that a function of a pipeline makes; None where that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdp_layers.batches.steps import number

__all__ = ["most_behind", "most_of", "most_together"]

_MORE = ("Unbatch", "Window", "Rebatch")
"""Steps behind which their number is not known, of one element, too."""


def most_of(operation: Any, what: str) -> int | None:
    """Of a source: one of `from_tensors`, the rows of `from_tensor_slices`, the numbers of a `range`."""
    if what == "Tensor":
        return 1
    if what == "Range":
        ends = [number(operation, name) for name in ("_start", "_stop", "_step")]
        return None if None in ends else len(range(*map(int, ends)))
    sizes = [one.shape[0] for one in operation.inputs if one.shape.rank] if what == "TensorSlice" else []
    return next((int(one) for one in sizes if one is not None), None)


def most_behind(operation: Any, what: str, most: int | None) -> int | None:
    """Behind a step, where there are so many at most in front of it."""
    if what in _MORE:
        return None
    if what == "Repeat":
        times = number(operation, "_count")
        return None if most is None or times is None or times < 0 else most * int(times)
    if what == "Take":
        taken = number(operation, "_count")
        known = [one for one in (most, taken) if one is not None and one >= 0]
        return int(min(known)) if known else None
    if "Batch" in what or what == "Shard":
        size = number(operation, "_num_shards" if what == "Shard" else "_batch_size")
        return most if most is None or size is None else -(-most // int(size))
    return most


def most_together(each: Sequence[int | None], what: str) -> int | None:
    """Of several in a zip, which ends with the shortest, or one behind the other."""
    known = [one for one in each if one is not None]
    if what == "Zip":
        return min(known, default=None)
    return sum(known) if len(known) == len(each) else None
