"""In a forked process a ledger that was made before is charged in its file, or not at all."""

import ast
import functools
import os
import warnings

import pytest

from helpers.accounting_tools import release_of
from helpers.forks import in_fork
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.charging import charge
from tfdp_layers.sampling import Poisson

STEP = release_of(Poisson(600), 1.0)
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def charged(ledger):
    ledger.reserve(ledger.begin(STEP), 1)
    return ledger.steps


@pytest.mark.parametrize("budget", [None, (3.0, 1e-5)])
def test_of_one_in_memory_a_fork_has_a_copy(budget):
    ledger = Ledger(dataset="clinic", budget=budget)
    token = ledger.begin(STEP)
    ledger.reserve(token, 1)
    said = in_fork(lambda: charged(ledger))
    assert "This process was forked" in said
    way_out = "Ledger('ledger.json', dataset='clinic'" + ("" if budget is None else ", budget=(3.0, 1e-05)") + ")"
    assert way_out in said
    assert "This process was forked" in in_fork(lambda: ledger.reserve(token, 1))
    assert "This process was forked" in in_fork(lambda: in_fork(lambda: charged(ledger)))
    assert in_fork(lambda: (ledger.steps, ledger.is_copy)) == "(1, True)"
    assert (charged(ledger), ledger.is_copy) == (2, False)


WAYS = {
    "reserve": charged,
    "charge": lambda ledger: charge(ledger, STEP),
    "a training": lambda ledger: ledger.require(ledger.begin(STEP)),
    "what another one reserved": lambda ledger: ledger.merge(ledger_of(1), spent=False),
    "a budget": lambda ledger: ledger.set_budget(1.0, 1e-5),
}


def ledger_of(steps):
    ledger = Ledger()
    ledger.reserve(ledger.begin(STEP), steps)
    return ledger


@pytest.mark.parametrize("way", WAYS)
def test_of_one_of_a_run_a_fork_has_a_copy_too(way):
    ledger = ledger_of(1)
    said = in_fork(lambda: WAYS[way](ledger))
    assert "This process was forked: here is a copy in memory of a ledger, which another process made" in said
    assert "tfdp.accounting.Ledger('ledger.json'). " in said
    assert charged(ledger) == 2


def test_a_fork_reads_and_merges_it_and_goes_on_in_a_copy_of_its_own():
    ledger = ledger_of(1)

    def reads():
        mine = Ledger()
        mine.merge(ledger)
        ledger.merge(ledger_of(2))
        return charged(mine), charged(ledger.copy()), ledger.steps, ledger.is_copy

    assert in_fork(reads) == "(2, 4, 3, True)"


def test_what_a_fork_counts_and_sends_back_is_merged():
    ledger = ledger_of(1)
    texts = [in_fork(functools.partial(lambda steps: ledger_of(steps).to_json(), steps)) for steps in (2, 3)]
    for text in texts:
        ledger.merge(Ledger.from_json(ast.literal_eval(text)))
    assert ledger.steps == 6


def test_weights_made_in_a_fork_make_no_copy_a_ledger():
    """They charge one of their own, also where they meet those of the parent's ledger, which stays a copy."""
    ledger = ledger_of(1)
    account = Account(ledger)

    def meets(other):
        account.join([Account(other)])
        return account.ledger.is_same(ledger), ledger.is_copy, charged(account.ledger)

    assert in_fork(lambda: meets(Ledger())) == "(False, True, 2)"
    assert account.ledger is ledger


def test_what_the_message_says_works(tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger(path, dataset="clinic", budget=(3.0, 1e-5))
    assert charged(ledger) == 1
    ledger.close()
    assert [in_fork(lambda: charged(ledger)) for _ in range(2)] == ["2", "3"]
    assert Ledger(path).steps == 3


def test_one_that_a_fork_makes_is_its_own():
    assert in_fork(lambda: charged(Ledger(dataset="clinic", budget=(3.0, 1e-5)))) == "1"


def test_one_of_a_file_counts_apart(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    assert charged(ledger) == 1
    ledger.close()
    assert in_fork(lambda: charged(ledger)) == "2"
    assert charged(ledger) == 3


def test_a_copy_says_in_a_fork_that_it_is_one():
    copy = Ledger(dataset="clinic").copy()
    with pytest.raises(LedgerError, match="This is a copy of the ledger of the data set"):
        charged(copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "This is a copy of the ledger" in in_fork(lambda: charged(copy))
