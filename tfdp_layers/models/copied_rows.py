"""Whether rows that a callback, or the body of a loop, gives a model are copies of training records, quickly."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.sketch import sketch_of
from tfdp_layers.batches.base import Batches
from tfdp_layers.models.validation_rows import GRID, arrays_of_records, consists_of
from tfdp_layers.overlap import copies, telling

__all__ = ["CopiedRows"]

_FEWEST, _LOOKED_AT = 8, 16
_ALWAYS, _SOMETIMES = 16, 8
_MOST_RECORDS, _MOST_DOUBTS = 1 << 24, 4


class CopiedRows:
    """Recognises copies of the records of one training, as those of validation data are, by a few rows and columns.

    The records' keys (a hash of the columns that tell most) are sorted once, when the first question comes. A question
    then looks up those of 16 rows, in a fifth of a millisecond; of more than 16 questions every eighth is looked at, so
    that a loop over batches is seen and costs next to nothing. Where most keys are found, the rows are compared, as
    those of validation data are (`copies`). Of a pipeline the arrays that it begins with are compared, once for each.
    None of its batches is drawn for that: what it reads may be there only once.

    Not seen: fewer than 8 rows; rows of text, of mapped files, of more than 2^24 records, or of records that are in no
    array; rows that were changed (scaled, say) or repeated; and tables whose rows fill a grid, where equal rows say
    nothing.

    Args:
        batches: what the training draws.
    """

    def __init__(self, batches: Batches) -> None:
        self._mine = arrays_of_records(batches)
        self._records = [] if self._mine is None else self._mine[0]
        self._shapes = [one.shape[1:] for one in self._records]
        self._columns: list[_Columns] = []
        self._keys: np.ndarray | None = None
        self._asked = self._doubts = 0
        self._found = False
        self._pipelines: weakref.WeakKeyDictionary[tf.data.Dataset, bool] = weakref.WeakKeyDictionary()

    def hold(self, given: Any) -> bool:
        """Whether most rows of these arrays (a tree), or of the arrays that a pipeline is made of, are records.

        Where that is not looked at, or cannot be told, the answer is False.
        """
        if self._mine is None:
            return False
        if isinstance(given, tf.data.Dataset):
            if given not in self._pipelines:
                self._pipelines[given] = consists_of(self._mine, given)
            return self._pipelines[given]
        self._asked += 1
        if self._doubts > _MOST_DOUBTS or (self._asked > _ALWAYS and self._asked % _SOMETIMES):
            return False
        rows = _some_rows(keras.tree.flatten(given))
        return [one.shape[1:] for one in rows] == self._shapes and self._are_records(rows)

    def _are_records(self, rows: list[np.ndarray]) -> bool:
        known, asked = self._sorted_keys(), _keys_of(rows, self._columns)
        times = np.searchsorted(known, asked, "right") - np.searchsorted(known, asked)
        if 4 * int(((times > 0) & (times < _FEWEST)).sum()) < 3 * len(asked):
            return False
        if not self._found:  # once they were, keys are enough
            self._found = copies(self._records, rows) and not self._fill_a_grid()
            self._doubts += not self._found
        return self._found

    def _fill_a_grid(self) -> bool:
        return sketch_of(self._records).filled >= GRID

    def _sorted_keys(self) -> np.ndarray:
        """Those of the records, made at the first question; none of records that are not looked at."""
        if self._keys is None:
            plain = all(one.dtype.kind in "biuf" and not isinstance(one, np.memmap) for one in self._records)
            if plain and _FEWEST <= len(self._records[0]) <= _MOST_RECORDS:
                self._columns = _telling_columns(self._records)
            self._keys = np.sort(_keys_of(self._records, self._columns)) if self._columns else np.zeros(0, np.uint64)
        return self._keys


class _Columns(NamedTuple):
    """Columns of one array of the records: its number, its type, their places in a row, and a factor for each."""

    leaf: int
    dtype: np.dtype[Any]
    places: tuple[Any, ...]
    factors: np.ndarray


def _telling_columns(records: Sequence[np.ndarray]) -> list[_Columns]:
    told = telling([one.reshape(len(one), -1) for one in _some_rows(records)])
    factors = np.random.default_rng(0).integers(1 << 62, 1 << 63, len(told), np.uint64) | np.uint64(1)
    found = []
    for leaf in sorted({number for number, _ in told}):
        mine = [n for n, (number, _) in enumerate(told) if number == leaf]
        places = np.unravel_index([told[n][1] for n in mine], records[leaf].shape[1:] or (1,))
        found.append(_Columns(leaf, records[leaf].dtype, places if records[leaf].ndim > 1 else (), factors[mine]))
    return found


def _keys_of(leaves: Sequence[np.ndarray], columns: Sequence[_Columns]) -> np.ndarray:
    """A hash of these columns of each row, of uint64: of equal numbers the same."""
    keys = np.zeros(len(leaves[0]), np.uint64)
    for one in columns:
        with np.errstate(invalid="ignore"):
            entries = leaves[one.leaf][(slice(None), *one.places)].astype(one.dtype).reshape(len(keys), -1)
        entries = np.ascontiguousarray(entries + entries.dtype.type(0))  # of -0.0, too, the bits of 0.0
        bits = entries.view(f"u{entries.dtype.itemsize}").astype(np.uint64)
        keys += (bits * one.factors).sum(1, dtype=np.uint64)
    return keys


def _some_rows(leaves: Sequence[Any]) -> list[np.ndarray]:
    """A few rows of each array, evenly spaced; none where one is no array, or they have few rows, or not the same."""
    if not all(hasattr(one, "__array__") for one in leaves):
        return []
    found = [one if hasattr(one, "iloc") else np.asarray(one) for one in leaves]
    lengths = {len(one) if getattr(one, "ndim", 0) else 0 for one in found}
    if len(lengths) != 1 or (length := lengths.pop()) < _FEWEST:
        return []
    step = -(-length // _LOOKED_AT)
    rows = [one.iloc[::step].to_numpy() if hasattr(one, "iloc") else one[::step] for one in found]
    return rows if len(rows[0]) >= _FEWEST else []
