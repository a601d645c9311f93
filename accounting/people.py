"""Whose each record is, where that is said: what two people's records have in common, and what one's own have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["People"]


@dataclass(frozen=True)
class People:
    """The owners of each record: units that own several each, or owners of whom several may own one.

    Attributes:
        records, owners: (pairs,) record records[i] belongs to owners[i], 0, 1, ...; by records, rising, none twice.
        size: how many records there are.
    """

    records: np.ndarray
    owners: np.ndarray
    size: int

    @classmethod
    def by(cls, positions: np.ndarray) -> People:
        """Of records that have one owner each: (records,) which."""
        return cls(np.arange(len(positions)), np.asarray(positions).reshape(-1), len(positions))

    @property
    def count(self) -> int:
        """How many owners there are."""
        return int(self.owners.max(initial=-1)) + 1

    @property
    def positions(self) -> np.ndarray | None:
        """(records,) the owner of each; None where some have several."""
        return self.owners if len(self.owners) == self.size else None

    def first(self, rows: int) -> People:
        """Of the first records alone."""
        pairs = int(np.searchsorted(self.records, rows))
        return People(self.records[:pairs], self.owners[:pairs], min(rows, self.size))

    def of(self, records: np.ndarray) -> People:
        """Of these records, in this order, each as often as it comes."""
        starts, ends = (np.searchsorted(self.records, records + one) for one in (0, 1))
        counts = ends - starts
        own = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        return People(np.repeat(np.arange(len(records)), counts), self.owners[own], len(records))

    def strangers(self, one: int, other: int) -> bool:
        """Whether two records have no owner in common."""
        mine, theirs = (self.owners[slice(*np.searchsorted(self.records, [at, at + 1]))] for at in (one, other))
        return not np.isin(mine, theirs).any()

    def holders(self, kinds: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """How many people it takes at least, or nearly so, to own all records of a kind: one, where these are one's.

        Each record counts for that of its owners who owns most records of its kind.

        Args:
            kinds: (records,) 0, 1, ..., or below 0 for what is left out.
            counts: how many records there are of each kind.

        Returns: as many as `counts`.
        """
        found, owners = np.minimum(counts, 1), np.int64(max(1, self.count))
        kind = kinds[self.records]
        several = (kind >= 0) & (counts[kind] > 1)
        records, pairs = self.records[several], kind[several].astype(np.int64) * owners + self.owners[several]
        if self.positions is None and len(pairs):
            values, places, times = np.unique(pairs, return_inverse=True, return_counts=True)
            rank = times * np.int64(len(values)) - np.arange(len(values))  # who owns most, of these the first one
            most = np.maximum.reduceat(rank[places.reshape(-1)], np.flatnonzero(np.diff(records, prepend=-1)))
            pairs = values[-most % len(values)]
        each = np.bincount(_different(pairs) // owners, minlength=len(counts)) if len(pairs) else np.zeros_like(found)
        return np.asarray(np.maximum(found, each))

    def most(self, kinds: np.ndarray) -> int:
        """How many different kinds, (records,), one of them owns at most; those below 0 are left out."""
        kind, owners = kinds[self.records], np.int64(max(1, self.count))
        pairs = _different(kind[kind >= 0].astype(np.int64) * owners + self.owners[kind >= 0])
        return int(np.bincount(pairs % owners, minlength=1).max())

    def met(self, mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """Which records find what they hold, `mine`, in `theirs` of a record that has no owner in common with them.

        Args:
            mine, theirs: (records,) numbers, equal for what is equal.

        Returns: (records,) booleans; false where several owners leave it open.
        """
        values, codes = np.unique(theirs, return_inverse=True)
        codes, owners = codes.reshape(-1), np.int64(max(1, self.count))
        places = np.minimum(np.searchsorted(values, mine), len(values) - 1)
        held, kept = np.unique(codes[self.records] * owners + self.owners, return_counts=True)
        wanted = places[self.records] * owners + self.owners
        at = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
        shared = np.bincount(self.records, np.where(held[at] == wanted, kept[at], 0), minlength=self.size)
        return np.asarray((values[places] == mine) & (np.bincount(codes)[places] > shared))


def _different(numbers: np.ndarray) -> np.ndarray:
    """As `np.unique`, which for numbers alone is 20 times slower here, by hashes."""
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
