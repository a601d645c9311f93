"""What `noise_source="secure"` costs: a step with it over a step with the default source, in interleaved rounds.

Run: python benchmarks/secure_noise.py [--models m1,m2] [--batch_size 256] [--rounds 7] [--steps 12]

Networks and flags are those of `step_time.py`. Printed: milliseconds a step with each source (median over rounds), what
the secure source adds for each million weights, and the ratio (median over rounds).
"""

import statistics

import keras
import numpy as np
from absl import app, flags
from step_time import layers, median_step

import tfdp_layers as tfdp

FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """Times both sources on each network."""
    for name in FLAGS.models:
        models = []
        for source in ("default", "secure"):
            model = tfdp.PrivateSequential(layers(name, True, "spatial_l1"))
            optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.01), 1.0, noise_source=source)
            model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            models.append(model)
        rng = np.random.default_rng(0)
        records = FLAGS.batch_size * (FLAGS.steps + 2)
        x = rng.normal(size=(records, *models[0].input_shape[1:])).astype("float32")
        y = rng.integers(0, 10, records)
        rounds = [[median_step(model, x, y) for model in models] for _ in range(FLAGS.rounds + 1)][1:]
        default, secure = (statistics.median(column) for column in zip(*rounds, strict=True))
        weights = models[0].count_params()
        print(
            f"{name}: {weights} weights, default {default:.2f} ms, secure {secure:.2f} ms, ratio"
            f" {statistics.median(b / a for a, b in rounds):.3f}, {1e6 * (secure - default) / weights:.0f} ms for each"
            " million weights",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
