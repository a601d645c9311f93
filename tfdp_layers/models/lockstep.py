"""Keeps the workers of one `fit` in step with the chief: the same data, draws, weights, steps and end."""

import json
import secrets
from collections.abc import Callable
from typing import Any

import keras

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.ledger_format import release_text
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.batches.base import Batches
from tfdp_layers.models.fit_arguments import flatten_callbacks
from tfdp_layers.models.workers import Workers

__all__ = ["Lockstep", "agree", "fit_together"]

# They write files. Those of this library, which read the ledger, say `chief_only`.
_OF_THE_CHIEF = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


def agree(model: Any, batches: Batches, release: Any, workers: Workers) -> Any:
    """Opens the run on all workers, or on none; returns the chief's token in its ledger, None on the others.

    The chief opens its ledger, and sends what it is going to release, a copy of the ledger, a digest of its records,
    and the key of the draws. The others compare: each must release the same from the same records.

    Raises: ValueError on all where a worker differs; on the others ChiefStoppedError where the chief's ledger refuses.
    """
    if not isinstance(batches, PrivateBatches):
        raise ValueError(
            f"With several workers {type(batches).__name__} would be drawn by every worker anew, and no draw would be"
            " common to them. Give arrays (memory-mapped ones too), or tfdp.PrivateBatches, the same on every worker."
        )
    plan = [unnamed(release), batches.digest(), batches.physical_batch_size, int(model.steps_per_execution)]
    token, sent = None, ""
    if workers.chief:
        try:
            model._refuse_unpaid_weights()
            token = model.ledger.begin(release)
            model.ledger.require(token)
        except BaseException:
            workers.abort()
            raise
        # The key of the draws is as secret as they are: it goes through the collective alone.
        key = None if batches.seeded else secrets.randbits(128)
        sent = json.dumps([plan, model.ledger.to_json(), key])
    theirs, ledger, key = json.loads(workers.text(sent))
    copy = Ledger.from_json(ledger)
    differs = [
        name
        for name, mine, his in zip(("release", "records", "pieces", "steps"), plan, theirs, strict=True)
        if mine != his
    ]
    if not workers.chief and not copy.holds(model.ledger):
        differs.append("ledger")
    if workers.any(bool(differs)):
        raise ValueError(
            f"The workers differ from the chief (this one in {differs or 'nothing'}). All must call fit with the same"
            " model, noise, batches and records, in the same order; what was released or loaded before, such as an"
            " adapted layer, must be in the chief's ledger."
        )
    if not workers.chief:
        model._privacy.ledger = copy
    if key is not None:
        batches.rekey(key)
    return token


def unnamed(release: Any) -> str:
    """A release as text, without the names of its groups: Keras numbers layers by how many a process made before."""
    value = release.to_json()
    groups = [{name: one for name, one in group.items() if name != "name"} for group in value["groups"]]
    return release_text(value | {"groups": groups})


def fit_together(model: Any, fit: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Keras' `fit` of the model; on several workers in lockstep, and after it the others copy the chief's ledger."""
    workers = model.optimizer.workers
    if workers is None:
        return fit(**arguments)
    lockstep, callbacks = Lockstep(workers), list(flatten_callbacks(arguments["callbacks"]))
    if not workers.chief:
        callbacks = [c for c in callbacks if not isinstance(c, _OF_THE_CHIEF) and not getattr(c, "chief_only", False)]
    try:
        history = fit(**(arguments | {"callbacks": [*callbacks, lockstep]}))
    except BaseException:
        if workers.chief and not lockstep.begun:
            workers.abort()
        raise
    ledger = workers.text(model.ledger.to_json() if workers.chief else "")
    if not workers.chief:
        model._privacy.ledger = Ledger.from_json(ledger)
    return history


class Lockstep(keras.callbacks.Callback):
    """Comes last: gives every worker the chief's weights at the start, and ends `fit` for all where the chief ends it.

    So only the chief needs to load a checkpoint, and only its callbacks decide.
    """

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self.begun = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Raises ChiefStoppedError on the others if the chief's callbacks refused."""
        self.begun = True
        self._workers.number()
        model = self.model
        self._workers.share([*model.variables, *model.optimizer.variables])

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops where the chief stops."""
        self.model.stop_training = bool(self._workers.number(int(self.model.stop_training)))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops where the chief stops, or came to its last epoch: it may have started at a later one."""
        last = epoch + 1 >= int(self.params.get("epochs") or 0)
        stop = bool(self._workers.number(int(self.model.stop_training or last)))
        if not self._workers.chief:
            self.model.stop_training = stop
