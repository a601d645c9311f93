"""Several parties in one process are a simulation, which their statements say; one party in it is none."""

import gc
import os
import subprocess
import sys
import time

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


def private_training(scale, path=None):
    x, y = np.ones((8, 4), "float32") * scale, np.ones((8, 1), "float32")
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    if path is not None:
        model.ledger = Ledger(path)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return KerasTraining(model, x, y, batch_size=4)


@pytest.mark.parametrize("kind", ["uploads", "models", "files of models"])
def test_two_parties_of_one_name_are_two(kind, tmp_path):
    parties, ledgers = [], []
    for place in (1, 2):
        if kind == "uploads":
            parties.append(private("client"))
            ledgers.append(parties[-1].ledger)
        else:
            training = private_training(place, tmp_path / f"{place}.json" if "files" in kind else None)
            parties.append(Party("client", training, LargestValues(1.0, 1e3), WEIGHTS))
            ledgers.append(training.ledger)
    for party in parties:
        party.turn(DOWNLOAD)
    assert all(SIMULATED in one.noted for one in ledgers)


def test_one_party_with_a_private_model_that_is_made_anew_is_one():
    for _ in range(2):
        training = private_training(1.0)
        Party("a", training, LargestValues(1.0, 1e3), WEIGHTS).turn(DOWNLOAD)
    assert SIMULATED not in training.ledger.noted


def test_a_first_try_without_privacy_is_no_other_party(tmp_path):
    tried = Party("a", lambda w: w + 1.0, LargestValues(1.0, 1e3), WEIGHTS)
    tried.turn(DOWNLOAD)
    party = private("a", tmp_path / "a.json")
    party.turn(DOWNLOAD)
    assert not said(party.privacy_statement())
    Party("b", lambda w: w + 1.0, LargestValues(1.0, 1e3), WEIGHTS).turn(DOWNLOAD)
    assert said(party.privacy_statement())
    assert any("(or one under several names or ledgers)" in one for one in party.privacy_statement().notes)


def test_a_file_that_is_away_for_a_moment_says_it_later(tmp_path):
    path, away = tmp_path / "a.json", tmp_path / "away.json"
    first = private("a", path)
    first.turn(DOWNLOAD)
    first.ledger.close()
    del first
    gc.collect()
    second = private("b")
    path.rename(away)
    second.turn(DOWNLOAD)
    away.rename(path)
    second.turn(DOWNLOAD)
    assert said(Statement.from_ledger(Ledger(path), 1e-5))


_HOLDS = """
import fcntl, sys
held = [open(one, "r+b") for one in sys.argv[1:]]
for one in held:
    fcntl.flock(one, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="no such locks")
def test_files_that_another_process_holds_are_told_later_and_not_waited_for(tmp_path):
    """Each took 0.8 seconds of each turn."""
    paths = [tmp_path / f"{name}.json" for name in "abcd"]
    for path in paths:
        party = private(path.stem, path)
        together._took.clear()
        party.turn(DOWNLOAD)
        party.ledger.close()
        del party
    gc.collect()
    command = [sys.executable, "-c", _HOLDS, *map(str, paths)]
    for path in paths:
        together._took[path.stem, frozenset([str(path)])] = together._Took(files={path}, charges=True)
    party = private("e")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        begin = time.monotonic()
        party.turn(DOWNLOAD)
        assert time.monotonic() - begin < 0.5
    assert not said(Statement.from_ledger(Ledger.read(paths[0]), 1e-5))
    party.turn(DOWNLOAD)
    for path in paths:
        assert said(Statement.from_ledger(Ledger.read(path), 1e-5))
