"""A party uploads what its training changed, and never spends more than its budget."""

import copy
import math
import os
import re
import warnings

import numpy as np
import pytest

from helpers.federation import ALL, SIZE, SPARSE, private_party, push, upload
from helpers.forks import in_fork
from tfdp_layers.accounting import GroupNoise, Ledger, LedgerError, Release, epsilon
from tfdp_layers.federated import party as party_module
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.rounds import run_round
from tfdp_layers.federated.selection import LargestValues, RandomAboveThreshold, SparseVector
from tfdp_layers.federated.server import Server
from tfdp_layers.sampling import FixedSize


def test_a_party_replaces_what_it_downloads_trains_and_uploads_the_change():
    seen = []

    def train(weights):
        seen.append(weights.copy())
        return weights + np.arange(SIZE, dtype=np.float32) / 100

    party = Party("a", train, LargestValues(0.1), np.zeros(SIZE))
    update = party.turn(upload([0, 5], [7.0, -7.0]))
    assert (seen[0][0], seen[0][5], seen[0][1]) == (7.0, -7.0, 0.0)
    assert list(update.indices) == [18, 19]
    np.testing.assert_allclose(update.values, [0.18, 0.19], rtol=1e-6)
    party.turn(upload([0], [1.0]))
    np.testing.assert_allclose(seen[1][[0, 5, 19]], [1.0, -6.95, 0.19], rtol=1e-6)  # The rest stays local.


@pytest.mark.parametrize("selection", [ALL, RandomAboveThreshold(1.0, 0.0), SparseVector(1.0, 50.0, 1.0, 0.0)], ids=str)
def test_a_diverged_training_uploads_nothing_that_the_server_would_refuse(selection):
    def diverge(weights):
        weights = weights.copy()
        weights[:3] = [np.nan, np.inf, -np.inf]
        return weights

    party = Party("a", diverge, selection, np.zeros(SIZE), Budget(math.inf, 1e-5))
    server = Server(np.zeros(SIZE), 1.0, 1.0)
    for _ in range(3):
        assert run_round(server, [party], "round_robin", 1.0, np.random.default_rng(0)) == []
    assert np.isfinite(server.weights).all()
    assert np.isfinite(party.weights).all()


COUNT = Budget(math.inf, 1e-5)


def test_a_private_party_needs_a_budget():
    with pytest.raises(ValueError, match="needs a budget"):
        Party("p", push(1.0), SPARSE, np.zeros(SIZE))


class Everything(SparseVector):
    """Uploads all, without noise."""

    def select(self, change, rng, most=None):
        return LargestValues(1.0).select(change, rng)


def test_what_is_uploaded_is_what_is_charged():
    with pytest.raises(ValueError, match="class of your own"):
        Party("p", push(1.0), Everything(**vars(SPARSE)), np.zeros(SIZE), COUNT)
    party = private_party()
    with pytest.raises(AttributeError):
        party.selection = SparseVector(1.0, 1e6, 1.0, 0.0)  # the ledger would charge the one before
    assert party.selection == SPARSE


def test_what_was_charged_while_a_party_trained_counts_before_its_tests_start():
    """The training of one party spends from the ledger that both share."""
    ledger, turns = Ledger(), []
    budget = Budget(9.0, 1e-5)
    inner = Party("inner", push(1.0), SPARSE, np.zeros(SIZE), budget, ledger)

    def train(weights):
        while not inner.halted:
            turns.append(inner.turn(upload([], [])))
        return weights + 1.0

    outer = Party("outer", train, SPARSE, np.zeros(SIZE), budget, ledger)
    assert outer.turn(upload([], [])) is None
    assert turns
    assert float(epsilon(ledger, 1e-5)) <= 9.0


def test_two_turns_at_once_are_both_counted_while_they_last(monkeypatch):
    """The one that ended first took back what the other had reserved: the budget was asked without it."""
    party, select, counted = private_party(), SparseVector.select, []

    def within(self, change, rng, most):
        monkeypatch.setattr(SparseVector, "select", select)
        party.turn(upload([], []))  # as another thread
        counted.append(party.ledger.steps)
        return select(self, change, rng, most)

    monkeypatch.setattr(SparseVector, "select", within)
    party.turn(upload([], []))
    assert counted[0] >= 5, "the four tests that the first may start, and those of the second"
    assert party.ledger.steps >= 2


def test_a_party_halts_by_the_budget_of_the_ledger_too():
    ledger = Ledger(dataset="d", budget=(9.0, 1e-5))
    party = Party("a", push(1.0), SPARSE, np.zeros(SIZE), COUNT, ledger)
    turns = 0
    while not party.halted:
        assert party.turn(upload([], [])) is not None
        turns += 1
    assert turns
    assert party.turn(upload([], [])) is None
    assert float(epsilon(ledger, 1e-5)) <= 9.0


@pytest.mark.parametrize(
    ("budget", "ledger"),
    [(Budget(9.0, 1e-5), Ledger), (COUNT, lambda: Ledger(dataset="d", budget=(9.0, 1e-5)))],
    ids=["of the party", "of the ledger"],
)
def test_a_party_that_halts_says_so_once(budget, ledger):
    party = Party("hospital-1", push(1.0), SPARSE, np.zeros(SIZE), budget, ledger())
    server = Server(np.zeros(SIZE), 1.0, 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while not party.halted:
            run_round(server, [party], "round_robin", 1.0, np.random.default_rng(0))
        assert caught == []
        for _ in range(2):
            assert run_round(server, [party], "round_robin", 1.0, np.random.default_rng(0)) == []
    (said,) = [str(one.message) for one in caught]
    paid = r"(epsilon=9 at delta=1e-05|its ledger, 9), pays for no further test; it spent"
    assert re.search(f"Party 'hospital-1' halts: its budget, .*{paid}", said)


def test_tests_are_charged_when_they_start_and_not_by_what_they_find():
    nothing = private_party(selection=SparseVector(0.2, 100.0, 1.0, 1000.0), budget=COUNT)
    assert len(nothing.turn(upload([], []))) == 0
    assert nothing.ledger.steps == 1, "the test that found nothing was started, and is charged"
    everything = private_party(selection=SparseVector(0.2, 1e5, 1.0, 0.0), budget=COUNT)
    assert len(everything.turn(upload([], []))) == 4
    assert everything.ledger.steps == 4


def test_tests_are_on_disk_before_they_start_and_a_crash_over_counts(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    party = private_party(path=path)

    def crash(*_):
        assert Ledger(path).steps == 4
        raise KeyboardInterrupt

    monkeypatch.setattr(SparseVector, "select", crash)
    with pytest.raises(KeyboardInterrupt):
        party.turn(upload([], []))
    monkeypatch.undo()
    party.ledger.close()
    assert private_party(path=path).ledger.steps == 4


def test_a_training_that_fails_costs_nothing_and_a_ledger_that_fails_releases_nothing(tmp_path, monkeypatch):
    def fail(weights):
        raise RuntimeError("out of memory")

    party = private_party(fail, path=tmp_path / "ledger.json")
    with pytest.raises(RuntimeError):
        party.turn(upload([], []))
    assert party.ledger.steps == 0

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(SparseVector, "select", lambda *_: pytest.fail("a test was started that could not be counted"))
    party = private_party(path=tmp_path / "other.json")
    with pytest.raises(LedgerError):
        party.turn(upload([], []))


@pytest.mark.parametrize("budget", [Budget(8.0, 1e-5), Budget(2.5, 1e-6), Budget(0.1, 1e-5)], ids=str)
def test_a_party_halts_before_its_budget_is_exceeded_and_not_much_earlier(budget):
    party = private_party(budget=budget)
    for _ in range(200):
        if party.turn(upload([], [])) is None:
            break
        assert epsilon(party.ledger, budget.delta) <= budget.epsilon
    assert party.halted
    again = party.ledger.copy()
    again.reserve(again.begin(SPARSE.release(SIZE)), 1)
    assert epsilon(again, budget.delta) > budget.epsilon, "one more test would have been affordable"


def test_a_restarted_party_remembers_what_it_spent(tmp_path):
    path = tmp_path / "ledger.json"
    spent = 0.0
    for _ in range(100):
        party = private_party(path=path)
        update = party.turn(upload([], []))
        assert party.spent() >= spent
        spent = party.spent()
        party.ledger.close()
        if update is None:
            break
    assert update is None
    assert 7.0 < spent <= 8.0


def test_a_ledger_of_records_is_refused():
    ledger = Ledger()
    ledger.reserve(ledger.begin(Release((GroupNoise("w", 1.0, 1.0),), FixedSize(5), 100)), 1)
    with pytest.raises(ValueError, match="new ledger"):
        Party("p", push(1.0), SPARSE, np.zeros(SIZE), Budget(8.0, 1e-5), ledger)


def test_a_seed_voids_the_statement_and_the_default_never_repeats():
    def uploads(seed):
        party = Party("p", push(1.0), SPARSE, np.zeros(SIZE), Budget(math.inf, 1e-5), seed=seed)
        updates = [party.turn(upload([], [])) for _ in range(5)]
        return party, b"".join(u.indices.tobytes() + u.values.tobytes() for u in updates)

    (seeded, first), (_, second) = uploads(3), uploads(3)
    assert first == second
    assert seeded.privacy_statement().void
    (honest, third), (_, fourth) = uploads(None), uploads(None)
    assert third != fourth
    assert not honest.privacy_statement().void
    assert "one party's whole data set" in str(honest.privacy_statement())


def test_a_copy_of_a_party_can_neither_replay_noise_nor_spend_uncounted(monkeypatch):
    """Two copies with the same noise on different data would let their difference be read."""
    party = private_party()
    with pytest.raises(ValueError, match="Unknown token"):
        copy.deepcopy(party).turn(upload([], []))
    keyed = []
    monkeypatch.setattr(party_module, "entropy_generator", lambda: keyed.append(1) or np.random.default_rng())
    for turns in (1, 2):
        party.turn(upload([], []))
        assert len(keyed) == turns, "a forked process would draw the same noise"


@pytest.mark.parametrize(
    "download", [upload([SIZE], [0.0]), upload([-1], [0.0]), upload([0], [np.nan]), upload([0, 1], [0.0])], ids=str
)
def test_a_download_that_does_not_fit_is_refused_before_anything_is_spent(download):
    party = private_party()
    with pytest.raises(ValueError, match="download of party 'p'"):
        party.turn(download)
    assert party.ledger.steps == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_fork_a_turn_is_counted_in_a_file_or_refused(tmp_path):
    """As in a worker of multiprocessing: no statement told of what it counted in memory, and no budget was spent."""
    party, kept = private_party(), private_party(path=tmp_path / "ledger.json")
    for one in (party, kept):
        one.turn(upload([], []))
    kept.ledger.close()
    before = kept.ledger.steps
    assert "This process was forked" in in_fork(lambda: party.turn(upload([], [])))
    assert "Update" in in_fork(lambda: kept.turn(upload([], [])))
    assert "Update" in in_fork(lambda: private_party().turn(upload([], [])))
    assert in_fork(lambda: float(party.spent())) == repr(float(party.spent()))
    assert kept.spent() > party.spent()
    assert kept.ledger.steps > before


def test_the_statement_says_that_who_takes_part_twice_pays_twice():
    party = private_party()
    party.turn(upload([0], [1.0]))
    statement = party.privacy_statement()
    assert any("under two names" in one and "the epsilons add up" in one for one in statement.assumptions)
