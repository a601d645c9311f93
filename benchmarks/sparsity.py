"""A large embedding trained with noise on all its rows, on those that a noisy count selects, and without privacy.

Run: python benchmarks/sparsity.py [--what time,accuracy] [--rows 1000000] [--optimizers sgd,adam] [--seeds 0,1,2]

- time: milliseconds a step of an embedding of `--rows` x `--units`, averaged over `--length` ids a record, and a head
  of 10 classes; medians over interleaved rounds, with the smallest and largest.
- accuracy: of made-up texts whose words follow Zipf's law, each word pulling towards one of 4 classes, on held-out
  texts, at epsilon 3 and delta 1e-5; the mean over the seeds, and each.
"""

import statistics
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.commands.timing import interleaved

FLAGS = flags.FLAGS
flags.DEFINE_list("what", ["time", "accuracy"], "What to measure.")
flags.DEFINE_integer("rows", 1_000_000, "Rows of the timed table.")
flags.DEFINE_integer("units", 64, "Units of the timed table.")
flags.DEFINE_integer("length", 16, "Ids a record.")
flags.DEFINE_integer("batch_size", 256, "Records a step, of the timing.")
flags.DEFINE_list("optimizers", ["sgd", "adam"], "Of the timing.")
flags.DEFINE_integer("rounds", 3, "Interleaved rounds, of the timing.")
flags.DEFINE_integer("steps", 8, "Steps a round, of the timing.")
flags.DEFINE_list("seeds", ["0", "1", "2"], "Of data and weights, of the accuracy.")
flags.DEFINE_list("selections", ["0.3/2", "0.1/2", "0.1/4"], "Share of the noise and threshold, of the accuracy.")
flags.DEFINE_list("vocabularies", ["20000"], "Words, of the accuracy.")
flags.DEFINE_float("silent", 0.001, "Share of the words, the most frequent, that pull nowhere, of the accuracy.")
flags.DEFINE_integer("draw", 2048, "Records a step, of the accuracy.")
flags.DEFINE_list("records", ["200000"], "Training records, of the accuracy.")

CLASSES, EPSILON, DELTA = 4, 3.0, 1e-5


def network(rows: int, units: int, classes: int) -> keras.Model:
    layers = [keras.Input((FLAGS.length,), dtype="int32"), keras.layers.Embedding(rows, units)]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(classes)])


def compiled(model: keras.Model, optimizer: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def private(model: keras.Model, optimizer: Any, noise: Any, selection: Any) -> keras.Model:
    wrapped = tfdp.optimizers.ClippedOptimizer(optimizer, noise, sparsity_preserving=selection)
    return compiled(tfdp.make_private(model), wrapped)


def time_steps() -> None:
    """Prints the step of each way, by optimizer."""
    size = (FLAGS.batch_size * (FLAGS.steps + 2), FLAGS.length)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, FLAGS.rows, size).astype("int32"), rng.integers(0, 10, size[0])
    for name in FLAGS.optimizers:
        fresh = lambda: network(FLAGS.rows, FLAGS.units, 10)  # noqa: E731
        ways = {
            "Keras": compiled(fresh(), name),
            "noise on all rows": private(fresh(), name, 1.0, False),
            "on selected rows": private(fresh(), name, 1.0, True),
        }
        columns = zip(*interleaved(list(ways.values()), x, y, FLAGS.batch_size, FLAGS.steps, FLAGS.rounds), strict=True)
        for way, found in zip(ways, columns, strict=True):
            print(
                f"{name:6} {way:20} {statistics.median(found):7.1f} ms ({min(found):.1f}-{max(found):.1f})", flush=True
            )


def texts(records: int, words: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Records of words by Zipf's law of exponent 1, and the class that most of their words pull to."""
    rng = np.random.default_rng(seed)
    odds = 1.0 / (1.0 + np.arange(words))
    x = rng.choice(words, (records, FLAGS.length), p=odds / odds.sum()).astype("int32")
    pull = np.random.default_rng(1000).normal(size=(words, CLASSES))
    pull[: int(FLAGS.silent * words)] = 0.0
    return x, np.argmax(pull[x].sum(axis=1), axis=1)


def accuracy_of(words: int, records: int, seed: int, make: Callable[[keras.Model], keras.Model], steps: dict) -> float:
    keras.utils.set_random_seed(seed)
    x, y = texts(records + 5000, words, seed)
    model = make(network(words, 16, CLASSES))
    model.fit(x[:-5000], y[:-5000], verbose=0, **steps)
    return float(model.evaluate(x[-5000:], y[-5000:], verbose=0, batch_size=1000)[1])


def measure_accuracy() -> None:
    """Prints the accuracy of each way and seed."""
    settings: dict[str, Any] = {"noise on all rows": False}
    for one in FLAGS.selections:
        share, threshold = map(float, one.split("/"))
        settings[f"selected, {one}"] = tfdp.noise.SparsityPreserving(share, threshold)
    for words in map(int, FLAGS.vocabularies):
        for records in map(int, FLAGS.records):
            budget = lambda: [tfdp.callbacks.PrivacyBudget(EPSILON, DELTA)]  # noqa: E731
            common = {"batch_size": FLAGS.draw, "epochs": 10}
            ways: dict[str, tuple[Callable[[keras.Model], keras.Model], dict]] = {
                "Keras": (lambda model: compiled(model, keras.optimizers.Adam(0.005)), common)
            }
            for name, selection in settings.items():
                make = lambda model, one=selection: private(model, "adam", "calibrate", one)  # noqa: E731
                ways[name] = (make, common)
            for name, (make, steps) in ways.items():
                found = []
                for seed in map(int, FLAGS.seeds):
                    callbacks = {} if name == "Keras" else {"callbacks": budget()}
                    found.append(accuracy_of(words, records, seed, make, steps | callbacks))
                shown = ", ".join(f"{value:.3f}" for value in found)
                print(f"{words:7,} words, {records:9,} records, {name:24} {np.mean(found):.3f} ({shown})", flush=True)


def main(_: list[str]) -> None:
    """Measures what `--what` names."""
    if "time" in FLAGS.what:
        time_steps()
    if "accuracy" in FLAGS.what:
        measure_accuracy()


if __name__ == "__main__":
    app.run(main)
