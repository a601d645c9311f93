"""Whether parts of records, stacked in one array, come again in other records, as of pairs and bags of people."""

from collections.abc import Iterator

import numpy as np

from tfdp_layers.accounting.people import People
from tfdp_layers.accounting.sketch import differ, hashes_of
from tfdp_layers.batches.clocks import is_clock

__all__ = ["comes_as_target", "parts_come_again"]

_MOST, _COLUMNS, _PARTS, _NUMBERS = 32, 4, 1 << 17, 1 << 21
"""Parts that a record may have, numbers that a part has at least; parts, and numbers of them, that are looked at."""
_LOOKED_AT = 256
"""Numbers of a part by which it is known again, from everywhere in it."""
_FEWEST, _SHARE, _LEAST, _JUDGED = 12, 0.02, 0.005, 1024
"""Parts that come again, and their share of all (of a sample as much less, but for so much), that are no chance; how
many of them are compared column by column."""
_MANY, _UNEVEN, _MOSTLY = 0.1, 0.75, 0.5
"""Parts in more of the records than this are nobody's own; how much the popularity of others may differ, as the square
of its standard deviation by its mean: 0 of pairs by chance, 1.2 and more of words in texts; and which share of those
of one place alone must come again."""


def parts_come_again(array: np.ndarray, people: People | None = None) -> bool:
    """Whether parts of records, along the first or the last axis behind these, come again in other people's records.

    A part is told by up to 256 of its numbers. It counts where it is equal in several records, not within one alone,
    which are not equal as a whole; where its numbers are not all alike; and where such parts are in few records each,
    some not in far more than others: words are in many texts. The most frequent one, as of blank steps, is left out.
    And they must differ from each other in each half and quarter of their columns, so that none is equal by chance.
    Parts that tell the time (`is_clock`) are left out.

    Not noticed: parts of fewer than 4 numbers, or of few values (flags, codes); more than 32 parts; parts that were
    changed; and those of few people who are in far more records than the others, in the same places as these.

    Args:
        array: (records, ...), of three axes or more.
        people: whose the records are, if that is known: then the other record is one of somebody else's.
    """
    if array.dtype.kind not in "biuf":
        return False
    for axis in sorted({1, array.ndim - 1}):
        if array.ndim < 3 or not 2 <= array.shape[axis] <= _MOST:
            continue
        stacked = np.moveaxis(array, axis, 1)
        found = _Parts.of(stacked, people)
        if found is None or not found.again():
            continue
        timeless = [at for at in range(stacked.shape[1]) if not _tells_time(stacked[:, at])]
        if timeless and not is_clock(array, still=False) and found.of_places(timeless).again():
            return True
    return False


def comes_as_target(array: np.ndarray, target: np.ndarray, people: People | None = None) -> bool:
    """The same of what is an input in one record and a target in another one's, (records, ...) each."""
    if array.shape != target.shape or array.ndim < 2 or not {array.dtype.kind, target.dtype.kind} <= {*"biuf"}:
        return False
    found = _Parts.of((array, target), people)
    return found is not None and found.in_both()


def _tells_time(part: np.ndarray) -> bool:
    return part.ndim > 1 and is_clock(part, still=False)


class _Parts:
    """Parts of some records: which place they have there, their numbers, and whose they are.

    Attributes:
        numbers: (parts, columns), of which none is all alike.
        records, places: (parts,) of which record, and where in it.
        kinds: (parts,) 0, 1, ..., equal for equal parts.
        whose: the records' people; each record's own where they are not known.
        share: of the parts, that must come again.
    """

    def __init__(
        self, numbers: np.ndarray, records: np.ndarray, places: np.ndarray, whose: People, share: float
    ) -> None:
        self.numbers, self.records, self.places, self.whose, self.share = numbers, records, places, whose, share
        self.kinds = np.unique(hashes_of([numbers]), return_inverse=True)[1].reshape(-1) if len(numbers) else records

    @classmethod
    def of(cls, stacked: np.ndarray | tuple[np.ndarray, np.ndarray], people: People | None) -> "_Parts | None":
        """Of (records, parts, ...), or of one array for each place; None of parts of too few numbers."""
        arrays = stacked if isinstance(stacked, tuple) else tuple(np.moveaxis(stacked, 1, 0))
        size = arrays[0].size // max(1, len(arrays[0]))
        if size < _COLUMNS:
            return None
        draws = np.random.Generator(np.random.PCG64(0))
        columns = np.sort(draws.permutation(size)[:_LOOKED_AT])
        rows = np.arange(len(arrays[0]))
        most = min(_PARTS, _NUMBERS // len(columns)) // len(arrays)
        if len(rows) > most:
            rows = np.sort(draws.choice(len(rows), most, replace=False))
        numbers = np.stack([_looked_at(one, rows, columns) for one in arrays], axis=1)
        _, once = np.unique(hashes_of([numbers]), return_index=True)  # copies of whole records: `warn_of_repeated`
        varied = (numbers != numbers[:, :, :1]).any(axis=2)
        varied &= np.isin(np.arange(len(rows)), once)[:, None]
        records, places = np.nonzero(varied)
        whose = People.by(np.arange(len(rows))) if people is None else people.of(rows)
        share = max(_LEAST, _SHARE * len(rows) / max(1, len(arrays[0])))
        return cls(numbers[varied], records, places, whose, share)

    def of_places(self, places: list[int]) -> "_Parts":
        kept = np.isin(self.places, places)
        return _Parts(self.numbers[kept], self.records[kept], self.places[kept], self.whose, self.share)

    def again(self) -> bool:
        """Whether some come again, in any place, or most of those of one alone: cases beside several controls."""
        if self._some(np.ones(len(self.kinds), bool), self.share):
            return True
        size = int(self.kinds.max(initial=0)) + 1
        there = [np.bincount(self.kinds[one], minlength=size) > 0 for one in self._at_each()]
        alone = np.sum(there, axis=0) == 1
        return any(self._some(one & alone[self.kinds], _MOSTLY) for one in self._at_each())

    def in_both(self) -> bool:
        """Whether some of one place come again at another place, of somebody else's record."""
        kinds = [np.unique(self.kinds[one]) for one in self._at_each()]
        return len(kinds) == 2 and self._some(np.isin(self.kinds, np.intersect1d(kinds[0], kinds[1])), self.share)

    def _at_each(self) -> Iterator[np.ndarray]:
        return (self.places == place for place in np.unique(self.places))

    def _some(self, which: np.ndarray, share: float) -> bool:
        """Whether enough of these parts come again, in few records each, and by no chance."""
        these = np.flatnonzero(which)
        _, kinds, counts = np.unique(self.kinds[these], return_inverse=True, return_counts=True)
        if not _enough(counts, share):
            return False
        held = self.whose.of(self.records[these]).holders(kinds.reshape(-1), counts)
        held[np.argmax(held)] = 0
        times = held[held > 0].astype(np.float64)
        if not _enough(held, share) or times.mean() > max(2.0, _MANY * self.whose.count):
            return False
        if times.var() > times.mean() + _UNEVEN * times.mean() ** 2:
            return False
        again = np.random.Generator(np.random.PCG64(0)).permutation(np.flatnonzero(held > 1))[:_JUDGED]
        return _told_apart(self.numbers[these[_firsts(kinds.reshape(-1), again)]])


def _enough(times: np.ndarray, share: float) -> bool:
    several = int(np.sum(times > 1))
    return several >= _FEWEST and several >= share * int(np.sum(times > 0))


def _told_apart(numbers: np.ndarray) -> bool:
    """Whether each half of the columns, from left to right, and each quarter, of every fourth, tells these apart."""
    rows, half = np.arange(len(numbers)), numbers.shape[1] // 2
    halves = all(differ([one], rows, 1) for one in (numbers[:, :half], numbers[:, half:]))
    return halves and differ([numbers], rows, 4)


def _firsts(kinds: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Where each of some kinds comes first."""
    order = np.argsort(kinds, kind="stable")
    return order[np.searchsorted(kinds, some, sorter=order)]


def _looked_at(array: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """These numbers of these records, (rows, columns), without a copy of all."""
    places = np.unravel_index(columns, array.shape[1:])
    return array[(rows[:, None], *(one[None] for one in places))]
