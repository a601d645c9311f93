"""Step time of private training over ordinary Keras training of the same network, in interleaved rounds.

Run: python benchmarks/step_time.py [--models m1,m3] [--batch_size 256] [--rounds 7] [--steps 12] [--json]

Each round trains the ordinary and the private model for a few steps through `fit`'s compiled step, noise included, one
after the other, so that both see the same load of the machine. Printed: milliseconds a step (median over rounds of the
median step), and the ratio (median over rounds of the round's ratio; smallest and largest).
"""

import json
import statistics
import time
from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["m1", "m3"], "m1: CNN 28x28x1, 26k weights; m2: MLP, 795k; m3: CNN 32x32x3, 551k.")
flags.DEFINE_integer("batch_size", 256, "Expected batch size.")
flags.DEFINE_integer("rounds", 7, "Interleaved rounds.")
flags.DEFINE_integer("steps", 12, "Steps a round; the first two are not timed.")
flags.DEFINE_enum(
    "clock", "wall", ["wall", "cpu"], "Time passed, or processor time of all threads (beside other work)."
)
flags.DEFINE_boolean("json", False, "Print one JSON object as the last line.")


def layers(name: str, private: bool, bound: str) -> list[Any]:
    """The layers of a benchmark network, ordinary or clipped."""
    clips: dict[str, Any] = {"input_clip": 5.0, "upstream_clip": 0.1} if private else {}
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


class StepTimes(keras.callbacks.Callback):
    """Seconds of each step of one `fit`."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.times: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.start = seconds()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(seconds() - self.start)


def median_step(model: Any, x: np.ndarray, y: np.ndarray, batch_size: int, steps: int) -> float:
    """Milliseconds of the median step of one short `fit`."""
    clock = StepTimes()
    model.fit(x, y, batch_size=batch_size, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return 1e3 * statistics.median(clock.times[2:])


def interleaved(models: list[Any], x: np.ndarray, y: np.ndarray, batch_size: int, steps: int) -> list[list[float]]:
    """Milliseconds of the median step of each model, in rounds in which each has its turn."""

    def turn() -> list[float]:
        return [median_step(model, x, y, batch_size, steps) for model in models]

    turn()  # traced, warm
    return [turn() for _ in range(FLAGS.rounds)]


def random_records(shape: tuple[int, ...], count: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Normal numbers and classes."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, *shape)).astype("float32"), rng.integers(0, classes, count)


def compare(name: str, bound: str) -> dict[str, Any]:
    """Interleaved timings of one network."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain = keras.Sequential(layers(name, False, bound))
    plain.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    private = tfdp.PrivateSequential(layers(name, True, bound))
    private.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.01), 1.0), loss)
    x, y = random_records(plain.input_shape[1:], FLAGS.batch_size * (FLAGS.steps + 2))
    pairs = interleaved([plain, private], x, y, FLAGS.batch_size, FLAGS.steps)
    ratios = [b / a for a, b in pairs]
    return {
        "model": name,
        "bound": bound,
        "weights": plain.count_params(),
        "keras_ms": round(statistics.median(a for a, _ in pairs), 2),
        "private_ms": round(statistics.median(b for _, b in pairs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def main(_: list[str]) -> None:
    results = []
    for name in FLAGS.models:
        for bound in ("spatial_l1",) if name == "m2" else ("spatial_l1", "patch"):
            results.append(compare(name, bound))
            timings = "keras {keras_ms:.2f} ms  private {private_ms:.2f} ms  ratio {ratio:.2f} {ratio_range}"
            print(f"{name} {bound:10} {timings.format(**results[-1])}", flush=True)
    if FLAGS.json:
        print(json.dumps(results))


if __name__ == "__main__":
    app.run(main)
