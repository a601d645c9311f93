"""Whether records are windows of one series that overlap: then a measurement is in many of them."""

from collections.abc import Iterable

import numpy as np

from tfdp_layers.accounting.columns import words_of
from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.caller import warn

__all__ = ["warn_of_windows"]

_ROWS, _NUMBERS = 1 << 12, 1 << 18
"""Rows that are looked at, and numbers of them."""
_SHIFTS, _PARTS = 32, 8
"""Windows are compared when moved by each of so many steps, and by each of the first so many parts of their length."""
_FEWEST, _SHARE, _DIFFERENT = 8, 0.05, 8


def warn_of_windows(arrays: Iterable[np.ndarray]) -> None:
    """Warns where many rows go on as others do a few steps later, over at least half of their length.

    Args:
        arrays: (records, steps, ...), numbers.
    """
    for array in arrays:
        steps = array.shape[1] if array.ndim in (2, 3) else 0
        if steps < 2 * _DIFFERENT or len(array) < 2 * _FEWEST or array.dtype.kind not in "biufV":
            continue
        rows = min(len(array), _ROWS, _NUMBERS * len(array) // max(1, array.size))
        if rows < 2 * _FEWEST or not array.size:  # records of more numbers than are looked at
            continue
        found = _overlapping(array[:rows])
        if found >= max(_FEWEST, _SHARE * rows):
            warn(
                f"Records overlap: of {rows:,} that were looked at, {found:,} go on as another one does a few steps"
                " later, as windows of a series do. A measurement is in many of them, up to as many as a window has"
                f" steps, and the person it was measured on {AS_SO_MANY} Say whose each window is, fit(...,"
                " unit_ids=...); or take windows that do not overlap. Of one long series of one person nothing hides"
                " the person. Where the series is public, nothing is lost."
            )
            return


def _overlapping(windows: np.ndarray) -> int:
    """How many of these hold another one's end, (rows, steps, ...), at their beginning, not all alike.

    By hashes that move along: of h_0 ... h_(T-1) they are sums of h_t b^t mod 2^64, and of what follows from s on, b^s
    times as much as if it stood at 0.
    """
    rows, steps = windows.shape[:2]
    draws = np.random.Generator(np.random.Philox(key=0))
    words = words_of(windows.reshape(rows, -1)).reshape(rows, steps, -1)
    hashes = words @ (draws.integers(0, 2**64, words.shape[2], np.uint64) | np.uint64(1))
    hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    powers = np.cumprod(np.full(steps, 0x9E3779B97F4A7C15, np.uint64))
    sums = np.cumsum(hashes * powers, axis=1)
    many = np.zeros(rows, bool)
    for start in range(0, rows, 256):
        half = np.sort(hashes[start : start + 256, : steps // 2], axis=1)
        many[start : start + 256] = (np.diff(half, axis=1) != 0).sum(1) >= _DIFFERENT - 1
    found = np.zeros(rows, bool)
    for shift in sorted({*range(1, min(_SHIFTS, steps // 2) + 1), *(steps // part for part in range(2, _PARTS + 1))}):
        beginnings = sums[:, steps - shift - 1] * powers[shift - 1]
        ends = sums[:, -1] - sums[:, shift - 1]
        found |= many & np.isin(beginnings, ends) & (beginnings != ends)
    return int(found.sum())
