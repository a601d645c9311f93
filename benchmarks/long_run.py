"""A long training: memory, time a step, float32 accumulators against float64, and what the accounting takes.

Run: python benchmarks/long_run.py [--steps 100000] [--file ledger.json] [--json]

A small network is trained by `fit` for so many steps, with a budget in force and a callback at every step, on a ledger
in memory or in a file. Printed: memory and the median time of a step early and late; the largest relative deviation of
Adam's two moments, and of the weights they moved, from a float64 calculation on the same released gradients; counts;
and the time that ledger and budget took, a step and as a part of the training.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 100_000, "Updates.")
flags.DEFINE_string("file", None, "Keep the ledger in this file; in memory if left out.")
flags.DEFINE_integer("epoch", 1000, "Updates an epoch.")
flags.DEFINE_boolean("json", False, "Print one JSON object as the last line.")

RATE, BETA_1, BETA_2, EPSILON = 1e-3, 0.9, 0.999, 1e-7


class Observed(tfdp.optimizers.NoisyOptimizer):
    """Shows each released gradient of the first weights to a function."""

    show: Callable[[np.ndarray], np.ndarray]

    def after_noise(self, means: Any, statistics: Any, variables: Any, groups: Any) -> Any:
        first = tf.ensure_shape(tf.numpy_function(self.show, [means[0]], tf.float32), means[0].shape)
        return super().after_noise([first, *means[1:]], statistics, variables, groups)


class DoubleAdam:
    """Adam in double precision, on the same gradients. Source: Kingma and Ba 2015, in Keras' form."""

    def __init__(self, start: np.ndarray) -> None:
        self.weights = start.astype(np.float64)
        self.moments = [np.zeros_like(self.weights), np.zeros_like(self.weights)]
        self.steps = 0

    def update(self, gradient: np.ndarray) -> np.ndarray:
        """Moves; returns the gradient as it is."""
        exact = gradient.astype(np.float64)
        self.steps += 1
        self.moments[0] += (exact - self.moments[0]) * (1 - BETA_1)
        self.moments[1] += (exact**2 - self.moments[1]) * (1 - BETA_2)
        rate = RATE * np.sqrt(1 - BETA_2**self.steps) / (1 - BETA_1**self.steps)
        self.weights -= rate * self.moments[0] / (np.sqrt(self.moments[1]) + EPSILON)
        return gradient


class Timed:
    """Adds up the time that methods of an object take, by wrapping them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, owner: Any, *names: str) -> None:
        """Wraps methods that do not call each other."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


class Watch(keras.callbacks.Callback):
    """The moment of each step's end, and the memory at each epoch's end."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.ends: list[float] = [time.perf_counter()]
        self.memory: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def deviation(found: Any, exact: np.ndarray) -> float:
    """The largest difference, over the largest exact number."""
    return float(np.abs(np.asarray(found, np.float64) - exact).max() / np.abs(exact).max())


def build() -> tuple[tfdp.PrivateSequential, DoubleAdam]:
    """The network, compiled, on its ledger; and Adam in double precision, which sees what the first weights get."""
    clips = {"input_clip": 1.0, "upstream_clip": 0.5}
    layers = [tfdp.layers.ClippedDense(16, "tanh", **clips), tfdp.layers.ClippedDense(4, **clips)]
    model = tfdp.PrivateSequential([keras.Input((20,)), *layers])
    optimizer = Observed(keras.optimizers.Adam(RATE, BETA_1, BETA_2, EPSILON), noise_multiplier=4.0)
    exact = DoubleAdam(model.trainable_variables[0].numpy())
    optimizer.show = exact.update
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.ledger = Ledger(FLAGS.file, dataset="long run", budget=(1000.0, 1e-5))
    return model, exact


def main(_: Any) -> None:
    """Trains, watches and prints."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(10_000, 20)).astype("float32"), rng.integers(0, 4, 10_000)
    model, exact = build()
    budget, watch = tfdp.callbacks.PrivacyBudget(1000.0, 1e-5), Watch()
    timed, timed_epochs = Timed(), Timed()
    timed.wrap(model.ledger, "reserve", "settle", "affordable", "require")
    timed.wrap(budget, "on_train_batch_begin", "on_train_batch_end")
    timed_epochs.wrap(budget, "on_train_begin", "on_epoch_begin", "on_epoch_end")
    epochs, start = FLAGS.steps // FLAGS.epoch, time.perf_counter()
    model.fit(x, y, batch_size=32, epochs=epochs, steps_per_epoch=FLAGS.epoch, verbose=0, callbacks=[budget, watch])
    seconds, steps = time.perf_counter() - start, epochs * FLAGS.epoch
    times = np.diff(watch.ends)
    part = max(100, steps // 20)
    adam = model.optimizer.inner_optimizer
    moments = adam._momentums[0], adam._velocities[0]
    results = {
        "steps": steps,
        "ledger": model.ledger.steps,
        "releases": int(model.optimizer.releases),
        "seconds": seconds,
        "milliseconds_a_step_early": 1e3 * statistics.median(times[part : 2 * part]),
        "milliseconds_a_step_late": 1e3 * statistics.median(times[-part:]),
        "megabytes_at_tenths": [round(watch.memory[(len(watch.memory) - 1) * i // 10]) for i in range(11)],
        "first_moment_deviation": deviation(moments[0], exact.moments[0]),
        "second_moment_deviation": deviation(moments[1], exact.moments[1]),
        "weights_deviation": deviation(model.trainable_variables[0], exact.weights),
        "accounting_microseconds_a_step": 1e6 * timed.seconds / steps,
        "accounting_milliseconds_an_epoch": 1e3 * timed_epochs.seconds / epochs,
        "accounting_percent_in_steps": 100.0 * timed.seconds / seconds,
        "accounting_percent": 100.0 * (timed.seconds + timed_epochs.seconds) / seconds,
        "epsilon": float(tfdp.accounting.epsilon(model.ledger, 1e-5)),
    }
    print(json.dumps(results) if FLAGS.json else "\n".join(f"{k}: {v}" for k, v in results.items()))


if __name__ == "__main__":
    app.run(main)
