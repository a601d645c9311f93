"""Kills trainings at random moments (SIGKILL), resumes them, and checks what the ledger, the files and the budget say.

Run: python benchmarks/kill.py [--kills 100] [--folder DIR] [--seed 0] [--json]

Four histories, each of one data set with a ledger in a file and a budget, are trained again and again, every time by a
new process that is killed at a random moment: while it loads, trains, writes its ledger, saves or releases a metric.
Each new noisy sum is counted in shared memory at the moment it exists, before the weights change. After every kill:

- the ledger is a whole file, and counts at least what was released; at most one reservation a kill over;
- the next process loads the model that the killed one saved, or the backup of its weights.

At the end each history is trained until its budget is spent: epsilon of the ledger, and so of what was really released,
is at most the budget, and a further fit is refused.

Children are forked before TensorFlow computes anything, which spares its import of seconds.
"""

import json
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.accounting import BudgetExhausted, GroupNoise, Ledger, Release, epsilon
from tfdp_layers.models.model import PrivateSequential

FLAGS = flags.FLAGS
flags.DEFINE_integer("kills", 100, "Processes to kill, over all histories.")
flags.DEFINE_string("folder", None, "Where the histories are kept, and go on from; a temporary one if left out.")
flags.DEFINE_integer("seed", 0, "Of the moments of the kills.")
flags.DEFINE_float(
    "longest", 2.0, "Seconds; a kill comes uniformly within them, after the process started (one in four) or trains."
)
flags.DEFINE_boolean("json", False, "Print one JSON object as the last line.")

DELTA, RECORDS, BATCH, NOISE = 1e-5, 1000, 20, 2.0
HISTORIES = {"backup": 1, "checkpoint": 5, "logs": 1, "metrics": 3}
"""What each history keeps, and its steps_per_execution: the size of one reservation."""


class Count:
    """A number in memory that outlives the process which adds to it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def add(self) -> None:
        """Adds one, in a single store of eight bytes."""
        self._memory[:] = struct.pack("q", self.value + 1)

    @property
    def value(self) -> int:
        return int(struct.unpack("q", self._memory[:])[0])


@keras.saving.register_keras_serializable(package="kill")
class Observed(tfdp.optimizers.NoisyOptimizer):
    """Counts each noisy sum when it comes into existence, before the weights change."""

    count: Any = None

    def after_noise(self, means: Any, statistics: Any, variables: Any, groups: Any) -> Any:
        def seen(*noisy: Any) -> Any:
            self.count.add()
            return noisy[0]

        shape = means[0].shape
        first = tf.ensure_shape(tf.numpy_function(seen, means, tf.float32), shape)
        return super().after_noise([first, *means[1:]], statistics, variables, groups)


class Metric(keras.callbacks.Callback):
    """Releases a metric of the private data after each epoch."""

    def __init__(self, x: Any, y: Any, count: Count) -> None:
        super().__init__()
        self._x, self._y, self._count = x, y, count

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        hits = self.model(self._x).numpy().argmax(-1) == self._y
        tfdp.release_metric(hits, self.model.ledger, stddev=0.2, name="accuracy")
        self._count.add()


def new_model() -> Any:
    """A small classifier."""
    clips = {"input_clip": 1.0, "upstream_clip": 0.5}
    layers = [keras.Input((6,)), tfdp.layers.ClippedDense(8, activation="tanh", **clips)]
    return PrivateSequential([*layers, tfdp.layers.ClippedDense(3, **clips)])


class Note(keras.callbacks.Callback):
    """Says on a pipe that updates begin."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._pipe:
            os.write(self._pipe, b"t")
            self._pipe = 0


def train(folder: Path, kind: str, budget: tuple[float, float], pipe: int) -> None:
    """One training of a history, from where the files say it stands, without end but for the budget."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(RECORDS, 6)).astype("float32"), rng.integers(0, 3, RECORDS)
    count, saved = Count(folder / "released"), folder / "model.keras"
    os.write(pipe, b"r")
    # Keras writes this file of a backup in place: a kill may leave it empty, and then it refuses to restore or start.
    progress = folder / "backup" / "training_metadata.json"
    if progress.exists() and not progress.read_bytes():
        progress.unlink()
    if kind == "checkpoint" and saved.exists():
        model = tfdp.load_model(saved, {"kill>Observed": Observed})
    else:
        model = new_model()
        optimizer = Observed(keras.optimizers.SGD(0.1), NOISE)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, steps_per_execution=HISTORIES[kind])
    model.optimizer.count = count
    model.ledger = Ledger(folder / "ledger.json", dataset=kind, budget=budget)
    callbacks: dict[str, Callable[[], list[Any]]] = {
        "backup": lambda: [keras.callbacks.BackupAndRestore(folder / "backup", save_freq=2)],
        "checkpoint": lambda: [keras.callbacks.ModelCheckpoint(saved, save_freq=10)],
        "logs": lambda: [
            tfdp.callbacks.PrivacyBudget(1.5 * budget[0], DELTA),
            tfdp.callbacks.PrivacyTensorBoard(folder / "logs", delta=DELTA),
        ],
        "metrics": lambda: [Metric(x, y, count)],
    }
    given = [*callbacks[kind](), Note(pipe)]
    model.fit(x, y, batch_size=BATCH, epochs=10**6, steps_per_epoch=15, verbose=0, callbacks=given)


def child(folder: Path, kind: str, budget: tuple[float, float], note: int) -> None:
    """Trains and says on the pipe `note` how far it came; never returns."""
    try:
        train(folder, kind, budget, note)
        os.write(note, b"e")
    except BudgetExhausted:
        os.write(note, b"x")
    except BaseException as error:
        os.write(note, f"!{type(error).__name__}: {error}".encode()[:60_000])
    os._exit(0)


def run(folder: Path, kind: str, budget: tuple[float, float], wait: float | None, notes: int = 1) -> tuple[bool, str]:
    """Forks a training and kills it `wait` seconds after so many notes; returns whether it was, and what it said."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        child(folder, kind, budget, writer)
    os.close(writer)
    said = b"".join(os.read(reader, 1) for _ in range(notes))
    if wait is not None:
        time.sleep(wait)
        os.kill(process, signal.SIGKILL)
    while part := os.read(reader, 1 << 16):
        said += part
    _, status = os.waitpid(process, 0)
    os.close(reader)
    return os.WIFSIGNALED(status), said.decode()


def check(folder: Path, slack: int) -> tuple[int, int]:
    """(counted, released) of a history. Raises AssertionError or LedgerError where the ledger does not hold."""
    path = folder / "ledger.json"
    counted = Ledger(path).steps if path.exists() else 0
    released = Count(folder / "released").value
    assert counted >= released, f"{folder.name}: released {released}, counted {counted}"
    assert counted <= released + slack, f"{folder.name}: counted {counted}, released {released}, slack {slack}"
    return counted, released


def budget_for(steps: int) -> tuple[float, float]:
    """The epsilon of so many steps."""
    model = new_model()
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", NOISE), "mse")
    noises = tuple(GroupNoise(str(i), 1.0, NOISE * 2**0.5) for i in range(2))
    ledger = Ledger()
    ledger.reserve(ledger.begin(Release(noises, tfdp.sampling.Poisson(BATCH), RECORDS)), steps)
    return float(epsilon(ledger, DELTA)), DELTA


def main(_: Any) -> None:
    """Kills, checks, and trains to the end of the budgets."""
    root = Path(FLAGS.folder or tempfile.mkdtemp(prefix="kill-"))
    rng, kinds = random.Random(FLAGS.seed), list(HISTORIES)
    # In a process of its own: a child may only be forked while TensorFlow has not computed anything here.
    known = [Ledger(path).budget for path in root.glob("*/ledger.json")]
    wanted = 30 * max(FLAGS.kills, 10)
    budget = (known[0].epsilon, DELTA) if known and known[0] else forked(lambda: budget_for(wanted))
    results: Counter[str] = Counter()
    for kind in kinds:
        (root / kind).mkdir(parents=True, exist_ok=True)
    kills = {kind: Count(root / kind / "kills") for kind in kinds}
    for number in range(FLAGS.kills):
        kind = kinds[number % len(kinds)]
        folder = root / kind
        before = check(folder, 10**9)[1]
        was_killed, said = run(folder, kind, budget, rng.uniform(0.0, FLAGS.longest), rng.choice((1, 2, 2, 2)))
        if "!" in said:
            sys.exit(f"kill {number} ({kind}): {said}")
        if was_killed:
            kills[kind].add()
        counted, released = check(folder, HISTORIES[kind] * (kills[kind].value + 1))
        results["killed while updates were made" if released > before else "killed before the first update"] += (
            was_killed
        )
        results["ended by itself: the budget was spent"] += not was_killed
        print(f"{number + 1:4d} {kind:10s} released {released}, counted {counted}", flush=True)
    summary: dict[str, Any] = {"kills": sum(count.value for count in kills.values()), "budget": budget[0], **results}
    for kind in kinds:
        folder = root / kind
        said = ""
        for _ in range(2):  # the second finds nothing left
            _, said = run(folder, kind, budget, None)
        assert "!" not in said, f"{kind}: {said}"
        assert said == "rx", f"{kind}: the spent budget was not refused: {said}"
        counted, released = check(folder, HISTORIES[kind] * (kills[kind].value + 1))
        spent = float(epsilon(Ledger(folder / "ledger.json"), DELTA))
        assert spent <= budget[0], f"{kind}: {spent} > {budget[0]}"
        summary[kind] = {"kills": kills[kind].value, "released": released, "counted": counted, "epsilon": spent}
    print(json.dumps(summary) if FLAGS.json else "\n".join(f"{k}: {v}" for k, v in summary.items()))


def forked(compute: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """What `compute` returns in a forked process."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(compute()).encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    found = json.loads(os.read(reader, 1000))
    return float(found[0]), float(found[1])


if __name__ == "__main__":
    app.run(main)
