"""Whether arrays hold each other's records: private ones may not come back as public ones. Loads no TensorFlow."""

from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["overlap"]


def overlap(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether an array of the first has a number in common with one of the others: is it, or is a view of it.

    What is no array is left out. A copy is another array.
    """
    arrays = [[np.asarray(one) for one in given if hasattr(one, "__array__")] for given in (some, others)]
    return any(_share_memory(a, b) for a in arrays[0] for b in arrays[1])


def _share_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Rows of an array whose columns are contiguous only interleave: they share none."""
    work: Any = 1 << 20  # NumPy's own types know of -1 and 0 alone
    try:
        return np.shares_memory(a, b, max_work=work)
    except RuntimeError:  # too hard to tell: then where one begins and the other ends
        return np.may_share_memory(a, b)
