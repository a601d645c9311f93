"""Whether a range that should be public was read off the private records: its ends are one record's own numbers."""

import math
from typing import Any

import numpy as np

from tfdp_layers.caller import warn

__all__ = ["warn_of_extremes"]

_MOST = 64
"""Columns that are looked at, the first ones whose ends are no round numbers."""
_DIGITS, _ROUNDED = 3, 1e-7
"""Of a number that somebody chose, and what float32 makes of it."""
_COMPUTED, _LARGEST_POWER = 1e-6, 40
_KNOWN = {2**k - less for k in range(8, 33) for less in (0, 1)} | {10**k - 1 for k in range(4, 13)}
_KNOWN |= {*range(1900, 2101), 1439, 1440, 3599, 8759, 8784, 86399}
"""Of more digits, and no less known: what sensors and counters hold, years, minutes and seconds."""
_FEWEST_BITS = 8


def warn_of_extremes(rows: np.ndarray, lower: Any, upper: Any, unit_ids: Any = None) -> None:
    """Warns of ends that are exactly a column's smallest or largest number, where one record, or person, alone has it.

    So `x.min(0)` and `x.max(0)` are: a private number, which a layer's configuration, each quantile and a metric show.
    Where all ends are round, nothing is read.

    Not noticed: numbers of up to three digits (ages, percents), powers of two, years, and logarithms, roots and
    fractions of a circle of such numbers, which people choose, or Keras (clipped probabilities and their logits); ends
    that several people have, as of values that were clipped; ends that were moved (`1.1 * x.max()`); and columns behind
    the first 64 whose ends are not round.

    Args:
        rows: (records, ..., columns), numbers.
        lower, upper: (columns,) or one number for all; of other shapes nothing is said.
        unit_ids: whose each record is, if that is known; of another length they are left out.
    """
    columns = rows.shape[-1]
    try:
        ends = [np.broadcast_to(np.asarray(end, np.float64), (columns,)) for end in (lower, upper)]
    except ValueError:  # refused elsewhere
        return
    odd = [c for c in range(columns) if not (_chosen(ends[0][c]) and _chosen(ends[1][c]))][:_MOST]
    whose = None if unit_ids is None else np.asarray(unit_ids).reshape(-1)
    whose = whose if whose is not None and len(whose) == len(rows) else None
    found = 0
    for c in odd:
        numbers = np.asarray(rows[..., c]).astype(np.float64).reshape(len(rows), -1)
        for end, sign in ((ends[0][c], -1.0), (ends[1][c], 1.0)):
            found += not _chosen(end) and _one_alone(sign * numbers, sign * end, rows.dtype.kind in "biu", whose)
    if found:
        several = "ends of the ranges are" if found > 1 else "end of a range is"
        warn(
            f"In `lower` and `upper`, {found} {several} exactly the smallest or largest number of a column, which one"
            " record alone has: a number of one person, it seems, taken from these very records without noise. No"
            " epsilon covers it, and whoever gets the layer's file, a quantile or a metric can read it. Give what can"
            " be, by general knowledge and in round numbers; tfdp.preprocessing.quantiles narrows a wide range down"
            " with noise (docs/data.md). Where these numbers were known beforehand, nothing is lost."
        )


def _one_alone(numbers: np.ndarray, end: float, whole: bool, whose: np.ndarray | None) -> bool:
    """Whether none of these is larger, and one record's (or one person's) alone is equal: (records, positions)."""
    apart = 0.0 if whole else _ROUNDED * abs(end)
    if np.any(numbers > end + apart):
        return False
    at = np.flatnonzero(np.any(numbers >= end - apart, axis=1))
    people = at if whose is None else whose[at]
    return len(at) > 0 and bool(np.all(people == people[0]))


def _chosen(end: float) -> bool:
    """Whether somebody may have chosen this number, not knowing any record."""
    end = float(end)
    if abs(end) in _KNOWN or _short(end, _ROUNDED):
        return True
    sources = [end * end, end / math.pi]
    if abs(end) < _LARGEST_POWER:
        sources += [math.exp(end), 2.0**end, 10.0**end]
    if 0.0 < end < _LARGEST_POWER:
        sources.append(math.expm1(end))
    if 0.5 < end < 1.0:
        sources.append(1.0 - end)
    return any(_short(one, _COMPUTED) or _is_power(one) for one in sources)


def _is_power(number: float) -> bool:
    """Whether it is a power of two of 8 bits or more, or its inverse: Keras clips logits at that of float32's 2^-23."""
    bits = math.log2(abs(number)) if number and math.isfinite(number) else 0.0
    return abs(bits) >= _FEWEST_BITS and abs(bits - round(bits)) <= _COMPUTED


def _short(number: float, within: float) -> bool:
    """Whether three digits tell it."""
    return abs(float(f"{number:.{_DIGITS}g}") - number) <= within * abs(number)
