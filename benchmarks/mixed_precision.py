"""Step times in 16 bits (policy mixed_bfloat16) and in 32, of ordinary training, of DP-SGD and of Clipped layers.

Run: python benchmarks/mixed_precision.py [--models m1,m2,m3,m4] [--rounds 6] [--steps 8]

Networks of `networks.py`, through `fit`, noise included, SGD, without XLA; batch 256; m4: 64. All ways of a network
take turns in one process, so that all see the same load of the machine. Printed: milliseconds a step, and its ratio to
ordinary training in 32 bits (medians over rounds of the median step and of the round's own ratio). What 16 bits gain is
a matter of the processor: with AMX or AVX512-BF16 it multiplies them, without it converts them.
"""

import statistics
from typing import Any

import keras
from absl import app, flags
from networks import layers, network, records

import tfdp_layers as tfdp
from tfdp_layers.commands.timing import interleaved

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["m1", "m2", "m3", "m4"], "Networks.")
flags.DEFINE_integer("rounds", 6, "Interleaved rounds, beside one that compiles.", lower_bound=1)
flags.DEFINE_integer("steps", 8, "Steps a round.", lower_bound=2)

POLICIES = ("float32", "mixed_bfloat16")
WAYS = ("Keras", "DP-SGD, flat", "exact in the layer")


def model_of(name: str, way: str) -> keras.Model:
    optimizer: Any = keras.optimizers.SGD(0.01)
    if way == "exact in the layer":
        model: Any = tfdp.PrivateSequential(layers(name, "exact"))
        optimizer = tfdp.optimizers.NoisyOptimizer(optimizer, 1.0)
    elif way == "Keras":
        model = network(name)
    else:
        model, optimizer = tfdp.make_private(network(name)), tfdp.optimizers.ClippedOptimizer(optimizer, 1.0, 1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def measure(name: str) -> None:
    models = {}
    for policy in POLICIES:
        keras.mixed_precision.set_dtype_policy(policy)
        ways = WAYS[:2] if name == "m4" else WAYS
        models |= {(policy, way): model_of(name, way) for way in ways}
    batch_size = 64 if name == "m4" else 256
    x, y = records(models["float32", "Keras"], batch_size * (FLAGS.steps + 2))
    rounds = interleaved(list(models.values()), x, y, batch_size, FLAGS.steps, FLAGS.rounds)
    found = dict(zip(models, zip(*rounds, strict=True), strict=True))
    plain = found["float32", "Keras"]
    for (policy, way), times in found.items():
        ratios = sorted(own / other for own, other in zip(times, plain, strict=True))
        told = f"{statistics.median(times):8.2f} ms  ratio {statistics.median(ratios):.2f}"
        print(f"{name} {policy:15} {way:20} {told} ({ratios[0]:.2f}-{ratios[-1]:.2f})", flush=True)


def main(_: list[str]) -> None:
    for name in FLAGS.models:
        measure(name)


if __name__ == "__main__":
    app.run(main)
