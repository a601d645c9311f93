"""Which of a process' models share what they spend: those that share weights, or copies of released weights."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.account import Account, account_of, open_account
from tfdp_layers.structure import held_by

if TYPE_CHECKING:
    pass

_SMALLEST = 3
"""Weights of fewer numbers are not recognised by their values: a few zeros may be anyone's."""

_released: dict[bytes, Ledger] = {}
"""What the values that trainings of this process ended with cost, by their digests: such numbers, full of noise, arise
nowhere else."""


def join_accounts(account: Account, variables: Iterable[Any], trained: Iterable[Any]) -> None:
    """Joins a model's account with those of its weights, and opens accounts for the weights that it trains.

    Guarantee: models that share a weight which any of them trains have one ledger. A model that holds a copy of the
    values with which a training of this process ended takes over what they cost. Copies of values from the middle of a
    training, or changed by hand, are not recognised.

    Args:
        account: the model's.
        variables: all weights of the model, Keras variables.
        trained: those among them that it trains.

    Raises: as `Account.join`, and as `Ledger.merge`.
    """
    held = [held_by(variable) for variable in variables]
    account.join(found for found in map(account_of, held) if found is not None)
    for one in held if _released else ():
        cost = _released.get(_digest(one) or b"")
        if cost is not None and not account.ledger.holds(cost):
            account.ledger.merge(cost)
    for variable in trained:
        open_account(held_by(variable), account)


def remember_released(account: Account, variables: Iterable[Any]) -> None:
    """Remembers what the values that a training ended with cost, to recognise copies of them in other models.

    For trainings that released something: initial values are full of no noise, and equal ones arise elsewhere, too.
    """
    cost = account.ledger.copy()
    for variable in variables:
        digest = _digest(held_by(variable))
        if digest is not None:
            _released[digest] = cost


def released_values(trained: Iterable[Any]) -> set[bytes]:
    """By what the values of these weights are remembered."""
    return {_digest(held_by(variable)) or b"" for variable in trained}


def forget_released(values: Iterable[bytes]) -> None:
    """Forgets what `released_values` gave: nobody else may hold a copy of these weights."""
    for value in values:
        _released.pop(value, None)


def charge_elsewhere(account: Account, trained: Iterable[Any], ledger: Ledger) -> None:
    """Lets a ledger that holds already what a training cost, by an entry of another kind, be the one of its weights.

    Nothing is merged: counting the training's own releases there, too, would charge them twice.
    """
    weights = list(trained)
    forget_released(released_values(weights))
    account.replace(ledger)
    account.unpaid = False
    remember_released(account, weights)


def is_paid_for(variable: Any) -> bool:
    """Whether a training released something into this weight, or it holds a copy of values with which one ended."""
    held = held_by(variable)
    account = account_of(held)
    return (account is not None and account.ledger.updates > 0) or _digest(held) in _released


def _digest(held: Any) -> bytes | None:
    value = np.asarray(held)
    # Equal numbers, such as the zeros that a bias starts from, were not made by noise either.
    if value.size < _SMALLEST or value.dtype.kind not in "fV" or np.all(value == value.flat[0]):
        return None
    return hashlib.blake2b(repr((value.shape, value.dtype.str)).encode() + value.tobytes(), digest_size=16).digest()
