"""Copies in memory of a ledger that another process charges: why they may not be charged, and how to go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tfdp_layers.accounting.locked_file import LedgerError

if TYPE_CHECKING:
    from tfdp_layers.accounting.entries import Entry
    from tfdp_layers.accounting.identity import Identity

__all__ = ["follow_chief", "follow_entries", "follows_entries", "forked_error", "own_release_error", "worker_error"]

_followed: set[str] = set()
"""The entries that copies of a chief's ledger hold, or held, in this process: none where it follows no chief."""
_chiefs: set[str] = set()
"""The names of the chiefs' ledgers that sent them."""

_ON_THE_CHIEF = (
    "Make it on the chief alone, which is task 0: if strategy.cluster_resolver.task_id == 0: ... Send its result to the"
    " others (a file, say) where they need it, as with the noisy number of a metric. To go on without the chief, do it"
    " in a new process, with the ledger of the chief's file, tfdp.accounting.Ledger(path), or with a model that was"
    " saved here; where the chief's ledger goes on as well, merge what comes back: ledger.merge(Ledger.from_json(text))"
    " of its to_json()."
)


def follow_chief(uid: str) -> None:
    """A copy of this ledger came from the chief."""
    _chiefs.add(uid)


def follow_entries(uids: Iterable[str]) -> None:
    """From here on, until the process ends, whatever ledger holds one of these entries is a copy of the chief's."""
    _followed.update(uids)


def follows_entries(identity: Identity, entries: Iterable[Entry], filed: bool) -> bool:
    """Whether a ledger of this process holds what a copy of the chief's ledger holds: then it is one, too.

    However it came by that: by a file of the model, a copy, a text, weights or a merge. But the file of the chief's own
    ledger, which processes take turns with, counts what is charged to it.
    """
    if not _followed or (filed and identity.uid in _chiefs):
        return False
    return any(entry.uid in _followed for entry in entries)


def _of(identity: Identity) -> str:
    return "" if identity.dataset is None else f" of the data set {identity.dataset!r}"


def forked_error(identity: Identity) -> LedgerError:
    """Of what a forked process has of a ledger in memory."""
    name, budget = identity.dataset, identity.budget
    named = "" if name is None else f", dataset={name!r}"
    limit = "" if budget is None else f", budget=({budget.epsilon}, {budget.delta})"
    return LedgerError(
        f"This process was forked: here is a copy in memory of {'the' if name else 'a'} ledger{_of(identity)}, which"
        " another process made, and which would lack what the copy counts. Keep the ledger in a file, which processes"
        f" take turns with, each with ledger.close() behind its part: tfdp.accounting.Ledger('ledger.json'{named}"
        f"{limit}). Or charge it in the process that made it. Or make a ledger in each process (in models that are made"
        " there, or with multiprocessing's 'spawn') and merge what comes back: ledger.merge(Ledger.from_json(text)) of"
        " its to_json()."
    )


def worker_error(identity: Identity) -> LedgerError:
    """Of the ledger of a model on another worker than the chief."""
    return LedgerError(
        f"This worker is not the chief: here is a copy of the chief's ledger{_of(identity)}, as is the ledger of each"
        " model that was loaded or copied here. The chief's would lack what the copy is charged: each worker would"
        " release the same with noise of its own, and one of them would be counted."
        f" {_ON_THE_CHIEF}"
    )


def own_release_error(identity: Identity) -> LedgerError:
    """Of a merge of that, or into it, of what this worker released by itself."""
    return LedgerError(
        "This worker is not the chief, and one of the two ledgers counts what this process itself released. The other"
        f" is a copy of the chief's ledger{_of(identity)}, which would lack that: each worker would release the same"
        f" with noise of its own, and one of them would be counted. {_ON_THE_CHIEF}"
    )
