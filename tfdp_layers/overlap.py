"""Whether arrays hold each other's records: private ones may not come back as public ones. Loads no TensorFlow."""

from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["overlap"]


def overlap(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether an array of the first has a number in common with one of the others: is it, or is a view of it.

    What is no array is left out. A copy is another array. Of what makes an array only when it is asked for one
    (variables, data frames of several types) one object is enough, and of data frames one column.
    """
    given = [[one for one in all_of if hasattr(one, "__array__")] for all_of in (some, others)]
    if any(a is b for a in given[0] for b in given[1]):
        return True
    arrays = [[array for one in all_of for array in _arrays(one)] for all_of in given]
    return any(_share_memory(a, b) for a in arrays[0] for b in arrays[1])


def _arrays(one: Any) -> list[np.ndarray]:
    """An array-like as an array, a data frame as those of its columns."""
    columns = [column for _, column in one.items()] if hasattr(one, "dtypes") and hasattr(one, "items") else [one]
    return [np.asarray(column) for column in columns]


def _share_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Rows of an array whose columns are contiguous only interleave: they share none."""
    work: Any = 1 << 20  # NumPy's own types know of -1 and 0 alone
    try:
        return np.shares_memory(a, b, max_work=work)
    except RuntimeError:  # too hard to tell: then where one begins and the other ends
        return np.may_share_memory(a, b)
