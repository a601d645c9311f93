"""Whether equal rows stand alone, as copies do: rows that are equal by chance have far more that are nearly equal."""

from collections.abc import Sequence

import numpy as np

from tfdp_layers.accounting.columns import words_of

__all__ = ["stand_alone"]

_ROWS, _KINDS, _WIDTH, _COLUMNS = 1 << 15, 1 << 10, 256, 32
"""Records that are drawn; different rows of them that are compared with all; columns, and parts of several columns."""
_FEWEST, _MOST_EACH = 20, 10.0
"""Different rows that come several times; and the pairs that one row counts for at most: blank ones have very many."""
_BITS = 16
_OWN, _MET, _HARMLESS = 0.5, 2.0, 0.1
"""Share of rows with a value of their own, equal values that chance would bring, and near pairs that change nothing."""
_NEAR, _ALONE, _SEVERAL = 1.0, 0.6, 8
"""Pairs that are nearly equal for each equal one, and the share of rows that have such, both at most; and pairs that
differ in one part, at least, to speak of variants."""


def stand_alone(arrays: Sequence[np.ndarray]) -> bool:
    """Whether rows come several times though next to none agree with them in all columns but one.

    Two people who agree in all columns but one agree in that one by a chance c, so for each pair of equal rows there
    are (1 - c) / c pairs that differ there alone, in the mean: 9 where one of ten values is drawn, 1 where a coin
    is; added up over the columns. A copy brings an equal pair and none beside it. Rows are taken for copies where 20
    or more come several times, two of five of these have no near one, and near pairs are at most as many as equal ones.
    Each row counts for 10 pairs at most, for blank rows are equal to many.

    Columns that follow from others (a total, a class in several columns of 0 and 1) would leave no near rows, also by
    chance. So columns of two values, of which no row has two, are one. And of columns without which no two different
    rows become equal those are left out, the ones of most values first, that half of the rows have a value of their
    own in, that change next to nothing, or without which so many rows are near that some of these would agree in it
    too, if it did not follow from the others. All this brings rows nearer to each other alone.

    By chance more rows differ in two parts than in one. Where more differ in one, they are a thing's variants (a
    species, an area whose people differ in sex), and equal ones are no copies.

    Not seen, so: copies among so many rows, or so few values, that most rows have near ones; and rows that are one
    thing's, which many people share (products, species without variants), look like copies.

    Args:
        arrays: (records, ...) each. Of many records some are drawn, which leaves the ratio of pairs as it is.
    """
    count = len(arrays[0])
    flat = [one.reshape(count, -1) for one in arrays if one.size]
    if not 1 < sum(one.shape[1] for one in flat) <= _WIDTH:
        return False
    draws = np.random.Generator(np.random.PCG64(0))
    rows = np.sort(draws.choice(count, _ROWS, replace=False)) if count > _ROWS else slice(None)
    columns = [words_of(column) for one in flat for column in np.ascontiguousarray(one[rows].T)]
    if not _alone_by_columns(*_kinds(columns, draws)):
        return False
    parts = _parts(columns)
    if not 1 < len(parts) <= _COLUMNS:
        return False
    parts.sort(key=lambda one: -len(np.unique(one)))
    terms, total, kinds, times = _kinds(parts, draws)
    return _alone(_near(terms, total, kinds, times), times) and not _variants([one[kinds] for one in terms])


def _kinds(
    columns: list[np.ndarray], draws: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Terms of a hash of rows, the hash, the places of some different rows, and how often each of these comes."""
    factors = draws.integers(0, 2**64, len(columns), np.uint64) | np.uint64(1)
    terms = [column * factor for column, factor in zip(columns, factors, strict=True)]
    total = np.asarray(np.sum(terms, axis=0, dtype=np.uint64))
    _, first, times = np.unique(total, return_index=True, return_counts=True)
    kinds = draws.permutation(len(first))[:_KINDS]
    return terms, total, first[kinds], times[kinds].astype(np.float64)


def _beside(terms: list[np.ndarray], total: np.ndarray, kinds: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How many records differ from each of these rows in one of these columns alone."""
    return np.asarray(np.sum([_times(total - term, kinds) - times for term in terms] or [0.0 * times], axis=0))


def _alone_by_columns(terms: list[np.ndarray], total: np.ndarray, kinds: np.ndarray, times: np.ndarray) -> bool:
    """Whether few are near before columns are put together: what is near then stays so. Most tables end here, early."""
    near = 0.0 * times
    for term in terms:
        near += _times(total - term, kinds) - times
        if not _alone(near, times):
            return False
    return True


def _variants(parts: list[np.ndarray]) -> bool:
    """Whether different rows differ in one part more often than in two, as variants of one thing do, never by chance.

    Args:
        parts: of the different rows.
    """
    apart = np.zeros((len(parts[0]), len(parts[0])), np.uint8)
    for part in parts:
        apart += part[:, np.newaxis] != part
    one, two = (int((apart == few).sum()) // 2 for few in (1, 2))
    return one >= _SEVERAL and one > two


def _parts(columns: list[np.ndarray]) -> list[np.ndarray]:
    """The columns as numbers of their values; those of two values, never the rarer one of two in a row, as one."""
    found, groups = [], list[tuple[np.ndarray, np.ndarray]]()
    for column in columns:
        values, codes, times = np.unique(column, return_inverse=True, return_counts=True)
        codes = codes.reshape(-1).astype(np.uint64)
        if len(values) != 2:
            found += [codes] if len(values) > 1 else []
            continue
        there = codes == np.argmin(times)
        group = next((one for one in groups if not (one[0] & there).any()), None)
        if group is None:
            groups.append(group := (np.zeros_like(there), np.zeros_like(codes)))
        group[1][there] = group[1].max() + np.uint64(1)
        group[0][:] |= there
    return found + [codes for _, codes in groups]


def _near(terms: list[np.ndarray], total: np.ndarray, kinds: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How many records differ from each of these rows in one column alone, of those that follow from no others."""
    kept = list(terms)

    found, equal = _beside(kept, total, kinds, times), _pairs(times, times - 1.0)
    for term in terms:
        if not (len(kept) > 1 and _alone(found, times)):
            break
        values, often = np.unique(term[kinds], return_counts=True)
        if (_times(total - term, kinds) > times).any():
            continue
        rest = [one for one in kept if one is not term]
        more = _beside(rest, total - term, kinds, times)
        agree = float((often * (often - 1.0)).sum()) / max(1.0, len(kinds) * (len(kinds) - 1.0))
        if (
            len(values) >= _OWN * len(kinds)
            or _pairs(times, more) <= _HARMLESS * equal
            or agree * more.sum() / 2.0 >= _MET
        ):
            kept, total, found = rest, total - term, more
    return found


def _alone(near: np.ndarray, times: np.ndarray) -> bool:
    """Whether rows that come several times have few others near them."""
    several = times > 1
    if several.sum() < _FEWEST or _pairs(times, near) > _NEAR * _pairs(times, times - 1.0):
        return False
    return bool((near[several] > 0).mean() <= _ALONE)


def _pairs(times: np.ndarray, others: np.ndarray) -> float:
    """How many pairs these rows make with so many others each."""
    return float(np.minimum(times * others / 2.0, _MOST_EACH).sum())


def _times(hashes: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """How many records have the hash that each of these has."""
    wanted, places = np.unique(hashes[kinds], return_inverse=True)
    there = np.zeros(1 << _BITS, bool)
    there[wanted >> np.uint64(64 - _BITS)] = True
    hashes = hashes[there[hashes >> np.uint64(64 - _BITS)]]  # nearly all others are gone, at little cost
    at = np.searchsorted(wanted, hashes)
    at = at[np.append(wanted, np.uint64(0))[at] == hashes]
    return np.bincount(at, minlength=len(wanted))[places.reshape(-1)]
