"""Variables that released numbers were put into: what they hold is paid for from then on, whatever wrote it since."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from tfdp_layers.accounting.account import Account, account_of
from tfdp_layers.accounting.digests import begin_alike, digest_of_noisy, first_of, size_of
from tfdp_layers.accounting.ledger import Ledger

__all__ = ["adds_to", "belong", "costs_owed", "forgive", "holders_of", "owe", "owes", "payer_of", "settle"]

_ATTRIBUTE, _PAYER = "_tfdp_owed", "_tfdp_payer"
"""Of a variable: the ledgers of what was put into it last that is known; the account of those that have none."""

_SETTLED = "_tfdp_settled"
"""Of a variable: by their digests, values that it held at a look. What it cost until then is known of each, so what is
released later adds nothing to them. Of another variable, that held something else then, this says nothing."""

_Kind = tuple[int, str]
_owing: dict[_Kind, weakref.WeakValueDictionary[int, Any]] = {}
"""The variables that live and owe, by how many numbers of which type they hold, then by their ids: without a hash."""


def owe(arrays: Iterable[Any], costs: Iterable[Ledger]) -> None:
    """Says what those among these that are variables were given by trainings: they owe it until they are gone."""
    costs = tuple(costs)
    for array in arrays:
        if hasattr(array, "assign"):
            setattr(array, _ATTRIBUTE, costs)
            _owing.setdefault(_kind(array), weakref.WeakValueDictionary())[id(array)] = array


def belong(variables: Iterable[Any], account: Account) -> None:
    """Says whose training writes to variables that have no account of their own, as an optimizer's."""
    for one in variables:
        setattr(one, _PAYER, account)


def payer_of(variable: Any) -> Account | None:
    """The account by which a variable pays for what it holds."""
    return account_of(variable) or getattr(variable, _PAYER, None)


def owes(array: Any) -> bool:
    """Whether released numbers were put into this variable at some time."""
    held = _owing.get(_kind(array)) if hasattr(array, _ATTRIBUTE) else None
    return held is not None and held.get(id(array)) is array


def settle(variable: Any, value: bytes) -> None:
    """Says that all is known which this variable has to pay for a value that it holds now, by its digest."""
    if not hasattr(variable, _SETTLED):
        setattr(variable, _SETTLED, set())
    getattr(variable, _SETTLED).add(value)


def adds_to(variable: Any, value: bytes) -> bool:
    """Whether what a variable owes now is to be paid for a value, by its digest, that it holds: see `settle`."""
    return value not in getattr(variable, _SETTLED, ())


def forgive(values: Collection[bytes]) -> None:
    """Takes it back of the variables that hold one of these values now, by their digests."""
    for held in list(_owing.values()):
        for one in list(held.values()):
            if digest_of_noisy(one) in values:
                held.pop(id(one), None)


def costs_owed(variable: Any) -> tuple[Ledger, ...]:
    """What a variable has to pay for: all that its account counted by now, where it has one. Of none: nothing."""
    account = payer_of(variable)
    if account is not None and account.ledger.updates:
        return (account.ledger,)
    return getattr(variable, _ATTRIBUTE, ())


def holders_of(array: Any) -> list[Any]:
    """The variables that owe and hold, to the last bit, these numbers now: this one itself, if it owes, comes first."""
    own = [array] if owes(array) else []
    array = array if hasattr(array, "shape") and hasattr(array, "dtype") else np.asarray(array)
    held = _owing.get(_kind(array))
    alike = [] if held is None else [one for one in (found() for found in held.valuerefs()) if one is not None]
    others = [one for one in alike if one is not array]
    if not others:
        return own
    first, whole = first_of(array), digest_of_noisy(array)
    # Most differ in their first numbers: so only those of copies are read whole.
    return own + [one for one in others if begin_alike(first_of(one), first) and digest_of_noisy(one) == whole]


def _kind(array: Any) -> _Kind:
    return size_of(array), np.dtype(getattr(array.dtype, "as_numpy_dtype", array.dtype)).str
