"""Numbers that were released, recognised by their values wherever they are copied to."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from tfdp_layers.accounting.account import Account, account_of
from tfdp_layers.accounting.ledger import Ledger

__all__ = [
    "are_foreign",
    "are_unpaid",
    "costs_of",
    "disown",
    "forget",
    "is_loading",
    "is_paid_for",
    "is_recognised",
    "known_values",
    "loading",
    "remember",
    "remember_copies",
    "remember_later",
    "remember_now",
    "remember_passing",
]

_SMALLEST, _SMALLEST_BYTES = 3, 8
"""Weights of fewer numbers, or bytes of quantized ones, are not recognised by their values: a few may be anyone's."""

_released: dict[bytes, tuple[Ledger, ...]] = {}
"""What released values cost, by their digests: such numbers, full of noise, arise nowhere else. Ledgers that don't add
up (of records and of units, say) stand beside each other: trainings without noise, or seeded, end with equal values."""

_disowned: set[bytes] = set()
"""By their digests, released values that nobody paid for by themselves, and whose ledger says less than they cost."""

_passing: OrderedDict[bytes, Account] = OrderedDict()
"""By their digests, values that a training passed through and may have handed out: what its account holds pays for
them. The newest of them, since a training has as many as steps."""

_MOST_PASSING = 4096

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
            _released[digest] = _together(cost, _released.get(digest, ()))


def remember_passing(account: Account, arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Remembers values of a training that goes on: a copy costs what the account holds when it is found.

    Args:
        but: what `known_values` gave of those that are not its own.
    """
    for digest in map(_digest, arrays):
        if digest is not None and digest not in but:
            _passing[digest] = account
            _passing.move_to_end(digest)
    while len(_passing) > _MOST_PASSING:
        _passing.popitem(last=False)


def remember_later(remembering: Callable[[], None]) -> None:
    """Calls a function before the next look at released values: of weights that have no numbers before then."""
    _later.append(remembering)


def costs_of(arrays: Iterable[Any], known: Ledger | None = None, *, later: bool = True) -> Iterator[Ledger]:
    """What those among these values cost that are copies of released ones.

    Args:
        known: what is counted already. Where equal values were released by two trainings whose ledgers don't add up,
            and this holds one of them, the values are of that one.
        later: whether what `remember_later` got is remembered first. False for a look that Keras may cause while it
            loads a file, when weights have no numbers yet.
    """
    if later:
        remember_now()
    for array in arrays if _released or _passing else ():
        digest = _digest(array) or b""
        costs = _released.get(digest, ())
        if not costs and digest in _passing:
            costs = (_passing[digest].ledger,)
        if len(costs) < 2 or known is None or not any(map(known.holds, costs)):
            yield from costs


def are_foreign(arrays: Iterable[Any]) -> bool:
    """Whether some of these, which were all released once, hold other numbers now, that no training ended with."""
    remember_now()
    digests = (digest for digest in map(_digest, arrays) if digest is not None)
    return any(digest not in _released and digest not in _disowned for digest in digests)


def are_unpaid(arrays: Iterable[Any]) -> bool:
    """Whether some of these are copies of values that were disowned, or of a training whose cost is not known."""
    if not (_disowned or _passing):
        return False
    digests = [_digest(array) or b"" for array in arrays]
    passing = (_passing[digest] for digest in digests if digest in _passing and digest not in _released)
    return any(digest in _disowned for digest in digests) or any(account.unpaid for account in passing)


def is_recognised(held: Any) -> bool:
    """Whether a copy of what this variable may hold would be recognised by its values."""
    kind, size = np.dtype(held.dtype.as_numpy_dtype), held.shape.num_elements()
    return (kind.kind in "fV" and size >= _SMALLEST) or (kind.itemsize == 1 and size >= _SMALLEST_BYTES)


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
    paid = account is not None and account.ledger.updates > 0
    return paid or next(costs_of([array]), None) is not None or are_unpaid([array])


def known_values(arrays: Iterable[Any]) -> set[bytes]:
    """By what these values are remembered."""
    return {_digest(array) or b"" for array in arrays}


def forget(values: Iterable[bytes]) -> None:
    """Forgets what `known_values` gave: nobody else may hold a copy of them that is not accounted for anew."""
    for value in values:
        _released.pop(value, None)
        _passing.pop(value, None)
        _disowned.discard(value)


def disown(values: Iterable[bytes]) -> None:
    """Says of what `known_values` gave that no ledger states what it costs: whoever holds a copy states nothing."""
    for value in values:
        _released.pop(value, None)
        if value:
            _disowned.add(value)


def _together(cost: Ledger, known: tuple[Ledger, ...]) -> tuple[Ledger, ...]:
    """What holds both: the same numbers may be known from another model, or from several that they were made from."""
    for place, one in enumerate(known):
        both = _sum(cost, one)
        if both is not None:
            return (*known[:place], both, *known[place + 1 :])
    return (*known, cost)


def _sum(cost: Ledger, known: Ledger) -> Ledger | None:
    """One ledger that holds both; None where these don't add up: of records and of units, or of two data sets."""
    if cost.holds(known):
        return cost
    if known.holds(cost):
        return known
    both = cost.copy()
    try:
        both.merge(known)
    except ValueError:
        return None
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
    while _later and not is_loading():
        _later.pop()()


def is_loading() -> bool:
    """Whether this thread is inside of `loading`."""
    return getattr(_here, "loading", False)


def _digest(array: Any) -> bytes | None:
    value = np.asarray(array)
    # Equal numbers, such as the zeros that a bias starts from, were not made by noise either.
    quantized = value.dtype.kind in "iu" and value.dtype.itemsize == 1  # longer ones count something
    least = _SMALLEST_BYTES if quantized else _SMALLEST
    if not (quantized or value.dtype.kind in "fV") or value.size < least or np.all(value == value.flat[0]):
        return None
    return hashlib.blake2b(repr((value.shape, value.dtype.str)).encode() + value.tobytes(), digest_size=16).digest()
