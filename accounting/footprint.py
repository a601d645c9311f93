"""What tells the records of a training again, kept without the records: where they lie, and a sketch of their rows.

Kept in the memory of this process alone, under a key drawn for it: no file, statement or ledger holds any of it.
"""

from __future__ import annotations

import functools
import itertools
import math
import mmap
import secrets
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["Footprint", "came_from", "footprint_of", "living"]

_KEPT = 1024
"""Rows of a sketch: those whose hashes are smallest, so that two sketches choose alike."""
_COLUMNS = 1024
"""Entries of a row that are hashed: of wider rows a few that are drawn for this process."""
_CHUNK_BYTES = 1 << 18  # stays in a core's cache
_FEWEST, _SHARE, _BY_HALF = 8, 0.05, 0.95

Place = tuple[Any, Any]
"""The number, or the file, of what holds the records, and which rows of it; None: all."""


@dataclass(frozen=True)
class Footprint:
    """Of the records of one training.

    Attributes:
        places: where they lie.
        sketch: of their rows; None where these cannot be looked at.
        records: how many there are; None where that is not known.
    """

    places: frozenset[Place] = frozenset()
    sketch: Sketch | None = None
    records: int | None = None

    def same_place(self, other: Footprint) -> bool:
        """Whether both are of one object, or of rows of one array that meet: what the program says, not the records."""
        return any(_meet(a, b) for a in self.places for b in other.places)

    def overlaps(self, other: Footprint) -> bool:
        """Whether both are in one place, or hold equal rows: more of them than chance explains."""
        if self.same_place(other):
            return True
        return self.sketch is not None and other.sketch is not None and self.sketch.shares(other.sketch)


def footprint_of(given: Iterable[Any], leaves: Sequence[np.ndarray] | None = None) -> Footprint:
    """The footprint of records.

    Args:
        given: what the caller gave: arrays, tables, tensors, sources. None of it is kept.
        leaves: the records as arrays (records, ...), numbers or texts; None where they cannot be looked at.
    """
    arrays = [] if leaves is None else list(leaves)
    places = itertools.chain.from_iterable(map(_places, [*given, *arrays]))
    looked_at = bool(arrays) and len(arrays[0]) and not any(_mapped(one) is not None for one in arrays)
    records = len(arrays[0]) if arrays else None
    return Footprint(frozenset(places), _sketch_of(arrays) if looked_at else None, records)


def living(footprint: Footprint) -> Footprint:
    """The footprint without the places of objects that are gone: no other one will ever be there."""
    if all(isinstance(number, str) or number in _living for number, _ in footprint.places):
        return footprint
    origins = {number for places in _origins.values() for number, _ in places}  # of what was computed from them
    kept = [one for one in footprint.places if isinstance(one[0], str) or one[0] in _living or one[0] in origins]
    return replace(footprint, places=frozenset(kept))


# Places ---------------------------------------------------------------------------------------------------------------

_known: dict[int, tuple[weakref.ref[Any], int]] = {}
_numbers = itertools.count()
_living: set[int] = set()
_origins: dict[Any, frozenset[Place]] = {}


def came_from(made: Any, *given: Any) -> None:
    """Notes that an array was computed row for row from records: from here on it has their places, too."""
    (mine, _), *_ = _places(made)
    _origins[mine] = frozenset(itertools.chain.from_iterable(map(_places, given)))


def _places(one: Any) -> list[Place]:
    """Where an object lies: itself, the array that it is a view of, and what that was computed from."""
    if not isinstance(one, np.ndarray):
        found = [(_number(one), None)]
        return [(number, rows) for number, rows in found if number is not None]
    file, owner = _mapped(one), one
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    number, rows = _number(owner) if file is None else file, _rows(one, owner)
    if number is None:
        return []
    return [(number, rows), *((origin, _composed(first, rows)) for origin, first in _origins.get(number, ()))]


def _number(one: Any) -> int | None:
    """One number an object, never used again; None for what is made anew at each look, or has no weak references."""
    if one is None or isinstance(one, str | bytes | int | float | list | tuple | dict):
        return None
    held = _known.get(id(one))
    if held is None or held[0]() is not one:
        place, number = id(one), next(_numbers)

        def forget(reference: weakref.ref[Any]) -> None:
            if _known.get(place, (None,))[0] is reference:
                del _known[place]
            _origins.pop(number, None)
            _living.discard(number)

        try:
            held = _known[place] = (weakref.ref(one, forget), number)
        except TypeError:
            return None
        _living.add(number)
    return held[1]


def _mapped(one: np.ndarray) -> str | None:
    """What an array is mapped from; None for one in memory."""
    owner: Any = one
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) and owner.filename is not None:
            return f"file {owner.filename}"
        owner = owner.base
    return "a mapping" if isinstance(owner, mmap.mmap) else None


def _rows(one: np.ndarray, owner: np.ndarray) -> Any:
    """Which rows of its owner a view holds, as a range; where that cannot be said, how it lies in memory."""
    (start, _), (first, _) = one.__array_interface__["data"], owner.__array_interface__["data"]
    if one.ndim and owner.ndim and owner.flags.c_contiguous and owner.strides[0] > 0:
        step, stride = owner.strides[0], one.strides[0]
        if stride and stride % step == 0:
            at, by = (start - first) // step, stride // step
            return range(at, at + by * len(one), by)
    return start, one.shape, one.strides


def _composed(first: Any, then: Any) -> Any:
    """The rows `then` of the rows `first`, which one array was computed from."""
    if not (isinstance(first, range) and isinstance(then, range) and then):
        return first
    rising = then if then.step > 0 else then[::-1]
    return first[rising.start : rising[-1] + 1 : rising.step]


def _meet(a: Place, b: Place) -> bool:
    if a[0] != b[0]:
        return False
    if not (isinstance(a[1], range) and isinstance(b[1], range)):
        return bool(a[1] == b[1])
    few, many = sorted((a[1], b[1]), key=len)
    if few.step == many.step == 1:
        return max(few.start, many.start) < min(few.stop, many.stop)
    return any(row in many for row in few)


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sketch:
    """Hashes of the different rows of a data set, those whose hashes are smallest.

    Rows of a table may equal other people's by chance. How often, the data set says by itself: see `_by_chance`. Two
    data sets are taken to share records where more of the smaller sketch is found than that explains, by three standard
    deviations and 5% of it, and 8 rows at least. Tables whose rows are nearly all alike are never known by their rows.

    Attributes:
        hashes: of uint64, rising, as bytes.
        counts: how often each comes, of uint32, as bytes.
        below: up to this hash no row is left out.
        records: of the data set.
        told_by_half: whether next to no two of these rows agree in every other column, so that none is equal by chance.
    """

    hashes: bytes
    counts: bytes
    below: int
    records: int
    told_by_half: bool = False

    def shares(self, other: Sketch) -> bool:
        """Whether both are of sets that have rows in common: parts, copies and shuffles of one another, say."""
        few, many = sorted((self, other), key=lambda one: one.records)
        below = min(self.below, other.below)
        (some, _), (others, counts) = few._up_to(below), many._up_to(below)
        found = len(np.intersect1d(some, others, assume_unique=True))
        if found < _FEWEST:
            return False
        chance, error = _by_chance(counts, few.records / many.records)
        draws = math.sqrt(len(some) * chance * (1.0 - chance))
        return bool(found >= len(some) * (chance + 3.0 * error + _SHARE) + 3.0 * draws)

    def _up_to(self, below: int) -> tuple[np.ndarray, np.ndarray]:
        hashes, counts = np.frombuffer(self.hashes, np.uint64), np.frombuffer(self.counts, np.uint32)
        kept = hashes <= np.uint64(below)
        return hashes[kept], counts[kept]


def _by_chance(counts: np.ndarray, size: float) -> tuple[float, float]:
    """The share of the different rows of other people's records that are in a data set all the same.

    Of t n further records from where n came from, sum_c -(-t)^c F_c different rows are new, without bias, F_c being how
    many rows came c times (Good and Toulmin 1956, "The number of new species"); they have sum_c (1 - (1 - t)^c) F_c
    different rows, as t n of the n have.

    Args:
        counts: c of each different row.
        size: t, at most 1.

    Returns: the share, and its standard deviation.
    """
    times = counts.astype(np.float64)
    different = max(1e-9, float((1.0 - (1.0 - size) ** times).sum()))
    new = float(-((-size) ** times).sum())
    chance = min(1.0, max(0.0, 1.0 - new / different))
    weights = np.where(counts > 1, size**times, size * chance)
    return chance, math.sqrt(size**2 + float((weights**2).sum())) / different


def _sketch_of(arrays: Sequence[np.ndarray]) -> Sketch:
    hashes, few = _hashes(arrays), _KEPT
    values, counts = hashes[:0], hashes[:0]
    while len(values) <= _KEPT and few < len(hashes):
        few = min(len(hashes), 4 * few)
        cut = np.partition(hashes, few - 1)[few - 1]
        values, counts = np.unique(hashes[hashes <= cut], return_counts=True)
    if not len(values):
        values, counts = np.unique(hashes, return_counts=True)
    below = int(values[_KEPT - 1]) if len(values) > _KEPT else 2**64 - 1
    values, counts = values[:_KEPT], counts[:_KEPT].astype(np.uint32)
    by_half = counts.max() > 1 and _told_by_half(arrays, hashes, values)
    return Sketch(values.tobytes(), counts.tobytes(), below, len(hashes), by_half)


def _told_by_half(arrays: Sequence[np.ndarray], hashes: np.ndarray, values: np.ndarray) -> bool:
    """Whether the rows of these hashes differ in both halves of their columns, every other one, nearly all."""
    order = np.argsort(hashes, kind="stable")
    rows = order[np.searchsorted(hashes, values, sorter=order)]
    columns = [one[rows].reshape(len(rows), -1) for one in arrays]
    wide = [one for one in columns if one.shape[1] > 1]
    alone = [one for one in columns if one.shape[1] == 1]
    halves = [[one[:, start::2] for one in wide] + alone[start::2] for start in (0, 1)]
    return all(half and len(np.unique(_hashes(half))) >= _BY_HALF * len(rows) for half in halves)


@functools.cache
def _key() -> int:
    """Of this process: without it hashes tell nothing of the rows."""
    return secrets.randbits(64)


def _hashes(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """One number a row over all arrays, equal for equal rows: (rows,) uint64."""
    total = np.zeros(len(arrays[0]), np.uint64)
    for place, array in enumerate(arrays):
        draws = np.random.Generator(np.random.Philox(key=[_key(), place]))
        flat = array.reshape(len(array), -1)
        if flat.shape[1] > _COLUMNS:
            columns = np.sort(draws.choice(flat.shape[1], _COLUMNS, replace=False))
        else:
            columns = np.arange(flat.shape[1])
        factors = draws.integers(0, 2**64, len(columns), np.uint64) | np.uint64(1)
        total = _mixed(total + _sums(flat, columns, factors))
    return total


def _sums(flat: np.ndarray, columns: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """The sum over the columns of each entry, as bits of a float32 or as the hash of a text, times a factor."""
    found, whole = np.empty(len(flat), np.uint64), len(columns) == flat.shape[1]
    rows = max(1, _CHUNK_BYTES // (4 * max(1, len(columns))))
    for start in range(0, len(flat), rows):
        part = flat[start : start + rows]
        part = part if whole else part[:, columns]
        if part.dtype.kind in "biufV" or part.dtype.kind == "c":
            with np.errstate(all="ignore"):
                words = np.ascontiguousarray(part, np.float32).view(np.uint32).astype(np.uint64)
        else:
            words = np.array([hash(one) & (2**64 - 1) for one in part.ravel().tolist()], np.uint64).reshape(part.shape)
        found[start : start + rows] = words @ factors
    return found


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): numbers that follow a pattern come out without one."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
