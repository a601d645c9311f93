"""What trainings, and files with a ledger, left in variables: whoever changes these afterwards is noticed by it.

Of frozen weights and of small ones, too: what something else writes there from records is in no ledger either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

from tfdp_layers.accounting.released import is_known_value, numbers_of, remember_now

__all__ = ["are_changed", "changed_values", "leave", "leave_anew", "leave_copies"]

_ATTRIBUTE = "_tfdp_left"
"""Of a variable in which something was left."""

_left: set[bytes] = set()
"""By their digests, all values that were left anywhere: to copy one to another variable takes nothing from records."""


def leave(arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Says that these variables hold what a training, or a file with its ledger, left in them.

    Args:
        but: what `changed_values` gave before: values that were something else's, and still are there.
    """
    for array in arrays:
        found = _digest(array)
        if found not in but:
            _left.add(found)
            setattr(array, _ATTRIBUTE, True)


def leave_copies(arrays: Iterable[Any]) -> None:
    """Watches those among these variables that hold copies of released values from here on."""
    leave(one for one in arrays if not getattr(one, _ATTRIBUTE, False) and is_known_value(one))


def leave_anew(arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Says that what these variables hold now was declared public, where something was left in them. See `leave`."""
    leave((one for one in arrays if getattr(one, _ATTRIBUTE, False)), but)


def are_changed(arrays: Iterable[Any]) -> bool:
    """Whether something was left in one of these, and it holds now what was left nowhere, and was not released."""
    return bool(changed_values(arrays))


def changed_values(arrays: Iterable[Any]) -> set[bytes]:
    """By their digests, the values of those among these in which something was left, and that hold something else."""
    remember_now()
    watched = [one for one in arrays if getattr(one, _ATTRIBUTE, False)]
    digests = {_digest(one): one for one in watched}
    return {found for found, one in digests.items() if found not in _left and not is_known_value(one)}


def _digest(array: Any) -> bytes:
    value = numbers_of(array)
    return hashlib.blake2b(repr((value.shape, value.dtype.str)).encode() + value.tobytes(), digest_size=16).digest()
