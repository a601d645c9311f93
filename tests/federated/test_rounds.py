"""Rounds: the order of turns, faulty and silent parties among others, and turns that overlap."""

import numpy as np
import pytest

from helpers.federation import ALL, BAD, SIZE, private_party, push, server_of
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.rounds import run_round
from tfdp_layers.federated.selection import RandomAboveThreshold, Update
from tfdp_layers.federated.server import RefusedUpload, Server


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
