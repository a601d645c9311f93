"""A small private model, trained by loops of the caller's own."""

from typing import Any

import keras
import numpy as np

import tfdp_layers as tfdp

DELTA = 1e-5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model_of(noise: Any = 1.0, layers: Any = (), **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(3, activation="tanh"), *layers, keras.layers.Dense(2)]
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), *layers]))
    source = tfdp.noise.SeededNoise(7)
    optimizer = tfdp.optimizers.ClippedOptimizer("adam", noise, 0.5, "flat", noise_source=source)
    model.compile(optimizer, LOSS, metrics=["accuracy"], **options)
    return model


def settings(**options: Any) -> dict[str, Any]:
    return {"batch_size": 16, "verbose": 0, "sampling_seed": 3} | options


class Noting(keras.callbacks.Callback):
    """Notes which hooks run, and the numbers that they get."""

    def __init__(self, told: list[Any]) -> None:
        super().__init__()
        for name in dir(self):
            if (name.startswith("on_") and "train" in name) or "epoch" in name or "test_" in name:
                setattr(self, name, lambda *args, name=name, logs=None: told.append((name, args[:1], list(logs or ()))))


def loop(model: Any, *args: Any, **options: Any) -> Any:
    with model.private_run(*args, **options) as run:
        for batch in run:
            run.step(batch)
    return run
