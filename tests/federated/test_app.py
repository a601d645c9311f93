"""The Flower apps: the same rules as in one process, over real Flower messages. The grid alone is ours: no Ray here."""

import contextlib
import math

import keras
import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[federated]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import tfdp_layers as tfdp
from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.accounting.choice import for_plans
from tfdp_layers.federated import KerasTraining
from tfdp_layers.federated.app import SelectiveSGD, make_client_app
from tfdp_layers.federated.failures import TurnFailedError
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.rounds import ORDERS
from tfdp_layers.federated.selection import LargestValues, SparseVector, Update
from tfdp_layers.federated.server import Server
from tfdp_layers.federated.strategy import record_of
from tfdp_layers.sampling import Poisson
from tfdp_layers.tuning.trial_ledger import TrialLedger

SIZE = 20
NODES = [11, 22, 33]
EVERYTHING = np.arange(SIZE), np.zeros(SIZE, np.float32)


@pytest.fixture(autouse=True)
def inside_a_run(monkeypatch):
    """Messages ask which run they belong to; Flower's processes are told when they start."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class InProcessGrid:
    """Delivers messages to client apps in this process; `broken` replaces what a node answers."""

    def __init__(self, app, broken=None, delays=None):
        self.app, self.broken, self.sent = app, broken or {}, []
        self.delays, self.pulls, self.answers = delays or {}, 0, {}
        self.contexts = {
            node: Context(1, node, {"partition-id": number}, RecordDict(), {}) for number, node in enumerate(NODES)
        }

    def get_node_ids(self):
        return NODES

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.sent.append(message)
            reply = self.broken[node](message) if node in self.broken else self.app(message, self.contexts[node])
            if reply is not None:
                replies.append(reply)
        return replies

    def push_messages(self, messages):
        """Answers wait until they are pulled; `delays` says for how many pulls."""
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            ready = self.pulls + self.delays.get(message.metadata.dst_node_id, 0)
            self.answers[message.metadata.message_id] = ready, self.send_and_receive([message])
        return list(self.answers)[-len(messages) :]

    def pull_messages(self, message_ids):
        self.pulls += 1
        ready = [i for i in message_ids if i in self.answers and self.answers[i][0] < self.pulls]
        return [reply for i in ready for reply in self.answers.pop(i)[1]]


def learn(weights):
    return weights + np.clip(1.0 - weights, -0.1, 0.1)


def party_of(context):
    return Party(f"p{context.node_config['partition-id']}", learn, LargestValues(0.2), np.zeros(SIZE))


def strategy_of(**options) -> SelectiveSGD:
    return SelectiveSGD(Server(np.zeros(SIZE), 0.2, 1.0), **options)


def answer(message, **arrays):
    record = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
    return Message(content=RecordDict({"upload": record}), reply_to=message)


@pytest.mark.parametrize("order", ORDERS)
def test_a_federation_learns(order):
    strategy = strategy_of(order=order)
    result = strategy.start(InProcessGrid(make_client_app(party_of)), num_rounds=40)
    assert strategy.faults == []
    assert strategy.server.round == 40
    np.testing.assert_array_equal(result.arrays["weights"].numpy(), strategy.server.weights)
    assert np.abs(strategy.server.weights - 1.0).max() < 0.35
    assert strategy.server.counters.min() > 0


def test_each_node_gets_a_message_of_its_own():
    grid = InProcessGrid(make_client_app(party_of))
    strategy_of(download=0.1).start(grid, num_rounds=2)
    sizes = [len(message.content["download"]["indices"].numpy()) for message in grid.sent]
    assert sizes == [20, 20, 20, 2, 2, 2]  # All weights first, then the most updated tenth.
    firsts = [message.content["download"]["values"].numpy().tobytes() for message in grid.sent[:3]]
    assert len(set(firsts)) == 3, "in turn: each sees what those before it uploaded"
    assert [message.metadata.dst_node_id for message in grid.sent] == NODES * 2


BROKEN = {
    "NaN": (lambda m: answer(m, indices=np.array([1]), values=np.array([np.nan], np.float32)), "not finite"),
    "shapes": (lambda m: answer(m, indices=np.array([1, 2]), values=np.array([1], np.float32)), "one vector each"),
    "range": (lambda m: answer(m, indices=np.array([99]), values=np.array([0.1], np.float32)), "outside"),
    "twice": (lambda m: answer(m, indices=np.array([1, 1]), values=np.zeros(2, np.float32)), "twice"),
    "many": (lambda m: answer(m, indices=np.arange(9), values=np.zeros(9, np.float32)), "at most 4"),
    "no upload": (lambda m: answer(m, other=np.zeros(1)), "no arrays"),
    "other record": (
        lambda m: Message(content=RecordDict({"upload": ConfigRecord({"a": 1})}), reply_to=m),
        "no arrays",
    ),
    "garbage": (
        lambda m: Message(
            content=RecordDict({"upload": ArrayRecord({"indices": Array("int64", (1,), "numpy.ndarray", b"?")})}),
            reply_to=m,
        ),
        "no arrays",
    ),
    "died": (lambda m: Message(Error(0, "out of memory"), reply_to=m), "out of memory"),
    "silent": (lambda m: None, "did not answer"),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("order", ["round_robin", "synchronous"])
def test_a_broken_node_costs_its_own_upload_and_is_named(how, order):
    broken, reason = BROKEN[how]
    strategy = strategy_of(order=order)
    strategy.start(InProcessGrid(make_client_app(party_of), {22: broken}), num_rounds=3)
    assert len(strategy.faults) == 3
    assert all("'node 22'" in fault and reason in fault for fault in strategy.faults)
    assert strategy.server.counters.sum() == 3 * 2 * 4
    assert np.isfinite(strategy.server.weights).all()


def test_asynchronously_nobody_waits_for_a_slow_node():
    grid = InProcessGrid(make_client_app(party_of), delays={22: 9})
    strategy = strategy_of(order="asynchronous")
    strategy.start(grid, num_rounds=3)
    asked = [message.metadata.dst_node_id for message in grid.sent]
    assert asked[:7] == [11, 22, 33, 11, 33, 11, 33]
    assert asked[7:] == [22, 22]
    assert strategy.server.counters.sum() == 3 * 3 * 4
    assert strategy.faults == []


@pytest.mark.parametrize("how", BROKEN)
def test_asynchronously_a_broken_node_costs_its_own_uploads_and_is_named(how):
    broken, reason = BROKEN[how]
    strategy = strategy_of(order="asynchronous", timeout=600.0 if how != "silent" else 0.5)
    strategy.pause = 0.0
    finished = []
    strategy.start(
        InProcessGrid(make_client_app(party_of), {22: broken}),
        num_rounds=3,
        evaluate_fn=lambda number, arrays: finished.append(number),
    )
    assert len(strategy.faults) == (1 if how == "silent" else 3)
    assert all("'node 22'" in fault and reason in fault for fault in strategy.faults)
    assert strategy.server.counters.sum() == 3 * 2 * 4
    assert finished[-1] == 3


def test_a_node_that_answers_twice_counts_once():
    class Twice(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return [reply for reply in super().send_and_receive(messages) for _ in range(2)]

    strategy = strategy_of()
    strategy.start(Twice(make_client_app(party_of)), num_rounds=1)
    assert len(strategy.faults) == 3
    assert all("already uploaded" in fault for fault in strategy.faults)
    assert strategy.server.counters.sum() == 3 * 4


def test_a_killed_server_app_goes_on_from_its_state(tmp_path):
    state = tmp_path / "server.npz"
    strategy_of(state=state).start(InProcessGrid(make_client_app(party_of)), num_rounds=2)
    again = Server(np.zeros(SIZE), 0.2, 1.0)
    again.restore(state)
    strategy = SelectiveSGD(again, state=state)
    grid = InProcessGrid(make_client_app(party_of))
    strategy.start(grid, num_rounds=3)
    assert len(grid.sent) == 3
    assert again.counters.sum() == 3 * 3 * 4


def private(path):
    def party(context):
        ledger = Ledger(path and path / f"{context.node_config['partition-id']}.json")
        sparse = SparseVector(0.2, 1.0, 1.0, 0.0)
        return Party("p", learn, sparse, np.zeros(SIZE), Budget(3.0, 1e-5), ledger)

    return party


def test_ledgers_survive_between_messages_and_halt_their_parties(tmp_path):
    grid = InProcessGrid(make_client_app(private(tmp_path)))
    strategy = strategy_of()
    strategy.start(grid, num_rounds=40)
    assert strategy.faults == []
    for number in range(3):
        party = private(tmp_path)(Context(1, 1, {"partition-id": number}, RecordDict(), {}))
        assert party.halted
        assert 2.5 < party.spent() <= 3.0
    before = strategy.server.weights.tobytes()
    strategy.start(grid, num_rounds=42)
    assert strategy.server.weights.tobytes() == before, "a halted party uploads nothing"


def test_a_private_party_without_a_ledger_file_is_refused():
    app = make_client_app(private(None))
    message = Message(content=RecordDict(), message_type="train", dst_node_id=11, group_id="1")
    with pytest.raises(ValueError, match="what it spent would be forgotten"):
        app(message, Context(1, 11, {"partition-id": 0}, RecordDict(), {}))


def trains_a_model(path):
    """A party whose training is private for each record, charged to a ledger of this path."""
    x = np.zeros((8, 4), np.float32)
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    if path is not None:
        model.ledger = Ledger(path)
    return Party("p", KerasTraining(model, x, x[:, :1], batch_size=4), LargestValues(1.0), np.zeros(5))


def trains_somehow(path):
    """A party whose training is a function, of which nothing is known."""
    ledger = Ledger(path)
    step = Release((GroupNoise("all", 1.0, 1.0),), Poisson(4), 8)
    return Party("p", lambda weights: ledger.reserve(ledger.begin(step), 2) + weights, LargestValues(1.0), np.zeros(5))


def turn_of(party, path):
    """The answer of a party's app to a message."""
    download = record_of(Update(np.arange(5), np.zeros(5, np.float32)))
    content = RecordDict({"download": download})
    message = Message(content=content, message_type="train", dst_node_id=11, group_id="1")
    message.metadata.__dict__["_message_id"] = "message"
    return make_client_app(lambda context: party(path))(message, Context(1, 11, {}, RecordDict(), {}))


def test_a_party_that_trains_a_private_model_whose_ledger_has_no_file_is_refused():
    with pytest.raises(ValueError, match=r"what it spent would be forgotten.*model.ledger = Ledger\(path\)"):
        turn_of(trains_a_model, None)


def test_so_is_what_a_function_charged_to_one(caplog):
    with pytest.raises(TurnFailedError):
        turn_of(trains_somehow, None)
    assert "counted in a ledger without a file" in caplog.text


STEP = Release((GroupNoise("all", 1.0, 1.0),), Poisson(4), 8)


def party_that(trains):
    return Party("p", trains, LargestValues(1.0), np.zeros(5))


def forgets_its_ledger(path):
    return party_that(lambda weights: charge_to(Ledger()) + weights)


def is_made_from_records(path):
    spent = charge_to(Ledger())
    return party_that(lambda weights: weights + spent)


def charge_to(ledger):
    return ledger.reserve(ledger.begin(STEP), 2)


@pytest.mark.parametrize("party", [forgets_its_ledger, is_made_from_records])
def test_so_is_what_a_ledger_counted_that_is_gone(party, caplog):
    with pytest.raises(TurnFailedError):
        turn_of(party, None)
    assert "counted in a ledger without a file" in caplog.text


def moves_it_to_a_file(path):
    def train(weights):
        ledger = Ledger()
        charge_to(ledger)
        with contextlib.closing(Ledger(path)) as kept:
            kept.merge(ledger)
        return weights

    return party_that(train)


def counts_what_is_never_made(path):
    return party_that(lambda weights: charge_to(for_plans(Ledger())) + weights)


def searches(path):
    trial = TrialLedger([(STEP, 2)])
    return party_that(lambda weights: charge_to(trial) + weights)


@pytest.mark.parametrize("party", [moves_it_to_a_file, counts_what_is_never_made, searches])
def test_what_another_ledger_counts_or_none_needs_to_is_not_forgotten(party, tmp_path):
    for _ in range(2):
        assert "upload" in turn_of(party, tmp_path / "ledger.json").content


@pytest.mark.parametrize("party", [pytest.param(trains_a_model, marks=pytest.mark.slow), trains_somehow])
def test_what_the_turns_spend_adds_up_in_a_file(tmp_path, party):
    path = tmp_path / "ledger.json"
    for _ in range(2):
        turn_of(party, path)
    assert Ledger.read(path).steps == 4


@pytest.mark.parametrize("where", ["training", "party", "download"])
def test_the_server_is_told_that_a_turn_failed_and_not_why(where):
    """Flower sends it the text of what an app raises, and that may name records."""

    def fail(*_):
        raise ValueError("Label values: 3 12 7")

    def party(context):
        return fail() if where == "party" else Party("p", fail, LargestValues(0.2), np.zeros(SIZE))

    content = RecordDict() if where == "download" else RecordDict({"download": record_of(Update(*EVERYTHING))})
    message = Message(content=content, message_type="train", dst_node_id=11, group_id="1")
    with pytest.raises(TurnFailedError) as failed:
        make_client_app(party)(message, Context(1, 11, {"partition-id": 0}, RecordDict(), {}))
    assert "12" not in str(failed.value)


def test_local_weights_stay_with_the_node_between_messages():
    seen = []

    def train(weights):
        seen.append(weights.copy())
        return weights + np.arange(SIZE, dtype=np.float32) / 100

    def party(context):
        return Party("p", train, LargestValues(0.05), np.zeros(SIZE))

    strategy = SelectiveSGD(Server(np.zeros(SIZE), 0.05, 1.0), download=0.05)
    grid = InProcessGrid(make_client_app(party))
    strategy.start(grid, num_rounds=2)
    assert seen[3][1] == pytest.approx(0.01)  # Not downloaded, so the node's own from its first turn.
    assert math.isclose(seen[3][19], 3 * 0.19, rel_tol=1e-5)  # Downloaded: what all three uploaded.
