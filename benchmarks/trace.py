"""The timeline of one private step, by TensorFlow's own profiler: which thread computes what, and when.

Run: python benchmarks/trace.py [--model m1] [--out docs/trace.png]

A network of `networks.py` trained by DP-SGD (flat), batch 256 (m4: 64). Drawn is one step out of several: every
operation that runs for 3 microseconds or more, a line for each thread, by what it is for. Printed: processor time of
each kind. On a busy machine an operation is as long as it was kept waiting.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from absl import app, flags
from matplotlib.figure import Figure
from networks import network, records

import tfdp_layers as tfdp
from tfdp_layers.clipping.bounding import SCOPE

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "m1", "A network of networks.py.")
flags.DEFINE_string("out", "docs/trace.png", "The picture.")

KINDS = {
    "draw of the next batch": ("0.85", ""),
    "forward": ("0.65", ""),
    "backward": ("0.4", ""),
    "bounds of records": ("white", "////"),
    "noise and update": ("black", ""),
}
"""Each with its grey and hatch."""
STEP, LEAST = "multi_step_on_iterator", 3e6  # picoseconds


def profiled(name: str) -> Any:
    """The profiler's protocol buffer of six steps."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    model = tfdp.make_private(network(name))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.01), 1.0, 1.0)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch_size = 64 if name == "m4" else 256
    x, y = records(model, 6 * batch_size)
    model.fit(x, y, batch_size=batch_size, epochs=2, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        model.fit(x, y, batch_size=batch_size, verbose=0)
        tf.profiler.experimental.stop()
        (path,) = Path(folder).rglob("*.xplane.pb")
        found = xplane_pb2.XSpace()
        found.ParseFromString(path.read_bytes())
    return next(plane for plane in found.planes if "host:CPU" in plane.name)


def kind_of(thread: str, name: str) -> str | None:
    """What an event is for; None for the executor's own, which only waits for others."""
    if thread.startswith("tf_data"):
        return "draw of the next batch" if name.startswith(("Gather", "PyFunc", "Pad", "Concat")) else None
    if "::" in name or name.startswith(("end: ", "ParallelFor", "BlockUntilReady", "Memory", "ExecutorDone")):
        return None
    if SCOPE in name or "/" not in name:  # XLA's kernels carry no scope: in a step they are those of the bounds
        return "bounds of records"
    if "/gradient_tape/" in name:
        return "backward"
    inner = "StatefulPartitionedCall/StatefulPartitionedCall/"
    return "forward" if name.startswith(inner) else "noise and update"


def bars_of(plane: Any) -> tuple[list[tuple[str, str, float, float]], float]:
    """(thread, kind, start, length) of one step's events in milliseconds, and the step's length."""
    names = {number: one.name for number, one in plane.event_metadata.items()}
    steps, bars = [], []
    for line in plane.lines:
        base = line.timestamp_ns * 1e3
        for event in line.events:
            name, start = names[event.metadata_id], base + event.offset_ps
            if name == STEP:
                steps.append((start, start + event.duration_ps))
            kind = kind_of(line.name, name) if line.name.startswith("tf_") else None
            if kind and event.duration_ps >= LEAST:
                bars.append((line.name, kind, start, event.duration_ps))
    begin, end = min(sorted(steps)[1:], key=lambda step: step[1] - step[0])
    inside = [bar for bar in bars if bar[2] < end and bar[2] + bar[3] > begin]
    return [(*bar[:2], (bar[2] - begin) / 1e9, bar[3] / 1e9) for bar in inside], (end - begin) / 1e9


def draw(bars: list[tuple[str, str, float, float]], length: float, path: str) -> None:
    threads = sorted({bar[0] for bar in bars}, key=lambda thread: (thread.startswith("tf_data"), thread))
    figure = Figure(figsize=(11, 0.9 + 0.4 * len(threads)), layout="constrained")
    axes = figure.subplots()
    for kind, (grey, hatch) in KINDS.items():
        for place, thread in enumerate(threads):
            own = [bar[2:] for bar in bars if bar[:2] == (thread, kind)]
            axes.broken_barh(
                own, (place - 0.4, 0.8), facecolor=grey, hatch=hatch, edgecolor="0.3", linewidth=0.3, label=kind
            )
    titles = {"tf_Compute": "computing", "tf_numa_": "inside of operations", "tf_data": "drawing"}
    told = [next((title for start, title in titles.items() if thread.startswith(start)), thread) for thread in threads]
    axes.set_yticks(range(len(threads)), told, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(0, length)
    axes.set_xlabel("milliseconds")
    every = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(every.values(), every.keys(), loc="outside upper center", ncols=len(every), fontsize="small")
    figure.savefig(path, dpi=80)


def main(_: list[str]) -> None:
    bars, length = bars_of(profiled(FLAGS.model))
    total: Counter[str] = Counter()
    for _thread, kind, _start, taken in bars:
        total[kind] += taken
    print(f"a step of {length:.1f} ms; of each kind: " + ", ".join(f"{kind} {total[kind]:.1f}" for kind in KINDS))
    draw(bars, length, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
