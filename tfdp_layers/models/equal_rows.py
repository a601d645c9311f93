"""Rows that equal records, number by number: more of them than chance explains."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfdp_layers.accounting.sketch import Sketch, sketch_of
from tfdp_layers.batches.texts import is_text

__all__ = ["KnownRows", "as_table"]

_PART = 1024
"""Rows whose sketch leaves out none of them."""
_FEWEST, _BY_HALF, _LOOKED_AT = 20, 0.95, 1 << 14
_MOST = 1 << 28
"""Numbers of records that are looked at: of more, nothing is known."""
_COLUMNS, _ROWS = 16, 64


class KnownRows:
    """Records, known again among other rows.

    Rows of a table of few values equal other people's by chance: there, `Sketch.shares` says how many are too many.
    Where each half of the columns tells nearly all records apart, no row equals one by chance.
    """

    def __init__(self, leaves: Sequence[np.ndarray]) -> None:
        """Of the arrays of records, (records, ...) each, numbers or texts."""
        self._leaves = [as_table(one) for one in leaves]
        self.widths = [leaf.shape[1] for leaf in self._leaves]

    @property
    def bounded(self) -> bool:
        """Whether there are rows to compare with, and not too many numbers in them."""
        return bool(self._leaves) and len(self._leaves[0]) > 0 and sum(one.size for one in self._leaves) <= _MOST

    def near(self, others: Sequence[np.ndarray]) -> np.ndarray:
        """Which of other rows may equal a record, by the one column that tells most of them apart: quick.

        Args:
            others: as many numbers of each row as the records have: (rows, columns) for each of their arrays.
        """
        leaf, column = _telling(others)
        return np.isin(_float32(others[leaf][:, column]), _float32(self._leaves[leaf][:, column]))

    def holds(self, others: Sequence[np.ndarray], least: int) -> bool:
        """Whether other rows are records.

        Args:
            others: as `near` takes them. Rows that say nothing (all numbers but one are zero) are left out.
            least: so many equal rows are enough where none is equal by chance.
        """
        says = _says_something(others)
        others = [one[says] for one in others]
        if not says.any():
            return False
        made, hashes = _whole(others), np.frombuffer(self._sketch.hashes, np.uint64)
        asked = np.frombuffer(made.hashes, np.uint64)
        found = int((hashes[np.searchsorted(hashes, asked).clip(max=len(hashes) - 1)] == asked).sum())
        if found >= least and self.telling:
            return True
        return found > least and self._sketch.shares(made)

    @functools.cached_property
    def telling(self) -> bool:
        """Whether next to no two records agree in every other column."""
        if len(self._leaves[0]) < _FEWEST:
            return False
        rows = slice(None, None, -(-len(self._leaves[0]) // _LOOKED_AT))
        wide = [leaf[rows] for leaf in self._leaves if leaf.shape[1] > 1]
        alone = [leaf[rows] for leaf in self._leaves if leaf.shape[1] == 1]
        halves = [[leaf[:, start::2] for leaf in wide] + alone[start::2] for start in (0, 1)]
        return all(half and len(_whole(half).counts) // 4 >= _BY_HALF * len(half[0]) for half in halves)

    @functools.cached_property
    def _sketch(self) -> Sketch:
        return replace(_whole(self._leaves), filled=sketch_of(self._leaves).filled)


def as_table(array: np.ndarray) -> np.ndarray:
    """(rows, columns) of (rows, ...); texts as bytes, whoever wrote them."""
    flat = array.reshape(len(array), -1)
    if flat.dtype.kind not in "USO" or not is_text(flat):
        return flat
    texts = np.empty(flat.shape, object)
    texts[...] = [[one.encode() if isinstance(one, str) else bytes(one) for one in row] for row in flat.tolist()]
    return texts


def _whole(leaves: Sequence[np.ndarray]) -> Sketch:
    """A sketch of all rows, part by part."""
    starts = range(0, len(leaves[0]), _PART)
    parts = [sketch_of([leaf[start : start + _PART] for leaf in leaves]) for start in starts]
    hashes = np.concatenate([np.frombuffer(part.hashes, np.uint64) for part in parts])
    times = np.concatenate([np.frombuffer(part.counts, np.uint32) for part in parts])
    values, places = np.unique(hashes, return_inverse=True)
    counts = np.bincount(places.ravel(), weights=times).astype(np.uint32)
    return Sketch(values.tobytes(), counts.tobytes(), 2**64 - 1, len(leaves[0]))


def _says_something(leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of more than one number that is not zero; of a single number all."""
    if sum(leaf.shape[1] for leaf in leaves) == 1:
        return np.ones(len(leaves[0]), bool)
    filled = [(leaf != b"") if leaf.dtype.kind == "O" else (leaf != 0) for leaf in leaves]
    return np.asarray(sum(one.sum(1) for one in filled) > 1)


def _telling(leaves: Sequence[np.ndarray]) -> tuple[int, int]:
    """The column, as (leaf, place), whose entries differ most among the first rows."""
    told = [
        (len(np.unique(leaf[:_ROWS, at])), number, at)
        for number, leaf in enumerate(leaves)
        for at in range(0, leaf.shape[1], -(-leaf.shape[1] // _COLUMNS) or 1)
    ]
    return max(told)[1:]


def _float32(column: np.ndarray) -> np.ndarray:
    """Numbers as records are drawn; texts as they are."""
    with np.errstate(all="ignore"):
        return column if column.dtype.kind == "O" else column.astype(np.float32)
