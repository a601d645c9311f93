"""Keeps the workers of one `fit` in step with the chief: the same data, draws, weights, steps and end."""

import contextlib
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.accounting import Ledger, Release
from tfdp_layers.accounting.following import Books, Following, copy_of_chiefs, opening_of
from tfdp_layers.accounting.ledger_format import release_text
from tfdp_layers.batches.agreement import share_key
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.batches.base import Batches
from tfdp_layers.callbacks.steering import flatten_callbacks
from tfdp_layers.models.workers import Workers

__all__ = ["Lockstep", "agree", "fit_together", "fitting"]

# They write files. Those of this library, which read the ledger, say `chief_only`.
_OF_THE_CHIEF = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


def fitting(model: Any) -> contextlib.AbstractContextManager[None]:
    """Around all of a model's `fit`, what it checks first included: where a worker refuses, none waits for it."""
    strategy = model._distribute_strategy
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    workers = model._privacy.replicas_of(strategy).workers if several else None
    return contextlib.nullcontext() if workers is None else workers.fitting()


def agree(
    batches: Batches,
    release: Release,
    together: int,
    ledger: Ledger,
    opened: Callable[[], str],
    workers: Workers,
    program: Any = None,
) -> tuple[str | None, Ledger, Following | None]:
    """Opens the run on all workers, or on none.

    The chief opens its ledger, and sends what it is going to release, a copy of the ledger and which entry of it counts
    the run, digests of its records and of its step, and the keys of the draws and of the digests of single records. The
    others compare: each must release the same from the same records. Were a record's part another one on another
    worker, it would depend on the slice that it is in, and so on all others. Of sources, and of more than 1 GiB, some
    records are compared here, and each one when it is first read: see `Agreement`.

    Args:
        together: Keras' `steps_per_execution`.
        ledger: this worker's.
        opened: opens the run in the chief's ledger, and returns its token; called by the chief alone.
        program: what this worker's steps compute, as JSON values: see `program_of`.

    Returns: the chief's token (None on the others); the ledger to go on with, on the others a copy of the chief's; and
        what counts the run in that copy (None on the chief).
    Raises: ValueError on all where a worker differs; on the others ChiefStoppedError where the chief's ledger refuses.
    """
    if not isinstance(batches, PrivateBatches):
        raise ValueError(
            f"With several workers {type(batches).__name__} would be drawn by every worker anew, and no draw would be"
            " common to them. Give arrays (memory-mapped ones too), or tfdp.PrivateBatches, the same on every worker."
        )
    plan = planned(batches, release, together, program)
    token, sent = None, ""
    if workers.chief:
        try:
            token = opened()
        except BaseException:
            workers.abort()
            raise
        # The key of the draws is as secret as they are: it goes through the collective alone.
        key = None if batches.seeded else secrets.randbits(128)
        training = secrets.token_hex(8)
        sent = json.dumps([plan, ledger.to_json(), key, opening_of(ledger, token), training, batches.store.held.key])
    theirs, text, key, opening, training, digests = json.loads(workers.text(sent, "opening"))
    copy = ledger if workers.chief else copy_of_chiefs(text)  # the chief follows nobody
    differs = [name for name, mine in plan.items() if mine != theirs[name]]
    if not workers.chief and not copy.counts(ledger):
        differs.append("ledger")
    if workers.any(bool(differs), "differs"):
        raise _differ(differs)
    workers.open(training)
    share_key(batches.store, digests)
    if key is not None:
        batches._rekey(key)
    return (token, ledger, None) if workers.chief else (None, copy, Following(copy, opening))


def _differ(names: list[str]) -> ValueError:
    return ValueError(
        f"The workers differ from the chief (this one in {names or 'nothing'}). All must call fit with the same model,"
        " noise, batches and records, in the same order; what was released or loaded before, such as an adapted layer,"
        " must be in the chief's ledger. Where 'program' differs, Python of model or loss may make another one in each"
        " trace (random.random(), a count of calls): use TensorFlow or a SeedGenerator. Or a vocabulary differs, or"
        " ids: hash() and set have another order in each process: give sorted(set(words)), and ids that are the same in"
        " each. Or TensorFlow has another version."
    )


def planned(batches: PrivateBatches, release: Release, together: int, program: Any) -> dict[str, Any]:
    """What must be the same on all workers, as JSON values, by the names that errors call it."""
    values = [unnamed(release), batches.digest(), batches.physical_batch_size, together, program]
    names = ("release", "records", "pieces", "steps", "program")
    return dict(json.loads(json.dumps(dict(zip(names, values, strict=True)), default=str)))


def unnamed(release: Release) -> str:
    """A release as text, without what a process alone knows.

    That is the names of its groups, as Keras numbers layers by how many were made before, and the grouping of units,
    which has a key: which records belong together is in the digest of the batches.
    """
    value = {name: one for name, one in release.to_json().items() if name != "grouping"}
    groups = [{name: one for name, one in group.items() if name != "name"} for group in value["groups"]]
    return release_text(value | {"groups": groups})


def fit_together(
    fit: Callable[..., Any], arguments: dict[str, Any], workers: Workers, books: Books, read: Sequence[Any] = ()
) -> tuple[Any, Ledger]:
    """Keras' `fit` on several workers in lockstep.

    Args:
        books: what the chief's weights cost; the others hear of it before they take any.
        read: variables of TensorFlow that its steps read.

    Returns: Keras' history, and the chief's ledger: on the others a copy.
    Raises: what `fit` raises; on all others then WorkerStoppedError, of the chief ChiefStoppedError.
    """
    lockstep, callbacks = Lockstep(workers, read), list(flatten_callbacks(arguments["callbacks"]))
    if not workers.chief:
        callbacks = [c for c in callbacks if not isinstance(c, _OF_THE_CHIEF) and not getattr(c, "chief_only", False)]
    with workers.training(books):
        history = fit(**(arguments | {"callbacks": [*callbacks, lockstep]}))
        text = workers.text(books.ledger.to_json() if workers.chief else "", "end")
    return history, books.ledger if workers.chief else copy_of_chiefs(text)


class Lockstep(keras.callbacks.Callback):
    """Comes last: gives every worker the chief's weights at the start, and ends `fit` for all where the chief ends it.

    So only the chief needs to load a checkpoint, and only its callbacks decide. What another worker's callbacks change
    (weights, the rate), `CountedStep` takes back before the next step: see `Workers.level`.

    Args:
        workers: the processes.
        read: variables of TensorFlow that the steps read.
    """

    def __init__(self, workers: Workers, read: Sequence[Any] = ()) -> None:
        super().__init__()
        self._workers, self._read = workers, read

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Raises ChiefStoppedError on the others if the chief's callbacks refused."""
        self._workers.number(name="begin")
        model = self.model
        self._workers.hold([*model.variables, *model.optimizer.variables], self._read)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops where the chief stops."""
        self.model.stop_training = bool(self._workers.number(int(self.model.stop_training), "batch"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops where the chief stops, or came to its last epoch: it may have started at a later one."""
        last = epoch + 1 >= int(self.params.get("epochs") or 0)
        stop = bool(self._workers.number(int(self.model.stop_training or last), "epoch"))
        if not self._workers.chief:
            self.model.stop_training = stop
