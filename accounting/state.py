"""What a ledger holds, in memory and in its file: whose it is, and its entries."""

import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tfdp_layers.accounting.elsewhere import (
    follow_entries,
    follows_entries,
    forked_error,
    own_release_error,
    worker_error,
)
from tfdp_layers.accounting.entries import Entries, Entry
from tfdp_layers.accounting.grouping import groupings_known, know_groupings, new_secret
from tfdp_layers.accounting.history import History, News
from tfdp_layers.accounting.holders import charged_in_memory, counted_in_memory, for_a_moment, let_go, taken_over
from tfdp_layers.accounting.identity import Identity
from tfdp_layers.accounting.ledger_format import Content, read_ledger, write_ledger
from tfdp_layers.accounting.locked_file import LedgerError, LockedElsewhereError
from tfdp_layers.accounting.remarks import KEPT, RESTORED
from tfdp_layers.caller import warn
from tfdp_layers.instances import refuse_other_kind

__all__ = ["State"]

_LONGEST, _WRITES, _PAUSE = 5.0, 2.0, 0.01
"""Seconds for which a file is asked for that threads take again and again, or that another process is writing first,
and that one needs to have let go of it."""


class State:
    """Identity and entries of a ledger, kept in a file where there is one.

    Attributes:
        identity, entries: of the ledger.
        is_copy: of the ledger of a data set, or of a file that was looked at: it may not be charged. So is what a
            forked process has of a ledger in memory that was made before the fork, and the ledger of a model on a
            worker that is not the chief.
        forked: whether it is what a forked process has.
        follows: whether it is that of such a worker, or holds what one holds: see `elsewhere.follows_entries`.
        unwritten: whether something here is not in the file yet.
        lasting: whether what is charged here must be kept: not of plans, nor of what another ledger counts as well.

    Args:
        path: of the file; None keeps all in memory.
        restored: see `Ledger`.

    Raises:
        LedgerError: see `Ledger`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, restored: bool = False) -> None:
        self.identity = Identity(secrets.token_hex(16), secret=new_secret())
        self.entries = Entries()
        self._copied = self.forked = self._follows = self._told = False
        self.unwritten, self.lasting = False, True
        self._history = None if path is None else History(path)
        self._counted: dict[str, int] = {}  # by the file, where that may be more than here
        self._mine: set[str] = set()  # the entries that this ledger counts: nobody else makes them more, or fewer
        if self._history is not None:
            self._adopt(self._opened(self._history, restored))

    @classmethod
    def of(cls, content: Content) -> "State":
        """In memory, what the text of a ledger says: a copy, where it is the ledger of a data set."""
        state = cls()
        state._adopt(content)
        state._copied = state.identity.dataset is not None
        return state

    @classmethod
    def from_text(cls, text: str) -> "State":
        """In memory, from what `text` returned. Raises LedgerError, and ValueError for what is no text."""
        refuse_other_kind(text, str, "What from_json reads", "the text that to_json wrote; of a file Ledger.read(path)")
        return cls.of(read_ledger(text, None))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "State":
        """In memory, a copy of a file that is looked at and nothing else. Raises LedgerError."""
        state, history = cls(), History(path, writable=False)
        state._adopt(history.peek())
        state.identity, state._copied = state.identity.copied(history.path), True
        return state

    @property
    def follows(self) -> bool:
        return self._follows or follows_entries(self.identity, self.entries, self._history is not None)

    @property
    def is_copy(self) -> bool:
        return self._copied or self.follows

    @property
    def held(self) -> bool:
        """Whether it keeps other writers out of its file."""
        return self._history is not None and self._history.held

    @property
    def path(self) -> Path | None:
        """The file, or None in memory."""
        return None if self._history is None else self._history.path

    def text(self) -> str:
        """The text of a copy: without the secret."""
        return write_ledger(self.identity.copied(self.path), self.entries)[0]

    def lock(self) -> None:
        """Keeps other writers out of the file, and takes what they wrote since it was read. Raises LedgerError."""
        if self._history is None:
            return
        taken = self._taken(self._history)
        try:
            if taken and (news := self._history.news()):
                self._learn(self._history, news)
        except BaseException:
            self._history.unlock()
            raise

    def look(self) -> None:
        """Where another may write the file, takes over what it wrote, without a lock. Raises LedgerError."""
        if self._history is not None and not self._history.held and (news := self._history.glance()):
            self._learn(self._history, news)

    def count(self, entry: Entry, ahead: int = 0) -> None:
        """Under the lock, has the file count an entry that changed. Raises LedgerError.

        Args:
            ahead: how many more releases the file counts, when it is written: it is not written again for these.
        """
        self._mine.add(entry.uid)
        if self._history is None and self.lasting:
            counted_in_memory(entry)
        if self.identity.copy_of:
            self.identity = replace(self.identity, apart=self.identity.copy_of)
        if ahead and not self.unwritten and entry.steps <= self._counted.get(entry.uid, 0):
            return
        self.write(replace(entry, steps=entry.steps + ahead))

    def give_back(self, uid: str) -> None:
        """Under the lock, has the file count no more releases of an entry than are counted here. Raises LedgerError."""
        entry = self.entries.get(uid)
        if entry is not None and self._counted.get(uid, 0) > entry.steps:
            self.write(entry)

    def write(self, changed: Entry | None = None) -> None:
        """Under the lock, writes one entry that changed, or (None) all. Raises LedgerError."""
        if self._history is not None:
            # With what did not reach the file before.
            changed, self.unwritten = None if self.unwritten else changed, True
            alone = self._history.write(self.identity, self.entries, changed)
            self.unwritten = False
            taken_over(self.entries if changed is None else [changed])
            if alone and changed is not None:
                self._counted[changed.uid] = changed.steps
            else:
                self._counted.clear()

    def rename(self, change: Callable[[Identity], Identity]) -> None:
        """Changes the identity, in the file too. Raises LedgerError, and what `change` raises."""
        if self.held:
            self._rename(change)
            return
        with for_a_moment(self.path):
            try:
                self._rename(change)
            finally:
                self.unlock()

    def name(self, change: Callable[[Identity], Identity]) -> None:
        """As `rename`, of what other processes may be writing too: where the file says it already, no lock is needed.

        The others write it within `_WRITES`, and may keep the file after that, as long as a training takes.
        """
        until = time.monotonic() + _WRITES
        while change(self.identity) != self.identity:
            try:
                return self.rename(change)
            except LockedElsewhereError:
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)
                self.look()

    def _rename(self, change: Callable[[Identity], Identity]) -> None:
        self.lock()
        self.identity = change(self.identity)
        self.write()

    def note(self, kinds: Iterable[str]) -> None:
        """Has statements say this of trainings, of the file too. Raises LedgerError: then the next write brings it."""
        noted = self.identity.noting(kinds)
        if noted != self.identity:
            self.identity, self.unwritten = noted, self._history is not None
            self.rename(lambda identity: identity.noting(kinds))

    def know(self, groupings: Iterable[str]) -> None:
        """Keeps which records belong together, in the file as well when it is written next."""
        self.unwritten |= know_groupings(self.identity.uid, groupings) and self._history is not None

    def merge(self, other: "State") -> None:
        """Under the lock, takes over entries, and of a copy whose it is one. Raises LedgerError."""
        self.know(groupings_known(other.identity.uid))
        changed = self.entries.absorb(other.entries)
        self._keep_followed()
        noted = self.identity.noting(other.identity.noted - (set() if changed else {KEPT}))
        if noted != self.identity:
            self.identity, self.unwritten = noted, self._history is not None
        if self._history is None:
            taken = self.identity.taking(other.identity, other.path)
            self._copied |= taken.dataset != self.identity.dataset
            self.identity = taken
        if changed or self.unwritten or (self._history is not None and not self._history.written):
            self.write(changed[0] if len(changed) == 1 else None)

    def unlock(self) -> None:
        """Lets other writers in."""
        if self._history is not None:
            self._history.unlock()

    def fork(self) -> None:
        """In a forked process: the lock stays with the other process, and so do the entries that it counts.

        So does a ledger that is in no file: the other process, whose models and parties state by it, never sees what
        is counted here.
        """
        self._mine.clear()
        if self._history is not None:
            self._history.forget()
        elif not self.is_copy:
            self._copied = self.forked = True

    def follow(self) -> None:
        """From here on it is a copy of the ledger of the chief, on another worker."""
        self._follows = True
        self._keep_followed()

    def _keep_followed(self) -> None:
        if self._follows:
            follow_entries(entry.uid for entry in self.entries)

    def refuse_own(self, other: "State") -> None:
        """Raises LedgerError where this is a worker's copy of the chief's ledger, and the other counts what that worker
        itself released into a ledger in memory: the two don't go together."""
        own = charged_in_memory() if self.follows else {}
        held = {one.uid: one.steps for one in self.entries} if own else {}
        if any(one.uid in own and one.steps > held.get(one.uid, 0) for one in other.entries):
            raise own_release_error(self.identity)

    def refuse_copy(self) -> None:
        """Raises LedgerError where this may not be charged. Warns, once, where a file that it copies will lack it."""
        if not self.is_copy:
            self._warn_of_copy()
            return
        name = self.identity.dataset
        if self.follows:
            raise worker_error(self.identity)
        if self.forked:
            raise forked_error(self.identity)
        of = "a file" if name is None else f"the ledger of the data set {name!r}"
        raise LedgerError(
            f"This is a copy of {of}, which would lack what the copy counts. Assign the ledger itself: model.ledger"
            f" = tfdp.accounting.Ledger(path{'' if name is None else f', dataset={name!r}'})."
        )

    def _warn_of_copy(self) -> None:
        if self._told or not self.identity.copy_of or self.identity.dataset is not None:
            return
        name, *others = sorted(self.identity.copy_of)
        names = " and ".join(map(repr, [name, *others]))
        warn(
            f"This ledger is a copy in memory of the one in the file {names} (a saved, loaded, pickled or copied model"
            f" holds one): what is charged to it, {names} does not count, and what is stated of that ledger, or of"
            " models on it, is too small. Give the model the file's own ledger, which takes over what the copy counts:"
            f" model.ledger = tfdp.accounting.Ledger({name!r}); or afterwards"
            f" tfdp.accounting.Ledger({name!r}).merge(model.ledger){', and so each other file' if others else ''}."
        )
        self._told = True  # where the warning is an error, it is one again

    def _taken(self, history: History) -> bool:
        """Locks the file, once the ledgers of this process that nothing runs on let go of it; see `History.lock`."""
        until, unseen = time.monotonic() + _LONGEST, 0
        while True:
            try:
                return history.lock()
            except LockedElsewhereError:
                gone = let_go(self.path)
                unseen = unseen + 1 if gone is None else 0
                if gone is False or unseen == 2 or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE * unseen)  # another process has it, or a thread that unlocked it just now

    def _opened(self, history: History, restored: bool) -> Content | None:
        """What the file holds; where something is missing from it, only if that was decided."""
        try:
            return history.load()
        except LedgerError as error:
            if not restored:
                raise
            refusal = error
        with for_a_moment(history.path):
            history.lock(whatever=True)
            try:
                self._adopt(history.accept())
                self.identity = self.identity.noting([RESTORED])
                self.write()
            finally:
                history.unlock()
        warn(f"restored=True goes on from the ledger that is there. {refusal}")
        return history.load()

    def _learn(self, history: History, news: News) -> None:
        self._counted.clear()
        if news.content is not None:
            self._take_over(news.content, news.follows and not self.unwritten)
        self.unwritten |= history.go_on(news)

    def _adopt(self, content: Content | None) -> None:
        if content is not None:
            secret = content.identity.secret or self.identity.secret
            self.identity, self.entries = replace(content.identity, secret=secret), content.entries
            self._keep_followed()
            if self._history is not None:
                taken_over(self.entries)
                # The file itself, even where it began as the text of a copy.
                self.identity = replace(self.identity, copy_of=frozenset(), apart=frozenset())

    def _take_over(self, content: Content, follows: bool) -> None:
        """What the file says, and what it lacks. Of others' entries it knows best, where it goes on from what is known
        here: it counted ahead of them, or more than was made, when it was read before, and the rest was given back.
        """
        mine, name = self.entries, self.identity.dataset
        if name is not None and content.identity.dataset != name:
            raise LedgerError(
                f"{self.path} was replaced by a ledger of the data set {content.identity.dataset!r}. Put the one of"
                f" {name!r} back."
            )
        for row in content.entries.rows:
            mine.refuse_mixing(row.release)
        settled = content.entries if follows else ()
        known = [replace(one, steps=0) if one.uid in settled and one.uid not in self._mine else one for one in mine]
        missing = content.entries.absorb(known)  # Into those of the file, whose releases are numbered as there.
        noted = self.identity.noted
        self._adopt(content)
        self.identity = self.identity.noting(noted)
        self.unwritten |= bool(missing) or not noted <= content.identity.noted
