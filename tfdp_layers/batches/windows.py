"""Whether records are windows of one series that overlap: then a measurement is in many of them."""

from collections.abc import Iterable, Sequence

import numpy as np

from tfdp_layers.accounting.columns import words_of
from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.batches.clocks import is_clock
from tfdp_layers.caller import warn

__all__ = ["warn_of_windows"]

_ROWS, _NUMBERS = 1 << 12, 1 << 18
"""Rows that are looked at, and numbers of them."""
_FEWEST, _SHARE, _DIFFERENT = 8, 0.05, 8
_SHORTEST, _LEAST, _SHORT_SHARE, _NEW = 5, 3, 0.25, 0.5
"""Of windows of fewer than 16 steps: how many they have, how many of them two have in common, how many records have
that, and how many different steps there are for each record, as no few values have."""


def warn_of_windows(arrays: Iterable[np.ndarray]) -> None:
    """Warns where many rows go on as others do a few steps later, over at least half of their length.

    Where several inputs have the same steps, they must do so together: hours and ages go on alike in the records of
    different people, and so do all inputs that tell the time, see `is_clock`. Seen are windows of 16 steps or more, and
    of 5 to 15 where their entries are floats of many values; a row of a table is taken for a window, too, so that
    lagged columns are seen.

    Not noticed: windows that were changed one by one (by their own mean or noise), or averaged; that overlap by less
    than half, or by fewer than 3 steps; short ones of whole numbers, or of few values; lagged columns beside other
    columns of a table; windows that lie far apart in shuffled records, of which the first 4,096 are looked at, or those
    of the first 262,144 numbers.

    Args:
        arrays: (records, steps, ...), numbers.
    """
    inputs = [one for one in arrays if one.ndim in (2, 3) and one.dtype.kind in "biufV" and one.size]
    for array in inputs:
        rows = min(len(array), _ROWS, _NUMBERS * len(array) // array.size)
        if rows < 2 * _FEWEST:  # records of more numbers than are looked at
            continue
        if not _overlapping([array[:rows]]) or is_clock(array[:rows]):
            continue
        beside = [one[:rows] for one in inputs if one.shape[:2] == array.shape[:2]]
        if found := _overlapping([one for one in beside if not is_clock(one)]):
            warn(
                f"Records overlap: of {rows:,} that were looked at, {found:,} go on as another one does a few steps"
                " later, as windows of a series do. A measurement is in many of them, up to as many as a window has"
                f" steps, and the person it was measured on {AS_SO_MANY} Say whose each window is, fit(...,"
                " unit_ids=...); or take windows that do not overlap. Of one long series of one person nothing hides"
                " the person. Where the series is public (a calendar, the weather), nothing is lost."
            )
            return


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


def _overlapping(windows: Sequence[np.ndarray]) -> int:
    """How many of these hold another one's end, (rows, steps, ...), at their beginning, not all alike; 0 where few do.

    By hashes that move along: of h_0 ... h_(T-1) they are sums of h_t b^t mod 2^64, and of what follows from s on, b^s
    times as much as if it stood at 0.
    """
    rows, steps = windows[0].shape[:2]
    short = steps < 2 * _DIFFERENT
    if steps < _SHORTEST or (short and all(one.dtype.kind not in "fV" for one in windows)):
        return 0
    hashes = _hashes(windows)
    many = _varied(hashes)
    if int(many.sum()) < _FEWEST or (short and len(np.unique(hashes)) < _NEW * rows):
        return 0
    powers = np.cumprod(np.full(steps, 0x9E3779B97F4A7C15, np.uint64))
    sums = np.cumsum(hashes * powers, axis=1)
    found = np.zeros(rows, bool)
    for shift in range(1, min(steps // 2, steps - _LEAST) + 1):
        beginnings = sums[:, steps - shift - 1] * powers[shift - 1]
        ends = sums[:, -1] - sums[:, shift - 1]
        found |= many & np.isin(beginnings, ends) & (beginnings != ends)
    return int(found.sum()) if found.sum() >= max(_FEWEST, (_SHORT_SHARE if short else _SHARE) * rows) else 0
