"""What `make_private`, `compile` and `fit` reach with no setting but epsilon, and how much Adam's rate matters.

Run: python benchmarks/three_lines.py [--data breast_cancer,digits,fashion_mnist] [--rates adam,0.001,0.002,0.004,0.008]
         [--seeds 3] [--data_dir DIR]     (or others of `CASES`; verses: the text of `examples/text.py`)

For each set of data an ordinary tanh network at one budget, `ClippedOptimizer` without a threshold, the noise found by
`fit`. The rate "adam" is the text as a user types it. Prints the test accuracy's mean and standard deviation.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_list("data", ["breast_cancer", "digits", "fashion_mnist"], "Data sets to train on.")
flags.DEFINE_list("rates", ["adam", "0.001", "0.002", "0.004", "0.008"], "Adam's learning rates.")
flags.DEFINE_integer("seeds", 3, "Runs of each.", lower_bound=1)
flags.DEFINE_integer(
    "batch_size", None, "In place of each set's own; the table of docs/choosing.md has 128 for the first."
)
flags.DEFINE_string("data_dir", None, "Where the data sets lie.")

DELTA = 1e-5
kl = keras.layers


@dataclass(frozen=True)
class Case:
    """One training: `load` gives (x_train, y_train), (x_test, y_test); `layers` a list of them, or a model."""

    load: Callable[[int], Any]
    layers: Callable[[], Any]
    epsilon: float
    batch_size: int
    epochs: int


def breast_cancer(seed: int) -> Any:
    """scikit-learn's table of 569 records, scaled by the ranges printed in its own description; a fifth to test on."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    printed = [line.split()[-2:] for line in found.DESCR.splitlines() if "(mean)" in line or "error):" in line]
    printed += [line.split()[-2:] for line in found.DESCR.splitlines() if "(worst)" in line]
    low, high = np.array(printed, "float32").T
    x = 2 * (found.data.astype("float32") - low) / (high - low) - 1
    order = np.random.default_rng(seed).permutation(len(x))
    parts = np.split(order, [len(x) * 4 // 5])
    return tuple((x[part], found.target[part]) for part in parts)


def of_name(name: str, first: int | None = None) -> Callable[[int], Any]:
    def load(_: int) -> Any:
        data = tfdp.datasets.load(name, FLAGS.data_dir)
        return (data.x_train[:first], data.y_train[:first]), (data.x_test, data.y_test)

    return load


def verses(seed: int) -> Any:
    """The verses of `examples/text.py`, words as tokens, and which of six parts of the book they are from."""
    sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))
    import corpus

    return corpus.load(seed)


def of_words(*layers: Callable[[], Any]) -> Callable[[], list[Any]]:
    return lambda: [kl.Embedding(1024, 32, mask_zero=True), *(make() for make in layers), kl.Dense(6)]


def transformer() -> keras.Model:
    """One encoder block on the words of a verse."""
    tokens = keras.Input((32,), dtype="int32")
    x = kl.Embedding(1024, 32, mask_zero=True)(tokens)
    y = kl.LayerNormalization()(x)
    x = kl.Add()([x, kl.MultiHeadAttention(2, 16)(y, y)])
    y = kl.Dense(64, activation="relu")(kl.LayerNormalization()(x))
    x = kl.GlobalAveragePooling1D()(kl.Add()([x, kl.Dense(32)(y)]))
    return keras.Model(tokens, kl.Dense(6)(kl.LayerNormalization()(x)))


def wide() -> list[Any]:
    return [kl.Flatten(), *(kl.Dense(512, activation="relu") for _ in range(2)), kl.Dense(10)]


def dense(classes: int) -> Callable[[], list[Any]]:
    return lambda: [kl.Flatten(), kl.Dense(32, activation="tanh"), kl.Dense(classes)]


def convolutional() -> list[Any]:
    """The tanh network of Tramer and Boneh (2021) for MNIST, as in `tfdp train`."""
    return [
        kl.Conv2D(16, 8, strides=2, padding="same", activation="tanh"),
        kl.MaxPooling2D(2, 1),
        kl.Conv2D(32, 4, strides=2, activation="tanh"),
        kl.MaxPooling2D(2, 1),
        *dense(10)(),
    ]


CASES = {
    "breast_cancer": Case(breast_cancer, dense(2), 3.0, 16, 40),
    "breast_cancer_linear": Case(breast_cancer, lambda: [kl.Dense(2)], 3.0, 16, 40),
    "verses": Case(verses, of_words(kl.GlobalAveragePooling1D), 3.0, 1024, 15),
    "verses_lstm": Case(verses, of_words(lambda: kl.LSTM(32)), 3.0, 1024, 15),
    "verses_transformer": Case(verses, transformer, 3.0, 1024, 15),
    "verses_long": Case(verses, of_words(kl.GlobalAveragePooling1D), 3.0, 256, 30),
    "digits_wide": Case(of_name("digits"), wide, 2.7, 256, 60),
    "digits_long": Case(of_name("digits"), dense(10), 2.7, 64, 120),
    "fashion_15k": Case(of_name("fashion_mnist", 15_000), convolutional, 3.0, 1024, 24),
    "fashion_15k_wide": Case(of_name("fashion_mnist", 15_000), wide, 3.0, 1024, 24),
    "digits": Case(of_name("digits"), dense(10), 2.7, 256, 60),
    "fashion_mnist": Case(of_name("fashion_mnist"), convolutional, 2.7, 2048, 40),
}


def accuracy(case: Case, rate: str, seed: int, rates: set[str]) -> float:
    """Of the test records, in percent; the rate that `fit` used joins `rates`."""
    keras.utils.set_random_seed(seed)
    train, test = case.load(seed)
    network = case.layers()
    if isinstance(network, list):
        network = keras.Sequential([keras.Input(train[0].shape[1:], dtype=train[0].dtype), *network])
    model = tfdp.make_private(network)
    inner: Any = rate if rate == "adam" else keras.optimizers.Adam(float(rate))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer(inner), loss, metrics=["accuracy"])
    budget = tfdp.callbacks.PrivacyBudget(epsilon=case.epsilon, delta=DELTA)
    model.fit(*train, batch_size=case.batch_size, epochs=case.epochs, callbacks=[budget], verbose=0)
    rates.add(f"{float(model.optimizer.learning_rate):.2g}")
    return 100 * model.evaluate(*test, batch_size=1000, verbose=0)[1]


def main(_: list[str]) -> None:
    for name in FLAGS.data:
        case = CASES[name]
        case = case if FLAGS.batch_size is None else replace(case, batch_size=FLAGS.batch_size)
        print(f"{name}: epsilon {case.epsilon}, {case.epochs} epochs, batches of {case.batch_size}", flush=True)
        for rate in FLAGS.rates:
            start = time.perf_counter()
            used: set[str] = set()
            found = [accuracy(case, rate, seed, used) for seed in range(1, 1 + FLAGS.seeds)]
            minutes = (time.perf_counter() - start) / 60 / FLAGS.seeds
            mean, spread = np.mean(found), np.std(found, ddof=1)
            print(f"  {rate} ({', '.join(used)}): {mean:.2f} ({spread:.2f}), {minutes:.1f} minutes", flush=True)


if __name__ == "__main__":
    app.run(main)
