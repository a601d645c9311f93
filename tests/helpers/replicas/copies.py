"""What a worker that is not the chief states and saves while `fit` runs; it may charge no copy of its ledger."""

import copy
from pathlib import Path
from typing import Any

import keras
import pytest

import tfdp_layers as tfdp
from helpers.clipped_models import mlp
from helpers.replicas.processes import FOLDER
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.models.workers import ChiefStoppedError

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Saves(keras.callbacks.Callback):
    """Every worker saves its model each epoch, as TensorFlow's tutorial does it, and states what it holds."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.found = path, []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.save(self.path)
        self.note()

    def on_train_end(self, logs: Any = None) -> None:
        self.note()

    def note(self) -> None:
        self.found.append([self.model.ledger.steps, self.model.privacy_statement(1e-5).epsilon])


class Releases(keras.callbacks.Callback):
    """A metric that the chief alone releases behind the first epoch: the rate that it decides is that of all."""

    def __init__(self, number: int, labels: Any) -> None:
        super().__init__()
        self.number, self.labels = number, labels

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.number == 0 and epoch == 0:
            share = tfdp.release_metric(self.labels > 0, self.model.ledger, stddev=0.1, name="share")
            self.model.optimizer.learning_rate = 0.2 if float(share) > 0.5 else 0.05


class Down(keras.callbacks.Callback):
    """The server that the chief tells of the end is down."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def on_train_end(self, logs: Any = None) -> None:
        if self.number == 0:
            raise ConnectionError("server is down")


def copies_of_the_chiefs(strategy: Any, number: int) -> dict[str, Any]:
    """What a worker states and saves while `fit` runs, of a ledger that holds an earlier training; and may charge."""
    with strategy.scope():
        first, x, y = mlp()
        first.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 8.0), LOSS)
        second, _, _ = mlp()
        second.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0), LOSS)
    first.fit(x, y, batch_size=4, epochs=3, verbose=0)
    second.ledger = first.ledger
    held, saves = second.ledger, Saves(FOLDER / f"saved_by_{number}.keras")
    second.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[saves, Releases(number, y)])
    found = {"stated": saves.found, "after": [second.ledger.steps, held.steps]}
    loaded = tfdp.load_model(saves.path)
    found["loaded"] = [loaded.ledger.steps, loaded.privacy_statement(1e-5).epsilon]
    merged = Ledger()
    for one in second.ledger, loaded.ledger:
        merged.merge(one)
    found["merged"] = [merged.steps]

    def releases(ledger: Any) -> float:
        return float(tfdp.release_metric(y > 0, ledger, stddev=0.1, name="share"))

    copied = copy.deepcopy(second)
    copies = (
        held.copy(),
        copy.deepcopy(held),
        merged,
        loaded.ledger,
        copied.ledger,
        tfdp.load_model(saves.path).ledger,
    )
    for one in (held, second.ledger, first.ledger, *copies) if number else ():
        with pytest.raises(LedgerError, match="not the chief"):
            releases(one)
    if number:
        with pytest.raises(LedgerError, match="not the chief"):
            second.ledger = own_metric(releases)
    if not number:
        releases(second.ledger)
    with pytest.raises((ConnectionError, ChiefStoppedError)[number]):
        second.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=[Down(number)])
    second.fit(x, y, batch_size=4, epochs=1, verbose=0)  # the chief's goes on, with its metric
    found["last"] = [second.ledger.steps, held.steps, second.privacy_statement(1e-5).epsilon]
    return found


def own_metric(releases: Any) -> Ledger:
    """A ledger of this worker's own, with a metric that it alone released."""
    ledger = Ledger()
    releases(ledger)
    return ledger
