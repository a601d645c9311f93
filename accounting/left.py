"""What trainings, and files with a ledger, left in variables: whoever changes these afterwards is noticed by it.

Of frozen weights and of small ones, too: what something else writes there from records is in no ledger either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from tfdp_layers.accounting.released import digest_of, is_known_value, numbers_of, remember_now

__all__ = ["are_changed", "are_watched", "changed_values", "leave", "leave_anew", "leave_copies", "leave_elsewhere"]

_ATTRIBUTE = "_tfdp_left"
"""Of a variable: by its digest, what was left in it."""

_left: set[bytes] = set()
"""By their digests, values that were left anywhere: to copy one to another variable takes nothing from records."""


def leave(arrays: Iterable[Any], but: Collection[bytes] = (), *, clean: bool = True) -> None:
    """Says that these variables hold what a training, or a file with its ledger, left in them.

    Args:
        but: what `changed_values` gave before: values that were something else's, and still are there.
        clean: whether nothing else had a hand in these values before: then copies of them are all right elsewhere.
    """
    for array in arrays:
        found = _digest(array)
        if found not in but:
            setattr(array, _ATTRIBUTE, found)
            if clean:
                _left.add(found)


def leave_copies(arrays: Iterable[Any]) -> None:
    """Watches those among these variables that hold copies of released values from here on."""
    leave((one for one in arrays if not _kept(one) and is_known_value(one)), clean=False)


def leave_elsewhere(arrays: Iterable[Any]) -> None:
    """Says that a training left these numbers, too: moving averages of weights, say, which Keras may put into them."""
    _left.update(map(_digest, arrays))


def leave_anew(arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Says that what these variables hold now was declared public, where something was left in them. See `leave`."""
    leave((one for one in arrays if _kept(one)), but)


def are_changed(arrays: Iterable[Any]) -> bool:
    """Whether something was left in one of these, and it holds now what was left nowhere."""
    return bool(changed_values(arrays))


def are_watched(arrays: Iterable[Any]) -> bool:
    """Whether something was left in each of these."""
    return all(map(_kept, arrays))


def changed_values(arrays: Iterable[Any]) -> set[bytes]:
    """By their digests, the values of those among these in which something was left, and that hold something else."""
    remember_now()
    digests = [(_digest(one), one) for one in arrays if _kept(one)]
    return {found for found, one in digests if found != _kept(one) and found not in _left}


def _kept(array: Any) -> bytes:
    return getattr(array, _ATTRIBUTE, b"")


def _digest(array: Any) -> bytes:
    return digest_of(numbers_of(array))
