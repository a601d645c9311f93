"""The entries of a ledger: counters by name, and what they add up to."""

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.accounting.releases import AnyRelease

__all__ = ["Entries", "Entry", "Row"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Consecutive equal releases.

    Attributes:
        release: what each of them reveals.
        steps: how many were made or reserved.
        uid: names this counter; only the ledger object that opened an entry ever adds to it.
    """

    release: AnyRelease
    steps: int
    uid: str

    @property
    def charges(self) -> int:
        """How many of the release's events they cost."""
        return self.release.charges(self.steps)


class Row:
    """One release, however many entries count it, and what they cost together.

    Attributes:
        release: equal releases of a ledger are this one object.
        index: its place in the table of releases.
        event: what one charge costs.
        charges: how many such events all its entries cost.
        updates: how many steps of an optimizer, or tests of a party, one of it is.
    """

    def __init__(self, release: AnyRelease, index: int) -> None:
        self.release, self.index, self.charges = release, index, 0
        self.updates = release.updates
        self._each = None if release.sequential else release.charges(1)

    @functools.cached_property
    def event(self) -> DpEvent:
        return self.release.event()

    def cost(self, steps: int) -> int:
        """The charges of `steps` consecutive releases of one entry."""
        return self.release.charges(steps) if self._each is None else steps * self._each


class Entries:
    """Entries by name, oldest first. What is asked at every step is added up as they change, never by a walk over them.

    Attributes:
        steps: releases of all entries.
        updates: steps of an optimizer, and tests of a party; of a search, those that its best trial made at most.
    """

    def __init__(self) -> None:
        self.steps = self.updates = 0
        self._entries: dict[str, Entry] = {}
        self._rows: dict[AnyRelease, Row] = {}
        self._changes: defaultdict[str, int] = defaultdict(int)
        self._all_changes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, uid: Any) -> bool:
        return uid in self._entries

    def get(self, uid: str) -> Entry | None:
        """The entry of this name; None where there is none."""
        return self._entries.get(uid)

    @property
    def rows(self) -> Collection[Row]:
        """The distinct releases, in the order in which they first came."""
        return self._rows.values()

    def row(self, release: AnyRelease) -> Row:
        """The row of an equal release, made where there is none."""
        row = self._rows.get(release)
        if row is None:
            row = self._rows[release] = Row(release, len(self._rows))
        return row

    def refuse_mixing(self, release: AnyRelease) -> None:
        """Raises ValueError where a release has another neighbouring relation or unit than these."""
        first = next((row.release for row in self._rows.values()), release)
        if first.unit != release.unit:
            raise ValueError(
                f"This ledger protects one {first.unit}, but {release.kind!r} releases protect one {release.unit}: an"
                " epsilon over both would mean nothing. Give unit_ids=... in every call on these records, to fit,"
                " quantiles, vocabulary, release_metric and adapt alike, or in none, and owners=... likewise; or use a"
                " new ledger (and report two guarantees)."
            )
        if first.relation is not release.relation:
            raise ValueError(
                f"This ledger counts under {first.relation.name}, but {release.drawn!r} is accounted under"
                f" {release.relation.name}: an epsilon over both would mean nothing. Use a sampling of the same"
                " relation, or a new ledger (and report two guarantees)."
            )

    def put(self, uid: str, row: Row, steps: int) -> Entry:
        """Sets how many releases an entry counts, in constant time; `row` is that of its release."""
        old = self._entries.get(uid)
        before = old.steps if old else 0
        row.charges += row.cost(steps) - (row.cost(before) if before else 0)
        self.steps += steps - before
        self.updates += (steps - before) * row.updates
        entry = self._entries[uid] = Entry(row.release, steps, uid)
        self._changes[uid] += 1
        self._all_changes += 1
        return entry

    def absorb(self, others: Iterable[Entry]) -> list[Entry]:
        """Takes entries over, of two of one name the one that counts more; returns those that changed something here.

        Raises:
            LedgerError: two of one name are of different releases.
        """
        ahead = []
        for entry in others:
            mine = self._entries.get(entry.uid)
            if mine is not None and mine.release is not entry.release and mine.release != entry.release:
                raise LedgerError(
                    f"Entry {entry.uid} describes two different releases: one of the ledgers was edited. Use the one"
                    " that was not, or a backup."
                )
            if mine is None or mine.steps < entry.steps:
                ahead.append(entry)
        return [self.put(entry.uid, self.row(entry.release), entry.steps) for entry in ahead]

    def as_published(self) -> "Entries | None":
        """The same, accounted as the publications of the methods do; None where all are so."""
        published = {id(row.release): row.release.as_published() for row in self.rows}
        if all(published[id(row.release)] == row.release for row in self.rows):
            return None
        copied = Entries()
        for entry in self:
            copied.put(entry.uid, copied.row(published[id(entry.release)]), entry.steps)
        return copied

    def events(self, but: str | None = None) -> Counter[DpEvent]:
        """How often each event was released, by all entries `but` the one of this name."""
        counts: Counter[DpEvent] = Counter()
        for row in self._rows.values():
            counts[row.event] += row.charges
        left_out = None if but is None else self._entries.get(but)
        if left_out is not None:
            row = self.row(left_out.release)
            counts[row.event] -= row.cost(left_out.steps)
        return +counts

    def changes(self, but: str) -> int:
        """A number that changes whenever an entry other than this one does."""
        return self._all_changes - self._changes.get(but, 0)
