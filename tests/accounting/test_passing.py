"""Values of trainings that go on: the newest are known, in little memory, and a word is said of others."""

import hashlib
import tracemalloc
import warnings

import numpy as np
import pytest

from tfdp_layers.accounting import released
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.passing import Passing


def digests(start, stop):
    return [hashlib.blake2b(b"%d" % number, digest_size=16).digest() for number in range(start, stop)]


def test_the_newest_are_known_and_what_is_forgotten_is_said_once():
    passing, account = Passing(10), Account()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passing.remember(digests(0, 20), account)
    assert all(passing.account_of(digest) is account for digest in digests(0, 20))
    with pytest.warns(UserWarning, match="over 10 arrays.*recognised no longer") as said:
        passing.remember(digests(20, 40), account)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passing.remember(digests(40, 60), account)
    assert all(passing.account_of(digest) is account for digest in digests(50, 60))
    assert not any(map(passing.account_of, digests(0, 30)))
    assert len(passing) <= 20


def test_values_are_known_where_the_warning_is_an_error():
    passing, account = Passing(10), Account()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="recognised no longer"):
            passing.remember(digests(0, 25), account)
    assert all(passing.account_of(digest) is account for digest in digests(10, 25))


def test_what_comes_again_stays():
    passing, account, other = Passing(10), Account(), Account()
    stays = digests(0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start in range(1, 100, 5):
            passing.remember(stays, account)
            passing.remember(digests(start, start + 5), account)
    assert passing.account_of(stays[0]) is account
    passing.remember(stays, other)
    assert passing.account_of(stays[0]) is other
    passing.forget(stays[0])
    assert passing.account_of(stays[0]) is None


def test_no_word_is_said_where_all_is_known_still():
    passing = Passing(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            passing.remember(digests(0, 10), Account())
    assert all(map(passing.account_of, digests(0, 10)))


def test_a_value_takes_few_bytes():
    most = 2 * 2**16 // 3
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        passing, account = Passing(most), Account()
        for start in range(0, 2 * most, 1000):
            passing.remember(digests(start, min(start + 1000, 2 * most)), account)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(passing) == 2 * most
    assert taken < 70 * len(passing)


def test_early_values_of_a_long_training_cost_what_its_account_holds(monkeypatch):
    monkeypatch.setattr(released, "_passing", Passing())
    account, arrays = Account(), np.random.default_rng(0).normal(size=(20_000, 3))
    released.remember_passing(account, arrays)
    assert list(released.costs_of([arrays[0]])) == [account.ledger]
    assert list(released.costs_of([arrays[-1]])) == [account.ledger]
    account.unpaid = True
    assert released.unpaid_by([arrays[0]])
    released.forget(released.known_values([arrays[0]]))
    assert not list(released.costs_of([arrays[0]]))
