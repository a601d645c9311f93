"""Checks of two processes on loopback; prints one line of JSON a check. `test_replicas.py` runs it.

Usage: python two_workers.py FOLDER. The workers are forked before TensorFlow starts, which spares their import of it.
"""

import json
import mmap
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from checking import drawn_noise, is_standard_normal, run, still, weights, wide_model
from zoo import mlp

import tfdp_layers as tfdp
from tfdp_layers.accounting import BudgetExhausted, Ledger
from tfdp_layers.workers import ChiefStoppedError, Workers

FOLDER = Path(sys.argv[1])
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Count:
    """A number in memory that processes share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def add(self) -> None:
        self._memory[:] = struct.pack("q", self.value + 1)

    @property
    def value(self) -> int:
        return int(struct.unpack("q", self._memory[:])[0])


COUNTS = [Count(), Count()]


class Observed(tfdp.optimizers.NoisyOptimizer):
    """Counts each noisy sum on its worker when it comes into existence, before the weights change."""

    count: Any = None

    def after_noise(self, means: Any, statistics: Any, variables: Any, groups: Any) -> Any:
        def seen(mean: np.ndarray) -> np.ndarray:
            self.count.add()
            return mean

        first = tf.ensure_shape(tf.numpy_function(seen, [means[0]], tf.float32), means[0].shape)
        return super().after_noise([first, *means[1:]], statistics, variables, groups)


class Die(keras.callbacks.Callback):
    """Kills its own process after so many updates."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self._left = updates

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def workers(job: Callable[[int, Any], Any]) -> list[Any]:
    """What `job(number, strategy)` returned on two workers: arrays, by file; None for one that was killed."""
    free = [socket.socket() for _ in range(2)]
    for one in free:
        one.bind(("127.0.0.1", 0))
    cluster = {"worker": [f"127.0.0.1:{one.getsockname()[1]}" for one in free]}
    for one in free:
        one.close()
    files = [FOLDER / f"worker_{i}.json" for i in range(2)]
    processes = []
    for i, file in enumerate(files):
        file.unlink(missing_ok=True)
        processes.append(os.fork())
        if processes[-1] == 0:
            try:
                os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
                found = job(i, tf.distribute.MultiWorkerMirroredStrategy())
            except BaseException:
                found = traceback.format_exc()
            file.write_text(json.dumps(found))
            os._exit(0)
    for process in processes:
        os.waitpid(process, 0)
    found = [json.loads(file.read_text()) if file.exists() else None for file in files]
    assert not any(isinstance(one, str) for one in found), "\n".join(map(str, found))
    return found


def one_session(number: int, strategy: Any) -> dict[str, Any]:
    """What several trainings left on a worker."""
    found: dict[str, Any] = {}

    def fitted(name: str, scope: bool, make: Callable[[], Any], **fit: Any) -> Any:
        keras.utils.set_random_seed(1 if scope else 2)
        _, x, y = mlp()
        with strategy.scope():
            model = still(mlp()[0])
            model.compile(make(), LOSS, steps_per_execution=2)
        model.fit(x, y, epochs=2, steps_per_epoch=4, verbose=0, **fit)
        found[name] = weights(model).tolist()
        return model

    noiseless = lambda: tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(0.05), 0.0)  # noqa: E731
    draws = {"sampling": tfdp.sampling.Poisson(5), "sampling_seed": 1}
    fitted("two", True, noiseless, **draws)
    keras.utils.set_random_seed(1)
    alone, x, y = mlp()
    still(alone).compile(noiseless(), LOSS)
    alone.fit(x, y, epochs=2, steps_per_epoch=4, verbose=0, **draws)
    found["one"] = weights(alone).tolist()
    budget = tfdp.callbacks.PrivacyBudget(8.0, 1e-5)
    secure = lambda: tfdp.optimizers.NoisyOptimizer("sgd", 1.0, noise_source="secure")  # noqa: E731
    model = fitted("secure", number == 0, secure, batch_size=4, callbacks=[budget])
    found["budget"] = [model.ledger.steps, int(model.optimizer.releases.numpy()), model.privacy_statement(1e-5).epsilon]
    with strategy.scope():
        model, x, y = wide_model()
    found["noise"] = drawn_noise(model, x, y).tolist()
    with mock.patch.object(Workers, "noisy", lambda self, add, sums: self._summed(add())):
        with strategy.scope():
            planted, x, y = wide_model()
        found["planted"] = drawn_noise(planted, x, y).tolist()
    found["refused"] = refused(number, model, x, y)
    return found


def refused(number: int, model: Any, x: Any, y: Any) -> list[str]:
    """Why a `fit` that would be unsound does not start, on this worker; the ledger stays as it is."""
    steps, said = model.ledger.steps, []
    turned = x * (1 + number)
    given = {"x": x, "y": y, "sampling": tfdp.sampling.FixedSize(4)}
    cases: list[tuple[Any, dict[str, Any]]] = [
        (ValueError, given | {"x": turned}),
        (ValueError, given | {"physical_batch_size": 1 + number}),
        (ValueError, given | {"validation_data": (x.copy(), y)}),
        (ValueError, {"x": tfdp.declare_sampling(pairs(x, y), tfdp.sampling.Partition(4), examples=16)}),
        (
            (BudgetExhausted, ChiefStoppedError)[number],
            given | {"callbacks": [tfdp.callbacks.PrivacyBudget(1e-3, 1e-5)]},
        ),
        # Partition has another neighbouring relation than the chief's ledger.
        ((ValueError, ChiefStoppedError)[number], given | {"sampling": tfdp.sampling.Partition(4)}),
    ]
    for error, arguments in cases:
        with pytest.raises(error) as raised:
            model.fit(verbose=0, **arguments)
        said.append(str(raised.value)[:90])
    assert model.ledger.steps == steps
    return said


def pairs(x: Any, y: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


FOUND: list[Any] = []


def two_workers_train() -> None:
    FOUND.extend(workers(one_session))


def two_workers_equal_one_device() -> None:
    for found in (FOUND[0], FOUND[1]):
        np.testing.assert_allclose(found["two"], found["one"], rtol=1e-5, atol=1e-6)


def weights_are_the_same_on_all_workers() -> None:
    # Also where they started from different ones, with a source of noise that no key repeats.
    for name in ("two", "secure", "noise"):
        np.testing.assert_array_equal(FOUND[0][name], FOUND[1][name])


def the_noise_of_a_step_is_the_stated_one() -> None:
    assert is_standard_normal(np.array(FOUND[0]["noise"]))


def noise_of_every_worker_is_seen() -> None:
    """Planted: the workers' noisy sums are added up."""
    planted = np.array(FOUND[0]["planted"])
    assert not is_standard_normal(planted)
    np.testing.assert_allclose(planted.std(), np.sqrt(2), rtol=0.05)


def the_budget_ends_all_workers_together() -> None:
    assert FOUND[0]["budget"] == FOUND[1]["budget"]
    steps, releases, epsilon = FOUND[0]["budget"]
    assert 0 < steps == releases < 8
    assert 6.0 < epsilon <= 8.0


def what_differs_between_workers_is_refused() -> None:
    chief, other = FOUND[0]["refused"], FOUND[1]["refused"]
    assert "this one in nothing" in chief[0] + chief[1]
    assert "['records']" in other[0]
    assert "['pieces']" in other[1]
    assert chief[2:4] == other[2:4]
    assert "Keras 3 cannot evaluate" in other[2]
    assert "DeclaredBatches" in other[3]
    assert "The chief stopped" in other[4]
    assert "relation" in chief[5]


def after_a_kill_the_ledger_counts_what_was_released() -> None:
    """A worker is killed, then the chief; each time training goes on from the chief's checkpoint."""
    totals = []
    for victim in (1, 0, None):
        found = workers(lambda number, strategy, victim=victim: resumed(number, strategy, victim))
        assert [one is None for one in found] == [victim == 0, victim == 1]
        ledger = Ledger(FOLDER / "ledger.json")
        released = max(count.value for count in COUNTS)
        assert released <= ledger.steps <= released + 1, (victim, ledger.steps, released)
        totals.append(released)
    assert totals[0] < totals[1] < totals[2]
    assert found[0] == found[1]
    assert found[0][:2] == [Ledger(FOLDER / "ledger.json").steps] * 2


def resumed(number: int, strategy: Any, victim: int | None) -> Any:
    """Trains from where the backup stands; the victim kills itself."""
    with strategy.scope():
        model, x, y = mlp()
        model.compile(Observed("sgd", 1.0), LOSS)
    model.optimizer.count = COUNTS[number]
    callbacks: list[Any] = [Die(3)] if number == victim else []
    if number == 0:
        model.ledger = Ledger(FOLDER / "ledger.json", dataset="killed")
        callbacks.insert(0, keras.callbacks.BackupAndRestore(FOLDER / "backup", save_freq=1))
    try:
        model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
    except tf.errors.UnavailableError:
        assert victim is not None
        return []
    return [model.ledger.steps, int(model.optimizer.releases.numpy()), weights(model).tolist()]


if __name__ == "__main__":
    for check in (
        after_a_kill_the_ledger_counts_what_was_released,
        two_workers_train,
        two_workers_equal_one_device,
        weights_are_the_same_on_all_workers,
        the_noise_of_a_step_is_the_stated_one,
        noise_of_every_worker_is_seen,
        the_budget_ends_all_workers_together,
        what_differs_between_workers_is_refused,
    ):
        run(check)
