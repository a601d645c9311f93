"""One step of the 26k-weight CNN in a process of its own, for `overheads.py`, which times the process as a whole.

Run: python benchmarks/first_step.py keras | "given noise" | budget
"""

import sys
from typing import Any

import keras
import numpy as np

kl = keras.layers


def main(kind: str) -> None:
    """One step, with this library imported only where it trains."""
    model: Any = keras.Sequential(
        [
            *(keras.Input((28, 28, 1)), kl.Conv2D(16, 8, strides=2, padding="same", activation="relu")),
            *(kl.MaxPooling2D(2, 1), kl.Conv2D(32, 4, strides=2, activation="relu"), kl.MaxPooling2D(2, 1)),
            *(kl.Flatten(), kl.Dense(32, activation="relu"), kl.Dense(10)),
        ]
    )
    optimizer: Any = "adam"
    callbacks = []
    if kind != "keras":
        import tfdp_layers as tfdp

        model = tfdp.make_private(model)
        noise = {"noise_multiplier": 1.0} if kind == "given noise" else {}
        optimizer = tfdp.optimizers.ClippedOptimizer("adam", **noise)
        callbacks = [] if noise else [tfdp.callbacks.PrivacyBudget(epsilon=3.0, delta=1e-5)]
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2048, 28, 28, 1)).astype("float32"), rng.integers(0, 10, 2048)
    model.fit(x, y, batch_size=256, steps_per_epoch=1, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(*sys.argv[1:])
