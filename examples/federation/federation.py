"""A Flower app of selective SGD: the parties split scikit-learn's digits among them. docs/federated.md starts it.

Run configuration (pyproject.toml, or `flwr run --run-config`): `parties` and `rounds`; `order`, see
`tfdp_layers.federated.rounds`; `model`, "mlp" (Keras) or "linear" (NumPy alone: starts in seconds); `upload`, the
largest part of the weights in one upload; `epsilon-per-upload`, its privacy cost for a party's whole data set, or 0 for
none; `folder`, where the server leaves result.json, and its state. Each party's ledger lies in the folder that its own
SuperNode was given: --node-config 'partition-id=0 folder="/some/where"'.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from tfdp_layers.accounting import Ledger
from tfdp_layers.federated import Budget, KerasTraining, LargestValues, Party, Server, SparseVector, flat_weights
from tfdp_layers.federated.app import SelectiveSGD, make_client_app
from tfdp_layers.zoo import datasets

CLASSES, BOUND = 10, 1e-2
server_app = ServerApp()


def records(part: int | None, parties: int) -> tuple[np.ndarray, np.ndarray]:
    """What a party holds, (n, 64) in [0, 1]; the test set for None."""
    data = datasets.load("digits")
    x, y = (data.x_test, data.y_test) if part is None else (data.x_train[part::parties], data.y_train[part::parties])
    return x.reshape(len(x), -1), y


class Linear:
    """Softmax regression, without TensorFlow."""

    weights = np.zeros(64 * CLASSES + CLASSES, np.float32)

    @staticmethod
    def logits(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
        return x @ weights[:-CLASSES].reshape(64, CLASSES) + weights[-CLASSES:]

    def train(self, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        for _ in range(50):
            odds = np.exp(self.logits(weights, x))
            error = (odds / odds.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(x)
            step = np.concatenate([(x.T @ error).ravel(), error.sum(0)])
            weights = (weights - 0.5 * step).astype(np.float32)
        return weights


def keras_model() -> Any:
    """The same for all: its first weights come from a fixed seed."""
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def party_of(context: Context) -> Party:
    """The party of the SuperNode that runs this."""
    config, part = context.run_config, int(context.node_config["partition-id"])
    x, y = records(part, int(config["parties"]))
    if config["model"] == "linear":
        weights, train = Linear.weights, lambda before: Linear().train(before, x, y)
    else:
        model = keras_model()
        weights, train = flat_weights(model), KerasTraining(model, x, y, epochs=5)
    each, upload = float(config["epsilon-per-upload"]), float(config["upload"])
    if each == 0.0:
        return Party(f"party-{part}", train, LargestValues(upload), weights)
    ledger = Ledger(Path(str(context.node_config["folder"])) / f"party-{part}.json")
    selection = SparseVector(upload, each, BOUND, threshold=1e-3)
    return Party(f"party-{part}", train, selection, weights, Budget(5.0 * each, 1e-5), ledger)


client_app = make_client_app(party_of)


def accuracy(model: Any, weights: np.ndarray) -> float:
    """On the test set."""
    x, y = records(None, 1)
    if isinstance(model, Linear):
        return float(np.mean(Linear.logits(weights, x).argmax(1) == y))
    from tfdp_layers.federated.keras_training import accuracy as of_keras

    return of_keras(model, weights, x, y)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    model: Any = Linear() if config["model"] == "linear" else keras_model()
    weights = model.weights if isinstance(model, Linear) else flat_weights(model)
    private = float(config["epsilon-per-upload"]) > 0.0
    server = Server(weights, float(config["upload"]), BOUND if private else 1.0)
    folder = Path(str(config["folder"]))
    if (folder / "server.npz").exists():
        server.restore(folder / "server.npz")
    while len(list(grid.get_node_ids())) < int(config["parties"]):
        time.sleep(0.2)
    strategy = SelectiveSGD(server, str(config["order"]), timeout=120.0, state=folder / "server.npz")
    history: list[float] = []

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        history.append(accuracy(model, server.weights))
        print(f"round {number}: test accuracy {history[-1]:.4f}", flush=True)

    strategy.start(grid, num_rounds=int(config["rounds"]), evaluate_fn=evaluate)
    found = {"rounds": server.round, "uploaded": int(server.counters.sum()), "test_accuracy": history[-1:]}
    (folder / "result.json").write_text(json.dumps(found | {"faults": strategy.faults}) + "\n")
