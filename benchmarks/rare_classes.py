"""Class weights beside other ways to a rare class: balanced accuracy and AUC on made-up records at epsilon 3.

Run: python benchmarks/rare_classes.py [--seeds 3]

6,000 records of 12 numbers, about 9% of them of class 1; a network of 32 tanh units, 20 epochs of batches of 256, delta
1e-5; judged on 20,000 other records. "from 1/2 on" decides for class 1 where the model says at least 1/2; "the first
30%" for the records with the highest scores.
"""

from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_integer("seeds", 3, "How many.")

WEIGHTS = {"class_weight": {0: 1.0, 1: 10.0}}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no weights, automatic": ({}, {}),
    "no weights, l2_norm_clip=1": ({}, {"l2_norm_clip": 1.0}),
    "class_weight, automatic": (WEIGHTS, {}),
    "class_weight, l2_norm_clip=10": (WEIGHTS, {"l2_norm_clip": 10.0}),
    "class_weight, l2_norm_clip=1": (WEIGHTS, {"l2_norm_clip": 1.0}),
}


def records(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(count, 12) numbers, and a class that a sum of four of them and noise decides."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 12)).astype("float32")
    score = 1.2 * x[:, 0] + x[:, 1] * x[:, 2] + 0.8 * np.abs(x[:, 3]) + rng.logistic(size=count) * 0.5
    return x, (score > 3.0).astype("float32")[:, None]


def run(seed: int, fitted: dict[str, Any], clip: dict[str, Any]) -> list[float]:
    """Balanced accuracies of both decisions, and AUC, of one training."""
    keras.utils.set_random_seed(seed)
    network = [keras.Input((12,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)]
    model = tfdp.make_private(keras.Sequential(network))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("adam", **clip), loss=loss)
    budget = tfdp.callbacks.PrivacyBudget(epsilon=3.0, delta=1e-5)
    model.fit(*records(6000, seed), batch_size=256, epochs=20, verbose=0, callbacks=[budget], **fitted)
    x, y = records(20_000, 10_000)
    scores, true = model.predict(x, verbose=0)[:, 0], y[:, 0] == 1
    ranks = np.argsort(np.argsort(scores)) + 1
    auc = (ranks[true].sum() - true.sum() * (true.sum() + 1) / 2) / (true.sum() * (~true).sum())
    decisions = [scores > 0.0, ranks > 0.7 * len(ranks)]
    return [*(float(np.mean([one[true].mean(), 1 - one[~true].mean()])) for one in decisions), float(auc)]


def main(_: list[str]) -> None:
    for name, way in WAYS.items():
        found = 100 * np.array([run(seed, *way) for seed in range(FLAGS.seeds)])
        told = [
            f"{mean:.1f} ({spread:.1f})" for mean, spread in zip(found.mean(axis=0), found.std(axis=0), strict=True)
        ]
        print(f"{name:30} balanced accuracy from 1/2 on {told[0]}, the first 30% {told[1]}; AUC {told[2]}", flush=True)


if __name__ == "__main__":
    app.run(main)
