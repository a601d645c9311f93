"""The ledger: what was released so far, in memory or in one JSON file. It may over-count after a crash, never under."""

import os
import secrets
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dp_accounting import NeighboringRelation

from tfdp_layers.accounting.budget import Budget
from tfdp_layers.accounting.events import AnyRelease, WholeDataRelease
from tfdp_layers.accounting.identity import Identity
from tfdp_layers.accounting.ledger_format import (
    Entry,
    checked_count,
    read_ledger,
    release_text,
    write_ledger,
)
from tfdp_layers.accounting.segment import Segment
from tfdp_layers.accounting.storage import LedgerError, LedgerFile

__all__ = ["Entry", "Ledger", "LedgerError"]


class Ledger:
    """Counts the updates of each release; the accountants read it.

    Updates are counted BEFORE they are made (`reserve`) and corrected afterwards (`settle`): a crash in between
    over-counts. Each entry is a counter with one writer and only grows (but for the return of unused reservations),
    so a merge (the union of entries, the larger count of each) can neither rewind nor lose a step, even of two ledgers
    that both went on from one copy. A loaded ledger therefore opens new entries, and so does a forked process.

    The ledger of a DATA SET names it: assign it to every model that is trained on these data, and give it to
    `release_metric`; then it adds up all that they ever released about a record. It gives nothing back when older
    weights are restored. Its copies (in saved models, `copy()`, pickles) can be read and merged, not charged: what a
    copy counted would be missing in the data set's own. A budget holds for all of it.

    Args:
      path: a JSON file, read now and rewritten atomically at every change; None keeps the ledger in memory. From the
        first reservation on the file is locked against other ledgers until `close` or the end of the process.
      dataset: names the data set; written to the file at once. None takes what the file says.
      budget: (epsilon, delta) that everything in the ledger together keeps to: a reservation beyond it is refused.
        Written to the file at once. None takes what the file says.
    Raises:
      LedgerError: the file exists but is not a whole, valid ledger (it is left as it is), or cannot be written there.
      ValueError: a budget without a data set, or another data set or budget than the file's.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, dataset: str | None = None, budget: Any = None
    ) -> None:
        self._file = None if path is None else LedgerFile(path)
        self._identity = Identity(secrets.token_hex(16))
        self._entries: dict[str, Entry] = {}
        self._segments: dict[str, Segment] = {}
        self._threads = threading.RLock()
        self._own: set[str] = set()
        self._texts: dict[str, str] = {}
        self._is_copy = False
        self._unwritten = False  # A change that did not reach the file.
        self._process = os.getpid()
        if self._file is not None:
            text = self._file.read()
            if text is not None:
                self._identity, self._entries = read_ledger(text, self._file.path)
        if dataset is not None or budget is not None:
            self._name(dataset, budget)

    @property
    def uid(self) -> str:
        """Random name of this ledger, kept by its copies and its file."""
        return self._identity.uid

    @property
    def dataset(self) -> str | None:
        """The data set that the ledger is kept for; None where it is one of a run."""
        return self._identity.dataset

    @property
    def budget(self) -> Budget | None:
        """What everything in the ledger together keeps to; None without a budget."""
        return self._identity.budget

    def set_budget(self, epsilon: float, delta: float) -> None:
        """Replaces the data set's budget, in the file too: a decision of whoever answers for the data.

        Raises:
          ValueError: a number out of range, or a ledger that names no data set.
          LedgerError: the file cannot be written, another ledger holds it, or this is a copy.
        """
        budget = Budget(epsilon, delta)
        with self._threads:
            self._refuse_copy()
            if self.dataset is None:
                raise ValueError("A budget is kept for a data set: open the ledger with Ledger(path, dataset='name').")
            held = self._lock()
            self._identity = replace(self._identity, budget=budget)
            self._write()
            if held:
                self.close()

    @property
    def path(self) -> Path | None:
        """The file, or None in memory."""
        return None if self._file is None else self._file.path

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries.values())

    @property
    def relation(self) -> NeighboringRelation | None:
        """The neighbouring relation of all entries; None while the ledger is empty."""
        return next((entry.release.relation for entry in self._entries.values()), None)

    @property
    def unit(self) -> str | None:
        """Whose replacement the entries are accounted for: "record", "party" (its whole data set), None while empty."""
        return next((entry.release.unit for entry in self._entries.values()), None)

    @property
    def steps(self) -> int:
        """Updates of all entries, made or reserved; each metric released counts as one."""
        return sum(entry.steps for entry in self._entries.values())

    @property
    def updates(self) -> int:
        """Updates of weights or parties, made or reserved, without sums that were released beside them."""
        return sum(e.steps for e in self._entries.values() if not isinstance(e.release, WholeDataRelease))

    def check(self, release: AnyRelease) -> None:
        """Raises ValueError where the release has another neighbouring relation, or unit, than the ledger."""
        if self.relation not in (None, release.relation):
            raise ValueError(
                f"This ledger counts under {self.relation.name}, but {release.drawn!r} is accounted under"
                f" {release.relation.name}: an epsilon over both would mean nothing. Use a sampling of the same"
                " relation, or a new ledger (and report two guarantees)."
            )
        if self.unit not in (None, release.unit):
            raise ValueError(
                f"This ledger protects one {self.unit}, but {release.kind!r} releases protect one {release.unit}: an"
                " epsilon over both would mean nothing. Use a new ledger (and report two guarantees)."
            )

    def begin(self, release: AnyRelease) -> str:
        """Starts a segment of updates and returns its token. Nothing is counted or written yet.

        An equal release goes on in the entry that this object opened for it, unless its cost depends on the place in an
        epoch (Partition: a fresh permutation starts).

        Raises:
          ValueError: the release has another neighbouring relation than the ledger.
        """
        self.check(release)
        with self._threads:
            self._notice_fork()
            entry = secrets.token_hex(16)
            if not release.sequential:
                entry = next((uid for uid in self._own if self._entries[uid].release == release), entry)
            token = secrets.token_hex(16)
            self._segments[token] = Segment(release, entry)
            return token

    def reserve(self, token: str, steps: int) -> None:
        """Counts `steps` updates of a segment, on disk too, before they are made. Reservations add up.

        Raises:
          LedgerError: the file cannot be written, another ledger holds it, or this is a copy of the ledger of a data
            set. The updates must not be made then.
          BudgetExhausted: they would exceed the data set's budget; nothing is counted.
          ValueError: an unknown token, a count that is not a non-negative integer, or a relation that does not match.
        """
        steps = checked_count("steps", steps)
        with self._threads:
            segment = self._ready(token)
            segment.require(self._entries, self.budget, steps, self.dataset)
            segment.outstanding += steps
            self._add(segment, steps)

    def require(self, token: str, steps: int = 1) -> None:
        """Takes the lock of the file, and raises as `reserve(token, steps)` would; counts nothing."""
        steps = checked_count("steps", steps)
        with self._threads:
            self._ready(token).require(self._entries, self.budget, steps, self.dataset)

    def affordable(self, token: str, steps: int) -> int:
        """Returns how many of `steps` further updates of a segment the data set's budget affords: all without one.

        Raises: as `reserve`, but for BudgetExhausted.
        """
        steps = checked_count("steps", steps)
        with self._threads:
            return self._ready(token).affordable(self._entries, self.budget, steps)

    def settle(self, token: str, made: int) -> None:
        """Replaces the outstanding reservation of a segment by the updates made; more than reserved are counted too.

        Raises:
          LedgerError: the file cannot be written; it then still holds the reservation.
          ValueError: an unknown token or a count that is not a non-negative integer.
        """
        made = checked_count("made", made)
        with self._threads:
            segment = self._ready(token)
            unused, segment.outstanding = segment.outstanding - made, 0
            self._add(segment, -unused)

    def holds(self, other: "Ledger") -> bool:
        """Whether a merge of `other` would change nothing."""
        mine = self._entries
        return all(uid in mine and mine[uid].steps >= entry.steps for uid, entry in other._entries.items())

    def entry_of(self, token: str) -> Entry | None:
        """The entry that counts a segment's updates; None before the first. Raises ValueError for an unknown token."""
        if token not in self._segments:
            raise ValueError(f"Unknown token {token!r}. Use the one that this ledger's begin() returned.")
        return self._entries.get(self._segments[token].entry)

    def merge(self, other: "Ledger") -> None:
        """Takes over what `other` counted: entries of both keep the larger count, all others are added.

        Never refused for a budget: it was spent. An unnamed ledger in memory that takes over the ledger of a data set
        becomes a copy of it.

        Raises:
          ValueError: the neighbouring relations differ, or the data sets.
          LedgerError: the file cannot be written, or another ledger holds it.
        """
        with self._threads:
            self._notice_fork()
            self._identity.refuse_costs_of(other._identity, self.path)
            for entry in other.entries:
                self.check(entry.release)
            self._lock()
            self._absorb(other.entries)
            if self.dataset is None and other.dataset is not None:
                self._identity = replace(self._identity, dataset=other.dataset, budget=other.budget)
                self._is_copy = True
            self._write()

    def copy(self) -> "Ledger":
        """Returns a snapshot in memory, without the file and the open segments."""
        return self.from_json(self.to_json())

    def as_published(self) -> "Ledger | None":
        """Returns a copy in memory whose releases are accounted as their publications do; None where all are so.

        What it costs is a nominal figure, not a guarantee: see `Release.nominal_noise_multiplier`.
        """
        releases = {
            uid: getattr(e.release, "as_published", lambda e=e: e.release)() for uid, e in self._entries.items()
        }
        if all(entry.release == releases[uid] for uid, entry in self._entries.items()):
            return None
        copied = Ledger()
        copied._entries = {uid: replace(entry, release=releases[uid]) for uid, entry in self._entries.items()}
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles are snapshots: two objects must never write one file or share an entry.
        return Ledger.from_json, (self.to_json(),)

    def to_json(self) -> str:
        """Returns the ledger as JSON text, one entry a line."""
        return write_ledger(self._identity, self._entries, self._text)

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Returns a ledger in memory from what `to_json` wrote.

        Raises:
          LedgerError: the text is not a whole, valid ledger of this format.
        """
        ledger = cls()
        ledger._identity, ledger._entries = read_ledger(text, None)
        ledger._is_copy = ledger.dataset is not None
        return ledger

    def close(self) -> None:
        """Releases the lock on the file. A later reservation takes it again."""
        if self._file is not None:
            self._file.unlock()

    def __repr__(self) -> str:
        relation = self.relation.name if self.relation else None
        named = f", dataset={self.dataset!r}" if self.dataset is not None else ""
        return (
            f"Ledger(path={str(self.path)!r}{named}, entries={len(self._entries)}, steps={self.steps},"
            f" relation={relation})"
        )

    def _text(self, entry: Entry) -> str:
        if entry.uid not in self._texts:  # Written at every step, so encoded once.
            self._texts[entry.uid] = release_text(entry.release)
        return self._texts[entry.uid]

    def _ready(self, token: str) -> Segment:
        """The segment, after all that must hold before anything is counted in it."""
        self._notice_fork()
        if token not in self._segments:
            raise ValueError(f"Unknown token {token!r}. Use the one that this ledger's begin() returned.")
        segment = self._segments[token]
        self._refuse_copy()
        self.check(segment.release)
        self._lock()
        return segment

    def _notice_fork(self) -> None:
        """In a forked process: new entries, and a lock of its own, since the other process goes on with the old."""
        if os.getpid() == self._process:
            return
        self._process = os.getpid()
        self._own.clear()
        for segment in self._segments.values():
            segment.restart(secrets.token_hex(16))
        if self._file is not None:
            self._file.unlock()

    def _refuse_copy(self) -> None:
        if self._is_copy:
            raise LedgerError(
                f"This is a copy of the ledger of the data set {self.dataset!r}: what it counted would be missing in"
                f" the data set's own. Assign that one: model.ledger = Ledger(path, dataset={self.dataset!r})."
            )

    def _name(self, dataset: str | None, budget: Any) -> None:
        """Keeps the name and the budget, in the file too; refuses others than it has."""
        wanted = None if budget is None else Budget.of(budget)
        if self._identity.named(dataset, wanted, self.path) == self._identity:
            return  # Reading needs no lock.
        held = self._lock()
        self._identity = self._identity.named(dataset, wanted, self.path)
        self._write()
        if held:
            self.close()

    def _add(self, segment: Segment, steps: int) -> None:
        entry = self._entries.get(segment.entry)
        if (entry is None and steps <= 0) or (steps == 0 and not self._unwritten):
            return
        self._own.add(segment.entry)
        total = steps + (entry.steps if entry else 0)
        self._entries[segment.entry] = Entry(segment.release, total, segment.entry)
        self._write()

    def _absorb(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            mine = self._entries.get(entry.uid)
            if mine is not None and mine.release != entry.release:
                raise LedgerError(f"Entry {entry.uid} describes two different releases: one of the ledgers was edited.")
            if mine is None or mine.steps < entry.steps:
                self._entries[entry.uid] = entry

    def _lock(self) -> bool:
        """Takes the file's lock, and what another ledger wrote since the file was read; returns whether it did."""
        if self._file is None or not self._file.lock():
            return False
        text = self._file.read()
        if text is not None:
            identity, entries = read_ledger(text, self._file.path)
            if self.dataset is not None and identity.dataset != self.dataset:
                raise LedgerError(f"{self.path} was replaced by a ledger of the data set {identity.dataset!r}.")
            for entry in entries.values():
                self.check(entry.release)
            self._identity = identity
            self._absorb(entries.values())
        return True

    def _write(self) -> None:
        if self._file is not None:
            self._unwritten = True
            self._file.write(self.to_json())
            self._unwritten = False
