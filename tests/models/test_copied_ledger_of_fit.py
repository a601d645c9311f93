"""A loaded or copied model counts in a copy of its file's ledger, unless it is given that ledger."""

import copy
import warnings

import pytest

import tfdp_layers as tfdp
from helpers.watched import X, Y, model_of
from tfdp_layers.accounting import Ledger

LACKS = "copy in memory of the one in the file 'ledger.json'"


def fit(model):
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    return model


@pytest.mark.filterwarnings("ignore:Other ledgers")
@pytest.mark.parametrize("way", ["load_model", "deepcopy"])
def test_a_model_that_trains_on_a_copy_of_its_files_ledger_is_warned_of(way, tmp_path):
    """The file stated 0.80 after a day whose trainings cost 1.29, and nobody was told."""
    path, saved = tmp_path / "ledger.json", tmp_path / "model.keras"
    model = model_of()
    model.ledger = Ledger(path)
    fit(model).save(saved)
    again = tfdp.load_model(saved) if way == "load_model" else copy.deepcopy(model)
    with pytest.warns(UserWarning, match=LACKS):
        fit(again)
    assert (Ledger.read(path).steps, again.ledger.steps) == (2, 4)
    assert any("a copy of the ledger in the file" in note for note in again.privacy_statement(1e-2).notes)
    model.ledger.close()
    again.ledger = Ledger(path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(again)
    assert not any(LACKS in str(one.message) for one in told)
    assert Ledger.read(path).steps == again.ledger.steps == 6
    assert not any("a copy of the ledger" in note for note in again.privacy_statement(1e-2).notes)
    again.ledger.close()
