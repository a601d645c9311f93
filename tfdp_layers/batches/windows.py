"""Whether records are windows of one series, or tiles of a picture, that overlap: a measurement is in many of them."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tfdp_layers.accounting.columns import words_of
from tfdp_layers.accounting.people import People
from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.batches.clocks import is_clock
from tfdp_layers.caller import warn

__all__ = ["warn_of_windows"]

_ROWS, _NUMBERS, _FEW_ROWS, _MOST = 1 << 12, 1 << 18, 32, 1 << 22
"""Rows that are looked at, and numbers of them; of large records these few, up to so many numbers."""
_FEWEST, _SHARE, _DIFFERENT = 8, 0.05, 8
_SHORTEST, _LEAST, _SHORT_SHARE, _NEW = 5, 3, 0.25, 0.5
"""Of windows of fewer than 16 steps: how many they have, how many of them two have in common, how many records have
that, and how many different steps there are for each record, as no few values have."""
_ACROSS = 0.01
"""The share of records where it is known whose they are: only those near where one series ends reach into another's."""
_CHANNELS, _MOST_CHANNELS = 5, 32
"""Of windows of a few numbers a step, how many of these are looked at, one by one."""
_Views = Sequence[tuple[int, np.ndarray]]


def warn_of_windows(arrays: Iterable[np.ndarray], people: People | None = None) -> bool:
    """Warns where many rows go on as others do a few steps later, over at least half of their length.

    The steps may lie on any axis behind the records: behind channels, as frames of a film, as columns of a picture. On
    others than the first, as pictures have, there must be as many different steps as records.

    Where several inputs have as many steps, they must do so together: hours and ages go on alike in the records of
    different people, and so do all inputs that tell the time, see `is_clock`. Seen are windows of 16 steps or more, and
    of 5 to 15 where their entries are floats of many values; a row of a table is taken for a window, too, so that
    lagged columns are seen. Of a few numbers a step (3 to 32) most may do so alone, beside others of the person's own.

    Not noticed: windows that were changed one by one (by their own mean or noise), or averaged; that overlap by less
    than half, or by fewer than 3 steps; short ones of whole numbers, or of few values; lagged columns beside other
    columns of a table; windows that lie far apart in shuffled records, of which the first 4,096 are looked at, or those
    of the first 262,144 numbers (32 records at least, where these are of up to 131,072 numbers each).

    Args:
        arrays: (records, ...), numbers.
        people: whose the records are; then those count that go on as another person's do.

    Returns: whether it warned.
    """
    inputs = [one for one in arrays if one.ndim > 1 and one.dtype.kind in "biufV" and one.size]
    views = [[*_views(one)] for one in inputs]
    for own in views:
        for axis, array in own:
            rows = len(array)
            of = None if people is None else people.first(rows)
            series = _going_on(array, of, axis > 1)
            if series is None:
                continue
            beside = [series if other is own else _of_as_many(other, array) for other in views]
            together = [one for one in beside if one is not None and not is_clock(one)]
            if found := _overlapping(together, of, axis > 1):
                _warn(rows, found, people is not None)
                return True
    return False


def _views(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The rows that are looked at, with each axis in turn as the first behind that of the records: (rows, steps, ...).

    Gives the number of the axis, too.
    """
    each = array.size // len(array)
    few = _FEW_ROWS if each * _FEW_ROWS <= _MOST else 0
    rows = min(len(array), _ROWS, max(few, _NUMBERS // each))
    if rows < 2 * _FEWEST:  # records of more numbers than are looked at
        return
    for axis in range(1, array.ndim):
        if array.shape[axis] >= _SHORTEST:
            yield axis, np.moveaxis(array[:rows], axis, 1)


def _going_on(array: np.ndarray, people: People | None, rich: bool) -> np.ndarray | None:
    """What goes on in other rows: the array, or a column behind its steps where most of 5 do; None where none does."""
    if _overlapping([array], people, rich) and not is_clock(array):
        return array
    if rich or array.ndim != 3 or not 2 < array.shape[2] <= _MOST_CHANNELS:
        return None
    places = np.unique(np.linspace(0, array.shape[2] - 1, _CHANNELS).astype(int))
    found, others = [], 0
    for place in places:
        column = array[:, :, place : place + 1]
        if _overlapping([column], people, rich) and not is_clock(column):
            found.append(column)
        else:
            others += 1
        if 2 * others >= len(places):
            return None
    return np.concatenate(found, axis=2)


def _of_as_many(views: _Views, array: np.ndarray) -> np.ndarray | None:
    """Of an input the first axis with so many steps, of these rows; None where there is none, or not as many rows."""
    found = next((one for _, one in views if one.shape[1] == array.shape[1]), None)
    return found[: len(array)] if found is not None and len(found) >= len(array) else None


def _warn(rows: int, found: int, owned: bool) -> None:
    whose = "Say whose each window is, fit(..., unit_ids=...); or take windows that do not overlap."
    if owned:
        whose = (
            "Cut each person's series by itself (table.groupby(id), also for shift, diff and rolling), so that no"
            " window holds two people's; where a step belongs to several, give all of them: owners=, of records that"
            " tfdp.preprocessing.limit_owners keeps."
        )
    warn(
        f"Records overlap: of {rows:,} that were looked at, {found:,} go on as another one"
        f"{' of somebody else' if owned else ''} does a few steps later, as windows of a series do. A measurement is in"
        f" many of them, up to as many as a window has steps, and the person it was measured on {AS_SO_MANY} {whose} Of"
        " one long series of one person nothing hides the person. Where the series is public (a calendar, the"
        " weather), nothing is lost."
    )


def _hashes(windows: Sequence[np.ndarray]) -> np.ndarray:
    """Of each step, over all inputs: (rows, steps)."""
    draws = np.random.Generator(np.random.Philox(key=0))
    rows, steps = windows[0].shape[:2]
    hashes = np.zeros((rows, steps), np.uint64)
    for one in windows:
        words = words_of(one.reshape(rows, -1)).reshape(rows, steps, -1)
        hashes += words @ (draws.integers(0, 2**64, words.shape[2], np.uint64) | np.uint64(1))
    return (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)


def _varied(hashes: np.ndarray) -> np.ndarray:
    """Which rows have so many different steps in their first half, which any two that overlap have in common."""
    rows, steps = hashes.shape
    half = steps - steps // 2
    many = np.zeros(rows, bool)
    for start in range(0, rows, 256):
        first = np.sort(hashes[start : start + 256, :half], axis=1)
        many[start : start + 256] = (np.diff(first, axis=1) != 0).sum(1) >= min(_DIFFERENT, half) - 1
    return many


def _overlapping(windows: Sequence[np.ndarray], people: People | None, rich: bool) -> int:
    """How many of these hold another one's end, (rows, steps, ...), at their beginning, not all alike; 0 where few do.

    By hashes that move along: of h_0 ... h_(T-1) they are sums of h_t b^t mod 2^64, and of what follows from s on, b^s
    times as much as if it stood at 0.

    Args:
        people: whose they are, if that is known: then the other one is somebody else's.
        rich: whether it takes as many different steps as rows.
    """
    rows, steps = windows[0].shape[:2]
    short = steps < 2 * _DIFFERENT
    if steps < _SHORTEST or (short and all(one.dtype.kind not in "fV" for one in windows)):
        return 0
    hashes = _hashes(windows)
    many = _varied(hashes)
    fewest = rows if rich else _NEW * rows if short else 0
    if int(many.sum()) < _FEWEST or (fewest and len(np.unique(hashes)) < fewest):
        return 0
    powers = np.cumprod(np.full(steps, 0x9E3779B97F4A7C15, np.uint64))
    sums = np.cumsum(hashes * powers, axis=1)
    found = np.zeros(rows, bool)
    for shift in range(1, min(steps // 2, steps - _LEAST) + 1):
        beginnings = sums[:, steps - shift - 1] * powers[shift - 1]
        ends = sums[:, -1] - sums[:, shift - 1]
        again = many & np.isin(beginnings, ends) & (beginnings != ends)
        if people is not None and again.any():
            again &= people.met(beginnings, ends)
        found |= again
    share = (_SHORT_SHARE if short else _SHARE) if people is None else _ACROSS
    return int(found.sum()) if found.sum() >= max(_FEWEST, share * rows) else 0
