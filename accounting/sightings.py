"""Which ledgers of this process were charged for the same records, and what these paid in all.

A ledger states what is in it. Whoever trains a new model on the same records, with a ledger of its own, adds to what
the people in them pay, and neither statement says so. Here each charge leaves the `Footprint` of its records behind,
and the next one on records that it knows warns.

What is said where. The warning is for those who hold the records, and goes to their screen: it tells of equal rows
and columns, too, which may be other people's all the same. A statement is published, and must not: whether rows of one
data set are among those of another is computed from the records without noise, and no epsilon covers it. So a statement
tells only of what the program says by itself, whatever the records are: that two charges were given one object, or rows
of one array that meet. That it tells of nothing is no proof that there was nothing: it goes on to assume that all
releases are in its ledger.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tfdp_layers.accounting.columns import Columns
from tfdp_layers.accounting.entries import Entry
from tfdp_layers.accounting.footprint import PLACE, Footprint, living
from tfdp_layers.accounting.grouping import forget_groupings, groupings_known, know_groupings, refuse_regrouping
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.predictions import Predicted
from tfdp_layers.caller import warn

__all__ = ["Sighting", "apart", "count_of", "keep", "others_of", "sight", "sum_of", "warn_of_others"]

_lock = threading.RLock()
_sightings: list[Sighting] = []
_held: dict[str, set[str]] = {}
"""Of each ledger that was charged, by its name: which entries of sightings it held when a segment of it ended."""
_HOW_MUCH = (
    "All of it is tfdp.accounting.together(ledger), for tfdp.accounting.epsilon(..., delta) or ledger.merge(...)."
)
_MOST_SKETCHES = 256
"""Of 12 kB each. Of more data sets those that were charged for longest ago are known by their places alone."""
_warned: weakref.WeakKeyDictionary[Ledger, int] = weakref.WeakKeyDictionary()
_told: list[bool] = []
"""Not empty once a warning said in full what to do."""
_apart: contextvars.ContextVar[Callable[[Ledger], bool]] = contextvars.ContextVar("apart", default=lambda _: False)


class Sighting:
    """That a ledger was charged for records: it outlives the ledger, whose models may be gone.

    Attributes:
        footprint: of the records.
        name: the ledger's.
        token: of the segment that was charged.
        entry: what it counted, as last seen; None before the first release.
        noted: what its ledger says of its trainings, as last seen.
        ended: whether the segment was ended, so that this counts no more.
    """

    def __init__(self, footprint: Footprint, ledger: Ledger, token: str) -> None:
        self.footprint, self.name, self.token = footprint, ledger.uid, token
        self.entry: Entry | None = None
        self.noted: frozenset[str] = frozenset()
        self.ended = False
        self._ledger = weakref.ref(ledger)

    def end(self) -> None:
        """The segment ended: notes which of the entries that are seen here its ledger holds by then."""
        self.ended = True
        ledger, seen = self._ledger(), {one.entry.uid for one in _sightings if one.entry is not None}
        if ledger is not None:
            _held.setdefault(self.name, set()).update(entry.uid for entry in ledger.entries if entry.uid in seen)

    def counted(self) -> Entry | None:
        """What it counts by now; None where nothing was released."""
        ledger = self._ledger()
        if ledger is not None:
            self.entry = ledger.entry_of(self.token) or self.entry
            self.noted = ledger._state.identity.noted
        return self.entry if self.entry is not None and self.entry.steps else None

    def takes_over(self, earlier: Sighting) -> bool:
        """Whether an earlier one counted in the same entry for the same records: then this one has its places, too.

        Both have counted by now. The entry only grows, so that the later look at it holds the earlier one.
        """
        mine, theirs = self.footprint, earlier.footprint
        alike = mine.same_place(theirs) if mine.sketch is None else mine.sketch == theirs.sketch
        if not (earlier.ended and alike and self.entry and earlier.entry and self.entry.uid == earlier.entry.uid):
            return False
        sets = ("places", "columns", "derived", "predicted")
        self.footprint = replace(mine, **{name: getattr(mine, name) | getattr(theirs, name) for name in sets})
        return True


@contextlib.contextmanager
def apart(ledgers: Callable[[Ledger], bool]) -> Iterator[None]:
    """Inside, in this context, charges of these ledgers leave nothing behind: an audit's own, those of trials.

    Others do: what callbacks, builders and objectives of the caller train besides is neither the audit nor the trial.
    """
    token = _apart.set(ledgers)
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
    if footprint is None or _apart.get()(ledger):
        return ()
    with _lock:
        found = tuple(_uncounted([ledger, *beside], [footprint], content=True))
        sketches = (one.footprint.sketch for one in _sightings)
        known = next((one for one in sketches if one is not None and one == footprint.sketch), footprint.sketch)
        _sightings.append(Sighting(replace(footprint, sketch=known, copies=None), ledger, token))
        return found


def keep(token: str) -> None:
    """A segment ended: what it counted stays known when its ledger is gone."""
    with _lock:
        for one in [one for one in _sightings if one.token == token]:
            counted = one.counted()
            one.end()
            gone = [other for other in _sightings if other is not one and one.takes_over(other)] if counted else [one]
            for other in gone:
                _sightings.remove(other)
        _forget()


def _forget() -> None:
    """Leaves out what could never be known again: records that are gone, and of which no sketch is kept."""
    sketches: dict[int, None] = {}
    for one in reversed(_sightings):
        sketch = one.footprint.sketch
        if sketch is not None and len(sketches) == _MOST_SKETCHES and id(sketch) not in sketches:
            one.footprint = replace(
                one.footprint, sketch=None, columns=Columns(), derived=frozenset(), predicted=Predicted()
            )
        elif sketch is not None:
            sketches[id(sketch)] = None
        one.footprint = living(one.footprint)
    _sightings[:] = [one for one in _sightings if not one.ended or one.footprint.places or one.footprint.sketch]
    for name in _held.keys() - {one.name for one in _sightings}:
        del _held[name]


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
    found: dict[str, set[str]] = {}
    with _lock:
        for one in sorted(others, key=lambda one: -len(_held.get(one.name, ()))):
            if one.name in found or not any(one.entry and one.entry.uid in held for held in found.values()):
                found[one.name] = _held.get(one.name, set())
    return len(found)


def sum_of(ledger: Ledger, others: Iterable[Sighting]) -> Ledger:
    """A ledger in memory of no data set, of what a ledger and others counted.

    Raises: ValueError where they have different neighbouring relations or units, and no one number is for all.
    """
    found, others = Ledger(), list(others)
    weakref.finalize(found, forget_groupings, found.uid)
    for uid in (ledger.uid, *(one.name for one in others)):
        refuse_regrouping(found.uid, groupings_known(uid), ledger.unit or "unit")
        know_groupings(found.uid, groupings_known(uid))
    for entry in [*ledger.entries, *filter(None, (one.counted() for one in others))]:
        found.check(entry.release)
        found._state.entries.absorb([entry])
    found._state.note(ledger.noted.union(*(one.noted for one in others)))
    return found


def warn_of_others(ledger: Ledger, others: tuple[Sighting, ...], cost: Callable[[], str] = lambda: _HOW_MUCH) -> None:
    """Warns of other ledgers: the first time that a ledger has any, however many these are, and whenever they are twice
    as many as those that it was warned of last. What to do is said in full once in a process.

    Args:
        cost: gives what all costs together, and how to add it up, in sentences: that may take a while.
    """
    count = count_of(others)
    if not count or count < 2 * _warned.get(ledger, 0):
        return
    _warned[ledger] = count
    seen = _seen(ledger, others)
    what = f"records with {seen}, so for these, it seems," if seen else "these records,"
    harmless = " Where these are other people, nothing is lost." if seen else ""
    begins = f"Other ledgers of this process were charged for {what} or for some of them: {count}."
    if _told:
        warn(f"{begins} {cost()} One ledger for all of them adds up: see the first such warning.{harmless}")
        return
    warn(
        f"{begins} No statement adds up what the people in them pay: each model has a ledger, its count of what was"
        f" released, and states that alone. {cost()} For one total, give all models of these people one ledger before"
        " they train: ledger = tfdp.accounting.Ledger('ledger.json', dataset='name', budget=(epsilon, delta)), then"
        " model.ledger = ledger. A model that nobody looked at, and that is deleted, costs nothing:"
        f" warnings.filterwarnings('ignore', 'Other ledgers').{harmless}"
    )
    _told.append(True)


def _seen(ledger: Ledger, others: Iterable[Sighting]) -> str | None:
    """What shows that others were charged for the records that a ledger was charged for last; None: the program."""
    with _lock:
        mine = next((one.footprint for one in reversed(_sightings) if one.name == ledger.uid), Footprint())
        found = {how for one in others if (how := one.footprint.seen(mine)) is not None}
    return None if PLACE in found else " or ".join(sorted(found)) or "equal rows"


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
