"""The ledgers of this process: who holds a file, whose copies lag, what is in no file, and what a fork does to all."""

import contextlib
import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "LONGEST_WRITE",
    "charged_in_memory",
    "counted_in_memory",
    "counted_since",
    "for_a_moment",
    "hold",
    "let_go",
    "taken_over",
]

_ledgers: "weakref.WeakSet[Any]" = weakref.WeakSet()
_briefly = threading.RLock()
LONGEST_WRITE = 2.0
"""Seconds for which a thread waits for another one that writes."""
_in_memory: dict[str, int] = {}
"""What ledgers without a file were charged in this process, also those that are gone: releases, by their entries."""
_in_files: dict[str, int] = {}
"""How many of these ledgers of files took over."""


def hold(ledger: Any) -> None:
    """Notes a ledger, as long as it lives."""
    _ledgers.add(ledger)


def let_go(path: Path | None) -> bool | None:
    """Asks the ledgers of this process that hold a file for it, one of which may be anywhere.

    In a notebook it is the ledger of a cell that ran before: by another name, in the last error, or among the results.
    Nothing is lost: whoever charges it next takes the file again, and over what was written meanwhile.

    Returns: whether one let go of it; None where none holds it. None does let go on which a training runs, or something
        is reserved and not settled.
    """
    found = [one._let_go() for one in list(_ledgers) if one.path == path and one._state.held]
    return any(found) if found else None


def counted_since(ledger: Any) -> int:
    """How many more releases a ledger of this process counts of which this one is a copy; 0 where none is known.

    That is the one that opened its entries, or the data set's own: it may have been trained on since.
    """
    mine = {entry.uid: entry.steps for entry in ledger.entries}
    found = [one._state for one in list(_ledgers) if not one.is_same(ledger) and _is_source(one, ledger, mine)]
    whole = [one for one in found if all((their := one.entries.get(uid)) and their.steps >= mine[uid] for uid in mine)]
    return max((one.entries.steps - ledger.steps for one in whole), default=0)


def charged_in_memory() -> dict[str, int]:
    """What ledgers of this process were charged that ends with it: releases, by the names of their entries.

    That is in no file, and no ledger of a file took it over. What a copy brought along is not among them; what a
    ledger was charged that is gone by now is.
    """
    return {uid: steps for uid, steps in _in_memory.copy().items() if steps > _in_files.get(uid, 0)}


def counted_in_memory(entry: Any) -> None:
    """A ledger without a file was charged: all that it counts in an entry of its own."""
    _in_memory[entry.uid] = entry.steps


def taken_over(entries: Iterable[Any]) -> None:
    """A ledger of a file holds these."""
    for entry in entries:
        if entry.uid in _in_memory:
            _in_files[entry.uid] = max(entry.steps, _in_files.get(entry.uid, 0))


def _is_source(one: Any, ledger: Any, entries: Collection[str]) -> bool:
    if ledger.is_copy and not one.is_copy and one.uid == ledger.uid:
        return True
    return any(segment.entry in entries for segment in list(one._segments.values()))


@contextlib.contextmanager
def for_a_moment(path: Path | None) -> Iterator[None]:
    """Around what takes a file, and lets go of it: one thread at a time does, and none is refused for another's."""
    with _briefly if path is not None else contextlib.nullcontext():
        yield


def _after_fork() -> None:
    """Another thread may have been at it, which is not here."""
    global _briefly
    _briefly = threading.RLock()
    for ledger in list(_ledgers):
        ledger._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
