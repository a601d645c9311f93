"""In a forked process the ledger of a data set is charged in its file, or not at all."""

import os
import warnings

import pytest

from helpers.accounting_tools import release_of
from helpers.forks import in_fork
from tfdp_layers.accounting import Ledger, LedgerError
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


def test_what_the_message_says_works(tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger(path, dataset="clinic", budget=(3.0, 1e-5))
    assert charged(ledger) == 1
    ledger.close()
    assert [in_fork(lambda: charged(ledger)) for _ in range(2)] == ["2", "3"]
    assert Ledger(path).steps == 3


def test_one_that_a_fork_makes_is_its_own():
    assert in_fork(lambda: charged(Ledger(dataset="clinic", budget=(3.0, 1e-5)))) == "1"


def test_one_of_a_run_counts_apart():
    ledger = Ledger()
    assert charged(ledger) == 1
    assert in_fork(lambda: charged(ledger)) == "2"
    assert ledger.steps == 1


def test_a_copy_says_in_a_fork_that_it_is_one():
    copy = Ledger(dataset="clinic").copy()
    with pytest.raises(LedgerError, match="This is a copy of the ledger of the data set"):
        charged(copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "This is a copy of the ledger" in in_fork(lambda: charged(copy))
