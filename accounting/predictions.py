"""Predictions of private models, known again by their values: in any order or part, put together, in a table.

One table of a fixed size holds them, and whose they are: what a look costs does not grow with what was predicted, and
the oldest are written over.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdp_layers.accounting.sketch import Sketch, hashes_of

__all__ = ["FEWEST", "Predicted", "predicted_in", "remember"]

FEWEST = 8
"""Different values of a column that were predicted: fewer tell nothing."""
_VALUES, _OUTPUTS = 4096, 64
"""Values that are kept of a call of `predict`, of outputs among which the first and the last are."""
_LOOKED_AT, _HASHED = 1 << 18, 1 << 23
"""Values of a data set, and of what is predicted for: of larger ones some of the rows."""
_BITS, _ROWS, _CALLS = 20, 1 << 18, 512
"""Of the table's places, and the rows and calls that are kept, the last ones."""
_IDS = 4
"""Hashes of rows that are kept of one: of what it was predicted for, and what that was predicted for."""
_LAST_BITS, _INFINITE = np.uint32(0x3FF), np.uint32(0x7F800000)
_STEPS = (1, -1, 2, -2)
_CALL_BITS = 44
_ALL = 2**64 - 1
_NOBODY = -1


class Predicted(NamedTuple):
    """Of the records that private models predicted values of a data set for: these records alone, not their tables.

    Attributes:
        rows: hashes of what was predicted for, of uint64, rising, as bytes.
        single: those of values that come once in their column here: of one record, not of a film that many rate.
        below: up to this hash no row of the calls is left out.
        origins: what was predicted for, with the first and last row, and one more.
    """

    rows: bytes = b""
    single: bytes = b""
    below: int = _ALL
    origins: tuple[tuple[Any, range], ...] = ()

    def __or__(self, other: Predicted) -> Predicted:
        rows, single = (np.frombuffer(one + two, np.uint64) for one, two in zip(self[:2], other[:2], strict=True))
        return _predicted(rows, single, min(self.below, other.below), [*self.origins, *other.origins])

    def sketch(self) -> Sketch | None:
        """Of the rows."""
        few = len(self.rows) // 8
        return Sketch(self.rows, np.ones(few, np.uint32).tobytes(), self.below, few) if few else None

    def shares(self, other: Predicted) -> bool:
        """Whether both hold predictions for the same records, 8 at least."""
        mine, theirs = (np.frombuffer(one.single, np.uint64) for one in (self, other))
        return len(np.intersect1d(mine, theirs, assume_unique=True)) >= FEWEST


class _Table:
    """Values that were predicted, each in the place that its bits choose, and the number of the row that has it."""

    def __init__(self) -> None:
        self.codes, self.holders = np.zeros(1 << _BITS, np.uint32), np.full(1 << _BITS, _NOBODY, np.int64)
        self.ids = np.zeros((_ROWS, _IDS), np.uint64)
        self.at, self.calls = np.zeros(_ROWS, np.int64), np.zeros(_ROWS, np.int64)
        self.made: dict[int, tuple[Any, int]] = {}
        self.key = np.uint32(secrets.randbits(32))
        self.rows, self.lock = 0, threading.Lock()

    def code(self, bits: np.ndarray) -> np.ndarray:
        """One number a value, another one for each other value."""
        return (bits ^ self.key) * np.uint32(0x9E3779B1)

    def there(self, codes: np.ndarray) -> np.ndarray:
        """Which of these are in the table."""
        return self.codes[codes >> np.uint32(32 - _BITS)] == codes

    def holder(self, codes: np.ndarray) -> np.ndarray:
        """The number of the row that has each, of codes that are there."""
        found = self.holders[codes >> np.uint32(32 - _BITS)]
        return np.where(found >= self.rows - _ROWS, found, _NOBODY)

    def number(self, rows: int, call: Any, below: int) -> np.ndarray:
        """Numbers for new rows of a call."""
        with self.lock:
            first, self.rows = self.rows, self.rows + rows
            self.made[first] = call, below
            for old in list(self.made)[:-_CALLS]:
                self.made.pop(old, None)
        numbers = np.arange(first, first + rows)
        self.calls[numbers % _ROWS] = first
        return numbers

    def put(self, codes: np.ndarray, holders: np.ndarray, ids: np.ndarray) -> None:
        """Puts values there, of the rows with these hashes: one that was predicted for others, too, is nobody's."""
        held = self.holders[codes >> np.uint32(32 - _BITS)]
        of_others = (held == _NOBODY) | ((held >= self.rows - _ROWS) & (self.ids[held % _ROWS, 0] != ids))
        none = self.there(codes) & of_others
        new = none | (holders != _NOBODY)
        places = codes[new] >> np.uint32(32 - _BITS)
        self.codes[places], self.holders[places] = codes[new], np.where(none, _NOBODY, holders)[new]


_table = _Table()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: setattr(_table, "lock", threading.Lock()))


def remember(made: Iterable[np.ndarray], given: Sequence[np.ndarray] | None, origin: Any) -> None:
    """Keeps what knows predictions again, (records, ...) each: the values of some rows, chosen by what they are for.

    Values that others may well have are left out: numbers of few binary digits (classes, 0 and 1, half precision), and
    those that are predicted for several of these records. Where they are more than half of an output, all of it is.

    Args:
        given: what it was predicted for, as many records; None where that cannot be looked at.
        origin: what the caller wants to hear of them again.
    """
    outputs = [_some(one) for one in made if one.dtype.kind == "f" and one.size]
    if not outputs:
        return
    most = max(_OUTPUTS, _VALUES // sum(one.shape[1] for one in outputs))
    rows, ids, alone, below = _chosen(outputs, [one for one in given if one.size] if given else [], most)
    bits = np.concatenate([_bits(one[rows]) for one in outputs], 1)[:, :_OUTPUTS]
    codes, tells = _table.code(bits), _tells(bits)
    kept = tells & alone[:, None] & ~_repeated(codes)
    kept &= kept.sum(0) >= np.maximum(FEWEST, tells.sum(0) / 2)
    row, column = np.nonzero(tells)
    holders = np.full(len(rows), _NOBODY)
    if kept.any():
        holders = _table.number(len(rows), origin, below)
        _table.at[holders % _ROWS] = rows
        _table.ids[holders % _ROWS] = _with_earlier(ids, given, rows)
    _table.put(codes[row, column], np.where(kept[row, column], holders[row], _NOBODY), ids[row])


def _chosen(
    made: Sequence[np.ndarray], given: Sequence[np.ndarray], most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The rows whose hashes are smallest, the hashes, whether each comes once, and up to which hash none is missing.

    So parts and other predictions for the same records choose alike.
    """
    rows, arrays = np.arange(len(made[0])), list(given or made)
    few = _HASHED // max(1, sum(min(1024, one[0].size) for one in arrays))
    whole = len(rows) <= few
    if not whole:
        order = _table.code(_bits(made[-1][:, -1:]))[:, 0]
        rows = np.argpartition(order, few)[:few]
        arrays = [one[rows] for one in arrays]
    hashes = hashes_of(arrays)
    if len(hashes) > 2 * most:
        near = np.flatnonzero(hashes <= np.partition(hashes, 2 * most)[2 * most])
        hashes, rows, whole = hashes[near], rows[near], False
    ids, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    ids, first, counts = ids[:most], first[:most], counts[:most]
    return rows[first], ids, counts == 1, int(ids[-1]) if len(ids) == most or not whole else _ALL


def _with_earlier(ids: np.ndarray, given: Sequence[np.ndarray] | None, rows: np.ndarray) -> np.ndarray:
    """The hashes of rows, and of those that values in them were predicted for, (rows, hashes)."""
    found = np.zeros((len(ids), _IDS), np.uint64)
    found[:, 0] = ids
    for one in given or ():
        if one.dtype.kind == "f" and one.size:
            row, _, holder = _found(_bits(_some(one)[rows]))
            found[row, 1:] = _table.ids[holder % _ROWS, :-1]
    return found


def predicted_in(arrays: Iterable[np.ndarray]) -> Predicted:
    """Of the predictions of which some column of these arrays, (records, ...) each, holds values.

    It holds 8 different ones of a call at least, and more than chance explains: so many as hold the next larger and
    smaller numbers, which are as likely where values of other data lie as close as float32 has numbers.
    """
    if not _table.rows:
        return Predicted()
    every, single = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for array in arrays:
        if array.dtype.kind == "f" and array.size:
            flat = array.reshape(len(array), -1)
            _, column, holder = _found(_bits(flat[:: -(-flat.size // _LOOKED_AT)]))
            every.append(holder)
            single.extend(_once(holder[column == one]) for one in np.unique(column))
    holders = np.unique(np.concatenate(every))
    return _of(holders, np.concatenate(single)) if len(holders) else Predicted()


def _of(holders: np.ndarray, single: np.ndarray) -> Predicted:
    """What is known of rows, and of those whose values come once."""
    calls, at = _table.calls[holders % _ROWS], _table.at[holders % _ROWS]
    made = {call: _table.made[call] for call in np.unique(calls).tolist() if call in _table.made}
    spans = {call: range(int(at[calls == call].min()), int(at[calls == call].max()) + 1) for call in made}
    rows, once = (_table.ids[some % _ROWS].ravel() for some in (holders, single))
    below = min((below for _, below in made.values()), default=_ALL)
    return _predicted(rows, once, below, [(origin, spans[call]) for call, (origin, _) in made.items()])


def _predicted(rows: np.ndarray, single: np.ndarray, below: int, origins: list[tuple[Any, range]]) -> Predicted:
    """Of these hashes, in any order, and no more of them than are kept."""
    rows, single = (np.unique(some[some != 0])[:_VALUES] for some in (rows, single))
    below = min(below, int(rows[-1])) if len(rows) == _VALUES else below
    return Predicted(rows.tobytes(), single.tobytes(), below, tuple(dict.fromkeys(origins))[-_CALLS:])


def _once(holders: np.ndarray) -> np.ndarray:
    """The rows that come once in a column; none where most come several times."""
    different, counts = np.unique(holders, return_counts=True)
    once = different[counts == 1]
    return once if 2 * len(once) >= len(different) else once[:0]


def _found(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and holder of the values that were predicted, of columns that hold enough of a call."""
    row, column, codes, holder = _hits(bits)
    kinds, kind, counts = _kinds(column, codes, holder)
    told = counts >= FEWEST
    if told.any():
        near, columns = np.zeros(len(kinds)), np.unique(kinds[told] >> _CALL_BITS)
        for step in _STEPS:
            _, beside, others, held = _hits(bits[:, columns] + np.uint32(step % 2**32))
            found, _, times = _kinds(columns[beside], others, held)
            same = np.isin(found, kinds)
            near[np.searchsorted(kinds, found[same])] += times[same] / len(_STEPS)
        told &= counts >= FEWEST + 2 * near
    chosen = told[kind]
    return row[chosen], column[chosen], holder[chosen]


def _kinds(column: np.ndarray, codes: np.ndarray, holder: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of column and call, as numbers, the one of each value, and how many different values each pair has."""
    pairs = (column << _CALL_BITS) + _table.calls[holder % _ROWS]
    kinds, kind = np.unique(pairs, return_inverse=True)
    kind = kind.ravel()
    different = np.unique((kind.astype(np.uint64) << np.uint64(32)) | codes.astype(np.uint64)) >> np.uint64(32)
    return kinds, kind, np.bincount(different.astype(np.int64), minlength=len(kinds))


def _hits(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Row, column, code and holder of the values that are in the table."""
    codes = _table.code(bits)
    places = np.flatnonzero(_table.there(codes))
    row, column = np.divmod(places, bits.shape[1])
    codes = codes.ravel()[places]
    holder = _table.holder(codes)
    held = holder != _NOBODY
    return row[held], column[held], codes[held], holder[held]


def _some(array: np.ndarray) -> np.ndarray:
    """Some columns, (records, columns): of more than 64 so many, from the first to the last."""
    flat = array.reshape(len(array), -1)
    few = flat.shape[1] <= _OUTPUTS
    return flat if few else flat[:, np.linspace(0, flat.shape[1] - 1, _OUTPUTS).astype(int)]


def _bits(flat: np.ndarray) -> np.ndarray:
    """Each value as the bits of a float32."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(flat, np.float32).view(np.uint32)


def _tells(bits: np.ndarray) -> np.ndarray:
    """Which are of a finite number that has so many binary digits that nobody chose it."""
    return ((bits & _LAST_BITS) != 0) & ((bits & _INFINITE) != _INFINITE)


def _repeated(codes: np.ndarray) -> np.ndarray:
    """Which values come several times in their column."""
    order = np.argsort(codes, axis=0)
    rising = np.take_along_axis(codes, order, 0)
    equal = np.zeros((len(codes) + 1, codes.shape[1]), bool)
    equal[1:-1] = rising[1:] == rising[:-1]
    found = np.empty(codes.shape, bool)
    np.put_along_axis(found, order, equal[1:] | equal[:-1], 0)
    return found
