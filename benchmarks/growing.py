"""Cost of a private step as batch, model and replicas grow: measured here, and on paper for many workers.

Run: python benchmarks/growing.py [--widths 100,1000,4000] [--batches 256,1024,4096] [--steps 12] [--json]

Measured through `fit`, noise, sampling and ledger included, on dense networks 784 - width - 10 with backpropagation
clipping: on one device, on two devices of one process (`MirroredStrategy` over two logical CPUs), and in two processes
on loopback (`MultiWorkerMirroredStrategy`), each with half of every batch. All share the cores of this machine, so more
replicas cannot be faster here: the difference is what the replicas cost. A step's time is the median over the steps but
for the first two; the noise, the draws and the ledger are timed by themselves as well.

On paper: `step_on_paper` adds up what a step of W workers takes, from those figures and a network's.
"""

import json
import math
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.sampling import Poisson, entropy_generator

FLAGS = flags.FLAGS
flags.DEFINE_list("widths", ["100", "1000", "4000"], "Units of the hidden layer.")
flags.DEFINE_list("batches", ["256", "1024", "4096"], "Expected batch sizes.")
flags.DEFINE_integer("steps", 12, "Steps of each measurement.")
flags.DEFINE_boolean("json", False, "Print one JSON object as the last line.")

RECORDS, BANDWIDTH, LATENCY = 20_000, 1.25e9, 50e-6
"""Records of the measurements; bytes a second of a network of 10 Gbit/s, and seconds for one message in it."""


class Steps(keras.callbacks.Callback):
    """The seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._started)


def measured(strategy: Any, width: int, batch: int) -> float:
    """The median seconds of a step."""
    with strategy.scope():
        clips = {"input_clip": 5.0, "upstream_clip": 0.1}
        hidden = tfdp.layers.ClippedDense(width, activation="relu", **clips)
        model = tfdp.PrivateSequential([keras.Input((784,)), hidden, tfdp.layers.ClippedDense(10, **clips)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0), loss)
    rng = np.random.default_rng(0)
    x, y = rng.random((RECORDS, 784), np.float32), rng.integers(0, 10, RECORDS)
    steps = Steps()
    model.fit(x, y, batch_size=batch, steps_per_epoch=FLAGS.steps, verbose=0, callbacks=[steps])
    return statistics.median(steps.seconds[2:])


def all_measured(strategy: Any) -> dict[str, float]:
    """Seconds of a step by "width batch"."""
    return {f"{w} {b}": measured(strategy, int(w), int(b)) for w in FLAGS.widths for b in FLAGS.batches}


def two_workers() -> dict[str, float]:
    """`all_measured` by the chief of two processes, forked before TensorFlow starts."""
    free = [socket.socket() for _ in range(2)]
    for one in free:
        one.bind(("127.0.0.1", 0))
    cluster = {"worker": [f"127.0.0.1:{one.getsockname()[1]}" for one in free]}
    for one in free:
        one.close()
    reader, writer = os.pipe()
    processes = []
    for i in range(2):
        processes.append(os.fork())
        if processes[-1] == 0:
            os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
            found = all_measured(tf.distribute.MultiWorkerMirroredStrategy())
            if i == 0:
                os.write(writer, json.dumps(found).encode())
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        found = json.loads(pipe.read())
    for process in processes:
        os.waitpid(process, 0)
    return found


def timed(action: Callable[[], Any], times: int) -> float:
    """Median seconds of an action."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def parts() -> dict[str, float]:
    """Seconds of a number of noise, of an index drawn, and of a step's two entries in a ledger on disk."""
    source, count = tfdp.noise.NoiseSource(), 4_000_000
    source.rekey()
    noise = tf.function(lambda: tf.reduce_sum(source.normal([count])))
    noise()
    draws = Poisson(4096).draws(RECORDS, entropy_generator())
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.json")
        token = ledger.begin(Release((GroupNoise("all", 1.0, 1.0),), Poisson(64), RECORDS))

        def entries() -> None:
            ledger.reserve(token, 1)
            ledger.settle(token, 1)

        counted = timed(entries, 50)
        ledger.close()
    return {
        "noise": timed(lambda: noise().numpy(), 5) / count,
        "draw": timed(lambda: next(draws), 50) / 4096,
        "ledger": counted,
    }


def step_on_paper(weights: int, workers: int, records: int, record: float, part: dict[str, float]) -> dict[str, float]:
    """Seconds of one step of many workers, by what they are spent on.

    Two ring all-reduces of the weights, each 2 (W - 1) / W of their bytes through every worker; eight small ones (three
    messages from the chief, the check of the slices, a loss and a metric of two numbers each) of 2 log2 W hops; the
    noise and the ledger of the chief, for which all wait; indices, which every worker draws for the whole batch.

    Args:
        weights, workers: d and W.
        records: of ONE worker; the batch has W times as many.
        record: seconds of one record on one worker.
        part: from `parts`.
    """
    through = 2 * (workers - 1) / workers * 4 * weights / BANDWIDTH
    hops = 2 * math.ceil(math.log2(workers)) * LATENCY
    return {
        "records": records * record,
        "sums and noisy sums": 2 * (through + hops),
        "messages": 8 * hops,
        "noise": weights * part["noise"],
        "ledger": part["ledger"],
        "draws": workers * records * part["draw"],
    }


def main(_: Any) -> None:
    """Measures and prints."""
    apart = two_workers()  # before TensorFlow starts here
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    one = all_measured(tf.distribute.get_strategy())
    two = all_measured(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    part = parts()
    print("| weights | batch | one device | us a record | two devices | two processes |\n|---|---|---|---|---|---|")
    for key, seconds in one.items():
        width, batch = map(int, key.split())
        cells = [f"{1e3 * s:.1f} ms" for s in (seconds, two[key], apart[key])]
        cells.insert(1, f"{1e6 * seconds / batch:.1f}")
        print(f"| {785 * width + 10 * width + 10:,} | {batch:,} | {' | '.join(cells)} |")
    print({name: f"{1e9 * seconds:,.1f} ns" for name, seconds in part.items()})
    width, batch = int(FLAGS.widths[-1]), int(FLAGS.batches[-1])
    record = one[f"{width} {batch}"] / batch
    paper = [
        {"weights": d, "workers": w} | step_on_paper(d, w, 256, record * d / (795 * width), part)
        for d in (10**6, 10**8)
        for w in (1, 10, 100, 1000)
    ]
    for row in paper:
        spent = {name: value for name, value in row.items() if name not in ("weights", "workers")}
        cells = " | ".join(f"{1e3 * value:,.1f} ms" for value in spent.values())
        share = spent["records"] / sum(spent.values())
        print(f"| {row['weights']:,} | {row['workers']:,} | {cells} | {share:.0%} |")
    if FLAGS.json:
        print(json.dumps({"one": one, "two_devices": two, "two_processes": apart, "parts": part, "paper": paper}))


if __name__ == "__main__":
    app.run(main)
