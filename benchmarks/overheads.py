"""What private training costs beside its gradients: noise, the main thread's work from step to step, and start-up.

Run: python benchmarks/overheads.py [--what noise,steps,ledger,shown,checksums,hooks,start_up]
     [--rounds 7]

- noise: processor time a number of a draw of 800,000, by TensorFlow's operations, by our kernels, by both compiled.
- steps: processor time of the main thread alone from one step's end to the next one's, of a network of one weight.
- ledger: time of a step's count in the ledger, budget in force, in memory and in a file: before the step and after it.
- shown: processor time of the bounds on epsilon that PrivacyBudget shows, of all steps of a training together.
- checksums: processor time of those of 785,000 weights, by which replicas compare what they hold, at each step.
- hooks: time that a callback of one's own with a hook at every batch, which does nothing, adds to a step: what the
  model holds is compared around it. Of networks of different sizes; the time of their steps is the first number.
- start_up: wall and processor time of a process that makes one step of the 26k-weight CNN (first_step.py): ordinary,
  private with a given noise, and with the noise that `fit` finds for a budget.

Rounds are interleaved; printed are medians, with the smallest and largest.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.accounting import EpsilonCurve, GroupNoise, Ledger, Release
from tfdp_layers.models.checksums import checksums
from tfdp_layers.models.counting import CountedStep
from tfdp_layers.noise import normals

FLAGS = flags.FLAGS
flags.DEFINE_list("what", ["noise", "steps", "ledger", "shown", "checksums", "hooks", "start_up"], "What to time.")
flags.DEFINE_integer("rounds", 7, "Interleaved rounds.", lower_bound=1)

KINDS = ("keras", "given noise", "budget")
FIRST_STEP = Path(__file__).with_name("first_step.py")
NUMBERS, STEPS, WARMING = 800_000, 200, 20


def told(times: Sequence[float], scale: float, unit: str) -> str:
    return f"{statistics.median(times) * scale:.2f} {unit} ({min(times) * scale:.2f}-{max(times) * scale:.2f})"


def noise() -> None:
    """Nanoseconds a number of every way to draw."""
    state, counters = tf.constant([1, 2, 3], tf.int64), NUMBERS // normals.PER_COUNTER
    drawn = tf.function(lambda seed: tf.random.stateless_normal([NUMBERS], seed))
    ways: dict[str, Callable[[], Any]] = {
        "TensorFlow's operations": tf.function(lambda: normals._plain(state, counters)),
        "TensorFlow's operations, compiled": tf.function(lambda: normals._plain(state, counters), jit_compile=True),
        "tf.random.stateless_normal": lambda: drawn(state[:2]),
        "our kernels": lambda: normals._compiled(state, counters),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(20 * FLAGS.rounds + 1):
        for name, draw in ways.items():
            start = time.process_time()
            draw()
            times[name].append(time.process_time() - start)
    for name, found in times.items():
        print(f"noise    {name:34} {told(found[1:], 1e9 / NUMBERS, 'ns a number')}", flush=True)


class Ends(keras.callbacks.Callback):
    """Processor time of this thread at the end of every step."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(time.thread_time())

    def median(self) -> float:
        pairs = zip(self.times[WARMING:], self.times[WARMING + 1 :], strict=False)
        return statistics.median(after - before for before, after in pairs)


def steps() -> None:
    """Milliseconds of the main thread from step to step, of an ordinary and a private network."""
    x, y = np.random.default_rng(0).normal(size=(16 * STEPS, 1)), np.arange(16 * STEPS) % 10
    found: dict[str, list[float]] = {"keras": [], "private": []}
    models = {}
    for kind in found:
        network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        models[kind] = network if kind == "keras" else tfdp.make_private(network)
        rate = keras.optimizers.SGD(0.0)
        models[kind].compile(rate if kind == "keras" else tfdp.optimizers.ClippedOptimizer(rate, 1.0), "mse")
    for number in range(FLAGS.rounds + 1):
        for kind, model in models.items():
            ends = Ends()
            model.fit(x, y, batch_size=16, steps_per_epoch=STEPS, verbose=0, callbacks=[ends])
            found[kind] += [ends.median()] if number else []
    for kind, times in found.items():
        print(f"steps    {kind:34} {told(times, 1e3, 'ms of the main thread')}", flush=True)


def counted(kept: Ledger, taken: list[float]) -> None:
    """A short `fit` that counts in a ledger; appends the seconds that its counting took, by step."""
    x, y = np.random.default_rng(0).normal(size=(16 * STEPS, 8)), np.zeros(16 * STEPS)
    model = tfdp.make_private(keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    model.ledger = kept
    reserved, settle = CountedStep._reserved, Ledger.settle

    def before(self: Any, *args: Any) -> int:
        start = time.perf_counter()
        count = reserved(self, *args)
        taken.append(time.perf_counter() - start)
        return count

    def after(self: Any, *args: Any) -> None:
        start = time.perf_counter()
        settle(self, *args)
        if taken:
            taken[-1] += time.perf_counter() - start

    with mock.patch.object(CountedStep, "_reserved", before), mock.patch.object(Ledger, "settle", after):
        budget = tfdp.callbacks.PrivacyBudget(epsilon=50.0, delta=1e-5)
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[budget])


def ledger() -> None:
    """Milliseconds a step for counting it."""
    found: dict[str, list[float]] = {"in memory": [], "in a file": []}
    for _ in range(FLAGS.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for kind, kept in {"in memory": Ledger(), "in a file": Ledger(f"{folder}/ledger.json")}.items():
                taken: list[float] = []
                counted(kept, taken)
                found[kind].append(statistics.mean(taken[WARMING:]))
    for kind, times in found.items():
        print(f"ledger   {kind:34} {told(times, 1e3, 'ms a step')}", flush=True)


class Idle(keras.callbacks.Callback):
    """A hook at every batch, of a kind that nobody knows."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


def shown() -> None:
    """Milliseconds of all bounds of a training."""
    for examples, size, steps in ((1_600, 32, 200), (60_000, 256, 5_000)):
        taken = []
        for number in range(FLAGS.rounds + 1):
            multiplier = 1.5 + 1e-3 * number  # what was computed before is kept
            release = Release((GroupNoise("all", 1.0, multiplier),), tfdp.sampling.Poisson(size), examples)
            start = time.process_time()
            curve = EpsilonCurve(None, release, 1e-5)
            for step in range(steps):
                curve.bound(step + 1)
            taken.append(time.process_time() - start)
        print(f"shown bounds on epsilon of {steps:,} steps: {told(taken[1:], 1e3, 'ms')}", flush=True)


def sums_of_bits() -> None:
    """Milliseconds of the checksums of 785,000 weights."""
    weights = [tf.Variable(tf.random.normal(shape)) for shape in ((784, 1000), (1000,))]
    compute = tf.function(lambda: checksums([one.value() for one in weights]), autograph=False)
    taken = []
    for _ in range(FLAGS.rounds + 1):
        start = time.process_time()
        for _ in range(50):
            compute()
        taken.append((time.process_time() - start) / 50)
    print(f"checksums of 785,000 weights: {told(taken[1:], 1e3, 'ms')}", flush=True)


def hooks() -> None:
    """Milliseconds a step without and with a hook."""
    rng = np.random.default_rng(0)
    for width in (8, 300, 1_300):
        x, y = rng.normal(size=(16 * STEPS, 32)), np.zeros(16 * STEPS)
        layers = [keras.layers.Dense(width, "relu") for _ in range(2)]
        model = tfdp.make_private(keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(1)]))
        model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.0), 1.0), "mse")
        found: dict[bool, list[float]] = {False: [], True: []}
        for number in range(FLAGS.rounds + 1):
            for watched, times in found.items():
                start = time.perf_counter()
                model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Idle()] if watched else [])
                times += [(time.perf_counter() - start) / (3 * STEPS)] if number else []
        more = [after - before for before, after in zip(*found.values(), strict=True)]
        name = f"{model.count_params():,} weights"
        print(
            f"hooks    {name:34} {told(found[False], 1e3, 'ms a step')}, more with a hook {told(more, 1e3, 'ms')}",
            flush=True,
        )


def start_up() -> None:
    """Seconds of processes that make one step each."""
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(FLAGS.rounds):
        for kind in KINDS:
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([sys.executable, str(FIRST_STEP), kind], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            times[kind].append((time.perf_counter() - start, processor))
    for kind, found in times.items():
        wall, processor = zip(*found, strict=True)
        print(f"start-up {kind:34} {told(wall, 1, 's')}, processor {told(processor, 1, 's')}", flush=True)


def main(_: list[str]) -> None:
    timed = {"shown": shown, "checksums": sums_of_bits, "hooks": hooks, "start_up": start_up}
    for what in FLAGS.what:
        ({"noise": noise, "steps": steps, "ledger": ledger} | timed)[what]()


if __name__ == "__main__":
    app.run(main)
