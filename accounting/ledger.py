"""The ledger: what was released so far, in memory or in one JSON file. It may over-count after a crash, never under."""

import json
import os
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_accounting import NeighboringRelation

from tfdp_layers.accounting.events import AnyRelease, release_from_json
from tfdp_layers.accounting.storage import LedgerError, LedgerFile

__all__ = ["Entry", "Ledger", "LedgerError"]

_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """Consecutive updates of one release.

    Attributes:
      release: what each update released.
      steps: updates made or reserved.
      uid: names this counter; only the ledger object that opened an entry ever adds to it.
    """

    release: AnyRelease
    steps: int
    uid: str

    @property
    def charges(self) -> int:
        """How many of the release's events the updates cost."""
        return self.release.charges(self.steps)


@dataclass
class _Segment:
    """An open segment: where its updates are counted, and how many of those are reserved but not settled."""

    release: AnyRelease
    entry: str
    outstanding: int = 0


class Ledger:
    """Counts the updates of each release; the accountants read it.

    Updates are counted BEFORE they are made (`reserve`) and corrected afterwards (`settle`): a crash in between
    over-counts. Each entry is a counter with one writer and only grows (but for the return of unused reservations),
    so a merge (the union of entries, the larger count of each) can neither rewind nor lose a step, even of two ledgers
    that both went on from one copy. A loaded ledger therefore opens new entries.

    Args:
      path: a JSON file, read now and rewritten atomically at every change; None keeps the ledger in memory. From the
        first reservation on the file is locked against other ledgers until `close` or the end of the process.
    Raises:
      LedgerError: the file exists but is not a whole, valid ledger (it is left as it is), or cannot be written there.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._file = None if path is None else LedgerFile(path)
        self._uid = secrets.token_hex(16)
        self._entries: dict[str, Entry] = {}
        self._segments: dict[str, _Segment] = {}
        self._threads = threading.RLock()
        self._own: set[str] = set()
        self._texts: dict[str, str] = {}
        if self._file is not None:
            text = self._file.read()
            if text is not None:
                self._uid, self._entries = _parse(text, self._file.path)

    @property
    def uid(self) -> str:
        """Random name of this ledger, kept by its copies and its file."""
        return self._uid

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
        """Updates of all entries, made or reserved."""
        return sum(entry.steps for entry in self._entries.values())

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
        entry = secrets.token_hex(16)
        if not release.sequential:
            entry = next((uid for uid in self._own if self._entries[uid].release == release), entry)
        token = secrets.token_hex(16)
        self._segments[token] = _Segment(release, entry)
        return token

    def reserve(self, token: str, steps: int) -> None:
        """Counts `steps` updates of a segment, on disk too, before they are made. Reservations add up.

        Raises:
          LedgerError: the file cannot be written, or another ledger holds it. The updates must not be made then.
          ValueError: an unknown token, a count that is not a non-negative integer, or a relation that does not match.
        """
        steps = _count("steps", steps)
        with self._threads:
            segment = self._segment(token)
            self.check(segment.release)
            self._lock()
            segment.outstanding += steps
            self._add(segment, steps)

    def settle(self, token: str, made: int) -> None:
        """Replaces the outstanding reservation of a segment by the updates made; more than reserved are counted too.

        Raises:
          LedgerError: the file cannot be written; it then still holds the reservation.
          ValueError: an unknown token or a count that is not a non-negative integer.
        """
        made = _count("made", made)
        with self._threads:
            segment = self._segment(token)
            self._lock()
            unused, segment.outstanding = segment.outstanding - made, 0
            self._add(segment, -unused)

    def merge(self, other: "Ledger") -> None:
        """Takes over what `other` counted: entries of both keep the larger count, all others are added.

        Raises:
          ValueError: the neighbouring relations differ.
          LedgerError: the file cannot be written, or another ledger holds it.
        """
        with self._threads:
            for entry in other.entries:
                self.check(entry.release)
            self._lock()
            self._absorb(other.entries)
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
        lines = [f'{{"uid": "{e.uid}", "steps": {e.steps}, "release": {self._text(e)}}}' for e in self.entries]
        return f'{{"format": {_FORMAT}, "uid": "{self._uid}", "entries": [\n' + ",\n".join(lines) + "\n]}\n"

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Returns a ledger in memory from what `to_json` wrote.

        Raises:
          LedgerError: the text is not a whole, valid ledger of this format.
        """
        ledger = cls()
        ledger._uid, ledger._entries = _parse(text, None)
        return ledger

    def close(self) -> None:
        """Releases the lock on the file. A later reservation takes it again."""
        if self._file is not None:
            self._file.unlock()

    def __repr__(self) -> str:
        relation = self.relation.name if self.relation else None
        return f"Ledger(path={str(self.path)!r}, entries={len(self._entries)}, steps={self.steps}, relation={relation})"

    def _text(self, entry: Entry) -> str:
        if entry.uid not in self._texts:  # Written at every step, so encoded once.
            self._texts[entry.uid] = json.dumps(entry.release.to_json(), allow_nan=False)
        return self._texts[entry.uid]

    def _segment(self, token: str) -> _Segment:
        if token not in self._segments:
            raise ValueError(f"Unknown token {token!r}. Use the one that this ledger's begin() returned.")
        return self._segments[token]

    def _add(self, segment: _Segment, steps: int) -> None:
        entry = self._entries.get(segment.entry)
        if entry is None and steps <= 0:
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

    def _lock(self) -> None:
        """Takes the file's lock, and what another ledger wrote since the file was read."""
        if self._file is not None and self._file.lock():
            text = self._file.read()
            if text is not None:
                self._uid, entries = _parse(text, self._file.path)
                for entry in entries.values():
                    self.check(entry.release)
                self._absorb(entries.values())

    def _write(self) -> None:
        if self._file is not None:
            self._file.write(self.to_json())


def _parse(text: str, path: Path | None) -> tuple[str, dict[str, Entry]]:
    try:
        return _read(text)
    except (ValueError, RecursionError) as error:
        raise LedgerError(
            f"{path or 'This text'} is not a ledger that can be trusted: {error}. It was left as it is. Restore it from"
            " a backup; a new ledger forgets what was spent, and every epsilon stated from it would be too small."
        ) from error


def _read(text: str) -> tuple[str, dict[str, Entry]]:
    value = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        received = value.get("format") if isinstance(value, dict) else value
        raise ValueError(f"its format is {received!r}, and this version reads format {_FORMAT}")
    if set(value) != {"format", "uid", "entries"} or not isinstance(value["entries"], list):
        raise ValueError(f"it needs the fields format, uid and entries (a list), and has {sorted(value)}")
    entries: dict[str, Entry] = {}
    for item in value["entries"]:
        if not isinstance(item, dict) or set(item) != {"uid", "steps", "release"}:
            raise ValueError(f"an entry needs uid, steps and release, and is {item!r}")
        uid = _checked_uid(item["uid"])
        if uid in entries:
            raise ValueError(f"entry {uid} occurs twice")
        entries[uid] = Entry(release_from_json(item["release"]), _count("steps", item["steps"]), uid)
    if len({(entry.release.relation, entry.release.unit) for entry in entries.values()}) > 1:
        raise ValueError("its entries mix neighbouring relations")
    return _checked_uid(value["uid"]), entries


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no number")


def _checked_uid(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"a uid must be 32 hexadecimal digits, and is {value!r}")
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 0:
        raise ValueError(f"{name} must be an integer of at least 0. Received: {value!r}.")
    return int(value.__index__())
