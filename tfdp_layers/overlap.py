"""Whether arrays hold each other's records: private ones may not come back as public ones. Loads no TensorFlow."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

__all__ = ["copies", "overlap", "parts_of_one", "telling"]


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


def parts_of_one(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether an array of the first and one of the others are views of one array: somebody split its rows."""
    owners = [{id(owner) for one in all_of if (owner := _owner(one)) is not None} for all_of in (some, others)]
    return not owners[0].isdisjoint(owners[1])


def _owner(view: Any) -> np.ndarray | None:
    """The array whose memory a view shows; None of what shows no other's."""
    owner = None
    while isinstance(base := getattr(view, "base", None), np.ndarray):
        owner = view = base
    return owner


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


_LOOKED_AT, _FEWEST, _COLUMNS, _MOST = 32, 8, 8, 4096


def copies(records: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether at least three of four of the other rows that are looked at each equal exactly one record.

    In tables of few distinct rows equal rows are no copies; there a row equals several records, or none: that it equals
    exactly one has a probability of at most 1 / e by chance.

    Args:
        records, others: the arrays of each, in one order, (rows, ...), numbers or strings; mapped files are not read.
    """
    if not len(records) or [a.shape[1:] for a in records] != [a.shape[1:] for a in others]:
        return False
    if len(others[0]) < _FEWEST or any(isinstance(array, np.memmap) for array in records):
        return False
    rows = np.unique(np.linspace(0, len(others[0]) - 1, _LOOKED_AT).astype(int))
    columns = telling([array[rows].reshape(len(rows), -1) for array in others])
    probes = [(records[leaf].reshape(len(records[leaf]), -1)[:, at], others[leaf], at) for leaf, at in columns]
    found = 0
    for row in rows:
        alike = np.arange(len(records[0]))
        for column, other, at in probes:
            alike = alike[column[alike] == other[row].reshape(-1)[at]]
        if len(alike) < _FEWEST:
            pairs = list(zip(records, others, strict=True))
            found += sum(all(np.array_equal(a[one], b[row]) for a, b in pairs) for one in alike) == 1
    return 4 * found >= 3 * len(rows)


def telling(leaves: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """The columns, as (leaf, place), whose entries differ most among these rows."""
    told = [
        (len(set(leaf[:, at].tolist())), number, at)
        for number, leaf in enumerate(leaves)
        for at in range(0, leaf.shape[1], -(-leaf.shape[1] // _MOST) or 1)
    ]
    return [(number, at) for _, number, at in sorted(told, reverse=True)[:_COLUMNS]]
