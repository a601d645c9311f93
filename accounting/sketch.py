"""A sketch of a data set's rows, kept without them: two of these tell whether their sets have rows in common."""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfdp_layers.accounting.columns import words_of
from tfdp_layers.accounting.lone_copies import lone_copies
from tfdp_layers.accounting.near_rows import stand_alone
from tfdp_layers.accounting.people import People

__all__ = ["Sketch", "differ", "hashes_of", "sketch_by", "sketch_of"]

_KEPT = 1024
"""Rows of a sketch: those whose hashes are smallest, so that two sketches choose alike."""
_COLUMNS = 1024
"""Entries of a row that are hashed: of wider rows a few that are drawn for this process."""
_CHUNK_BYTES = 1 << 18  # stays in a core's cache
_FEWEST, _SHARE, _BY_HALF = 8, 0.05, 0.95
_PEOPLE, _WIDE = 40, 0.25
_FEW_COLUMNS, _LOOKED_AT, _EMPTY, _FULL = 8, 1 << 12, 20, 0.25


@dataclass(frozen=True)
class Sketch:
    """Hashes of the different rows of a data set, those whose hashes are smallest.

    Rows of a table may equal other people's by chance. How often, the data set says by itself: see `_by_chance`. Two
    data sets are taken to share records where more of the smaller sketch is found than that explains, by three standard
    deviations and 5% of it, and 8 rows at least. Tables whose rows are nearly all alike are never known by their rows,
    nor are those that fill a grid: a row for each hour of each day, numbers from 0 to 499.

    Attributes:
        hashes: of uint64, rising, as bytes.
        counts: how often each comes, of uint32, as bytes.
        below: up to this hash no row is left out.
        records: of the data set.
        told_by_half: whether next to no two of these rows agree in every other column, so that none is equal by chance;
            nor do of those alone that come several times (short messages agree in what pads them).
        told_by_quarter: whether that holds of every fourth column as well, of those that come several times.
        filled: which share of the rows there are, of all that its columns' values could make: see `_filled`.
        lone: how many single rows come several times by no chance, and how often at most: see `lone_copies`.
        holders: where it is known whose the records are, among how many people each hash comes, of uint32, as bytes;
            then `told_by_...` and `lone` are about what several people have in common.
        people: how many there are.
        spread: whether that is 40 or more, and none of them has more than a quarter of these rows.
        alone: whether rows are equal though next to none are nearly so: see `stand_alone`. It is asked where these
            rows may tell, not by half, and nothing is known of whose they are.
    """

    hashes: bytes
    counts: bytes
    below: int
    records: int
    told_by_half: bool = False
    told_by_quarter: bool = False
    filled: float = 0.0
    lone: tuple[int, int] = (0, 0)
    holders: bytes | None = None
    people: int = 0
    spread: bool = False
    alone: bool = False

    def shares(self, other: Sketch) -> bool:
        """Whether both are of sets that have rows in common: parts, copies and shuffles of one another, say."""
        few, many = sorted((self, other), key=lambda one: one.records)
        below = min(self.below, other.below)
        (some, own), (others, counts) = few._up_to(below), many._up_to(below)
        found = len(np.intersect1d(some, others, assume_unique=True))
        if found < _FEWEST or max(self.filled, other.filled) >= _FULL:
            return False
        if many.told_by_half:  # then rows that come several times are copies, as of a bootstrap, and none is by chance
            counts = np.ones_like(counts)
        chance, error = _by_chance(counts, few.records / many.records)
        if not few.told_by_half:  # other people's may be as common as these: short texts among long ones, say
            chance, error = max((chance, error), _by_chance(own, 1.0))
        chance = max(chance, many.filled)
        draws = math.sqrt(len(some) * chance * (1.0 - chance))
        return bool(found >= len(some) * (chance + 3.0 * error + _SHARE) + 3.0 * draws)

    def without(self, rows: np.ndarray) -> Sketch:
        """The same but for rows of these hashes, of which nothing is asked."""
        hashes, counts = self._up_to(self.below)
        kept = ~np.isin(hashes, rows)
        return replace(self, hashes=hashes[kept].tobytes(), counts=counts[kept].tobytes())

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


def sketch_of(arrays: Sequence[np.ndarray], people: People | None = None) -> Sketch:
    """Of the rows over all arrays, (records, ...) each, and whose these are, if that is known."""
    hashes = hashes_of(arrays)
    found = sketch_by(hashes, lambda values, several: _told_by(arrays, hashes, values, several), people)
    times = np.frombuffer(found.counts, np.uint32)
    copies = int(times.sum()) - len(times)
    asked = people is None and not found.told_by_half and copies >= _SHARE * len(times)
    return replace(
        found,
        filled=_filled(arrays, hashes),
        lone=lone_copies(arrays, hashes, people),
        alone=asked and stand_alone(arrays),
    )


def sketch_by(
    hashes: np.ndarray, told: Callable[[np.ndarray, np.ndarray], tuple[bool, bool]], people: People | None = None
) -> Sketch:
    """Of rows of which only these hashes are known, (records,) uint64, equal for equal rows; without `filled`, `lone`.

    Args:
        told: gives `told_by_half` and `told_by_quarter`, by the hashes of rows and of those that come several times.
        people: whose the records are, if that is known.
    """
    few = _KEPT
    values, counts = hashes[:0], hashes[:0]
    while len(values) <= _KEPT and few < len(hashes):
        few = min(len(hashes), 4 * few)
        cut = np.partition(hashes, few - 1)[few - 1]
        values, counts = np.unique(hashes[hashes <= cut], return_counts=True)
    if not len(values):
        values, counts = np.unique(hashes, return_counts=True)
    below = int(values[_KEPT - 1]) if len(values) > _KEPT else 2**64 - 1
    values, counts = values[:_KEPT], counts[:_KEPT].astype(np.uint32)
    kinds = None if people is None else _kinds(hashes, values)
    held = counts if people is None or kinds is None else people.holders(kinds, counts).astype(np.uint32)
    told_by = told(values, values[held > 1])
    found = Sketch(values.tobytes(), counts.tobytes(), below, len(hashes), *told_by)
    if people is None or kinds is None:
        return found
    spread = people.count >= _PEOPLE and people.most(kinds) <= _WIDE * len(values)
    return replace(found, holders=held.tobytes(), people=people.count, spread=spread)


def _kinds(hashes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The place of each hash among these, which rise; -1 for others."""
    places = np.searchsorted(values, hashes)
    there = np.append(values, np.uint64(0))[places] == hashes
    return np.where(there & (places < len(values)), places, -1)


def _filled(arrays: Sequence[np.ndarray], hashes: np.ndarray) -> float:
    """Which share of the cells of a grid these rows fill: of the values of the columns, each with each.

    Columns that follow from another one, as the weekday from the date, add no cells. Of one column the cells are from
    the smallest to the largest number, as far from each other as the nearest two. It is 0 where it is below 5%, and of
    more than 8 columns.
    """
    columns = [column for one in arrays if one.size for column in one.reshape(len(one), -1)[:, : _FEW_COLUMNS + 1].T]
    if not 0 < len(columns) <= _FEW_COLUMNS:
        return 0.0
    looked_at = np.random.Generator(np.random.PCG64(0)).permutation(len(hashes))[:_LOOKED_AT]
    columns = _apart(columns, looked_at)
    if _cells([one[looked_at] for one in columns]) > _EMPTY * len(hashes):
        return 0.0
    return len(np.unique(hashes)) / max(1.0, _cells(columns))


def _apart(columns: Sequence[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    """The columns that follow from no other one in these rows; what tells rows apart nothing needs to follow from."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    coded = [(one, np.unique(words_of(one[rows]), return_inverse=True)[1].ravel()) for one in columns]
    for column, codes in sorted(coded, key=lambda one: -int(one[1].max())):
        values = [int(other.max()) + 1 for _, other in found]
        pairs = [len(np.unique(other * len(rows) + codes)) for _, other in found]
        if codes.max() and not any(2 * k <= len(rows) and k == m for k, m in zip(values, pairs, strict=True)):
            found.append((column, codes))
    return [column for column, _ in found]


def _cells(columns: Sequence[np.ndarray]) -> float:
    """How many rows the values of these columns could make."""
    values = [np.unique(one if one.dtype.kind in "biuf" else words_of(one)) for one in columns]
    if len(columns) == 1 and columns[0].dtype.kind in "iuf" and len(values[0]) > 1:
        numbers = values[0].astype(np.float64)
        return float((numbers[-1] - numbers[0]) / np.diff(numbers).min()) + 1.0
    return float("inf") if len(columns) == 1 else math.prod(float(len(one)) for one in values)


def _told_by(
    arrays: Sequence[np.ndarray], hashes: np.ndarray, values: np.ndarray, several: np.ndarray
) -> tuple[bool, bool]:
    """Whether the rows of these hashes, and of several alone, differ by half of their columns, and these by a quarter.

    By every other column, and every fourth: by each such part alone nearly all differ.
    """
    if not len(several):
        return False, False
    order = np.argsort(hashes, kind="stable")
    rows, those = (order[np.searchsorted(hashes, some, sorter=order)] for some in (values, several))
    return differ(arrays, rows, 2) and differ(arrays, those, 2), differ(arrays, those, 4)


def differ(arrays: Sequence[np.ndarray], rows: np.ndarray, parts: int) -> bool:
    """Whether next to no two of these rows agree in any of so many parts of their columns: the first and every n-th."""
    columns = [one[rows].reshape(len(rows), -1) for one in arrays]
    wide = [one for one in columns if one.shape[1] >= parts]
    alone = [one[:, place : place + 1] for one in columns if one.shape[1] < parts for place in range(one.shape[1])]
    by_part = ([one[:, start::parts] for one in wide] + alone[start::parts] for start in range(parts))
    return all(part and len(np.unique(hashes_of(part))) >= _BY_HALF * len(rows) for part in by_part)


@functools.cache
def _key() -> int:
    """Of this process: without it hashes tell nothing of the rows."""
    return secrets.randbits(64)


def hashes_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
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
        found[start : start + rows] = words_of(part) @ factors
    return found


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): numbers that follow a pattern come out without one."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
