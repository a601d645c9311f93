"""Single rows that come several times, judged one by one: columns that tell people apart have none by chance."""

from collections.abc import Sequence

import numpy as np

from tfdp_layers.accounting.people import People

__all__ = ["lone_copies"]

_TIMES, _JUDGED, _MOST = 3, 16, 1 << 22
"""From how many equal rows on it is looked, at how many kinds of them, the most frequent ones; and in how many rows."""
_SAMPLED, _COLUMNS = 1 << 13, 64
_FIRST, _CELLS = 1 << 8, 1 << 21
"""Rows, and numbers at most, by which these columns are chosen."""
_PAIRS = 0.01
"""Up to which share of all different rows pairs say nothing: two may be there twice, beside one that was copied."""
_UNIQUE, _ROWS, _LEAST = 0.9, 8, 6
"""Which share of other people's values differ in a column that tells people apart; of how many people it takes to know;
and how many such columns have to tell of a row."""
_NEAR, _NEAREST = 3.0, 0.2
"""Standard errors of the mean within which two values are one, and most standard deviations."""
_TINY = float(np.finfo(np.float64).tiny)


def lone_copies(arrays: Sequence[np.ndarray], hashes: np.ndarray, people: People | None = None) -> tuple[int, int]:
    """How many different rows come 3 times or more though next to no two people agree in anything; how often at most.

    Zeros where nothing shows that. A row is judged by columns in which nine of ten other people have a value of their
    own: by chance no two people agree in one of these, and much less in six of them. It is taken for copies where in 6
    of them or more, and half of all, its value is no one else's. What stands for nothing is left out: the smallest and
    largest values of a column, its mean and median (blank and imputed rows), and rows of one value throughout. Nor is
    anything said of a table in which a tenth of the rows come again, or pairs are a hundredth of them, and more than a
    quarter of what comes more often: there some rows (places, messages) are many people's. Of a table of one single row
    that row must have 6 different values that are no whole numbers, in no order. Blank rows that were scaled since by
    means of each column's own, or of a group, or went through a network, look like a person's: they are told of.

    Args:
        arrays: (records, ...) each; texts tell nothing.
        hashes: (records,), equal for equal rows.
        people: whose the records are, if that is known: then a row comes as often as different people have it.
    """
    if not _TIMES <= len(hashes) <= _MOST:
        return 0, 0
    kinds, counts, own = _kinds(hashes, people)
    often = np.flatnonzero(counts >= _TIMES)
    pairs, others = int(np.sum(counts == 2)), len(kinds) - len(often)
    many = len(often) + pairs > max(_JUDGED // 2, (1.0 - _UNIQUE) * len(kinds))
    many = many or pairs > max(2, len(often) / 4, _PAIRS * len(kinds))
    if not len(often) or many or 0 < others < _ROWS:
        return 0, 0
    judged = often[np.argsort(counts[often])][-_JUDGED:]
    places = np.array([np.argmax(hashes == kinds[one]) for one in judged])
    flat = [one.reshape(len(one), -1) for one in arrays if one.size and one.dtype.kind in "iuf"]
    with np.errstate(all="ignore"):  # of what is not finite
        if others:
            apart = _some(np.flatnonzero(~np.isin(hashes, kinds[often])) if own is None else own[counts < _TIMES])
            columns = _telling(flat, apart[:: -(-len(apart) // _FIRST)])
            found = _told_apart(_table(flat, places, columns), _table(flat, apart, columns))
        else:
            rows = _table(flat, places, _spread(np.arange(_width(flat)), _COLUMNS))
            found = np.array([len(often) == 1 and _is_odd(row) for row in rows])
    return int(found.sum()), int(counts[judged][found].max(initial=0))


def _kinds(hashes: np.ndarray, people: People | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The different rows, how often each comes, and of each one record, where one person may have it several times."""
    kinds, counts = np.unique(hashes, return_counts=True)
    if people is None or counts.max() < _TIMES:
        return kinds, counts, None
    kinds, own, places = np.unique(hashes, return_index=True, return_inverse=True)
    return kinds, people.holders(places.reshape(-1), counts), own


def _some(rows: np.ndarray) -> np.ndarray:
    return rows if len(rows) <= _SAMPLED else np.random.Generator(np.random.PCG64(0)).choice(rows, _SAMPLED, False)


def _width(flat: Sequence[np.ndarray]) -> int:
    return sum(one.shape[1] for one in flat)


def _spread(columns: np.ndarray, most: int) -> np.ndarray:
    """So many of these, far apart."""
    return columns[np.unique(np.linspace(0, len(columns) - 1, most).astype(np.int64))] if len(columns) else columns


def _telling(flat: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Up to 64 columns that tell these people apart: those of few values (words, classes) leave the others no room."""
    columns = _spread(np.arange(_width(flat)), _CELLS // _FIRST)
    return _spread(columns[_unique(np.sort(_table(flat, rows, columns), axis=0))], _COLUMNS)


def _unique(ordered: np.ndarray) -> np.ndarray:
    """In which columns, sorted each, nine of ten rows have a value of their own."""
    return np.asarray(np.mean(ordered[1:] != ordered[:-1], axis=0) >= _UNIQUE)


def _table(flat: Sequence[np.ndarray], rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """These rows of these columns over all arrays, rising: float64 (rows, columns)."""
    ends = np.cumsum([0, *(one.shape[1] for one in flat)])
    parts = [
        one[rows][:, columns[(columns >= start) & (columns < end)] - start]
        for one, start, end in zip(flat, ends, ends[1:], strict=False)
    ]
    return np.concatenate([np.zeros((len(rows), 0)), *parts], axis=1).astype(np.float64)


def _told_apart(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which of these rows other people's rows show to be nobody else's: (rows,) booleans."""
    ordered = np.sort(others, axis=0)
    telling = _unique(ordered)
    rows, others, ordered = rows[:, telling], others[:, telling], ordered[:, telling]
    if rows.shape[1] < _LEAST:
        return np.zeros(len(rows), bool)
    mean, scale = others.mean(axis=0), others.std(axis=0)
    near = np.maximum(min(_NEAR / np.sqrt(len(others)), _NEAREST) * scale, _TINY)
    nothing = (np.abs(rows - mean) <= near) | (np.abs(rows - np.median(others, axis=0)) <= 1e-3 * scale)
    nothing |= (rows <= ordered[0]) | (rows >= ordered[-1])
    own = ~nothing & np.array([~np.any(others == row, axis=0) for row in rows])
    enough = own.sum(axis=1) >= max(_LEAST, rows.shape[1] / 2)
    varied = [
        min(_different(row[mine] / np.median(near)), _different(((row - mean) / near)[mine])) >= _LEAST
        for row, mine in zip(rows, own, strict=True)
    ]
    return enough & np.array(varied)


def _different(values: np.ndarray) -> int:
    return len(np.unique(np.round(values)))


def _is_odd(row: np.ndarray) -> bool:
    """Whether a row has 6 different values that are no whole numbers, in no order: no stand-in for no record at all."""
    part = row[np.isfinite(row) & (row != np.round(row))]
    rising = np.diff(row)
    return len(np.unique(part)) >= _LEAST and bool((rising > 0).any() and (rising < 0).any())
