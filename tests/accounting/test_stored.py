"""The copy of a ledger among saved weights: one writer, one reader."""

import numpy as np
import pytest

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.stored import STORED_LEDGER, read_stored_ledger, write_stored_ledger
from tfdp_layers.sampling import Poisson

LEDGER = ledger_of(release_of(Poisson(600), 1.0), 5)


def test_what_is_written_is_read_and_taken_from_the_variables():
    store = {"0": np.ones(3)}
    write_stored_ledger(store, LEDGER)
    variables, ledger = read_stored_ledger(store)
    assert list(variables) == ["0"]
    assert ledger.to_json() == LEDGER.to_json()
    assert sorted(store) == ["0", STORED_LEDGER]  # the store itself is Keras'


def test_weights_saved_without_a_ledger_have_none():
    variables, ledger = read_stored_ledger({"0": np.ones(3)})
    assert list(variables) == ["0"]
    assert ledger is None


@pytest.mark.parametrize("stored", [b"\xff\xfe", LEDGER.to_json().encode()[:-9], b""])
def test_a_damaged_copy_is_refused(stored):
    with pytest.raises(LedgerError, match="backup"):
        read_stored_ledger({STORED_LEDGER: np.frombuffer(stored, np.uint8)})


def test_a_copy_that_is_ahead_wins_and_one_behind_takes_nothing_back():
    behind, store = LEDGER.copy(), {}
    ahead = LEDGER.copy()
    ahead.reserve(ahead.begin(release_of(Poisson(600), 1.0)), 7)
    write_stored_ledger(store, ahead)
    merged = Ledger()
    for ledger in (behind, read_stored_ledger(store)[1], behind):
        merged.merge(ledger)
    assert merged.steps == 12
