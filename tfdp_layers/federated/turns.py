"""One party's turn at a time on the variables of a model, whichever threads the turns run in."""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["one_turn", "turns_over"]

_changed = threading.Condition()
_held: dict[Any, list[int]] = {}  # by what tells a variable: the thread that has it, once for each block of its own
_wanted: dict[int, set[Any]] = {}  # by a thread that waits: what it waits for


@contextlib.contextmanager
def one_turn(variables: Iterable[Any]) -> Iterator[None]:
    """Around a party's turn on these variables: from its first write into them until its weights are read.

    Two turns at a time would write into each other's variables, and one party's records would be in what the other one
    uploads. So a turn of another thread on any of them ends before.

    Args:
        variables: what tells each of them from others.

    Raises: RuntimeError in the middle of a turn of this thread on one of them, and where two turns would wait for each
        other.
    """
    with _taken(set(variables), nested=False):
        yield


@contextlib.contextmanager
def turns_over(variables: Iterable[Any]) -> Iterator[None]:
    """Around what reads or writes these variables beside turns: those of other threads end before, or begin after.

    A turn of this thread may run (a callback of its fit reads what it trains). Raises: RuntimeError where a turn would
    wait for this, and this for it.
    """
    with _taken(set(variables), nested=True):
        yield


@contextlib.contextmanager
def _taken(variables: set[Any], nested: bool) -> Iterator[None]:
    here = threading.get_ident()
    with _changed:
        if not nested and any(_held.get(one, [None])[0] == here for one in variables):
            raise RuntimeError(
                "A turn of a party runs in this thread on variables that this turn would train: what it leaves in them"
                " would be in the other party's upload. Let that turn end before (its callbacks, too, begin no turn)."
            )
        _wait(variables, here)
        for one in variables:
            _held.setdefault(one, []).append(here)
    try:
        yield
    finally:
        with _changed:
            for one in variables:
                _held[one].pop()
                if not _held[one]:
                    del _held[one]
            _changed.notify_all()


def _wait(variables: set[Any], here: int) -> None:
    """Returns once no other thread has one of them."""
    try:
        while others := _holders(variables) - {here}:
            _wanted[here] = variables
            if here in _waited_for(others):
                raise RuntimeError(
                    "Two threads wait for each other: each is in a turn on a model, and wants variables that the other"
                    " one's turn trains. Let a turn end before its thread begins another."
                )
            _changed.wait()
    finally:
        _wanted.pop(here, None)


def _holders(variables: Iterable[Any]) -> set[int]:
    return {_held[one][0] for one in variables if one in _held}


def _waited_for(threads: set[int]) -> set[int]:
    """The threads that these, which are not done, wait for."""
    found: set[int] = set()
    left = set(threads)
    while left:
        more = _holders(_wanted.get(left.pop(), ()))
        left |= more - found
        found |= more
    return found


def _after_fork() -> None:
    """In a forked process the other threads, and what they have, are not there."""
    global _changed
    _changed = threading.Condition()
    _wanted.clear()
    here = threading.get_ident()
    for one in [one for one, threads in _held.items() if threads[0] != here]:
        del _held[one]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
