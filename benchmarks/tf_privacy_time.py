"""Step time of tensorflow-privacy 0.9 and of this library, on the network and settings of its tutorial.

Run: python benchmarks/tf_privacy_time.py --their_python folder/bin/python [--rounds 5] [--clock cpu]

`TFDP_TF_PRIVACY=folder .ci/tensorflow_privacy` makes that environment. Each library runs in a process of its own, which
builds and compiles all its models; then each round asks every model in turn for a short `fit`, so that all see the same
load of the machine. Printed: milliseconds a step (median over rounds of the median step), and the ratio to this
library's `ClippedOptimizer` (median over rounds of the round's ratio; smallest and largest). No data are needed.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("their_python", None, "A Python with tensorflow-privacy 0.9 and this library.", required=True)
flags.DEFINE_integer("batch_size", 250, "Records a step; expected ones, where they are drawn.")
flags.DEFINE_integer("rounds", 5, "Interleaved rounds.")
flags.DEFINE_integer("steps", 8, "Steps a round; the first two are not timed.")
flags.DEFINE_enum(
    "clock", "wall", ["wall", "cpu"], "Time passed, or processor time of all threads (beside other work)."
)

CLIP, NOISE, RATE = 1.5, 1.3, 0.25


def layers() -> list[Any]:
    """The network of the tutorial, 26,010 weights."""
    kl = keras.layers
    return [
        keras.Input((28, 28, 1)),
        *(kl.Conv2D(16, 8, strides=2, padding="same", activation="relu"), kl.MaxPooling2D(2, 1)),
        *(kl.Conv2D(32, 4, strides=2, activation="relu"), kl.MaxPooling2D(2, 1)),
        *(kl.Flatten(), kl.Dense(32, activation="relu"), kl.Dense(10)),
    ]


def theirs() -> Iterator[tuple[str, Any]]:
    """Compiled models of tensorflow-privacy."""
    import tensorflow_privacy as tfp

    import tfdp_layers as tfdp

    vector = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    mean = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    kinds = {"DPKerasSGDOptimizer": tfp.DPKerasSGDOptimizer, "VectorizedDPKerasSGD": tfp.VectorizedDPKerasSGDOptimizer}
    for name, kind in kinds.items():
        model = keras.Sequential(layers())
        model.compile(kind(l2_norm_clip=CLIP, noise_multiplier=NOISE, learning_rate=RATE), vector)
        yield name, model
    model = tfdp.tf_privacy.with_ledger(keras.Sequential(layers()))
    model.compile(kinds["VectorizedDPKerasSGD"](l2_norm_clip=CLIP, noise_multiplier=NOISE, learning_rate=RATE), vector)
    yield "VectorizedDPKerasSGD, with_ledger", model
    for name, xla in (("DPSequential", False), ("DPSequential, use_xla", True)):
        model = tfp.DPSequential(l2_norm_clip=CLIP, noise_multiplier=NOISE, use_xla=xla, layers=layers())
        model.compile(keras.optimizers.SGD(RATE), mean)
        yield name, model


def ours() -> Iterator[tuple[str, Any]]:
    """The compiled model of this library."""
    import tfdp_layers as tfdp

    model = tfdp.make_private(keras.Sequential(layers()))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(RATE), NOISE, CLIP)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    yield "ClippedOptimizer", model


class Timed(keras.callbacks.Callback):
    """Milliseconds of each step."""

    def __init__(self, clock: str) -> None:
        super().__init__()
        self._now = time.perf_counter if clock == "wall" else time.process_time
        self.steps: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._started = self._now()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append(1e3 * (self._now() - self._started))


def work(batch_size: int, steps: int, clock: str) -> None:
    """Prints the names of its models, then for each line of input the median step of each, as JSON."""
    rng = np.random.default_rng(0)
    x = rng.random((batch_size * steps, 28, 28, 1)).astype("float32")
    y = rng.integers(0, 10, len(x))
    models = dict(theirs() if keras.__version__.startswith("2.") else ours())
    for model in models.values():
        model.fit(x, y, batch_size=batch_size, verbose=0)
    print(json.dumps(list(models)), flush=True)
    for line in sys.stdin:
        timed = Timed(clock)
        models[json.loads(line)].fit(x, y, batch_size=batch_size, verbose=0, callbacks=[timed])
        print(json.dumps(statistics.median(timed.steps[2:])), flush=True)


def ask(worker: Any, model: str | None = None) -> Any:
    """The next answer of a worker: the median step of a model, or the names of all."""
    if model is not None:
        worker.stdin.write(json.dumps(model) + "\n")
        worker.stdin.flush()
    return next(json.loads(line) for line in worker.stdout if line.startswith(("[", *"0123456789")))


def main(argv: list[str]) -> None:
    settings = [str(FLAGS.batch_size), str(FLAGS.steps), FLAGS.clock]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [
        subprocess.Popen([p, __file__, "work", *settings], **piped) for p in (sys.executable, FLAGS.their_python)
    ]
    models = [(worker, name) for worker in workers for name in ask(worker)]
    rounds = [{name: ask(worker, name) for worker, name in models} for _ in range(FLAGS.rounds)]
    for worker in workers:
        worker.stdin.close()
        worker.wait()
    for _, name in models:
        ratios = sorted(one[name] / one["ClippedOptimizer"] for one in rounds)
        median = statistics.median(one[name] for one in rounds)
        print(f"{name:34} {median:8.1f} ms  {statistics.median(ratios):6.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        app.run(main)
