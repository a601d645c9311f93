"""Predictions of private models, known again by their values: in any order or part, put together, in a table."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tfdp_layers.accounting.columns import words_of
from tfdp_layers.accounting.sketch import hashes_of

__all__ = ["FEWEST", "origins_in", "remember"]

FEWEST = 8
"""Different values of a column that were predicted: fewer tell nothing."""
_KEPT = 1024
"""Values of an output that was predicted: those whose hashes are smallest, so that any part of it chooses alike."""
_COLUMNS, _MOST, _NAMED = 4, 256, 32
"""Outputs that are looked at, predictions that are kept, the last ones, and those that a data set is said to hold."""
_LOOKED_AT = 1 << 19
"""Values of a data set; of larger ones some of the rows."""
_LAST_BITS, _INFINITE = np.uint64(0x3FF), np.uint64(0x7F800000)
_STEPS = (1, -1, 2, -2)


class _Prediction(NamedTuple):
    """Hashes of values that were predicted, rising, and of which records these were."""

    hashes: np.ndarray
    origin: Any


_predictions: collections.deque[_Prediction] = collections.deque(maxlen=_MOST)


def remember(made: Iterable[np.ndarray], origin: Any) -> None:
    """Keeps what knows predictions again, (records, ...) each, and no more of them: they are of this origin.

    Values that others may well have are left out: numbers of few binary digits (classes, 0 and 1, half precision), and
    predictions of fewer than 8 different values.
    """
    for array in made:
        if array.dtype.kind == "f" and array.size:
            outputs = (words[_tells(words)] for words in words_of(_flat(array)[:, :_COLUMNS]).T)
            kept = [np.unique(_hashes(words))[:_KEPT] for words in outputs]
            kept = [hashes for hashes in kept if len(hashes) >= FEWEST]
            if kept:
                _predictions.append(_Prediction(np.unique(np.concatenate(kept)), origin))


def origins_in(arrays: Iterable[np.ndarray]) -> frozenset[Any]:
    """The origins of predictions of which some column of these arrays, (records, ...) each, holds values.

    It holds 8 different ones at least, and more than chance explains: so many as hold the next larger and smaller
    numbers, which are as likely where values of other data lie as close as float32 has numbers.
    """
    if not _predictions:
        return frozenset()
    known = tuple(_predictions)
    found: collections.Counter[Any] = collections.Counter()
    for array in arrays:
        if array.dtype.kind == "f" and array.size:
            found.update(_found(_flat(array), known))
    return frozenset(origin for origin, _ in found.most_common(_NAMED))


def _found(flat: np.ndarray, known: tuple[_Prediction, ...]) -> collections.Counter[Any]:
    """How many values of a column are of each origin, for those of which enough are."""
    flat = flat[:: -(-flat.size // _LOOKED_AT)]
    every = np.unique(np.concatenate([one.hashes for one in known]))
    hits = np.zeros(flat.shape, bool)
    words = words_of(flat)
    there = _tells(words)
    hits[there] = _among(_hashes(words[there]), every)
    found: collections.Counter[Any] = collections.Counter()
    for column in np.flatnonzero(hits.sum(0) >= FEWEST):
        values = np.unique(words[:, column][there[:, column]])
        hashes, *near = (_hashes(values + np.uint64(step % 2**64)) for step in (0, *_STEPS))
        for one in known:
            count = int(_among(hashes, one.hashes).sum())
            if count >= FEWEST and count >= FEWEST + 2 * np.mean([_among(some, one.hashes).sum() for some in near]):
                found[one.origin] = max(count, found[one.origin])
    return found


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


def _tells(words: np.ndarray) -> np.ndarray:
    """Which bits of float32 are of a finite number that has so many binary digits that nobody chose it."""
    return ((words & _LAST_BITS) != 0) & ((words & _INFINITE) != _INFINITE)


def _hashes(words: np.ndarray) -> np.ndarray:
    """One number a value, under the key of this process."""
    return hashes_of([words.astype(np.uint32).view(np.float32)[:, None]]) if len(words) else words


def _among(some: np.ndarray, rising: np.ndarray) -> np.ndarray:
    """Which of some numbers are among others: most are larger than all of these."""
    found = some <= rising[-1]
    few = some[found]
    found[found] = rising[np.searchsorted(rising, few)] == few
    return found
