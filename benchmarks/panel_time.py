"""A step of a network with GroupNormalization, on as many rows as are drawn, and filled up to whole panels of 24.

    python benchmarks/panel_time.py --batch-sizes 64 256 1024

Both ways take turns (`fit` of 25 steps each); a time is the median of steps, the ratio that of rounds, in which both
ran. Why rows are filled up: `tfdp_layers/batches/heights.py`.
"""

import argparse
import time
import warnings
from typing import Any
from unittest import mock

import keras
import numpy as np

import tfdp_layers as tfdp
from tfdp_layers.batches.heights import PANEL
from tfdp_layers.models import opening

kl = keras.layers
WAYS = {"as drawn": False, "in panels": PANEL}


class Clock(keras.callbacks.Callback):
    """When each step had ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())


def private() -> Any:
    keras.utils.set_random_seed(0)
    layers: list[Any] = [keras.Input((28, 28, 1))]
    for filters, kernel in ((16, 8), (32, 4)):
        layers += [kl.Conv2D(filters, kernel, strides=2, padding="same"), kl.GroupNormalization(4), kl.ReLU()]
    layers += [kl.Flatten(), kl.Dense(32, activation="relu"), kl.Dense(10)]
    model = tfdp.make_private(keras.Sequential(layers))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss)
    return model


def seconds(model: Any, way: int | bool, x: np.ndarray, y: np.ndarray, batch_size: int) -> float:
    """Of the median step of a short training."""
    clock = Clock()
    with mock.patch.object(opening, "panels", return_value=way):
        model.fit(x, y, batch_size=batch_size, steps_per_epoch=25, verbose=0, callbacks=[clock])
    return float(np.median(np.diff(clock.ends)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=6, help="after the first, which traces")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    x, y = np.random.default_rng(0).normal(size=(20_000, 28, 28, 1)).astype("float32"), np.zeros(20_000, "int32")
    for batch_size in arguments.batch_sizes:
        models = {way: private() for way in WAYS}
        rounds = [
            [seconds(models[way], pad, x, y, batch_size) for way, pad in WAYS.items()]
            for _ in range(arguments.rounds + 1)
        ]
        found = np.array(rounds[1:])
        each = ", ".join(f"{way} {1e3 * t:.1f} ms" for way, t in zip(WAYS, np.median(found, axis=0), strict=True))
        print(f"batch size {batch_size}: {each}; ratio {np.median(found[:, 1] / found[:, 0]):.3f}", flush=True)


if __name__ == "__main__":
    main()
