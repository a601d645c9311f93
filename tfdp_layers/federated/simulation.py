"""A whole federation on one machine: data split among parties, models of the paper, rounds, and what came out."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tfdp_layers.accounting import Ledger
from tfdp_layers.federated.keras_training import CompiledEpochs, accuracy, flat_weights
from tfdp_layers.federated.party import Budget, Party, Train
from tfdp_layers.federated.rounds import run_round
from tfdp_layers.federated.selection import LargestValues, RandomAboveThreshold, SparseVector
from tfdp_layers.federated.server import Server
from tfdp_layers.zoo.datasets import Dataset

__all__ = ["Federation", "Outcome", "build_model", "make_party", "make_selection", "measured", "shares", "simulate"]

_SCALES = {
    "mnist": (0.131, 0.308),
    "fashion_mnist": (0.286, 0.353),
    "cifar10": (0.473, 0.252),
    "digits": (0.305, 0.376),
}
"""Mean and standard deviation of the pixels of public sets: never of what the parties hold, which no model may tell."""
_ANY_SCALE = (0.5, 0.25)


@dataclass(frozen=True)
class Federation:
    """What is simulated.

    Attributes:
        model: "mlp" or "cnn".
        parties: how many.
        upload, download: fractions of the weights.
        selection: "largest" or "random"; with `epsilon_per_epoch` it must be "random".
        order: see `rounds.ORDERS`.
        rounds: turns of every party.
        records: of each party; 600 is the paper's hundredth of MNIST.
        bound, threshold: of uploaded changes; the threshold counts for "random".
        epsilon_per_epoch: of one upload, for one party; None uploads without privacy.
        budget: (epsilon, delta) that each party may spend; None for no limit.
        epochs, batch_size, learning_rate: of the local training by plain SGD.
        seed: of weights, data split and order; never of noise and selection.
        folder: where the server's state and the parties' ledgers are kept, and found again; None keeps nothing.
    """

    model: str = "mlp"
    parties: int = 30
    upload: float = 0.1
    download: float = 1.0
    selection: str = "largest"
    order: str = "round_robin"
    rounds: int = 20
    records: int = 600
    bound: float = 1.0
    threshold: float = 1e-4
    epsilon_per_epoch: float | None = None
    budget: Budget = field(default_factory=lambda: Budget(math.inf, 1e-5))
    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.05
    seed: int = 0
    folder: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave.

    Attributes:
        test_accuracy: of the global model, on the test set.
        rounds: made, those of an earlier run that was continued included.
        epsilon_per_party: the largest of any party at the budget's delta; None without privacy.
        halted: parties whose budget is spent.
        faults: messages about refused uploads and failed parties.
        seconds: wall clock of the rounds.
        history: (round, test accuracy) where it was measured.
    """

    test_accuracy: float
    rounds: int
    epsilon_per_party: float | None
    halted: int
    faults: tuple[str, ...]
    seconds: float
    history: tuple[tuple[int, float], ...]


def build_model(name: str, data: Dataset, learning_rate: float) -> Any:
    """The paper's network, compiled with plain SGD: for MNIST an MLP of 140,106 and a CNN of 105,506 weights.

    Images of 28 pixels are padded to 32, as the paper's weight counts imply. Raises ValueError for an unknown name.
    """
    import keras

    layers, height = keras.layers, data.x_train.shape[1]
    mean, scale = _SCALES.get(data.name, _ANY_SCALE)
    front = [keras.Input(data.x_train.shape[1:]), layers.Rescaling(1.0 / scale, offset=-mean / scale)]
    if height == 28:
        front.append(layers.ZeroPadding2D(2))
    if name == "mlp":
        hidden = [layers.Flatten(), layers.Dense(128, "relu"), layers.Dense(64, "relu")]
    elif name == "cnn":
        kernel, pool = (5, 3) if height >= 28 else (3, 2)
        hidden = [
            layers.Conv2D(32, kernel, activation="tanh"),
            layers.MaxPooling2D(pool),
            layers.Conv2D(64, kernel, activation="tanh", padding="valid" if height >= 28 else "same"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(200, "tanh"),
        ]
    else:
        raise ValueError(f"Unknown model {name!r}. Choose mlp or cnn.")
    model = keras.Sequential([*front, *hidden, layers.Dense(data.classes)], name=name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(learning_rate), loss)
    return model


def shares(data: Dataset, parties: int, records: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random records for each party: disjoint where there are enough, else each party's own draw.

    Raises:
        ValueError: more records for a party than there are.
    """
    total = len(data.y_train)
    if records > total:
        raise ValueError(f"A party can have at most the {total} training records. Received: records={records}.")
    rng = np.random.default_rng(seed)
    if parties * records <= total:
        rows = rng.permutation(total)[: parties * records].reshape(parties, records)
    else:
        rows = np.stack([rng.choice(total, records, replace=False) for _ in range(parties)])
    return [(data.x_train[mine], data.y_train[mine]) for mine in rows]


def make_selection(plan: Federation) -> LargestValues | RandomAboveThreshold | SparseVector:
    """The selection that a plan asks for. Raises ValueError for a private selection of the largest values."""
    if plan.epsilon_per_epoch is not None:
        if plan.selection != "random":
            raise ValueError(
                "Private uploads are chosen at random above a noisy threshold: choosing the largest values privately is"
                " not part of the method. Use selection='random'."
            )
        return SparseVector(plan.upload, plan.epsilon_per_epoch, plan.bound, plan.threshold)
    if plan.selection == "largest":
        return LargestValues(plan.upload, plan.bound)
    if plan.selection == "random":
        return RandomAboveThreshold(plan.upload, plan.threshold, plan.bound)
    raise ValueError(f"Unknown selection {plan.selection!r}. Choose largest or random.")


def make_party(plan: Federation, number: int, train: Train, weights: np.ndarray) -> Party:
    """Party `number`, with its ledger in the plan's folder."""
    name = f"party-{number:03d}"
    private = plan.epsilon_per_epoch is not None
    ledger = Ledger(plan.folder / f"{name}.json") if private and plan.folder is not None else None
    return Party(name, train, make_selection(plan), weights, plan.budget if private else None, ledger)


def simulate(plan: Federation, data: Dataset, report: Callable[[str], None] = lambda text: None) -> Outcome:
    """Runs a federation in this process; one that was killed goes on from its folder, and no ledger forgets.

    Raises:
        ValueError: a plan that cannot be carried out.
        LedgerError: a party's ledger cannot be read or written.
    """
    import keras

    keras.utils.set_random_seed(plan.seed)
    model = build_model(plan.model, data, plan.learning_rate)
    weights = flat_weights(model)
    server = Server(weights, plan.upload, plan.bound)
    state = None if plan.folder is None else plan.folder / "server.npz"
    if state is not None:
        with contextlib.suppress(FileNotFoundError):
            server.restore(state)
    training = CompiledEpochs(model, plan.batch_size, plan.epochs)
    held = shares(data, plan.parties, plan.records, plan.seed)
    parties = [make_party(plan, i, training.on(*share), weights) for i, share in enumerate(held)]
    rng = np.random.default_rng([plan.seed, server.round])
    faults, history, started = [], [], time.perf_counter()
    try:
        while server.round < plan.rounds:
            faults += run_round(server, parties, plan.order, plan.download, rng)
            if state is not None:
                server.save(state)
            if measured(server.round, plan.rounds):
                history.append((server.round, accuracy(model, server.weights, data.x_test, data.y_test)))
                report(f"round {server.round}/{plan.rounds}: test accuracy {history[-1][1]:.4f}")
    finally:
        for party in parties:
            party.ledger.close()
    seconds = time.perf_counter() - started
    final = history[-1][1] if history else accuracy(model, server.weights, data.x_test, data.y_test)
    spent = [party.spent() for party in parties]
    return Outcome(
        test_accuracy=final,
        rounds=server.round,
        epsilon_per_party=max((float(value) for value in spent if value is not None), default=None),
        halted=sum(party.halted for party in parties),
        faults=tuple(faults),
        seconds=seconds,
        history=tuple(history),
    )


def measured(number: int, rounds: int) -> bool:
    """About ten times, and at the end."""
    return number == rounds or number % max(1, rounds // 10) == 0
