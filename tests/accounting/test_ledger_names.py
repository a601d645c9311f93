"""Several processes that make one named ledger at once: who comes second reads what the first wrote."""

import pytest

from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting import state as room
from tfdp_layers.accounting.locked_file import LockedFile
from tfdp_layers.accounting.state import State


@pytest.fixture
def held(tmp_path, monkeypatch):
    """Another process makes the ledger, and keeps it, just before this one locks it; its name, and what is held."""
    path, kept, rename = tmp_path / "ledger.json", [], State.rename

    def slower(self, change):
        if not kept:
            kept.append(None)
            with monkeypatch.context() as patch:
                patch.setattr(State, "rename", rename)
                Ledger(path, **made).close()
            kept[:] = [LockedFile.open(tmp_path / name) for name in ("ledger.json.mark", "ledger.json")]
        return rename(self, change)

    made = {"dataset": "pat", "budget": (8.0, 1e-5)}
    monkeypatch.setattr(State, "rename", slower)
    yield path, made
    for one in kept:
        one.release()


@pytest.mark.parametrize("asked", [{}, {"budget": None}], ids=["the same", "no budget"])
def test_what_another_process_wrote_already_needs_no_lock(held, asked):
    path, made = held
    ledger = Ledger(path, **(made | asked))
    assert (ledger.dataset, ledger.budget.epsilon) == ("pat", 8.0)
    with pytest.raises(LedgerError, match="Another ledger is writing"):
        ledger.lock()


def test_what_it_did_not_write_is_refused_after_some_time(held, monkeypatch):
    path, made = held
    monkeypatch.setattr(room, "_WRITES", 0.1)
    del made["budget"]
    with pytest.raises(LedgerError, match="Another ledger is writing"):
        Ledger(path, dataset="pat", budget=(8.0, 1e-5))


def test_another_name_is_refused(held):
    path, _ = held
    with pytest.raises(ValueError, match="is the ledger of the data set 'pat', not of 'other'"):
        Ledger(path, dataset="other")
