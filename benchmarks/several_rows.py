"""What several rows of each drawn record or person buy at one budget, bounded as one contribution.

Run: python benchmarks/several_rows.py [--arms plain:1,moved:1,moved:4,units:1,units:8] [--epochs 40] [--seeds 1]
         [--data_dir DIR]

Fashion-MNIST at epsilon 2.7 and delta 1e-5, `ClippedOptimizer("adam")`. Of an arm NAME:ROWS
- "plain" is the tanh network of docs/choosing.md, batches of 2,048 images, each entering ROWS times;
- "moved" is the same behind RandomFlip and RandomTranslation by up to two pixels: ROWS random views of each image;
- "units" has 7,500 persons of 8 images each, drawn at random, batches of 512 persons, of each up to ROWS images, and a
  dense network.
Prints the test accuracy of each run, and minutes.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time
from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_list("arms", ["plain:1", "moved:1", "moved:4", "units:1", "units:8"], "NAME:ROWS of each arm.")
flags.DEFINE_integer("epochs", 40, "Epochs of each run.", lower_bound=1)
flags.DEFINE_integer("seeds", 1, "Runs of each arm.", lower_bound=1)
flags.DEFINE_string("data_dir", None, "Where Fashion-MNIST lies.")

EPSILON, DELTA, OWNED = 2.7, 1e-5, 8
kl = keras.layers


def network(name: str) -> list[Any]:
    """The layers of an arm."""
    top = [kl.Flatten(), kl.Dense(32, activation="tanh"), kl.Dense(10)]
    if name == "units":
        return top
    moving = [kl.RandomFlip("horizontal"), kl.RandomTranslation(2 / 28, 2 / 28, fill_mode="constant")]
    convolutions = [
        kl.Conv2D(16, 8, strides=2, padding="same", activation="tanh"),
        kl.MaxPooling2D(2, 1),
        kl.Conv2D(32, 4, strides=2, activation="tanh"),
        kl.MaxPooling2D(2, 1),
    ]
    return [*(moving if name == "moved" else []), *convolutions, *top]


def accuracy(name: str, rows: int, seed: int) -> float:
    keras.utils.set_random_seed(seed)
    data = tfdp.datasets.load("fashion_mnist", FLAGS.data_dir)
    model = tfdp.PrivateSequential([keras.Input((28, 28, 1)), *network(name)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("adam"), loss, metrics=["accuracy"])
    budget = tfdp.callbacks.PrivacyBudget(epsilon=EPSILON, delta=DELTA)
    options: dict[str, Any] = {"batch_size": 2048, "views": rows}
    if name == "units":
        owners = np.random.default_rng(seed).permutation(len(data.x_train)) // OWNED
        options = {"batch_size": 512, "unit_ids": owners, "records_per_unit": rows}
    options |= {"epochs": FLAGS.epochs, "physical_batch_size": 1024, "callbacks": [budget], "verbose": 0}
    model.fit(data.x_train, data.y_train, **options)
    return 100 * float(model.evaluate(data.x_test, data.y_test, batch_size=1000, verbose=0)[1])


def main(_: list[str]) -> None:
    for arm in FLAGS.arms:
        name, rows = arm.split(":")
        for seed in range(1, 1 + FLAGS.seeds):
            start = time.perf_counter()
            found = accuracy(name, int(rows), seed)
            minutes = (time.perf_counter() - start) / 60
            print(f"{arm}, {FLAGS.epochs} epochs, seed {seed}: {found:.2f}, {minutes:.1f} minutes", flush=True)


if __name__ == "__main__":
    app.run(main)
