"""The ledger: what was released so far, in memory or in one JSON file. It may over-count after a crash, never under."""

import os
import secrets
import weakref
from dataclasses import replace
from typing import Any

from tfdp_layers.accounting.alone import Alone
from tfdp_layers.accounting.begun import new_entry
from tfdp_layers.accounting.budget import Budget
from tfdp_layers.accounting.entries import Entry
from tfdp_layers.accounting.grouping import groupings_known, refuse_regrouping
from tfdp_layers.accounting.holders import LONGEST_WRITE, hold
from tfdp_layers.accounting.ledger_format import checked_count
from tfdp_layers.accounting.limits import Limit, Sparing, refuse_larger
from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.accounting.releases import AnyRelease, groupings_in
from tfdp_layers.accounting.segment import Segment
from tfdp_layers.accounting.state import State
from tfdp_layers.accounting.view import View, state_of

__all__ = ["Entry", "Ledger", "LedgerError"]


class Ledger(View):
    """Counts releases; the accountants read it.

    A *release* is what reveals something of the records: the noisy sum of an optimizer's *step*, a metric, a threshold
    test. What it costs in events of the accountants is its *charge*. `steps` says how many releases: most are steps.

    Releases are counted BEFORE they are made (`reserve`) and corrected afterwards (`settle`): a crash in between
    over-counts. Each entry is a counter with one writer and only grows (but for the return of unused reservations),
    so a merge (the union of entries, the larger count of each) can neither rewind nor lose a release, even of two
    ledgers that both went on from one copy. So a loaded ledger opens new entries, and a file's in a forked process.

    The ledger of a DATA SET names it: assign it to every model that is trained on these data, and give it to
    `release_metric`; then it adds up all that they ever released about a record. It gives nothing back when older
    weights are restored. Its copies (in saved models, `copy()`, pickles), and a fork's of any ledger, can be read and
    merged, not charged: what a copy counted would be missing in the first one. A budget holds for all of it.

    A budget is decided and reserved in one act, under the ledger's lock: `reserve` asks the data set's budget and those
    of all trainings that run on the ledger (`keep_to`), whoever charges it, from whichever thread.

    Args:
        path: a JSON file, read now, and written at every change before anything is released; None keeps the ledger in
            memory. From the first reservation on it is locked against other processes until `close` or the end of this
            one, and against other ledgers of this process while a training runs on it. Beside it is its mark, `path` +
            ".mark", by which an older copy in its place, or none, is noticed: move, copy and back up both.
        dataset: names the data set; written to the file at once. None takes what the file says.
        budget: (epsilon, delta) that everything in the ledger together keeps to: a reservation beyond it is refused.
            Written to the file at once. None takes what the file says.
        restored: goes on from the file that is there (from nothing, where there is none) although its mark says that
            more was counted, or is missing; a UserWarning says what. What is missing is in no epsilon from then on (all
            statements say so), so that whoever answers for the data decides it, and merges every newer copy. Where
            nothing is missing it changes nothing.
    Raises:
        LedgerError: the file exists but is not a whole, valid ledger (it is left as it is), it lacks what its mark says
            that it counted, or it cannot be written there; another ledger holds it for more than two seconds, and it
            does not say the data set or the budget yet.
        ValueError: a budget without a data set, or another data set or budget than the file's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        dataset: str | None = None,
        budget: Any = None,
        restored: bool = False,
    ) -> None:
        self._segments: dict[str, Segment] = {}
        self._own: dict[AnyRelease, str] = {}
        self._kept: dict[str, list[Limit]] = {}
        self._threads, self.spared, self._names = Alone(), Sparing(), weakref.WeakSet([self])
        with self._threads:  # which others wait for that ask for the file, from `hold` on
            self._state = State(path, restored)
            hold(self)
            if dataset is not None or budget is not None:
                wanted = None if budget is None else Budget.of(budget)
                self._state.name(lambda identity: identity.named(dataset, wanted, self.path))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Returns a copy in memory of a ledger's file, to look at: no lock, no mark, and nothing can be charged to it.

        Raises:
            LedgerError: there is none, it is not a whole ledger, or there is a mark and it lacks what that tells of.
        """
        ledger = cls()
        ledger._state = State.from_file(path)
        return ledger

    def set_budget(self, epsilon: float, delta: float) -> None:
        """Replaces the data set's budget, in the file too: a decision of whoever answers for the data.

        Raises:
            ValueError: a number out of range, or a ledger that names no data set.
            LedgerError: the file cannot be written, another ledger holds it, this is a copy, or a training runs here
                and the budget is larger.
        """
        budget = Budget(epsilon, delta)
        with self._threads:
            self._state.refuse_copy()
            if self._kept or any(one.running for one in self._segments.values()):
                refuse_larger(self.budget, budget)
            if self.dataset is None:
                raise ValueError("A budget is kept for a data set: open the ledger with Ledger(path, dataset='name').")
            self._state.rename(lambda identity: replace(identity, budget=budget))

    def begin(self, release: AnyRelease) -> str:
        """Starts a segment of equal releases and returns its token. Nothing is counted or written yet.

        An equal release goes on in the entry that this object opened for it, unless its cost depends on the place in an
        epoch (Partition: a fresh permutation starts).

        Raises:
            ValueError: the release has another neighbouring relation than the ledger.
        """
        self.check(release)
        with self._threads:
            token, own = secrets.token_hex(16), None if release.sequential else self._own.get(release)
            entry = own or new_entry()
            self._segments[token] = Segment(token, release, entry)
            return token

    def keep_to(self, token: str, budget: Any, *, nominal: bool = False) -> None:
        """Until `end`, whatever is reserved, in any segment, keeps everything in the ledger to a segment's budget.

        Args:
            budget: a `Budget` or (epsilon, delta). A later one joins the earlier ones: none is taken off.
            nominal: counts algorithms used as printed as their publications do: then it keeps to no guarantee.

        Raises: ValueError for an unknown token, or a number out of range.
        """
        with self._threads:
            self._known(token)
            limit = Limit(Budget.of(budget), token=token, nominal=nominal)
            self._kept[token] = [*(one for one in self._kept.get(token, ()) if one != limit), limit]

    def end(self, token: str) -> None:
        """The budget that a segment brought is in force no more, and the file counts nothing of it ahead.

        Raises: LedgerError where the file cannot be written, ValueError for an unknown token.
        """
        with self._threads:
            self._known(token).stop()
            self._kept.pop(token, None)
            if self.path is not None:
                self.give_back(token)

    def reserve(self, token: str, steps: int, ahead: int = 0, *, least: int | None = None) -> int:
        """Counts `steps` further releases of a segment, on disk too, before they are made. Reservations add up.

        Args:
            ahead: how many more the file counts when it is written, so that it need not be written for each of those:
                then a crash over-counts by as many, of those that are affordable. This object does not count them, and
                `give_back` takes them back.
            least: how few will do where budgets do not afford all of them; all, if left out.

        Returns: how many it counted, and may be made.
        Raises:
            LedgerError: the file cannot be written, another ledger holds it, or `is_copy`. None must be made then.
            BudgetExhausted: they would exceed a budget in force; nothing is counted.
            ValueError: an unknown token, a count that is not a non-negative integer, or a relation that does not match.
        """
        steps, ahead = checked_count("steps", steps), checked_count("ahead", ahead)
        with self._threads:
            self.spared.refuse()
            segment, limits = self._ready(token), self._limits()
            entries = self._state.entries
            segment.require(entries, limits, steps if least is None else min(least, steps))
            count = segment.affordable(entries, limits, steps)
            if ahead and self.path is not None:
                ahead = max(0, segment.affordable(entries, limits, count + ahead) - count)
            segment.outstanding += count
            self._state.know(groupings_in(segment.release) if count else ())
            self._add(segment, count, ahead)
            return count

    def require(self, token: str, steps: int = 1) -> None:
        """Takes the lock of the file, until `end`, and raises as `reserve(token, steps)` would; counts nothing."""
        steps = checked_count("steps", steps)
        with self._threads:
            segment = self._ready(token)
            segment.require(self._state.entries, self._limits(), steps)
            segment.running = True

    def affordable(self, token: str, steps: int, *, lasting: bool = False) -> int:
        """Returns how many of `steps` further releases of a segment the budgets in force afford: all without one.

        With `lasting` those of other trainings are left out, which end with them. To look ahead: another segment may
        take them before they are reserved. Raises: as `reserve`, but for BudgetExhausted.
        """
        steps = checked_count("steps", steps)
        with self._threads:
            limits = [one for one in self._limits() if not lasting or one.token in (None, token)]
            return self._ready(token).affordable(self._state.entries, limits, steps)

    def exhausted(self, token: str, steps: int = 0) -> Limit | None:
        """The budget in force that affords, as `affordable` says, `steps` releases more at most; None: all do more."""
        steps = checked_count("steps", steps)
        with self._threads:
            limits = self._limits()
            return self._ready(token).exhausted(self._state.entries, limits, steps) if limits else None

    def lock(self) -> None:
        """Keeps other writers out of the file until `close`, and takes over what they wrote since it was read.
        Raises: LedgerError: another ledger holds the file, or what it holds does not fit."""
        with self._threads:
            self._state.lock()

    def settle(self, token: str, made: int) -> None:
        """Replaces the outstanding reservation of a segment by the releases made; more than reserved count too.

        Raises:
            LedgerError: the file cannot be written; it then still holds the reservation.
            ValueError: an unknown token or a count that is not a non-negative integer.
        """
        made = checked_count("made", made)
        with self._threads:
            segment = self._ready(token)
            unused, segment.outstanding = segment.outstanding - made, 0
            self._add(segment, -unused)

    def give_back(self, token: str) -> None:
        """Has the file count what is counted here of a segment, and nothing ahead. Raises LedgerError, ValueError."""
        with self._threads:
            self._state.give_back(self._ready(token).entry)

    def entry_of(self, token: str) -> Entry | None:
        """The entry that counts a segment's releases; None before the first. Raises ValueError for an unknown token."""
        return self._state.entries.get(self._known(token).entry)

    def merge(self, other: "Ledger", *, spent: bool = True) -> None:
        """Takes over what `other` counted: entries of both keep the larger count, all others are added.

        Args:
            spent: not refused for a budget then. False: what `other` reserved is still to be released, and must not be
                where this raises.

        An unnamed ledger in memory that takes over the ledger of a data set becomes a copy of it.

        Raises:
            ValueError: the neighbouring relations differ, or the data sets.
            BudgetExhausted: of what is not spent yet, it would exceed a budget in force; nothing is counted.
            LedgerError: the file cannot be written, or another ledger holds it; of what is not spent yet, as `reserve`;
                where one is a copy of the chief's ledger on another worker, and one what that released by itself.
        """
        theirs = state_of(other)
        self._state.refuse_own(theirs)
        theirs.refuse_own(self._state)
        self._take(other, spent)

    def _take(self, other: "Ledger", spent: bool = True) -> None:
        """As `merge`, which goes through it, also of what weights cost that a worker itself released."""
        theirs = state_of(other)  # before any lock: another thread may merge the other way round
        with self._threads:
            self.spared.refuse()
            if not spent:
                self._state.refuse_copy()
            self._state.identity.refuse_costs_of(theirs.identity, self.path)
            self._state.lock()
            for row in theirs.entries.rows:
                self.check(row.release)
            refuse_regrouping(self.uid, groupings_known(theirs.identity.uid), self.unit or "unit")
            for limit in [] if spent else self._limits():
                limit.refuse(self._state.entries, theirs.entries)
            self._state.merge(theirs)

    def copy(self) -> "Ledger":
        """Returns a snapshot in memory, without the file and the open segments."""
        return self.from_json(self.to_json())

    def as_published(self) -> "Ledger | None":
        """Returns a copy in memory whose releases are accounted as their publications do; None where all are so.

        What it costs is a nominal figure, not a guarantee: see `Release.nominal_noise_multiplier`.
        """
        published, copied = self._seen().entries.as_published(), Ledger()
        if published is None:
            return None
        copied._state.entries = published
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles are snapshots: two objects must never write one file or share an entry.
        return Ledger.from_json, (self.to_json(),)

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Returns a ledger in memory from what `to_json` wrote. Raises LedgerError for another text."""
        ledger = cls()
        ledger._state = State.from_text(text)
        return ledger

    def close(self) -> None:
        """Releases the lock on the file. A later reservation takes it again."""
        with self._threads:
            self._state.unlock()

    def _ready(self, token: str) -> Segment:
        """The segment, after all that must hold before anything is counted in it."""
        segment = self._known(token)
        self._state.refuse_copy()
        self._state.lock()
        segment.keep_within(self.budget)
        self.check(segment.release)
        return segment

    def _known(self, token: str) -> Segment:
        if token not in self._segments:
            raise ValueError(f"Unknown token {token!r}. Use the one that this ledger's begin() returned.")
        return self._segments[token]

    def _limits(self) -> list[Limit]:
        """All budgets in force."""
        whole = [] if self.budget is None else [Limit(self.budget, self.dataset)]
        return [*whole, *(limit for kept in self._kept.values() for limit in kept)]

    def _add(self, segment: Segment, steps: int, ahead: int = 0) -> None:
        entries = self._state.entries
        entry = entries.get(segment.entry)
        if (entry is None and steps <= 0) or (steps == 0 and not self._state.unwritten):
            return
        if entry is None and not segment.release.sequential:
            self._own.setdefault(segment.release, segment.entry)
        counted = steps + (entry.steps if entry else 0)
        self._state.count(entries.put(segment.entry, segment.row(entries), counted), ahead)

    def _let_go(self) -> bool:
        """Unlocks the file for another ledger of this process, unless something runs here; returns whether it did."""
        if not self._threads.acquire(timeout=LONGEST_WRITE):
            return False
        try:
            runs = self._kept or any(one.running or one.outstanding for one in self._segments.values())
            if not runs:
                self._state.unlock()
            return not runs
        finally:
            self._threads.release()

    def _after_fork(self) -> None:
        """In a forked process: new entries, and a lock of its own, since the other process goes on with the old."""
        self._threads = Alone()
        self._own.clear()
        for segment in self._segments.values():
            segment.restart(secrets.token_hex(16))
        self._state.fork()
