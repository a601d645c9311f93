"""Step time of private training over ordinary Keras training of the same network, in interleaved rounds.

Run: python benchmarks/step_time.py [--models m1,m3] [--bounds spatial_l1,exact] [--rounds 7] [--json]

Each round trains the ordinary and the private models for a few steps through `fit`'s compiled step, noise included, one
after the other, so that all see the same load of the machine. Printed: milliseconds a step (median over rounds of the
median step), and the ratio to Keras (median over rounds of the round's ratio; smallest and largest).
"""

import json
import statistics
import time
from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.commands import timing

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["m1", "m3"], "m1: CNN 28x28x1, 26k weights; m2: MLP, 795k; m3: CNN 32x32x3, 551k.")
flags.DEFINE_list(
    "bounds",
    ["spatial_l1", "patch"],
    "spatial_l1, patch: two clips in the layer; exact: gradient_clip; per_layer: that clipping of ClippedOptimizer.",
)
flags.DEFINE_integer("batch_size", 256, "Expected batch size.")
flags.DEFINE_integer("rounds", 7, "Interleaved rounds.")
flags.DEFINE_integer("steps", 12, "Steps a round; the first two are not timed.")
flags.DEFINE_enum(
    "clock", "wall", ["wall", "cpu"], "Time passed, or processor time of all threads (beside other work)."
)
flags.DEFINE_boolean("json", False, "Print one JSON object as the last line.")


def layers(name: str, private: bool, bound: str) -> list[Any]:
    """The layers of a benchmark network, ordinary or bounded in the layer."""
    clips: dict[str, Any] = {"input_clip": 5.0, "upstream_clip": 0.1} if private else {}
    clips = {"gradient_clip": 0.5} if bound == "exact" else clips
    conv_clips = clips | ({"bound": bound} if private else {})

    def conv(*args: Any, **kwargs: Any) -> Any:
        kind = tfdp.layers.ClippedConv2D if private else keras.layers.Conv2D
        return kind(*args, activation="relu", **conv_clips, **kwargs)

    def dense(*args: Any, **kwargs: Any) -> Any:
        kind = tfdp.layers.ClippedDense if private else keras.layers.Dense
        return kind(*args, **clips, **kwargs)

    kl = keras.layers
    if name == "m1":
        return [
            *(keras.Input((28, 28, 1)), conv(16, 8, strides=2, padding="same"), kl.MaxPooling2D(2, 1)),
            *(conv(32, 4, strides=2), kl.MaxPooling2D(2, 1), kl.Flatten(), dense(32, activation="relu"), dense(10)),
        ]
    if name == "m2":
        return [keras.Input((784,)), dense(1000, activation="relu"), dense(10)]
    stack: list[Any] = [keras.Input((32, 32, 3))]
    for filters in (32, 64, 128):
        stack += [conv(filters, 3, padding="same"), conv(filters, 3, padding="same"), kl.MaxPooling2D(2)]
    return [*stack, kl.Flatten(), dense(128, activation="relu"), dense(10)]


def seconds() -> float:
    return time.process_time() if FLAGS.clock == "cpu" else time.perf_counter()


def interleaved(models: list[Any], x: np.ndarray, y: np.ndarray, batch_size: int, steps: int) -> list[list[float]]:
    """Milliseconds of the median step of each model, in rounds in which each has its turn."""
    return timing.interleaved(models, x, y, batch_size, steps - 2, FLAGS.rounds, seconds)


def median_step(model: Any, x: np.ndarray, y: np.ndarray, batch_size: int, steps: int) -> float:
    """Milliseconds of the median step of one short `fit`."""
    return timing.median_step(model, x, y, batch_size, steps - 2, seconds)


def random_records(shape: tuple[int, ...], count: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Normal numbers and classes."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, *shape)).astype("float32"), rng.integers(0, classes, count)


def private_model(name: str, bound: str) -> Any:
    """The network, private by one kind of bound, compiled."""
    model = tfdp.PrivateSequential(layers(name, bound != "per_layer", bound))
    optimizer: Any = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.01), 1.0)
    if bound == "per_layer":
        optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.01), 1.0, 1.0, clipping="per_layer")
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def compare(name: str, bounds: list[str]) -> list[dict[str, Any]]:
    """Interleaved timings of one network."""
    plain = keras.Sequential(layers(name, False, ""))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    models = [plain, *[private_model(name, bound) for bound in bounds]]
    x, y = random_records(plain.input_shape[1:], FLAGS.batch_size * (FLAGS.steps + 2))
    times = list(zip(*interleaved(models, x, y, FLAGS.batch_size, FLAGS.steps), strict=True))
    found = []
    for bound, own in zip(bounds, times[1:], strict=True):
        ratios = [b / a for a, b in zip(times[0], own, strict=True)]
        found.append(
            {
                "model": name,
                "bound": bound,
                "weights": plain.count_params(),
                "keras_ms": round(statistics.median(times[0]), 2),
                "private_ms": round(statistics.median(own), 2),
                "ratio": round(statistics.median(ratios), 3),
                "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
            }
        )
    return found


def main(_: list[str]) -> None:
    results = []
    for name in FLAGS.models:
        dense_only = [bound for bound in FLAGS.bounds if bound != "patch"]
        for result in compare(name, dense_only if name == "m2" else FLAGS.bounds):
            results.append(result)
            timings = "keras {keras_ms:.2f} ms  private {private_ms:.2f} ms  ratio {ratio:.2f} {ratio_range}"
            print(f"{name} {result['bound']:10} {timings.format(**result)}", flush=True)
    if FLAGS.json:
        print(json.dumps(results))


if __name__ == "__main__":
    app.run(main)
