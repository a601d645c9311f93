"""The written history of a ledger: its file, the log in it, and the mark that tells an older copy from the newest."""

import os
from dataclasses import dataclass
from pathlib import Path

from tfdp_layers.accounting.entries import Entries, Entry
from tfdp_layers.accounting.identity import Identity
from tfdp_layers.accounting.ledger_format import CLOSING, Content, log_row, read_ledger, release_text, write_ledger
from tfdp_layers.accounting.mark import Mark, read_mark, refuse_loss
from tfdp_layers.accounting.storage import LedgerError, LedgerFile, Stamp

__all__ = ["History", "News"]

_SHORTEST_LOG = 1000
_LOG_PART = 4
_LOOKS = 10
"""So often a reader without a lock looks again where a writer changed the file meanwhile."""


@dataclass(frozen=True)
class News:
    """What a ledger's file holds, and its stamp; no content where there is no file.

    Attributes:
        follows: whether it goes on from what was last read or written here, row after row: it is no older copy that was
            put back, and none that others went on from.
    """

    content: Content | None
    stamp: Stamp
    follows: bool


class History:
    """Writes a ledger so that a crash may over-count it and never under-counts, and so that losses show.

    A change is one row at the end of the file, on the disk before `write` returns; then the mark follows, which is
    therefore never ahead of the file. When the log is long the file is replaced by one with an empty log, which names
    the state that its mark, on the disk by then, tells of. So a file always shows the state that its own mark tells of:
    as the one it names, as that without its log, or after a row of it. One that does not is no successor of it.

    Args:
        path: of the ledger.
        writable: whether anything is to be written.

    Raises:
        LedgerError: nothing can be written there.
    """

    def __init__(self, path: str | os.PathLike[str], writable: bool = True) -> None:
        self._file = LedgerFile(path, writable)
        self._sequence = 0
        self._uid = ""
        self._digest = ""
        self._end: int | None = None
        self._logged = 0
        self._releases = 0
        self._mark = Mark()  # that is on the disk; it is read whenever the locks are taken
        self._stamp: Stamp = None

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def held(self) -> bool:
        """Whether the locks were taken and not given back."""
        return self._file.held

    @property
    def written(self) -> bool:
        """Whether the file is there and of this version's format."""
        return self._sequence > 0

    def load(self) -> Content | None:
        """Reads the file, without a lock; None where there is none.

        Raises:
            LedgerError: it is not a whole ledger, or lacks what its mark says that it counted.
        """
        content, stamp = self._look()
        self._note(content, stamp)
        return content

    def peek(self) -> Content:
        """Reads the file wherever it is, and the mark if there is one. Raises LedgerError."""
        content, _ = self._look(without_mark=True)
        if content is None:
            raise LedgerError(f"There is no ledger {self.path}.")
        return content

    def lock(self, whatever: bool = False) -> bool:
        """Keeps other writers out from here on; returns whether the locks had to be taken. Read `news` then.

        Args:
            whatever: is missing, as in `accept`.

        Raises:
            LedgerError: another ledger holds them, or there is a ledger whose mark is missing.
        """
        if self._file.keeps_out_others and self._file.stamp() == self._stamp:
            return False
        if not self._sequence and not whatever:
            self._look()  # Taking the lock makes a mark: here one that is missing still shows.
        self._file.lock()
        return True

    def news(self) -> "News | None":
        """Under the lock, what the file holds; None where that is what was last read or written. Then `go_on` from it.

        Raises:
            LedgerError: it is not a whole ledger, it is another one, or it lacks what its mark tells of and what is not
                known here either.
        """
        stamp, mark = self._file.stamp(), self._read_mark() or Mark()
        self._mark = mark
        if stamp == self._stamp and mark.sequence <= self._sequence:
            return None
        content = self._read()[1]
        self._refuse_another(content)
        if mark.uid != self._uid or mark.sequence > self._sequence:
            refuse_loss(mark, content, self.path)
        return self._news(content, stamp)

    def glance(self) -> "News | None":
        """Without a lock, what the file holds; None where that is what was last read or written, or it is gone.

        Raises: LedgerError: as `news`.
        """
        if self._file.stamp() == self._stamp:
            return None
        content, stamp = self._look(without_mark=True, known=True)
        self._refuse_another(content)
        return None if content is None else self._news(content, stamp)

    def go_on(self, news: "News") -> bool:
        """Goes on from what the file holds, which is known here by now; returns whether it lacks what was written."""
        known = self._sequence
        self._note(news.content, news.stamp)
        if self._sequence >= known:
            return False
        self._sequence, self._end = known, None
        return True

    def accept(self) -> Content | None:
        """Under the lock, what the file holds, whatever its mark says; the next `write` makes it the newest."""
        try:
            mark = self._read_mark() or Mark()
        except LedgerError:
            mark = Mark()
        text = self._file.read()[1]
        content = None if text is None else read_ledger(text, self.path)
        self._note(content, None)
        self._sequence, self._end, self._mark = max(self._sequence, mark.sequence), None, Mark()
        return content

    def write(self, identity: Identity, entries: Entries, changed: Entry | None = None) -> bool:
        """Writes what changed since the last `write`: one entry, or (None) anything. Raises LedgerError.

        Returns: whether it was the entry as it was given here, and not all as they are in `entries`.
        """
        self._uid = identity.uid
        end, self._end = self._end, None  # Until it is written for certain, the file must be rewritten.
        longest = max(_SHORTEST_LOG, len(entries) // _LOG_PART)
        whole = changed is None or end is None or self._logged >= longest or self._mark.sequence != self._sequence
        if changed is None or end is None or whole:
            self._file.sync_mark()
            # A crash left a mark that is behind: one number is left out where the next would be written over it.
            sequence = self._sequence + 1 + (self._sequence - self._mark.sequence) % 2
            text, self._digest = write_ledger(identity, entries, sequence, self._mark.state)
            self._file.replace(text)
            end, self._logged, self._sequence = len(text) - len(CLOSING), 0, sequence
        else:
            number = entries.row(changed.release).index
            release = number if number < self._releases else release_text(changed.release)
            row, self._digest = log_row(changed.uid, release, changed.steps, self._digest)
            added = (",\n" if self._logged else "\n") + row
            self._file.append(added, end, CLOSING)
            end, self._logged, self._sequence = end + len(added), self._logged + 1, self._sequence + 1
        self._releases = len(entries.rows)
        mark = Mark(identity.uid, self._sequence, self._digest, steps=entries.steps)
        if self._mark.sequence:
            self._file.write_mark(mark.place, mark.line())
        else:
            self._file.write_first_mark(mark.whole_file())
        self._end, self._mark, self._stamp = end, mark, self._file.stamp()
        return not whole

    def unlock(self) -> None:
        """Lets other writers in."""
        self._file.unlock()

    def forget(self) -> None:
        """In a forked process: the locks stay with the other process."""
        self._file.forget()

    def _news(self, content: Content | None, stamp: Stamp) -> News:
        if content is None or content.sequence <= self._sequence:
            return News(content, stamp, follows=False)
        return News(content, stamp, follows=content.shows(self._sequence, self._digest) is True)

    def _refuse_another(self, content: Content | None) -> None:
        if self._uid and content is not None and content.identity.uid != self._uid:
            raise LedgerError(
                f"{self.path} was replaced by another ledger while this one was open. Put the file back, or open the"
                " one that is there with Ledger(path) and merge this one: other.merge(ledger)."
            )

    def _look(self, without_mark: bool = False, known: bool = False) -> tuple[Content | None, Stamp]:
        """The file and its stamp, checked against the mark, without a lock.

        Args:
            without_mark: a mark may be missing.
            known: what the mark tells of may be missing, as long as it is known here.
        """
        for left in reversed(range(_LOOKS)):
            stamp = self._file.stamp()
            try:
                mark, content = self._read()
                here = known and mark is not None and mark.uid == self._uid and mark.sequence <= self._sequence
                if not here and (mark is not None or not without_mark):
                    refuse_loss(mark, content, self.path)
                return content, stamp
            except LedgerError:
                if not left or self._file.stamp() == stamp:  # No writer came in between the two files.
                    raise
        raise AssertionError("unreachable")

    def _read_mark(self) -> Mark | None:
        data = self._file.read_mark()
        return None if data is None else read_mark(data, self.path)

    def _read(self) -> tuple[Mark | None, Content | None]:
        data, text = self._file.read()
        mark = None if data is None else read_mark(data, self.path)
        return mark, None if text is None else read_ledger(text, self.path)

    def _note(self, content: Content | None, stamp: Stamp) -> None:
        """Remembers where the file stands."""
        self._stamp, self._sequence, self._end = stamp, 0, None
        if content is not None:
            self._uid, self._sequence, self._end = content.identity.uid, content.sequence, content.end
            self._digest, self._logged = content.digests[-1], len(content.digests) - 1
            self._releases = len(content.entries.rows)
