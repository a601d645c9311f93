"""What records of several people cost: how many are kept, and the accuracy that one budget buys with them.

Run: python benchmarks/owners.py [--limits 1,2,4,8] [--orders rare,random] [--people 20000] [--epochs 20] [--seeds 3]
         [--dataset mnist] [--data_dir DIR]

MNIST at epsilon 4 and delta 1e-5, for each person: every image has one to three owners out of so many people,
who own images by Zipf's law (the r-th by 1 / sqrt(r)), drawn by a fixed seed. `tfdp.preprocessing.limit_owners` keeps
images of which nobody owns more than the limit, and a dense network is trained on them, batches of an eighth.
Prints the images kept, the noise multiplier, and the test accuracy of each run.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_list("limits", ["1", "2", "4", "8"], "Records of one person, at most.")
flags.DEFINE_list("orders", ["rare", "random"], "Orders in which records are looked at.")
flags.DEFINE_integer("people", 20_000, "People who own images.", lower_bound=1)
flags.DEFINE_integer("epochs", 20, "Epochs of each run.", lower_bound=1)
flags.DEFINE_integer("seeds", 3, "Runs of each arm.", lower_bound=1)
flags.DEFINE_string("dataset", "mnist", "Any that `tfdp.datasets.load` knows.")
flags.DEFINE_string("data_dir", None, "Where it lies.")

EPSILON, DELTA, MOST_OWNERS = 4.0, 1e-5, 3
kl = keras.layers


def owners_of(records: int, people: int) -> np.ndarray:
    """One to three owners a record; None fills the rows up."""
    draw = np.random.default_rng(0)
    often = 1.0 / np.sqrt(np.arange(1, people + 1))
    owners = draw.choice(people, size=(records, MOST_OWNERS), p=often / often.sum()).astype(object)
    owners[np.arange(MOST_OWNERS) >= draw.integers(1, MOST_OWNERS + 1, size=(records, 1))] = None
    return owners


def trained(x: np.ndarray, y: np.ndarray, owners: np.ndarray, limit: int, seed: int) -> tfdp.PrivateModel:
    keras.utils.set_random_seed(seed)
    layers = [keras.Input(x.shape[1:]), kl.Flatten(), kl.Dense(64, activation="tanh"), kl.Dense(10)]
    model = tfdp.PrivateSequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("adam"), loss, metrics=["accuracy"])
    budget = tfdp.callbacks.PrivacyBudget(epsilon=EPSILON, delta=DELTA)
    options = {"batch_size": -(-len(x) // 8), "epochs": FLAGS.epochs, "callbacks": [budget], "verbose": 0}
    model.fit(x, y, owners=owners, records_per_owner=limit, **options)
    return model


def main(_: list[str]) -> None:
    data = tfdp.datasets.load(FLAGS.dataset, FLAGS.data_dir)
    owners = owners_of(len(data.x_train), FLAGS.people)
    for order in FLAGS.orders:
        for limit in map(int, FLAGS.limits):
            start = time.perf_counter()
            kept, report = tfdp.preprocessing.limit_owners(owners, limit, order=order)
            print(f"{order} {limit}: {report} ({time.perf_counter() - start:.1f} s)", flush=True)
            for seed in range(1, 1 + FLAGS.seeds):
                start = time.perf_counter()
                model = trained(data.x_train[kept], data.y_train[kept], owners[kept], limit, seed)
                accuracy = 100 * model.evaluate(data.x_test, data.y_test, batch_size=1000, verbose=0)[1]
                noise, spent = model.optimizer.multiplier.number, tfdp.accounting.epsilon(model.ledger, DELTA)
                print(
                    f"{order} {limit}, seed {seed}: {accuracy:.2f}%, noise {noise:.4g}, epsilon {spent:.4g},"
                    f" {time.perf_counter() - start:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    app.run(main)
