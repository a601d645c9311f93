"""Copies of a ledger that count what a training still plans: what a choice among its weights costs."""

from dataclasses import dataclass

from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.remarks import KEPT, RESTORED
from tfdp_layers.accounting.view import state_of

__all__ = ["Counted", "counted_by", "for_plans", "kept_in_the_middle", "with_planned"]


@dataclass(frozen=True)
class Counted:
    """Which entry of a saved ledger counts releases that were still planned.

    Attributes:
        entry: its name.
        made: how many of its releases were made when it was saved.
        note: says so.
    """

    entry: str
    made: int
    note: str


def with_planned(ledger: Ledger, token: str, steps: int, note: str = "") -> tuple[Ledger, Counted]:
    """A copy that counts `steps` further releases of a segment, as many as budgets afford; and which entry does.

    Which of a training's weights were kept, as the best of them, is a function of all its releases, those after them
    included. As a merge keeps the larger count of an entry, nobody states less who takes this copy over.
    """
    entry, release = ledger._known(token).entry, ledger._known(token).release
    more, copied = ledger.affordable(token, steps, lasting=True), ledger.copy()
    made = _count(copied, entry)
    entries = state_of(copied).entries
    entries.put(entry, entries.row(release), made + more)
    return copied, Counted(entry, made, note)


def for_plans(ledger: Ledger) -> Ledger:
    """A ledger in memory that counts the same, and is nobody's copy: what it is charged is planned, and never made."""
    planned = Ledger()
    state_of(planned).entries.absorb(state_of(ledger).entries)
    state_of(planned).lasting = False
    return planned


def kept_in_the_middle(ledger: Ledger) -> Ledger:
    """A copy that goes with weights which were kept while a training ran: its statements say so, and whoever's it is
    merged into, where it counts more than that does.
    """
    copied = ledger.copy()
    state_of(copied).note([KEPT])
    return copied


def counted_by(ledger: Ledger, stored: Ledger, counted: Counted | None) -> Ledger:
    """What `ledger` is to take over of a saved one: where it counts that very training itself, by its own count.

    It does where it opened the entry, or is the one that the saved ledger is a copy of, and lacks nothing of it: so
    not where an earlier file of it was restored.
    """
    if counted is None:
        return stored
    opened = any(segment.entry == counted.entry for segment in ledger._segments.values())
    kept = (ledger.path is not None or ledger.dataset is not None) and not ledger.is_copy
    kept = kept and RESTORED not in ledger.noted
    held = _count(ledger, counted.entry)
    if held < counted.made or not (opened or (kept and ledger.uid == stored.uid)):
        return stored
    taken = stored.copy()
    entries = state_of(taken).entries
    saved = entries.get(counted.entry)
    if saved is not None and saved.steps > held:
        entries.put(counted.entry, entries.row(saved.release), held)
    return taken


def _count(ledger: Ledger, entry: str) -> int:
    found = next((one for one in ledger.entries if one.uid == entry), None)
    return 0 if found is None else found.steps
