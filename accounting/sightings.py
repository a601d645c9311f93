"""Which ledgers of this process were charged for the same records, and what these paid in all.

A ledger states what is in it. Whoever trains a new model on the same records, with a ledger of its own, adds to what
the people in them pay, and neither statement says so. Here each charge leaves the `Footprint` of its records behind,
and the next one on records that it knows warns.

What is said where. The warning is for those who hold the records, and goes to their screen: it tells of equal rows,
too. A statement is published, and must not: whether rows of one data set are among those of another is computed from
the records without noise, and no epsilon covers it. So a statement tells only of what the program says by itself,
whatever the records are: that two charges were given one object, or rows of one array that meet. That it tells of
nothing is no proof that there was nothing: it goes on to assume that all releases are in its ledger.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator

from tfdp_layers.accounting.entries import Entry
from tfdp_layers.accounting.footprint import Footprint
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.caller import warn

__all__ = ["Sighting", "apart", "count_of", "keep", "others_of", "sight", "sum_of", "warn_of_others"]

_lock = threading.RLock()
_sightings: list[Sighting] = []
_warned: weakref.WeakKeyDictionary[Ledger, int] = weakref.WeakKeyDictionary()
_apart: contextvars.ContextVar[bool] = contextvars.ContextVar("apart", default=False)


class Sighting:
    """That a ledger was charged for records: it outlives the ledger, whose models may be gone.

    Attributes:
        footprint: of the records.
        name: the ledger's.
        token: of the segment that was charged.
        entry: what it counted, as last seen; None before the first release.
        held: the names of all entries of the ledger when the segment ended.
    """

    def __init__(self, footprint: Footprint, ledger: Ledger, token: str) -> None:
        self.footprint, self.name, self.token = footprint, ledger.uid, token
        self.entry: Entry | None = None
        self.held: frozenset[str] = frozenset()
        self._ledger = weakref.ref(ledger)

    def end(self) -> None:
        """The segment ended: notes what the ledger holds by then."""
        ledger = self._ledger()
        if ledger is not None:
            self.held = frozenset(entry.uid for entry in ledger.entries)

    def counted(self) -> Entry | None:
        """What it counts by now; None where nothing was released."""
        ledger = self._ledger()
        if ledger is not None:
            self.entry = ledger.entry_of(self.token) or self.entry
        return self.entry if self.entry is not None and self.entry.steps else None


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Inside, in this context, charges leave nothing behind: an audit's own training, the trials of a search."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


def sight(
    ledger: Ledger, token: str, footprint: Footprint | None, beside: Iterable[Ledger] = ()
) -> tuple[Sighting, ...]:
    """Notes that a segment of a ledger is charged for records; returns what others were charged for some of them.

    Args:
        beside: ledgers that count the segment, too: what they hold is no other's.
    """
    if footprint is None or _apart.get():
        return ()
    with _lock:
        found = tuple(_uncounted([ledger, *beside], [footprint], content=True))
        known = next((one.footprint for one in _sightings if one.footprint == footprint), footprint)
        _sightings.append(Sighting(known, ledger, token))
        return found


def keep(token: str) -> None:
    """A segment ended: what it counted stays known when its ledger is gone."""
    with _lock:
        for one in [one for one in _sightings if one.token == token]:
            one.end()
            entry = one.counted()
            again = entry is not None and any(
                other is not one
                and other.entry is not None
                and other.entry.uid == entry.uid
                and other.footprint is one.footprint
                for other in _sightings
            )
            if entry is None or again:
                _sightings.remove(one)


def others_of(ledger: Ledger, *, content: bool = True) -> tuple[Sighting, ...]:
    """What others were charged for records that a ledger, or one that it holds, was charged for.

    Args:
        content: whether equal rows show it; False: the same object alone, which a statement may tell of.
    """
    with _lock:
        held = {entry.uid for entry in ledger.entries}
        mine = [one.footprint for one in _sightings if (found := one.counted()) is not None and found.uid in held]
        return tuple(_uncounted([ledger], mine, content=content))


def count_of(others: Iterable[Sighting]) -> int:
    """How many ledgers these are of, without those that another one holds, as a model's holds that of its layer."""
    found: dict[str, frozenset[str]] = {}
    for one in sorted(others, key=lambda one: -len(one.held)):
        if one.name in found or not any(one.entry and one.entry.uid in held for held in found.values()):
            found[one.name] = found.get(one.name, frozenset()) | one.held
    return len(found)


def sum_of(ledger: Ledger, others: Iterable[Sighting]) -> Ledger:
    """A ledger in memory of no data set, of what a ledger and others counted.

    Raises: ValueError where they have different neighbouring relations or units, and no one number is for all.
    """
    found = Ledger()
    for entry in [*ledger.entries, *filter(None, (one.counted() for one in others))]:
        found.check(entry.release)
        found._state.entries.absorb([entry])
    return found


def warn_of_others(ledger: Ledger, others: tuple[Sighting, ...], cost: Callable[[], str]) -> None:
    """Warns of other ledgers: of the first one, and whenever they are twice as many as they were.

    Args:
        cost: gives what all costs together, and how to add it up, in sentences: that may take a while.
    """
    count = count_of(others)
    if not count or count & (count - 1) or count <= _warned.get(ledger, 0):
        return
    _warned[ledger] = count
    warn(
        f"Other ledgers of this process were charged for these records, or for some of them: {count}. No statement"
        f" adds up what the people in them pay. {cost()} Give all models of these people one ledger before they train:"
        " model.ledger = ledger, of ledger = tfdp.accounting.Ledger('ledger.json', dataset='name', budget=(epsilon,"
        f" delta)). What is deleted unseen, and decided nothing, costs nothing: warnings.filterwarnings('ignore',"
        " 'Other ledgers')."
    )


def _uncounted(ledgers: Iterable[Ledger], footprints: Iterable[Footprint], *, content: bool) -> Iterator[Sighting]:
    """The sightings of overlapping records that count more than all of these ledgers do."""
    held: dict[str, int] = {}
    for ledger in ledgers:
        for entry in ledger.entries:
            held[entry.uid] = max(entry.steps, held.get(entry.uid, 0))
    known = list(footprints)
    for one in _sightings:
        counted = one.counted()
        if counted is None or held.get(counted.uid, 0) >= counted.steps:
            continue
        if any(one.footprint.overlaps(mine) if content else one.footprint.same_place(mine) for mine in known):
            yield one


def _after_fork() -> None:
    """In a forked process: the lock may be held by a thread that is not there."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
