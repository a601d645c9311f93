"""Several parties in one process are a simulation, which their statements say; one party in it is none."""

import gc

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, Statement
from tfdp_layers.accounting.remarks import SIMULATED
from tfdp_layers.federated import Budget, KerasTraining, LargestValues, Party, SparseVector, Update, together

WEIGHTS = np.zeros(5, np.float32)
DOWNLOAD = Update(np.arange(5), WEIGHTS)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(together, "_took", {})


def private(name, path=None, train=lambda w: w + 1.0):
    selection = SparseVector(0.5, 1.0, 0.1, 0.01)
    return Party(name, train, selection, WEIGHTS, Budget(10.0, 1e-5), Ledger(path) if path else Ledger())


def said(statement):
    return any("A simulation: several parties took turns in one process" in one for one in statement.notes)


def test_the_statements_of_all_parties_say_that_there_were_several_from_the_second_turn_on():
    first, second = private("a"), private("b")
    first.turn(DOWNLOAD)
    assert not said(first.privacy_statement())
    second.turn(DOWNLOAD)
    for party in (first, second):
        assert said(party.privacy_statement())
        assert said(Statement.from_ledger(party.ledger.copy(), 1e-5)), "copies say it, too"
    third = private("c")
    assert not said(third.privacy_statement()), "before its first turn"


@pytest.mark.parametrize("kept", [True, False])
def test_a_party_that_is_made_anew_is_one_and_is_told_when_another_one_comes(tmp_path, kept):
    path = tmp_path / "a.json" if kept else None
    for _ in range(3):  # as make_client_app does
        party = private("a", path)
        party.turn(DOWNLOAD)
        party.ledger.close()
        assert not said(party.privacy_statement())
    if kept:
        del party
        gc.collect()
    Party("b", lambda w: w + 1.0, LargestValues(1.0, 1.0), WEIGHTS).turn(DOWNLOAD)  # whose uploads nothing protects
    assert said(Statement.from_ledger(Ledger(path), 1e-5) if kept else party.privacy_statement())


def test_a_turn_that_fails_counts_and_another_file_of_the_same_name_is_another_party(tmp_path):
    def fails(weights):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        private("a", tmp_path / "one.json", fails).turn(DOWNLOAD)
    other = private("a", tmp_path / "two.json")
    other.turn(DOWNLOAD)
    assert said(other.privacy_statement())


def test_the_statement_of_a_private_model_says_it():
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    parties, models = [], []
    for name in "ab":
        model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
        training = KerasTraining(model, x * 1.0, y, batch_size=4)
        parties.append(Party(name, training, LargestValues(1.0, 1e3), WEIGHTS))
        models.append(model)
    for party, expected in zip(parties, (False, True), strict=True):
        party.turn(DOWNLOAD)
        assert said(models[0].privacy_statement(1e-5)) == expected
    assert all(SIMULATED in one.ledger.noted and said(one.privacy_statement(1e-5)) for one in models)
