"""Which parties took turns in this process: where there are several, their ledgers say that it is a simulation."""

import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.remarks import SIMULATED

__all__ = ["Identity", "identity_of", "note_turn"]

Identity = tuple[str, str | None]
"""What tells parties apart, also where each message makes them anew: the name, and the file of the ledger."""


@dataclass
class _Took:
    """Ledgers of a party that took turns: those that live, and the files of others, whoever closed these."""

    ledgers: "weakref.WeakSet[Ledger]" = field(default_factory=weakref.WeakSet)
    files: set[Path] = field(default_factory=set)


_took: dict[Identity, _Took] = {}


def identity_of(name: str, ledger: Ledger) -> Identity:
    """Tells this party from others."""
    return name, None if ledger.path is None else str(ledger.path.resolve())


def note_turn(identity: Identity, charged: Sequence[Ledger]) -> None:
    """Notes that a party begins a turn here; from the second party on, what the ledgers of all of them are to say.

    Guarantee: whatever is uploaded after a turn of another party in this process, forked ones included, is counted in
    a ledger whose statements say that several took turns.

    Args:
        charged: the ledgers that its turns charge.

    Raises: LedgerError where the party's own ledger cannot be written. Those of others bring it with the next write.
    """
    mine = _took.setdefault(identity, _Took())
    mine.ledgers.update(charged)
    mine.files |= {one.path for one in charged if one.path is not None}
    if len(_took) > 1:
        for ledger in charged:
            _note(ledger)
        for other in list(_took.values()):
            if other is not mine:
                _note_of_other(other)


def _note(ledger: Ledger) -> None:
    if SIMULATED not in ledger._state.identity.noted:
        with ledger._threads:
            ledger._state.note({SIMULATED})


def _note_of_other(took: _Took) -> None:
    living = list(took.ledgers)
    for ledger in living:
        with contextlib.suppress(LedgerError):
            _note(ledger)
    for path in took.files - {one.path for one in living}:
        with contextlib.suppress(LedgerError):
            if path.exists():
                with contextlib.closing(Ledger(path)) as ledger:
                    _note(ledger)
            took.files.discard(path)
