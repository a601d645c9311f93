"""Columns of a data set, known again beside others: scaled features, other features, predictions added to them."""

from __future__ import annotations

import functools
import hashlib
import secrets
import zlib
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

__all__ = ["Columns", "by_design", "columns_of", "words_of"]

_MOST = 32
"""Columns of an array that are looked at, the first ones: tables of more hold enough that did not change."""
_ROWS = 1 << 14
"""Rows of a column that are compared: the first ones."""
_CODED = 1024
_LEAST_BYTES, _LEAST_SHARE = 32, 0.6
"""Of the first codes of a column, packed, and as a share of them packed in random order: below, the column has few
values, or its order is a pattern (numbered, sorted, taking turns)."""
_FEW, _COUNTED = 128, 1 << 20
"""Values of a column of classes, and rows of it that are counted."""
_PART, _EACH, _MANY = 50, 5, 500
_ROUND = np.array([0.001, 0.002, 0.005, 0.01, 0.02, *np.arange(1, 20) / 20])


class Columns(NamedTuple):
    """What tells columns of a data set again, in one of as many rows in the same order.

    Two tables that agree in a column from row to row are of the same people, most often, whatever else they hold: what
    many people agree in by chance, few values or a pattern, is left out. So do columns of other people agree, where
    somebody chose how many are of each class, and put them into an order that others know, as a shuffle by seed 0 does.
    Such columns say nothing unless the order of another column is the same, too.

    Attributes:
        telling: digests of columns that say enough alone.
        designed: of those in which somebody chose how many are of each class, it seems.
        orders: of which rows are in the upper half of a column, whatever its scale; none without a designed column.
        labels: those of labels among them.
    """

    telling: frozenset[bytes] = frozenset()
    designed: frozenset[bytes] = frozenset()
    orders: frozenset[bytes] = frozenset()
    labels: frozenset[bytes] = frozenset()

    def __or__(self, other: Columns) -> Columns:  # type: ignore[override]
        return Columns(*(mine | theirs for mine, theirs in zip(self, other, strict=True)))

    def equal(self, other: Columns) -> str | None:
        """What both agree in, in words; None where they agree in nothing, or in what says nothing."""
        found = self.telling & other.telling
        if self.orders & other.orders:
            found |= self.designed & other.designed
        if not found:
            return None
        return "equal labels, row by row" if found <= self.labels & other.labels else "a column of equal values"


def columns_of(arrays: Iterable[np.ndarray], labels: Iterable[np.ndarray] = ()) -> Columns:
    """Of the columns of these arrays, (records, ...) each, numbers or texts, and of labels beside them."""
    telling: set[bytes] = set()
    designed: set[bytes] = set()
    beside: set[bytes] = set()
    halves: list[np.ndarray] = []
    for array, label in [*((one, False) for one in arrays), *((one, True) for one in labels)]:
        if not array.size:
            continue
        flat = array.reshape(len(array), -1)[:, :_MOST]
        for place, words in enumerate(np.ascontiguousarray(words_of(flat[:_ROWS]).T)):
            if not _says_enough(words[:_CODED]):
                continue
            digest, chosen = _digest(words, len(flat)), _chosen(flat[:, place], words)
            (designed if chosen else telling).add(digest)
            halves += [] if chosen else [flat[:_ROWS, place]]
            beside |= {digest} if label else set()
    orders = [(half, len(half)) for one in halves if designed for half in _halves(one) if _says_enough(half[:_CODED])]
    return Columns(*map(frozenset, (telling, designed, [_digest(*one) for one in orders], beside)))


def _chosen(column: np.ndarray, words: np.ndarray) -> bool:
    few = len(np.unique(words[:_CODED])) <= _FEW
    return few and by_design(np.unique(words_of(column[:_COUNTED]), return_counts=True)[1])


def words_of(part: np.ndarray) -> np.ndarray:
    """Each entry as the bits of a float32, or the hash of a text or of another object: uint64 of the same shape."""
    if part.dtype.kind in "biufV" and part.dtype.names is None:
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(part, np.float32).view(np.uint32).astype(np.uint64)
    hashes = [hash(one if isinstance(one, Hashable) else repr(one)) & (2**64 - 1) for one in part.ravel().tolist()]
    return np.array(hashes, np.uint64).reshape(part.shape)


def by_design(counts: np.ndarray) -> bool:
    """Whether somebody chose how many records are of each class, it seems: as many of each, or round shares.

    Counts of people who came by chance are so once in ten times at most, and somewhat more often by a class of 1%.

    Args:
        counts: of each class, above 0.
    """
    total, fewest = int(counts.sum()), int(counts.min())
    if fewest == counts.max():
        return len(counts) > 1 and fewest >= _EACH
    whole = int(np.gcd.reduce(counts))
    if whole >= _PART and 100 * whole >= total:
        return True
    shares = np.sort(counts)[:-1] / total
    return total >= _MANY and bool((np.abs(shares[:, None] - _ROUND).min(1) < 1e-9).all())


def _halves(column: np.ndarray) -> Iterator[np.ndarray]:
    """Which rows of numbers are from their median on, and which above: of either, where it differs from the first."""
    if column.dtype.kind in "biuf":
        median = np.partition(column, len(column) // 2)[len(column) // 2]
        for upper in (column >= median, column > median):
            yield (upper != upper[0]).astype(np.uint64)


def _digest(words: np.ndarray, rows: int) -> bytes:
    return hashlib.blake2b(words.tobytes(), digest_size=16, key=_key(rows)).digest()


def _says_enough(words: np.ndarray) -> bool:
    """Whether neither the values nor their steps are a pattern, or next to nothing."""
    codes = np.unique(words, return_inverse=True)[1].ravel().astype(np.uint16)
    shuffled = np.random.Generator(np.random.PCG64(0)).permutation
    for one in (codes, np.diff(codes)):
        size = _packed(one)
        if size < max(_LEAST_BYTES, _LEAST_SHARE * _packed(shuffled(one))):
            return False
    return True


def _packed(codes: np.ndarray) -> int:
    return len(zlib.compress(codes.tobytes(), 1))


@functools.cache
def _secret() -> bytes:
    return secrets.token_bytes(32)


def _key(rows: int) -> bytes:
    """Of this process and a number of rows: without it digests tell nothing of a column."""
    return _secret() + rows.to_bytes(8, "little")
