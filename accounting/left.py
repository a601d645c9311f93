"""What trainings, and files with a ledger, left in variables: whoever changes these afterwards is noticed by it.

Of frozen weights and of small ones, too: what something else writes there from records is in no ledger either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from tfdp_layers.accounting.account import account_of
from tfdp_layers.accounting.digests import digest
from tfdp_layers.accounting.released import is_changed_value, is_known_value, remember_now

__all__ = [
    "CHANGED_ELSEWHERE",
    "FED_ELSEWHERE",
    "are_changed",
    "are_watched",
    "change_of",
    "changed_values",
    "is_left_anywhere",
    "leave",
    "leave_anew",
    "leave_copies",
    "leave_elsewhere",
    "leave_fed",
    "leave_made",
    "leave_notes",
    "notes_left",
    "tells_of_change",
]

CHANGED_ELSEWHERE = (
    "The weights are, or were between two trainings, not those of the end of a training: something else changed them,"
    " such as fit of a model that shares them, or a quantization. What it took from records is not in this statement."
)
"""What statements of changed weights say."""

FED_ELSEWHERE = (
    "Weights that run.feeds named are what the code of a loop made through a critic, whose releases are counted here."
    " If that code trained them on anything else than the critic, what it took from records is not in this statement."
)
"""What statements of a generator's weights say instead, where nothing else changed them."""

_ATTRIBUTE = "_tfdp_left"
"""Of a variable: by its digest, what was left in it."""

_NOTES = "_tfdp_notes"
"""Of a variable: what statements say of the training whose weights it is a copy of."""

_FED = "_tfdp_fed"
"""Of a variable: how many loops that go on say that their code trains it through what they release."""

_OTHERS = b"another's"
"""In the place of a digest: what is there was made from numbers that are no training's."""

_left: set[bytes] = set()
"""By their digests, values that were released anywhere: to copy one to another variable takes nothing from records."""

_fed: set[bytes] = set()
"""By their digests, values that variables held as a loop ended that fed them."""


def leave(arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Says that these variables hold what a training, or a file with its ledger, left in them.

    Args:
        but: what `changed_values` gave before: values that were something else's, and still are there.
    """
    for array in arrays:
        found = digest(array)
        if found not in but:
            setattr(array, _ATTRIBUTE, found)


def leave_elsewhere(arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Says that a training released these numbers: moving averages of weights, too. Copies of them are no change.

    Not for what it left as it was: frozen weights that were something else's stay that in other variables.
    """
    _left.update(found for found in map(digest, arrays) if found not in but)


def leave_copies(arrays: Iterable[Any], whole: bool = False) -> None:
    """Watches those among these variables that hold copies of released values from here on.

    Copies of what something else had made of these stay that, unless it was declared public.

    Args:
        whole: all of them, where a training's weights were copied together: its frozen ones are among these.
    """
    copies = [one for one in arrays if not _kept(one) and (whole or is_known_value(one))]
    leave(copies)
    for array in filter(is_changed_value, copies):
        setattr(array, _ATTRIBUTE, _OTHERS)


def leave_made(sources: Iterable[Any], made: Iterable[Any]) -> None:
    """Watches variables that were made from others in which something was left, if only as their copies.

    Where these hold something else by now, so do those; not of what a training that goes on writes to.
    """
    sources = [one for one in sources if _kept(one)]
    if sources:
        changed = are_changed(one for one in sources if not _is_trained(one))
        for array in made:
            setattr(array, _ATTRIBUTE, _OTHERS if changed else digest(array))


def leave_notes(notes: Iterable[str], made: Iterable[Any]) -> None:
    """Has what statements of released weights say go with copies of these."""
    said = list(dict.fromkeys(notes))
    for array in made if said else ():
        setattr(array, _NOTES, [*getattr(array, _NOTES, ()), *said])


def notes_left(arrays: Iterable[Any]) -> list[str]:
    """What `leave_notes` left with these variables."""
    return [note for array in arrays for note in getattr(array, _NOTES, ())]


def tells_of_change(notes: Iterable[str]) -> bool:
    """Whether one of a statement's notes says that something else than a training changed the weights."""
    return any("it took from records" in note for note in notes)


def leave_anew(arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Says that what these variables hold now was declared public, where something was left in them. See `leave`."""
    declared = [one for one in arrays if _kept(one)]
    leave(declared, but)
    leave_elsewhere(declared, but)


def leave_fed(arrays: Iterable[Any], ends: bool) -> None:
    """Says that a loop feeds these variables, from now on; or, as it ends, what they hold then. Once each, for each."""
    for array in arrays:
        setattr(array, _FED, max(0, getattr(array, _FED, 0) + (-1 if ends else 1)))
        if ends:
            _fed.add(digest(array))


def change_of(arrays: Iterable[Any]) -> str | None:
    """What statements say of the change of these, see `are_changed`; None where nothing changed them."""
    arrays = list(arrays)
    changed = changed_values(arrays)
    fed = _fed | {digest(one) for one in arrays if getattr(one, _FED, 0) > 0}
    return (FED_ELSEWHERE if changed <= fed else CHANGED_ELSEWHERE) if changed else None


def are_changed(arrays: Iterable[Any]) -> bool:
    """Whether something was left in one of these, and it holds now what was left nowhere."""
    return bool(changed_values(arrays))


def is_left_anywhere(array: Any) -> bool:
    """Whether it holds what a training ended with, or what was declared public: such numbers are no change."""
    return digest(array) in _left


def are_watched(arrays: Iterable[Any]) -> bool:
    """Whether something was left in each of these."""
    return all(map(_kept, arrays))


def changed_values(arrays: Iterable[Any]) -> set[bytes]:
    """By their digests, the values of those among these in which something was left, and that hold something else."""
    remember_now()
    digests = [(digest(one), one) for one in arrays if _kept(one)]
    return {found for found, one in digests if found != _kept(one) and found not in _left}


def _is_trained(array: Any) -> bool:
    account = account_of(array)
    return account is not None and account.trains


def _kept(array: Any) -> bytes:
    return getattr(array, _ATTRIBUTE, b"")
