"""Numbers that were released, recognised by their values wherever they are copied to."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tfdp_layers.accounting.account import account_of
from tfdp_layers.accounting.ledger import Ledger

__all__ = [
    "are_foreign",
    "costs_of",
    "forget",
    "is_paid_for",
    "known_values",
    "loading",
    "remember",
    "remember_copies",
    "remember_later",
    "remember_now",
]

_SMALLEST = 3
"""Weights of fewer numbers are not recognised by their values: a few zeros may be anyone's."""

_released: dict[bytes, Ledger] = {}
"""What released values cost, by their digests: such numbers, full of noise, arise nowhere else."""

_later: list[Callable[[], None]] = []
"""What is remembered once somebody asks: weights that were being loaded."""

_here = threading.local()


def remember(ledger: Ledger, arrays: Iterable[Any]) -> None:
    """Remembers what these values cost, to recognise copies of them.

    For values with noise in them: initial ones are full of none, and equal ones arise elsewhere, too.

    Args:
        ledger: what it holds now; what it counts later is not theirs.
        arrays: objects that NumPy reads, variables of TensorFlow among them.
    """
    cost = ledger.copy()
    for digest in map(_digest, arrays):
        if digest is not None:
            _released[digest] = _together(cost, _released.get(digest))


def remember_later(remembering: Callable[[], None]) -> None:
    """Calls a function before the next look at released values: of weights that have no numbers before then."""
    _later.append(remembering)


def costs_of(arrays: Iterable[Any]) -> Iterator[Ledger]:
    """What those among these values cost that are copies of released ones."""
    remember_now()
    for array in arrays if _released else ():
        cost = _released.get(_digest(array) or b"")
        if cost is not None:
            yield cost


def are_foreign(arrays: Iterable[Any]) -> bool:
    """Whether some of these, which were all released once, hold other numbers now, that no training ended with."""
    remember_now()
    return any(digest is not None and digest not in _released for digest in map(_digest, arrays))


def remember_copies(arrays: Iterable[Any], copies: Iterable[Any]) -> None:
    """Remembers numbers that were computed from others: where something was released into these, it made those."""
    made = list(copies)
    for array in arrays:
        account = account_of(array)
        ledgers = [account.ledger] if account is not None and account.ledger.updates else []
        for ledger in (*ledgers, *costs_of([array])):
            remember(ledger, made)


def is_paid_for(array: Any) -> bool:
    """Whether something was released into this object, or it holds a copy of released values."""
    account = account_of(array)
    return (account is not None and account.ledger.updates > 0) or next(costs_of([array]), None) is not None


def known_values(arrays: Iterable[Any]) -> set[bytes]:
    """By what these values are remembered."""
    return {_digest(array) or b"" for array in arrays}


def forget(values: Iterable[bytes]) -> None:
    """Forgets what `known_values` gave: nobody else may hold a copy of them."""
    for value in values:
        _released.pop(value, None)


def _together(cost: Ledger, known: Ledger | None) -> Ledger:
    """What holds both: the same numbers may be known from another model, or from several that they were made from."""
    if known is None or cost.holds(known):
        return cost
    if known.holds(cost):
        return known
    both = cost.copy()
    both.merge(known)
    return both


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Inside, in this thread, `remember_later` waits: of a model within a model the inner one is loaded last."""
    earlier, _here.loading = getattr(_here, "loading", False), True
    try:
        yield
    finally:
        _here.loading = earlier


def remember_now() -> None:
    """Calls what `remember_later` got: the weights that it is about have their numbers."""
    while _later and not getattr(_here, "loading", False):
        _later.pop()()


def _digest(array: Any) -> bytes | None:
    value = np.asarray(array)
    # Equal numbers, such as the zeros that a bias starts from, were not made by noise either.
    if value.size < _SMALLEST or value.dtype.kind not in "fV" or np.all(value == value.flat[0]):
        return None
    return hashlib.blake2b(repr((value.shape, value.dtype.str)).encode() + value.tobytes(), digest_size=16).digest()
