"""The server takes nothing it cannot trust and survives being killed; a party never spends more than its budget."""

import copy
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from tfdp_layers.accounting import GroupNoise, Ledger, LedgerError, Release, epsilon
from tfdp_layers.federated import party as party_module
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.rounds import run_round
from tfdp_layers.federated.selection import LargestValues, RandomAboveThreshold, SparseVector, Update
from tfdp_layers.federated.server import RefusedUpload, Server
from tfdp_layers.sampling import FixedSize

SIZE = 20
ALL = LargestValues(1.0)


def upload(indices, values) -> Update:
    return Update(np.array(indices, np.int64), np.array(values, np.float32))


def server_of(fraction: float = 0.2, bound: float = 1.0) -> Server:
    server = Server(np.arange(SIZE), fraction, bound)
    server.start_round()
    return server


def state(server: Server) -> tuple:
    return server.round, server.weights.tobytes(), server.counters.tobytes()


def push(target: float):
    """A training that moves every weight towards `target`, by at most 0.1."""
    return lambda weights: weights + np.clip(target - weights, -0.1, 0.1)


# the server -----------------------------------------------------------------------------------------------------------


def test_uploads_are_added_and_counted_and_the_most_counted_are_downloaded():
    server = server_of()
    server.receive("a", 1, upload([3, 7], [0.5, -0.25]))
    server.receive("b", 1, upload([7, 19], [1.0, 1.0]))
    expected = np.arange(SIZE, dtype=np.float32)
    expected[[3, 7, 19]] += [0.5, 0.75, 1.0]
    np.testing.assert_array_equal(server.weights, expected)
    assert list(np.flatnonzero(server.counters)) == [3, 7, 19]
    received = server.download(0.1)
    assert list(received.indices) == [3, 7]
    np.testing.assert_array_equal(received.values, expected[[3, 7]])
    received.values[:] = 99
    assert server.weights.max() < 99, "a download is a copy"


BAD = {
    "NaN": (upload([1], [np.nan]), "not finite"),
    "infinity": (upload([1], [-np.inf]), "not finite"),
    "beyond the bound": (upload([1], [np.nextafter(np.float32(1), np.float32(2))]), r"outside \+-1"),
    "duplicates": (upload([1, 1], [0.1, 0.1]), "occurs twice"),
    "index too large": (upload([SIZE], [0.1]), "outside 0..19"),
    "index negative": (upload([-1], [0.1]), "outside 0..19"),
    "too many": (upload([1, 2, 3, 4, 5], [0.1] * 5), "at most 4"),
    "shapes differ": (upload([1, 2], [0.1]), "not one vector each"),
    "matrix": (upload([[1]], [[0.1]]), "not one vector each"),
    "float indices": (Update(np.array([1.0]), np.array([0.1], np.float32)), "int64"),
    "float64 values": (Update(np.array([1]), np.array([0.1])), "float32"),
    "objects": (Update(np.array([1]), np.array([None])), "float32"),
    "lists": (Update([1], [0.1]), "no arrays"),
    "nothing": (None, "no arrays"),
}


@pytest.mark.parametrize("bad", BAD)
def test_an_upload_that_breaks_a_rule_is_refused_by_name_and_changes_nothing(bad):
    server = server_of()
    before = state(server)
    update, reason = BAD[bad]
    with pytest.raises(RefusedUpload, match=rf"party 'mallory' in round 1 was ignored: .*{reason}"):
        server.receive("mallory", 1, update)
    assert state(server) == before
    server.receive("mallory", 1, upload([1], [0.1]))  # It may still send a good one.


@pytest.mark.parametrize("number", [0, 2, -1, None, "1", 1.0])
def test_an_upload_for_another_round_is_late(number):
    server = server_of()
    before = state(server)
    with pytest.raises(RefusedUpload, match="too late"):
        server.receive("slow", number, upload([1], [0.1]))
    assert state(server) == before


def test_a_party_uploads_once_in_a_round():
    server = server_of()
    server.receive("a", 1, upload([1], [0.1]))
    before = state(server)
    with pytest.raises(RefusedUpload, match="already uploaded"):
        server.receive("a", 1, upload([2], [0.1]))
    assert state(server) == before
    server.start_round()
    with pytest.raises(RefusedUpload, match="too late"):
        server.receive("b", 1, upload([2], [0.1]))
    server.receive("a", 2, upload([2], [0.1]))


def test_finite_uploads_never_add_up_to_infinity():
    server = Server(np.zeros(SIZE), 1.0, 3e38)
    server.receive("a", server.start_round(), upload([0, 1], [3e38, 0.5]))
    with pytest.raises(RefusedUpload, match="infinite"):
        server.receive("a", server.start_round(), upload([0, 1], [3e38, 0.5]))
    assert np.isfinite(server.weights).all()
    assert list(server.counters[:2]) == [1, 1]


def test_a_killed_server_goes_on_where_it_saved(tmp_path):
    path = tmp_path / "server.npz"
    program = f"""
import os, numpy as np
from tfdp_layers.federated.server import Server
from tfdp_layers.federated.selection import Update
server = Server(np.arange({SIZE}), 0.2, 1.0)
for value in (0.5, 0.25):
    server.receive("a", server.start_round(), Update(np.array([3]), np.array([value], np.float32)))
    server.save({str(path)!r})
server.receive("a", server.start_round(), Update(np.array([3]), np.array([1], np.float32)))
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    server = Server(np.arange(SIZE), 0.2, 1.0)
    server.restore(path)
    assert (server.round, server.weights[3], server.counters[3]) == (2, 3.75, 2)
    with pytest.raises(RefusedUpload, match="too late"):
        server.receive("a", 3, upload([1], [0.1]))
    server.receive("a", server.start_round(), upload([1], [0.1]))


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "other model", "infinite", "pickle"])
def test_a_damaged_state_is_refused_and_changes_nothing(tmp_path, damage):
    path = tmp_path / "server.npz"
    server_of().save(path)
    fields = dict(np.load(path))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage in ("text", "empty"):
        path.write_text("no archive" if damage == "text" else "")
    else:
        change = {
            "other model": {"weights": np.zeros(3, np.float32)},
            "infinite": {"weights": np.full(SIZE, np.inf, np.float32)},
            "pickle": {"weights": np.array([None] * SIZE)},
        }[damage]
        np.savez(path, **{**fields, **change})
    server = server_of()
    before = state(server)
    with pytest.raises(ValueError, match=r"server\.npz"):
        server.restore(path)
    assert state(server) == before


def test_a_full_disk_leaves_the_old_state(tmp_path, monkeypatch):
    path = tmp_path / "server.npz"
    server = server_of()
    server.save(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    server.start_round()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        server.save(path)
    monkeypatch.undo()
    server.restore(path)
    assert server.round == 1


@pytest.mark.parametrize("weights", [np.zeros(0), np.zeros((2, 2)), np.array([np.nan])], ids=str)
def test_a_server_needs_finite_weights(weights):
    with pytest.raises(ValueError, match="finite numbers"):
        Server(weights, 0.1, 1.0)


# parties --------------------------------------------------------------------------------------------------------------


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
SPARSE = SparseVector(0.2, 1.0, 1.0, 0.5)  # 4 tests an upload


def private_party(train=push(1.0), path=None, budget=Budget(8.0, 1e-5), selection=SPARSE) -> Party:  # noqa: B008
    return Party("p", train, selection, np.zeros(SIZE), budget, Ledger(path))


def test_a_private_party_needs_a_budget():
    with pytest.raises(ValueError, match="needs a budget"):
        Party("p", push(1.0), SPARSE, np.zeros(SIZE))


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


# rounds ---------------------------------------------------------------------------------------------------------------


class Faulty:
    """A party that does what it likes."""

    def __init__(self, name, turn):
        self.name, self._turn = name, turn

    def turn(self, download):
        return self._turn()


def dies():
    raise ConnectionError("gone")


@pytest.mark.parametrize("order", ["round_robin", "random", "synchronous"])
def test_faulty_parties_cost_their_own_uploads_and_the_others_converge(order):
    some = RandomAboveThreshold(0.2, 0.0)
    good = [Party(f"good-{i}", lambda w: w + 0.2 * (1 - w), some, np.zeros(SIZE)) for i in range(4)]
    bad = [Faulty("dead", dies)] + [Faulty(name, lambda u=update: u) for name, (update, _) in BAD.items() if update]
    server = Server(np.zeros(SIZE), 0.2, 1.0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        faults = run_round(server, [*bad, *good], order, 1.0, rng)
        for party in bad:
            assert sum(f"'{party.name}'" in fault for fault in faults) == 1
        assert len(faults) == len(bad)
    np.testing.assert_allclose(server.weights, 1.0, atol=0.1)


def test_round_robin_parties_see_each_other_and_synchronous_ones_do_not():
    seen = []

    def train(weights):
        seen.append(float(weights[0]))
        return weights + 0.5

    parties = [Party(name, train, ALL, np.zeros(SIZE)) for name in "abc"]
    for order, expected in (("round_robin", [0.0, 0.5, 1.0]), ("synchronous", [0.0, 0.0, 0.0])):
        seen.clear()
        server = Server(np.zeros(SIZE), 1.0, 1.0)
        assert run_round(server, parties, order, 1.0, np.random.default_rng(0)) == []
        assert seen == expected
        assert server.weights[0] == 1.5


def test_random_order_differs_between_rounds():
    order = []
    parties = [Party(str(i), lambda w, i=i: order.append(i) or w + 0.1, ALL, np.zeros(SIZE)) for i in range(8)]
    server = Server(np.zeros(SIZE), 1.0, 1.0)
    for _ in range(4):
        run_round(server, parties, "random", 1.0, np.random.default_rng(server.round))
    rounds = [order[start : start + 8] for start in range(0, 32, 8)]
    assert all(sorted(turns) == list(range(8)) for turns in rounds)
    assert len({tuple(turns) for turns in rounds}) == 4


def test_a_spent_party_stays_silent_and_the_others_go_on():
    spender = private_party(budget=Budget(1e-3, 1e-5))
    other = Party("other", push(1.0), ALL, np.zeros(SIZE))
    server = Server(np.zeros(SIZE), 1.0, 1.0)
    assert run_round(server, [spender, other], "round_robin", 1.0, np.random.default_rng(0)) == []
    assert spender.ledger.steps == 0
    assert (server.counters == 1).all()


def test_turns_of_one_party_are_held_against_themselves_alone():
    server = Server(np.zeros(4), 0.5, 1.0)
    update = Update(np.array([0]), np.array([0.5], np.float32))
    server.start_turn("a", 1)
    server.start_turn("b", 1)
    server.receive("a", 1, update)
    with pytest.raises(RefusedUpload, match="already uploaded in its turn"):
        server.receive("a", 1, update)
    server.start_turn("a", 2)
    server.receive("a", 2, update)
    server.receive("b", 1, update)  # late for the round, but not for its own turn
    server.start_turn("b", 3)
    with pytest.raises(RefusedUpload, match="another turn than 3, so it comes too late"):
        server.receive("b", 2, update)
    with pytest.raises(RefusedUpload, match="too late"):
        server.receive("c", 1, update)
    assert (server.round, server.weights[0], server.counters[0]) == (3, 1.5, 3)
    server.start_round()
    with pytest.raises(RefusedUpload, match="too late"):
        server.receive("b", 3, update)


def test_an_asynchronous_party_adds_to_weights_that_others_have_changed_meanwhile():
    """And everybody has one turn a round, with its download before its upload."""
    log = []

    class Noted:
        def __init__(self, name):
            self.name = name

        def turn(self, download):
            log.append(server.counters.sum())
            return Update(np.array([0]), np.array([0.5], np.float32))

    server = Server(np.zeros(4), 0.5, 1.0)
    parties = [Noted(str(i)) for i in range(8)]
    assert run_round(server, parties, "asynchronous", 1.0, np.random.default_rng(0)) == []
    assert server.counters[0] == 8
    assert len(log) == 8
    assert log != list(range(8))  # round robin: each has seen all uploads before its own


def test_unknown_orders_and_equal_names_are_refused():
    party = Party("a", push(1.0), ALL, np.zeros(SIZE))
    with pytest.raises(ValueError, match="round_robin"):
        run_round(server_of(), [party], "alphabetic", 1.0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="share a name"):
        run_round(server_of(), [party, party], "random", 1.0, np.random.default_rng(0))
