"""Ledgers that are joined, replaced and merged: whoever holds one of them charges and reads what models count."""

import itertools
import threading
import time

import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.books import X, Y, fit, notes, private
from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon
from tfdp_layers.accounting.account import Account

RELEASE = Release((GroupNoise("all", 1.0, 3.0),), tfdp.sampling.Poisson(12), 24)


@pytest.mark.parametrize(
    "join", [tfdp.make_private, lambda m: tfdp.PrivateModel(m.inputs, m.get_layer("hidden").output)]
)
def test_a_ledger_that_was_handed_out_stays_the_one(join):
    model, given = private(), Ledger()
    model.ledger = given
    join(model)
    fit(model)
    tfdp.release_metric(np.ones(24), given, stddev=0.5, name="metric")
    assert model.ledger is given
    assert model.privacy_statement(1e-5).epsilon == pytest.approx(float(epsilon(given, 1e-5)))
    assert len(given.entries) == 2


@pytest.mark.slow
def test_two_joined_ledgers_are_one_whoever_holds_them():
    a, b = private(), private()
    first, second = a.ledger, b.ledger
    fit(a), fit(b)
    whole = tfdp.PrivateModel(a.inputs, b.get_layer("head")(a.get_layer("hidden").output))
    both = whole.privacy_statement(1e-5).epsilon
    assert float(epsilon(first, 1e-5)) == float(epsilon(second, 1e-5)) == pytest.approx(both)
    assert first.steps == 4
    tfdp.release_metric(np.ones(24), second, stddev=0.5, name="metric")
    assert float(epsilon(first, 1e-5)) > both
    fit(a)
    assert first.steps == second.steps == a.ledger.steps == b.ledger.steps


def test_names_of_a_ledger_that_is_joined_again_go_along():
    ledgers = [Ledger() for _ in range(4)]
    accounts = [Account(one) for one in ledgers]
    for account, other in itertools.pairwise(accounts):
        other.join([account])
        account.join([other])
    token = ledgers[0].begin(RELEASE)
    ledgers[0].reserve(token, 3)
    assert [one.steps for one in ledgers] == [3] * 4
    ledgers[3].settle(token, 2)  # a name of the same: so are its tokens
    assert [one.steps for one in ledgers] == [2] * 4


def test_what_cannot_be_joined_joins_nothing(tmp_path):
    first, second = (Account(Ledger(tmp_path / f"{name}.json")) for name in "ab")
    memory, new = Account(), Account()
    for one in (first, second, memory):
        one.ledger.reserve(one.ledger.begin(RELEASE), 1)
    with pytest.raises(ValueError, match="charged to two ledgers"):
        new.join([memory, first, second])
    assert [one.ledger.steps for one in (first, second, memory, new)] == [1, 1, 1, 0]


def test_a_budget_in_force_stays_when_ledgers_are_joined():
    mine, others = Ledger(), Ledger()
    token = mine.begin(RELEASE)
    mine.keep_to(token, (1.0, 1e-5))
    others.reserve(others.begin(RELEASE), 1)
    Account(others).join([Account(mine)])
    with pytest.raises(tfdp.accounting.BudgetExhausted):
        others.reserve(others.begin(RELEASE), 10_000)


def test_no_charge_is_lost_while_ledgers_are_joined():
    for _ in range(20):
        mine, others = Ledger(), Ledger()
        others.reserve(others.begin(RELEASE), 1)
        token, made, ended = mine.begin(RELEASE), [0], threading.Event()

        def charge(mine=mine, token=token, made=made, ended=ended):
            while not ended.is_set():
                mine.reserve(token, 1)
                made[0] += 1

        thread = threading.Thread(target=charge)
        thread.start()
        while made[0] < 50:
            time.sleep(0)
        Account(others).join([Account(mine)])
        ended.set()
        thread.join()
        assert mine.steps == others.steps == made[0] + 1


def test_a_ledger_that_was_given_is_that_of_a_twin_which_got_another(tmp_path):
    model, given = private(), Ledger()
    model.ledger = given
    twin = tfdp.make_private(model)
    twin.ledger = Ledger(tmp_path / "ledger.json")
    fit(model)
    tfdp.release_metric(np.ones(24), given, stddev=0.5, name="metric")
    assert given.path == model.ledger.path == tmp_path / "ledger.json"
    assert model.privacy_statement(1e-5).epsilon == pytest.approx(float(epsilon(given, 1e-5)))
    assert Ledger.read(tmp_path / "ledger.json").steps == 3


def test_one_that_other_models_count_in_stays_theirs():
    first, second, shared, other = private(), private(), Ledger(), Ledger()
    first.ledger = second.ledger = shared
    first.ledger = other
    fit(first)
    assert (second.ledger.steps, shared.steps, other.steps) == (0, 0, 2)


@pytest.mark.slow
def test_a_ledger_says_that_a_training_was_broken_off(tmp_path):
    def broken(index):
        if index >= 20:
            raise RuntimeError("cannot be read")
        return X[index], Y[index]

    class Source:
        def __len__(self):
            return 24

        def __getitem__(self, index):
            return broken(index)

    ledger = Ledger(tmp_path / "ledger.json", dataset="people")
    first, second = private(), private()
    first.ledger = second.ledger = ledger
    with pytest.raises(Exception, match="cannot be read"):
        first.fit(Source(), batch_size=4, epochs=9, verbose=0)
    fit(second)
    ledger.close()
    again = Ledger(tmp_path / "ledger.json")
    for found in (notes(second), tfdp.accounting.Statement.from_ledger(again, 1e-2).notes, notes(first)):
        assert len([one for one in found if "ended by an error out of a step" in one]) == 1
    other = Ledger(dataset="people")
    other.merge(again)
    assert other.broken_off is other.copy().broken_off is True
    assert not Ledger().broken_off
    assert tfdp.accounting.together(other).broken_off
