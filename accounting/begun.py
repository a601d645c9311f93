"""When this process began to count entries of ledgers: what it knew before is made of nothing that they count."""

from __future__ import annotations

import itertools
import secrets

__all__ = ["has_begun", "moment", "new_entry", "was_begun_since"]

_begun: dict[str, int] = {}
"""Of each entry that a ledger of this process opened: when. Of those that came from elsewhere that is not known."""

_moments = itertools.count()


def new_entry() -> str:
    """Returns the name of an entry that nothing was counted in yet: what it counts is released from now on."""
    _begun[entry := secrets.token_hex(16)] = moment()
    return entry


def moment() -> int:
    """Returns a number that says what came before what, in this process."""
    return next(_moments)


def has_begun() -> bool:
    """Whether anything may have been released in this process."""
    return bool(_begun)


def was_begun_since(entry: str, then: int) -> bool:
    """Whether this process began to count an entry after a moment: False where that is not known."""
    return _begun.get(entry, -1) > then
