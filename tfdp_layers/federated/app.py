"""Distributed selective SGD on Flower: a client app and a server app. Only this file and strategy.py import flwr.

Flower carries the messages and runs the processes; `Party` and `Server` are those of the simulation in one process.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Neither library is to report to its makers from a party's machine, unless its owner says so.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from tfdp_layers.accounting import Ledger, LedgerError, epsilon
from tfdp_layers.accounting.holders import charged_in_memory
from tfdp_layers.federated.failures import kept_here
from tfdp_layers.federated.keras_training import CompiledEpochs, accuracy, flat_weights
from tfdp_layers.federated.party import Party
from tfdp_layers.federated.selection import Update
from tfdp_layers.federated.server import Server
from tfdp_layers.federated.simulation import Federation, Outcome, build_model, make_party, measured, shares
from tfdp_layers.federated.strategy import DOWNLOAD, UPLOAD, SelectiveSGD, record_of, update_in
from tfdp_layers.zoo import datasets
from tfdp_layers.zoo.datasets import Dataset

__all__ = ["SelectiveSGD", "make_client_app", "simulate_on_flower"]

# One worker process takes all turns: it holds one TensorFlow (about a gigabyte), whatever the number of parties.
_ONE_WORKER = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 1, "log_to_driver": False},
}
_LOCAL = "tfdp-local-weights"


def make_client_app(party_of: Callable[[Context], Party]) -> ClientApp:
    """The client app of a party.

    Args:
        party_of: makes the party of this node, anew for each message: its data, its training, its ledger. What changes
            between messages is kept for it: the local weights in Flower's context of the node, tests in
            the ledger's file.
    Raises (at each message):
        ValueError: a party whose turn charges a ledger without a file, its own for private uploads, or that of a
            `PrivateModel` that it trains: it would forget what it spent.
        TurnFailedError: anything else failed. Flower sends it to the server; what failed is in the party's log alone.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        counted = charged_in_memory()
        with kept_here():
            party = party_of(context)
        _refuse_forgetful(party)
        with kept_here(), contextlib.ExitStack() as stack:
            for ledger in (party.ledger, *party.charged):
                stack.callback(ledger.close)
            if _LOCAL in context.state:
                local: Any = context.state[_LOCAL]
                party.weights = np.array(local["weights"].numpy(), np.float32)
            received = update_in(message.content, DOWNLOAD)
            if received is None:
                raise ValueError(f"The download of party {party.name!r} holds no arrays.")
            update = party.turn(received)
            _refuse_uncounted(party, counted)
            context.state[_LOCAL] = ArrayRecord({"weights": Array(party.weights)})
        nothing = Update(np.zeros(0, np.int64), np.zeros(0, np.float32))
        return Message(content=RecordDict({UPLOAD: record_of(nothing if update is None else update)}), reply_to=message)

    return app


def _refuse_forgetful(party: Party) -> None:
    """Raises ValueError where a turn would charge a ledger without a file."""
    forgotten = [one for one in party.charged if one.path is None]
    if forgotten and forgotten[0] is party.ledger:
        raise ValueError(
            f"Party {party.name!r} uploads privately, but its ledger has no file, and each message makes the"
            " party anew: what it spent would be forgotten. Give it Ledger(path)."
        )
    if forgotten:
        raise ValueError(
            f"Party {party.name!r} trains a private model whose ledger has no file, and each message makes the party"
            " anew: what it spent would be forgotten. Where the model is made: model.ledger = Ledger(path)."
        )


def _refuse_uncounted(party: Party, before: dict[str, int]) -> None:
    """Raises LedgerError where a turn, or what made its party, charged a ledger in memory; nothing was sent yet.

    Args:
        before: what `charged_in_memory` returned before both.
    """
    if any(steps > before.get(entry, 0) for entry, steps in charged_in_memory().items()):
        raise LedgerError(
            f"The turn of party {party.name!r}, or what made it, was counted in a ledger without a file, and each"
            " message makes the party anew: what it spent would be forgotten. Its upload is not sent. Give what the"
            " training charges (a private model: model.ledger = Ledger(path)) a ledger in a file."
        )


def simulate_on_flower(
    plan: Federation,
    data: Dataset,
    report: Callable[[str], None] = lambda text: None,
    data_dir: str | None = None,
) -> Outcome:
    """`simulation.simulate` on Flower's simulation engine: parties run in a Ray worker, the server in this process.

    Raises:
        ValueError: a plan that cannot be carried out.
        RuntimeError: Flower ended without a result.
    """
    shares(data, plan.parties, plan.records, plan.seed)  # Refuses here what every party would refuse.
    with tempfile.TemporaryDirectory() as temporary:
        plan = plan if plan.folder else dataclasses.replace(plan, folder=Path(temporary))
        outcomes: list[Outcome] = []
        server_app = _server_app(plan, data, report, outcomes)
        client_app = make_client_app(functools.partial(_party_of, plan, data.name, data_dir))
        logging.getLogger("flwr").setLevel(logging.ERROR)
        run_simulation(server_app, client_app, plan.parties, backend_config=_ONE_WORKER)  # type: ignore[arg-type]
        if not outcomes:
            raise RuntimeError("Flower's simulation ended without a result; its log above says why.")
        return dataclasses.replace(outcomes[0], **_spent(plan))


def _server_app(plan: Federation, data: Dataset, report: Callable[[str], None], outcomes: list[Outcome]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        import keras

        keras.utils.set_random_seed(plan.seed)
        model = build_model(plan.model, data, plan.learning_rate)
        server = Server(flat_weights(model), plan.upload, plan.bound)
        assert plan.folder is not None
        state = plan.folder / "server.npz"
        if state.exists():
            server.restore(state)
        strategy = SelectiveSGD(server, plan.order, plan.download, seed=plan.seed, state=state)
        history: list[tuple[int, float]] = []

        def evaluate(number: int, arrays: ArrayRecord) -> None:
            if measured(number, plan.rounds):
                history.append((number, accuracy(model, server.weights, data.x_test, data.y_test)))
                report(f"round {number}/{plan.rounds}: test accuracy {history[-1][1]:.4f}")

        started = time.perf_counter()
        strategy.start(grid, num_rounds=plan.rounds, evaluate_fn=evaluate)
        seconds = time.perf_counter() - started
        final = history[-1][1] if history else accuracy(model, server.weights, data.x_test, data.y_test)
        outcomes.append(Outcome(final, server.round, None, 0, tuple(strategy.faults), seconds, tuple(history)))

    return app


def _party_of(plan: Federation, dataset: str, data_dir: str | None, context: Context) -> Party:
    number = int(context.node_config["partition-id"])
    training, weights, held = _worker(plan, dataset, data_dir)
    return make_party(plan, number, training.on(*held[number]), weights)


@functools.lru_cache(maxsize=1)
def _worker(plan: Federation, dataset: str, data_dir: str | None) -> tuple[CompiledEpochs, np.ndarray, Any]:
    """What all parties of a worker process share: the model, its compiled training, and the data."""
    import keras

    data = datasets.load(dataset, data_dir)
    keras.utils.set_random_seed(plan.seed)
    model = build_model(plan.model, data, plan.learning_rate)
    training = CompiledEpochs(model, plan.batch_size, plan.epochs)
    return training, flat_weights(model), shares(data, plan.parties, plan.records, plan.seed)


def _spent(plan: Federation) -> dict[str, Any]:
    """What the parties' ledgers hold."""
    if plan.epsilon_per_epoch is None or plan.folder is None:
        return {}
    files = [Ledger(plan.folder / f"party-{number:03d}.json") for number in range(plan.parties)]
    values = [float(epsilon(ledger, plan.budget.delta)) for ledger in files]
    weights = np.zeros(int(np.load(plan.folder / "server.npz")["weights"].size), np.float32)
    halted = sum(make_party(plan, number, lambda w: w, weights).halted for number in range(plan.parties))
    return {"epsilon_per_party": max(values), "halted": halted}
