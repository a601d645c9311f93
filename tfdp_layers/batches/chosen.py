"""Whether the people of a mean were chosen by what their records hold, as those of one class are."""

import weakref
from typing import Any

import numpy as np

from tfdp_layers.accounting.sketch import hashes_of
from tfdp_layers.caller import warn

__all__ = ["remember_group", "warn_of_chosen"]

_MOST = 16
"""Groups of people that are kept of a ledger: all that a report's folds and hold-outs are, and little memory."""
_SMALLER = 0.95
"""Of an earlier group: larger parts are taken for the same people, without those who withdrew."""
_groups: weakref.WeakKeyDictionary[Any, list[np.ndarray]] = weakref.WeakKeyDictionary()
"""Of each ledger the hashes of the units of each group, rising."""
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_of_chosen(ledger: Any, names: np.ndarray, counted: bool) -> np.ndarray | None:
    """Warns, once for a ledger, of a mean over a counted part of the units that it released a mean over before.

    The number of units of each mean is printed, without noise: of all units it counts as public, of those whose label
    is 1 it is a private number, and tells whether somebody is one of them. Nothing is said of a declared number, of
    groups that are equal or nearly so, of which none lies in the other (folds), or of which the larger comes later: a
    hold-out and then all, each hospital and then all of them, data that grew.

    Args:
        ledger: that pays for both.
        names: (units,) the different ids.
        counted: whether their number is; it is no public one then.

    Returns: what `remember_group` keeps once the release is paid for; None where nothing more is looked for.
    """
    if ledger in _told:
        return None
    group = _hashes(names)
    for whole in _groups.get(ledger, ()) if counted else ():
        if len(group) > _SMALLER * len(whole) or not np.isin(group, whole, assume_unique=True).all():
            continue
        few, all_ = len(group), len(whole)
        warn(
            f"This ledger released a mean over {all_:,} units, and now one over {few:,} of the same. If these were"
            f" chosen by what records hold (a label, a prediction, a value that is there), their number is private,"
            f" too: statements show {few:,} without noise, which tells whether somebody is one of them, and no epsilon"
            " covers it. Release the means of (hit & chosen) and of chosen, each over all units, and divide the one by"
            " the other. If they were chosen by their ids alone, or their number is public (then examples= says so),"
            " nothing is lost."
        )
        _told.add(ledger)
        _groups.pop(ledger, None)
        return None
    return group


def remember_group(ledger: Any, group: np.ndarray | None) -> None:
    """Keeps whom a release was over, that was paid for: what `warn_of_chosen` gave."""
    if group is None:
        return
    groups = _groups.setdefault(ledger, [])
    if not any(np.array_equal(group, one) for one in groups):
        del groups[: max(0, len(groups) - _MOST + 1)]
        groups.append(group)


def _hashes(names: np.ndarray) -> np.ndarray:
    """Of different ids, rising, of this process alone: equal for equal texts and numbers of any width. (units,)."""
    if names.dtype.kind in "iu":  # in pieces that a float32 holds exactly
        pieces = np.ascontiguousarray(names.astype(np.int64, copy=False)).view(np.uint16).reshape(len(names), -1)
        return np.sort(hashes_of([pieces]))
    texts = np.char.decode(names, "utf-8", "surrogateescape") if names.dtype.kind == "S" else names
    return np.sort(hashes_of([texts]))
