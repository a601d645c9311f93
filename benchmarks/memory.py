"""Peak memory of private steps beside plain Keras', and what fits after fits leave behind.

Run: python benchmarks/memory.py [--what peaks|pieces|fits] [--models m1,m3,m4] [--steps 6] [--fits 30]

peaks: networks of `networks.py`, batches of 256 (m4: 64), every way in a process of its own: its resident memory before
training and its peak, over plain Keras'. pieces: batches of 4,096 expected records in pieces of 256 (m3's 551k weights;
their 4,352 images, 53 MB, are counted in), and an embedding of 50,000 x 64, batches of 256 texts of 128 tokens, where
batch times vocabulary times width would be 3.3 TB. fits: resident memory after so many fits of one model, and after one
fit each of as many new models; and over many steps of one fit.
"""

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import app, flags
from networks import IN_LAYER, layers, network, records

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_enum("what", "peaks", ["peaks", "pieces", "fits"], "What is measured.")
flags.DEFINE_list("models", ["m1", "m2", "m3", "m4"], "Networks whose peaks are measured.")
flags.DEFINE_integer("steps", 6, "Steps of a fit.", lower_bound=1)
flags.DEFINE_integer("fits", 30, "Fits.", lower_bound=3)
flags.DEFINE_list("only", None, "Case, way: train this one here, and print its memory.")
CLIPPINGS = ("flat", "per_layer", "automatic", "adaptive")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def resident(which: str = "VmRSS") -> float:
    """MiB now, or at the peak of this process ("VmHWM")."""
    return int(re.search(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 2**10  # type: ignore[index]


def compiled(model: keras.Model, way: str) -> Any:
    """The model, compiled with SGD: plain, or clipped in that way."""
    sgd = keras.optimizers.SGD(0.01)
    if way == "keras":
        model.compile(sgd, LOSS, jit_compile=False)
        return model
    private = tfdp.make_private(model)
    clip = {} if way == "automatic" else {"l2_norm_clip": 1.0}
    private.compile(tfdp.optimizers.ClippedOptimizer(sgd, 1.0, clipping=way, **clip), LOSS)
    return private


def made(name: str, way: str) -> Any:
    if way not in IN_LAYER:
        return compiled(network(name), way)
    model = tfdp.PrivateSequential(layers(name, way))
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.01), 1.0), LOSS)
    return model


def piece(name: str, way: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """A model, its records and the arguments of `fit` of a case of `pieces`."""
    if name == "cnn":
        model = compiled(network("m3"), way)
        return model, *records(model, 4352), {"batch_size": 4096, "physical_batch_size": 256}
    text = [keras.Input((128,), dtype="int32"), keras.layers.Embedding(50_000, 64)]
    model = compiled(
        keras.Sequential([*text, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(10)]),
        way,
    )
    return model, *records(model, 1024), {"batch_size": 256}


def train_alone(name: str, way: str) -> None:
    """Trains one case and prints the memory before and at the peak."""
    if name in ("cnn", "embedding"):
        model, x, y, options = piece(name, way)
    else:
        model, options = made(name, way), {"batch_size": 64 if name == "m4" else 256}
        x, y = records(model, options["batch_size"] * FLAGS.steps)
    before = resident()
    model.fit(x, y, steps_per_epoch=FLAGS.steps, verbose=0, **options)
    print(before, resident("VmHWM"))


def measured(name: str, way: str) -> tuple[float, float]:
    """MiB before training and at the peak, in a process of its own."""
    command = [sys.executable, __file__, "--only", f"{name},{way}", "--steps", str(FLAGS.steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, peak = map(float, done.stdout.split()[-2:])
    return before, peak


def peaks() -> None:
    for name in FLAGS.models:
        before, plain = measured(name, "keras")
        print(f"{name} keras: {before:.0f} MiB before, {plain:.0f} at the peak", flush=True)
        own = () if name == "m4" else IN_LAYER if name != "m2" else IN_LAYER[::2]
        for way in (*own, *CLIPPINGS):
            _, peak = measured(name, way)
            added = (peak - before) / (plain - before)
            print(f"  {way}: {peak:.0f} MiB, {peak / plain:.2f} times; of what training adds {added:.1f}", flush=True)


def pieces() -> None:
    for name in ("cnn", "embedding"):
        before, peak = measured(name, "flat")
        print(f"{name}: {before:.0f} MiB before, {peak:.0f} at the peak", flush=True)


def fits() -> None:
    """What one model's fits, new models' fits, and one fit's steps leave behind."""
    for way in ("keras", "flat"):
        for new in (False, True):
            model, held = None, []
            for _ in range(FLAGS.fits):
                model = small(way) if model is None or new else model
                model.fit(np.ones((64, 8)), np.zeros(64, int), batch_size=16, verbose=0)
                gc.collect()
                held.append(resident())
            half = FLAGS.fits // 2
            grown = (held[-1] - held[half - 1]) / (FLAGS.fits - half)
            print(f"{way}, {'new models' if new else 'one model'}: {held[0]:.0f} MiB after 1 fit, {held[half - 1]:.0f}"
                  f" after {half}, {held[-1]:.0f} after {FLAGS.fits}: {grown:.2f} a fit", flush=True)  # fmt: skip
    watch = Watch()
    small("flat").fit(np.ones((64, 8)), np.zeros(64, int), 16, 10, 0, [watch], steps_per_epoch=200)
    print(f"steps: {', '.join(f'{held:.0f}' for held in watch.held)} MiB after each 200", flush=True)


class Watch(keras.callbacks.Callback):
    """Resident memory at each epoch's end."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.held: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.held.append(resident())


def small(way: str) -> Any:
    stack = [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)]
    return compiled(keras.Sequential(stack), way)


def main(_: list[str]) -> None:
    if FLAGS.only:
        train_alone(*FLAGS.only)
    else:
        {"peaks": peaks, "pieces": pieces, "fits": fits}[FLAGS.what]()


if __name__ == "__main__":
    app.run(main)
