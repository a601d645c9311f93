"""What `noise_source="secure"` costs: a step with it over a step with the default source, in interleaved rounds.

Run: python benchmarks/secure_noise.py [--models m1,m2] [--rounds 7] [--steps 12]

Networks are those of `networks.py`, batches of 256. Printed: milliseconds a step with each source (median over
rounds), what the secure source adds for each million weights, and the ratio (median over rounds).
"""

import statistics

import keras
from absl import app, flags
from networks import layers, records

import tfdp_layers as tfdp
from tfdp_layers.commands.timing import interleaved

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["m1", "m3"], "Of m1, m2 and m3.")
flags.DEFINE_integer("rounds", 7, "Interleaved rounds.", lower_bound=1)
flags.DEFINE_integer("steps", 12, "Timed steps a round.", lower_bound=1)

BATCH = 256


def main(_: list[str]) -> None:
    """Times both sources on each network."""
    for name in FLAGS.models:
        models = []
        for source in ("default", "secure"):
            model = tfdp.PrivateSequential(layers(name, "spatial_l1"))
            optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.01), 1.0, noise_source=source)
            model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            models.append(model)
        x, y = records(models[0], BATCH * (FLAGS.steps + 2))
        rounds = interleaved(models, x, y, BATCH, FLAGS.steps, FLAGS.rounds)
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
