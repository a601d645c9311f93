"""Copies of released values are recognised in any model of the process, and nothing else is taken for one."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.accounting.account import Account, account_of
from tfdp_layers.models.accounts import disown_released, forget_released, held_by, join_accounts, remember_released
from tfdp_layers.sampling import Poisson

NOISE = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")


def spent(steps=3):
    return Account(ledger_of(release_of(Poisson(600), 1.0), steps))


def released(value, dtype="float32"):
    """A variable of these values, with which a training ended."""
    variable = keras.Variable(value, dtype=dtype)
    remember_released(spent(), [variable])
    return variable


def cost_of(value, dtype="float32"):
    """What a new model with a variable of these values takes over."""
    account = Account()
    join_accounts(account, [keras.Variable(value, dtype=dtype)], ())
    return account.ledger.steps


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_copy_of_released_values_brings_what_they_cost(dtype):
    variable = released(NOISE, dtype)
    assert cost_of(np.asarray(variable), dtype) == 3


def test_numbers_that_two_ledgers_paid_for_cost_both():
    for account in (spent(5), spent(3)):
        remember_released(account, [keras.Variable(NOISE)])
    assert cost_of(NOISE) == 8
    ledger = spent(4).ledger
    earlier = ledger.copy()
    ledger.reserve(ledger.begin(release_of(Poisson(600), 1.0)), 1)
    for one in (Account(ledger), Account(earlier)):
        remember_released(one, [keras.Variable(-NOISE)])
    assert cost_of(-NOISE) == 5


def test_numbers_in_another_shape_are_a_copy():
    """A dense kernel becomes a convolution's."""
    released(3 * NOISE)
    assert cost_of((3 * NOISE).reshape(5, 4)) == 3


def test_two_copies_cost_once_and_two_trainings_add_up():
    one, two = released(NOISE), released(2 * NOISE)
    account = Account()
    join_accounts(account, [keras.Variable(v.numpy()) for v in (one, one, two)], ())
    join_accounts(account, [keras.Variable(one.numpy())], ())
    assert account.ledger.steps == 6


NO_COPIES = {
    "other numbers": (NOISE, NOISE + 1e-3),
    "a part": (NOISE, NOISE[:3]),
    "few numbers": (NOISE[0, :2], NOISE[0, :2]),
    "zeros, as a bias starts": (np.zeros(64), np.zeros(64)),
    "ones, as a scale starts": (np.ones((8, 8)), np.ones((8, 8))),
}


@pytest.mark.parametrize("name", NO_COPIES)
def test_nothing_else_is_taken_for_a_copy(name):
    theirs, mine = NO_COPIES[name]
    released(theirs)
    assert cost_of(mine) == 0


def test_integers_are_no_released_values():
    released(np.arange(20), "int32")
    assert cost_of(np.arange(20), "int32") == 0


def test_values_that_are_not_recognised_are_seen(monkeypatch):
    monkeypatch.setattr(released_numbers, "digest_of_noisy", lambda held: None)
    with pytest.raises(AssertionError):
        test_a_copy_of_released_values_brings_what_they_cost("float32")


def test_models_that_share_a_weight_which_one_of_them_trains_have_one_ledger():
    kernel, backbone, first, second = keras.Variable(NOISE), keras.Variable(-NOISE), spent(3), spent(5)
    join_accounts(first, [backbone, kernel], [kernel])
    assert account_of(held_by(backbone)) is None  # a frozen, public backbone joins nobody
    join_accounts(second, [backbone], [])
    assert second.ledger is not first.ledger
    join_accounts(second, [backbone, kernel], [])  # frozen here, trained there
    assert second.ledger is first.ledger
    assert first.ledger.steps == 8


def test_layers_tied_behind_keras_back_share_the_object_that_pays():
    one, two = keras.Variable(NOISE), keras.Variable(NOISE)
    two._value = one._value
    first, second = spent(3), spent(5)
    join_accounts(first, [one], [one])
    join_accounts(second, [two], [two])
    assert first.ledger is second.ledger


def of_units(steps=3):
    return Account(ledger_of(replace(release_of(Poisson(600), 1.0), unit="unit"), steps))


def test_equal_values_of_ledgers_that_do_not_add_up_keep_both_costs():
    """Of records and of units, released without noise: `fit` ended with a raw error when it remembered the second."""
    one, two = spent(), of_units()
    for account in (one, two):
        remember_released(account, [keras.Variable(NOISE + 7.0)])
    for account in (one, two):  # each has what its own training cost
        join_accounts(account, [keras.Variable(NOISE + 7.0)], ())
        assert account.ledger.steps == 3
    with pytest.raises(ValueError, match="those that another training of this process ended with"):
        cost_of(NOISE + 7.0)


def test_a_copy_of_values_that_nobody_paid_for_makes_a_model_state_nothing():
    variable = released(NOISE + 11.0)
    disown_released(released_numbers.known_values([held_by(variable)]))
    account = Account()
    join_accounts(account, [keras.Variable(NOISE + 11.0)], ())
    assert account.unpaid
    assert released_numbers.is_paid_for(held_by(variable))
    forget_released(released_numbers.known_values([held_by(variable)]))
    assert not released_numbers.is_paid_for(held_by(variable))
