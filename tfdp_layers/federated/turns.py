"""One party's turn at a time on the variables of a model, whichever threads the turns run in."""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from tfdp_layers.caller import warn

__all__ = ["one_turn", "turns_over"]

_changed = threading.Condition()
_held: dict[Any, list[int]] = {}  # by what tells a variable: the thread that has it, once for each block of its own
_wanted: dict[int, set[Any]] = {}  # by a thread that waits: what it waits for
_before: dict[int, set[int]] = {}  # by a thread that is in a turn: the threads that there were when it began
_LONG = 60.0
"""Seconds after which a thread is told what it waits for, where that may never end."""


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

    A turn of this thread may run (a callback of its fit reads what it trains). That the turn of another thread waits
    for this one is not seen where it does so otherwise (a callback joins it, `fit` wants data from it): a thread that
    began while the turn ran is warned after a minute. Raises: RuntimeError where a turn would wait for this here, and
    this for it.
    """
    with _taken(set(variables), nested=True):
        yield


_WAITS = (
    "This thread, which began while a party's turn ran in another one, reads or writes what that turn trains, and so"
    " waits for its end. If the turn waits for this thread (a callback joins it, or it loads data for fit, as workers"
    " of a PyDataset do), neither ever ends. Read the model in the thread of the turn, in the callback itself; and what"
    " the data need of it before fit."
)


@contextlib.contextmanager
def _taken(variables: set[Any], nested: bool) -> Iterator[None]:
    here = threading.get_ident()
    with _changed:
        if not nested and any(_held.get(one, [None])[0] == here for one in variables):
            raise RuntimeError(
                "A turn of a party runs in this thread on variables that this turn would train: what it leaves in them"
                " would be in the other party's upload. Let that turn end before (its callbacks, too, begin no turn)."
            )
        _wait(variables, here, nested)
        first = not nested and here not in _before
        if first:
            _before[here] = {one.ident for one in threading.enumerate() if one.ident is not None}
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
            if first:
                del _before[here]
            _changed.notify_all()


def _wait(variables: set[Any], here: int, nested: bool) -> None:
    """Returns once no other thread has one of them."""
    longest: float | None = _LONG if nested else None
    try:
        while others := _holders(variables) - {here}:
            _wanted[here] = variables
            if here in _waited_for(others):
                raise RuntimeError(
                    "Two threads wait for each other: each is in a turn on a model, and wants variables that the other"
                    " one's turn trains. Let a turn end before its thread begins another."
                )
            if not _changed.wait(longest):
                longest = None
                if any(here not in _before.get(one, {here}) for one in _holders(variables) - {here}):
                    warn(_WAITS)
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
    for thread in set(_before) - {here}:
        del _before[thread]
    for one in [one for one, threads in _held.items() if threads[0] != here]:
        del _held[one]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
