"""Peak memory of DP-SGD: a large drawn batch in pieces, and a large vocabulary.

Run: python benchmarks/memory.py --case cnn|embedding [--steps 2]

cnn: 551k weights, batches of 4,096 expected records, `physical_batch_size=256`; the records' own arrays (4,352 images,
53 MB) are counted in. embedding: 50,000 x 64, batches of 256 texts of 128 tokens; batch times vocabulary times width
would be 3.3 TB. Printed: the peak resident memory of the process, before training and after.
"""

import resource
from typing import Any

import keras
import numpy as np
from absl import app, flags
from networks import layers

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_enum("case", "cnn", ["cnn", "embedding"], "What is trained.")
flags.DEFINE_enum("clipping", "flat", ["flat", "per_layer", "automatic", "adaptive"], "How records are clipped.")
flags.DEFINE_integer("steps", 2, "Steps.", lower_bound=1)


def peak() -> float:
    """GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def cnn() -> tuple[Any, np.ndarray, int, int | None]:
    model = keras.Sequential(layers("m3"))
    return model, np.random.default_rng(0).normal(size=(4352, 32, 32, 3)).astype("float32"), 4096, 256


def embedding() -> tuple[Any, np.ndarray, int, int | None]:
    kl = keras.layers
    model = keras.Sequential(
        [keras.Input((128,), dtype="int32"), kl.Embedding(50_000, 64), kl.GlobalAveragePooling1D(), kl.Dense(10)]
    )
    return model, np.random.default_rng(0).integers(0, 50_000, (1024, 128)).astype("int32"), 256, None


def main(_: list[str]) -> None:
    model, x, batch_size, physical = {"cnn": cnn, "embedding": embedding}[FLAGS.case]()
    model = tfdp.make_private(model)
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0, 1.0, FLAGS.clipping)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = peak()
    model.fit(
        x,
        np.arange(len(x)) % 10,
        batch_size=batch_size,
        steps_per_epoch=FLAGS.steps,
        physical_batch_size=physical,
        verbose=0,
    )
    print(f"{FLAGS.case} {FLAGS.clipping}: {before:.2f} GiB before, {peak():.2f} GiB at the peak, {FLAGS.steps} steps")


if __name__ == "__main__":
    app.run(main)
