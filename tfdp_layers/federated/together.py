"""Which parties took turns in this process: where there are several, their ledgers say that it is a simulation."""

import contextlib
import gc
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.holders import let_go
from tfdp_layers.accounting.locked_file import LockedFile
from tfdp_layers.accounting.remarks import SIMULATED

__all__ = ["Identity", "identity_of", "note_turn"]

Identity = tuple[str, frozenset[str]]
"""What tells parties apart, also where each message makes them anew: the name, and the files of all their ledgers.

Without a file the name alone says little: then what lives beside it is another party."""


@dataclass
class _Took:
    """Ledgers of a party that took turns: those that live, and the files of others, whoever closed these.

    Attributes:
        charges: whether a turn charged one. One that charges none is of the party of its name that does: a first try.
    """

    ledgers: "weakref.WeakSet[Ledger]" = field(default_factory=weakref.WeakSet)
    files: set[Path] = field(default_factory=set)
    charges: bool = False

    def lives_beside(self, charged: Sequence[Ledger]) -> bool:
        """Whether a ledger without a file is in use that these do not replace: of another party of the name."""
        return any(one.path is None and all(one is not mine for mine in charged) for one in list(self.ledgers))


_took: dict[Identity, _Took] = {}


def identity_of(name: str, ledgers: Iterable[Ledger]) -> Identity:
    """Tells a party with these ledgers from others."""
    return name, frozenset(str(one.path.resolve()) for one in ledgers if one.path is not None)


def note_turn(identity: Identity, charged: Sequence[Ledger]) -> None:
    """Notes that a party begins a turn here; from the second party on, what the ledgers of all of them are to say.

    Guarantee: whatever is uploaded after a turn of another party in this process, forked ones included, is counted in
    a ledger whose statements say that several took turns. Parties are told apart as `Identity` says; one whose turns
    charge nothing, and that has the name of another one, is taken for that one.

    Args:
        charged: the ledgers that its turns charge.

    Raises: LedgerError where the party's own ledger cannot be written. Those of others bring it with the next write.
    """
    mine = _took.setdefault(identity, _Took())
    mine.ledgers.update(charged)
    mine.files |= {one.path for one in charged if one.path is not None}
    mine.charges = mine.charges or bool(charged)
    if _several() or _is_double(mine, charged):
        for ledger in charged:
            _note(ledger)
        for other in list(_took.values()):
            _note_all(other)


def _several() -> bool:
    """Whether more than one party took turns: a name that charges nothing anywhere is one, too."""
    charging = [identity for identity, took in list(_took.items()) if took.charges]
    return len(charging) + len({name for name, _ in list(_took)} - {name for name, _ in charging}) > 1


def _is_double(mine: _Took, charged: Sequence[Ledger]) -> bool:
    """Whether another party of the same name is here, both with ledgers in memory."""
    if not mine.lives_beside(charged):
        return False
    if not all(SIMULATED in one._state.identity.noted for one in charged):
        gc.collect()  # The ledger of a model that is gone lives until then: such models are in circles.
    return mine.lives_beside(charged)


def _note(ledger: Ledger) -> None:
    if SIMULATED not in ledger._state.identity.noted:
        with ledger._threads:
            ledger._state.note({SIMULATED})


def _note_all(took: _Took) -> None:
    """Notes it in what can be written at once; in the rest with a later turn."""
    living = list(took.ledgers)
    for ledger in living:
        with contextlib.suppress(LedgerError):
            _note(ledger)
    for path in took.files - {one.path for one in living}:
        with contextlib.suppress(LedgerError, OSError):
            if path.exists() and (LockedFile.is_free(path) or let_go(path)):
                with contextlib.closing(Ledger(path)) as ledger:
                    _note(ledger)
                took.files.discard(path)
