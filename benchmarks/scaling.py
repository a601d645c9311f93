"""How private steps grow beside ordinary ones: with batch size, weights, pieces of a batch, and processor cores.

Run: python benchmarks/scaling.py [--cores 1,2] [--rounds 3] [--steps 3] [--clock wall|cpu]
         [--out docs] [--write_only]

Through `fit`, noise included, SGD, without XLA, each point's ordinary and private networks in interleaved rounds:

- batch: m1 (a CNN) and m2 (784-1000-10) of `networks.py`, 64 to 16,384 records a batch;
- weights: dense networks 784-width-10 of 26 thousand to 10 million weights, 256 records;
- pieces: m2, 4,096 records in pieces (`physical_batch_size`) of 128 to 4,096.

Printed, and with `--out` kept in OUT/scaling.json: milliseconds a step and the ratio to Keras (medians over rounds);
OUT/scaling.png is drawn from it. Each number of cores is a process of its own.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("cores", ["1"], "On how many processor cores; the machine must have them.")
flags.DEFINE_integer("rounds", 3, "Interleaved rounds.", lower_bound=1)
flags.DEFINE_integer("steps", 3, "Timed steps a round.", lower_bound=1)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
flags.DEFINE_enum("clock", "wall", list(CLOCKS), "Time passed, or processor time of all threads (beside other work).")
flags.DEFINE_string("out", None, "Folder of scaling.json and scaling.png.")
flags.DEFINE_bool("write_only", False, "Only draw the picture.")
flags.DEFINE_bool("worker", False, "Time all points in this process.")

BATCHES = (64, 256, 1024, 4096, 16_384)
WIDTHS = {33: "26k", 320: "254k", 1000: "795k", 4000: "3.2M", 12_600: "10M"}
PIECES = (128, 512, 2048, 4096)
WAYS = {"flat": "DP-SGD, flat", "two clips": "two clips in the layer"}


def networks(name: str, width: int) -> dict[str, Any]:
    """The ordinary network and the private ones, compiled."""
    import keras
    from networks import layers, network

    import tfdp_layers as tfdp

    if name == "m1":
        plain, bounded = network("m1"), layers("m1", "spatial_l1")
    else:
        ends = [keras.Input((784,))]
        plain = keras.Sequential([*ends, keras.layers.Dense(width, "relu"), keras.layers.Dense(10)])
        clips = {"input_clip": 5.0, "upstream_clip": 0.1}
        dense = tfdp.layers.ClippedDense
        bounded = [*ends, dense(width, "relu", **clips), dense(10, **clips)]
    made = {"keras": plain, "flat": tfdp.make_private(keras.models.clone_model(plain))}
    made["two clips"] = tfdp.PrivateSequential(bounded)
    for way, model in made.items():
        sgd: Any = keras.optimizers.SGD(0.01)
        if way != "keras":
            kind = tfdp.optimizers.ClippedOptimizer if way == "flat" else tfdp.optimizers.NoisyOptimizer
            sgd = kind(sgd, 1.0)
        model.compile(sgd, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return made


def point(name: str, width: int, batch: int, piece: int | None) -> dict[str, dict[str, float]]:
    """Milliseconds and ratios of one point, by way."""
    from networks import records

    from tfdp_layers.commands.timing import interleaved

    models = networks(name, width)
    x, y = records(models["keras"], batch * (FLAGS.steps + 2))
    fitted = [model if piece is None or way == "keras" else InPieces(model, piece) for way, model in models.items()]
    rounds = interleaved(fitted, x, y, batch, FLAGS.steps, FLAGS.rounds, CLOCKS[FLAGS.clock])
    times = dict(zip(models, zip(*rounds, strict=True), strict=True))
    ratios = {way: [a / b for a, b in zip(own, times["keras"], strict=True)] for way, own in times.items()}
    return {way: {"ms": statistics.median(own), "ratio": statistics.median(ratios[way])} for way, own in times.items()}


@dataclass(frozen=True)
class InPieces:
    """A private model whose steps work off a batch in pieces."""

    model: Any
    piece: int

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.fit(*args, physical_batch_size=self.piece, **kwargs)


def points() -> list[dict[str, Any]]:
    """All points, timed in this process."""
    asked: list[tuple[str, str, int, int, int | None, str]] = []
    for name in ("m1", "m2"):
        asked += [(f"batch, {name}", name, 1000, batch, None, f"{batch:,}") for batch in BATCHES]
    asked += [("weights", "dense", width, 256, None, label) for width, label in WIDTHS.items()]
    asked += [("pieces", "dense", 1000, 4096, piece, f"{piece:,}") for piece in PIECES]
    found = []
    for series, name, width, batch, piece, label in asked:
        ways = point(name, width, batch, piece)
        told = "  ".join(f"{way} {one['ms']:.1f} ms, {one['ratio']:.2f}" for way, one in ways.items())
        print(f"{series:10} {label:>8}  {told}", file=sys.stderr, flush=True)
        found.append({"series": series, "label": label, "ways": ways})
    return found


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Ratios over each of the series, a line for each way and number of cores."""
    from matplotlib.figure import Figure

    series = list(dict.fromkeys(run["series"] for run in runs))
    figure = Figure(figsize=(3.0 * len(series), 3.2), layout="constrained")
    titles = {"weights": "weights (batch 256)", "pieces": "rows in a piece (batch 4,096)"}
    for axes, name in zip(figure.subplots(1, len(series), sharey=True, squeeze=False)[0], series, strict=True):
        for cores, line in ((1, "-"), (2, "--")):
            own = [run for run in runs if run["series"] == name and run["cores"] == cores]
            for (way, title), mark in zip(WAYS.items(), ("o", "s"), strict=True):
                if own:
                    axes.plot(
                        [run["label"] for run in own], [run["ways"][way]["ratio"] for run in own], line, marker=mark,
                        color="0.1" if way == "flat" else "0.5", label=f"{title}, {cores} core{'s' * (cores > 1)}",
                    )  # fmt: skip
        axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlabel(titles.get(name, name.replace("batch,", "records a batch,")), fontsize="small")
        axes.tick_params(labelsize="x-small")
    figure.axes[0].set_ylim(0, 1.05 * max(run["ways"][way]["ratio"] for run in runs for way in WAYS))
    figure.axes[0].set_ylabel("times Keras' step", fontsize="small")
    figure.axes[0].legend(fontsize="x-small")
    figure.savefig(path, dpi=80)


def main(_: list[str]) -> None:
    if FLAGS.worker:
        print(json.dumps(points()))
        return
    out = None if FLAGS.out is None else Path(FLAGS.out)
    kept = out / "scaling.json" if out else None
    runs = json.loads(kept.read_text()) if kept and kept.exists() else []
    for cores in map(int, [] if FLAGS.write_only else FLAGS.cores):
        line = [
            sys.executable,
            __file__,
            "--worker",
            *[f"--{name}={getattr(FLAGS, name)}" for name in ("rounds", "steps", "clock")],
        ]
        pinned = ["taskset", "-c", ",".join(map(str, range(cores))), *line]
        done = subprocess.run(pinned, stdout=subprocess.PIPE, text=True, check=True)
        new = [
            one | {"cores": cores, "clock": FLAGS.clock, "date": time.strftime("%Y-%m-%d")}
            for one in json.loads(done.stdout.splitlines()[-1])
        ]
        runs = [run for run in runs if run["cores"] != cores] + new
        if kept:
            kept.write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")
    if out:
        draw(runs, out / "scaling.png")


if __name__ == "__main__":
    app.run(main)
