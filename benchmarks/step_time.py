"""Step time of private training over ordinary Keras training of the same network: the table and plot of docs/speed.md.

Run: python benchmarks/step_time.py [--models m1,m2,m3,m4] [--methods exact,flat] [--cores 1,2] [--rounds 9]
         [--steps 10] [--clock wall|cpu] [--out docs] [--write_only]

Each network on so many cores is a process of its own. Its rounds train the ordinary and all private models for a few
steps through `fit`, noise included, SGD, without XLA, one after the other, so that all see the same load of the
machine. AdaDP takes its own step, and is timed with its clamps in force. Batch 256; m4: 64.

Printed, and with `--out` kept in OUT/speed.json: milliseconds a step (medians over rounds of the median step), and the
ratio to Keras (median over rounds of the round's own ratio; smallest and largest). What is in the file is replaced by
a later run of the same; the table between the marks in OUT/speed.md and OUT/speed.png are made from it.
"""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["m1", "m2", "m3", "m4"], "Also lstm, stacked, convlstm: see networks.py.")
METHODS = {
    "spatial_l1": "two clips in the layer, `spatial_l1`",
    "patch": "two clips in the layer, `patch`",
    "feedback": "direct feedback alignment",
    "exact": "exact in the layer (`gradient_clip`)",
    "flat": "DP-SGD, flat",
    "per_layer": "DP-SGD, per layer",
    "automatic": "DP-SGD, automatic",
    "adaptive": "DP-SGD, adaptive threshold",
    "adadp": "AdaDP",
    "tanh": "tanh filter, then clip",
}
flags.DEFINE_list("methods", list(METHODS), "How records are bounded.")
flags.DEFINE_list("cores", ["1"], "On how many processor cores; the machine must have them.")
flags.DEFINE_integer("rounds", 7, "Interleaved rounds.", lower_bound=1)
flags.DEFINE_integer("steps", 10, "Timed steps a round.", lower_bound=1)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
flags.DEFINE_enum("clock", "wall", list(CLOCKS), "Time passed, or processor time of all threads (beside other work).")
flags.DEFINE_string("out", None, "Folder of speed.json, speed.md and speed.png.")
flags.DEFINE_bool("write_only", False, "Only write the page and the plot.")
flags.DEFINE_bool("worker", False, "Time one network in this process.")

MODELS = {
    "m1": "m1: CNN 28x28x1, 26k weights",
    "m2": "m2: MLP 784-1000-10, 795k",
    "m3": "m3: CNN 32x32x3, 551k",
    "m4": "m4: transformer block, 674k",
}
AIMS: dict[str, dict[str, tuple[float, ...]]] = {
    "spatial_l1": {"m1": (1.08,), "m2": (1.7, 1.2), "m3": (1.04,)},
    "feedback": {"m1": (0.8,), "m2": (1.0, 1.0), "m3": (0.8,)},
    "exact": {"m1": (1.45,), "m2": (1.6, 1.25), "m3": (1.2,), "m4": (1.15,)},
    "flat": {"m1": (1.5,), "m2": (1.6, 1.25), "m3": (1.2,), "m4": (1.15,)},
    "per_layer": {"m1": (1.45,), "m2": (1.6, 1.25), "m3": (1.2,), "m4": (1.15,)},
    "adadp": {"m1": (1.7,), "m2": (2.5, 1.8), "m3": (1.25,), "m4": (1.3,)},
    "tanh": {"m1": (1.8,), "m2": (5.0, 3.5), "m3": (1.3,), "m4": (1.2,)},
}
"""Ratios that this library aims at; two where those on one core and on two differ."""


def private(name: str, method: str) -> Any | None:
    """The network, private by a method, compiled; None where the method has nothing to do with it."""
    import keras
    from networks import IN_LAYER, by_feedback, layers, network

    import tfdp_layers as tfdp

    noisy: Any = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.01), 1.0)
    if method == "feedback":
        if name not in ("m1", "m2", "m3"):
            return None
        model = tfdp.make_private(by_feedback(name))
    elif method in IN_LAYER and name in ("m1", "m2", "m3"):
        if (name, method) == ("m2", "patch"):
            return None
        model = tfdp.PrivateSequential(layers(name, method))
    elif method == "exact":
        model = tfdp.make_private(network(name), bounding="backprop_clipping")
    elif method in IN_LAYER:
        return None
    else:
        model = tfdp.make_private(network(name))
        noisy = by_record(method)
    model.compile(noisy, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def by_record(method: str) -> Any:
    """The optimizer of a method that bounds each record's gradient of ordinary layers, at noise multiplier 1."""
    import keras

    import tfdp_layers as tfdp

    if method == "adadp":
        # Above a threshold of 0 from the first step on that releases anything.
        return tfdp.optimizers.AdaDPOptimizer(0.001, 1.0, variance_threshold=0.0, scale_estimator="query")
    sgd = keras.optimizers.SGD(0.01)
    if method == "tanh":
        return tfdp.optimizers.TanhFilteredOptimizer(sgd, 1.0)
    return tfdp.optimizers.ClippedOptimizer(sgd, 1.0, clipping=method)


def timed(name: str) -> list[dict[str, Any]]:
    """Interleaved timings of the methods on one network, in this process."""
    import keras
    from networks import network, records

    from tfdp_layers.commands.timing import interleaved

    plain = network(name)
    plain.compile(
        keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    made = {method: private(name, method) for method in FLAGS.methods}
    models = {method: model for method, model in made.items() if model is not None}
    batch_size = 64 if name == "m4" else 256
    x, y = records(plain, batch_size * (FLAGS.steps + 2))
    rounds = interleaved([plain, *models.values()], x, y, batch_size, FLAGS.steps, FLAGS.rounds, CLOCKS[FLAGS.clock])
    if "adadp" in models:
        assert bool(models["adadp"].optimizer.switched()), "timed before the switch"
    found = []
    for which, method in enumerate(models, start=1):
        ratios = [times[which] / times[0] for times in rounds]
        found.append({
            "model": name,
            "method": method,
            "keras_ms": round(statistics.median(times[0] for times in rounds), 2),
            "private_ms": round(statistics.median(times[which] for times in rounds), 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        })  # fmt: skip
    return found


def measured(name: str, cores: int) -> list[dict[str, Any]]:
    """The same in a process of its own, on so many cores."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    if len(chosen) < cores:
        raise SystemExit(f"--cores {cores}: this process may use {len(chosen)}.")
    flagged = [f"--{flag}={getattr(FLAGS, flag)}" for flag in ("rounds", "steps", "clock")]
    line = [sys.executable, __file__, "--worker", f"--models={name}", f"--methods={','.join(FLAGS.methods)}", *flagged]
    pinned = ["taskset", "-c", ",".join(map(str, chosen)), *line]
    done = subprocess.run(pinned, stdout=subprocess.PIPE, text=True, check=True)
    about = {"cores": cores, "clock": FLAGS.clock, "rounds": FLAGS.rounds, "steps": FLAGS.steps}
    about |= {"date": time.strftime("%Y-%m-%d")}
    return [one | about for one in json.loads(done.stdout.splitlines()[-1])]


def key(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["model"], run["method"], run["cores"]


def table(runs: list[dict[str, Any]], cores: int) -> str:
    """Ratios on so many cores, a row for each method."""
    found = {key(run): run for run in runs if run["cores"] == cores}
    shown = [name for name in MODELS if any(run[0] == name for run in found)]
    lines = [f"| on {cores} core{'s' * (cores > 1)} | {' | '.join(MODELS[name] for name in shown)} |"]
    lines.append("|---" * (1 + len(shown)) + "|")
    for method, title in METHODS.items():
        cells = [cell(found.get((name, method, cores)), aim(method, name, cores)) for name in shown]
        if any(cells):
            lines.append(f"| {title} | {' | '.join(cells)} |")
    plain = {name: [run["keras_ms"] for run in found.values() if run["model"] == name] for name in shown}
    lines.append(f"| Keras, milliseconds | {' | '.join(f'{statistics.median(plain[name]):.1f}' for name in shown)} |")
    return "\n".join(lines) + "\n"


def aim(method: str, name: str, cores: int) -> float | None:
    aims = AIMS.get(method, {}).get(name, ())
    return aims[min(cores, len(aims)) - 1] if aims else None


def cell(run: dict[str, Any] | None, wanted: float | None) -> str:
    if run is None:
        return ""
    least, most = run["ratio_range"]
    ratio = f"{run['ratio']:.2f}"
    met = wanted is None or run["ratio"] <= wanted
    return f"{f'**{ratio}**' if met else ratio} ({least:.2f}-{most:.2f}){'' if met else f', aim {wanted:g}'}"


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    """Ratios on one core, a group of bars for each network."""
    from matplotlib.figure import Figure

    found = {key(run): run for run in runs}
    shown = [name for name in MODELS if any(at[0] == name and at[2] == 1 for at in found)]
    figure = Figure(figsize=(2.6 * len(shown), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        own = {method: found[name, method, 1] for method in METHODS if (name, method, 1) in found}
        ratios = [run["ratio"] for run in own.values()]
        around = [[abs(run["ratio"] - run["ratio_range"][side]) for run in own.values()] for side in (0, 1)]
        axes.barh(list(own), ratios, xerr=around, color="0.6", edgecolor="0.2", capsize=2)
        axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
        axes.invert_yaxis()
        axes.set_title(MODELS[name].replace(": ", "\n"), fontsize="small")
        axes.set_xlabel("times Keras' step", fontsize="small")
        axes.tick_params(labelsize="small")
    figure.savefig(path, dpi=80)


def write(out: Path, runs: list[dict[str, Any]]) -> None:
    page = out / "speed.md"
    tables = "\n".join(table(runs, cores) for cores in sorted({run["cores"] for run in runs}))
    dates = sorted({run["date"] for run in runs})
    clocks = {"wall": "time passed", "cpu": "processor time"}
    how = sorted({f"{run['rounds']} rounds of {run['steps']} steps, {clocks[run['clock']]}" for run in runs})
    versions = ", ".join(f"{name} {version(name)}" for name in ("tensorflow", "keras", "numpy"))
    tables += f"\n{'; '.join(how)}. {' to '.join(sorted({dates[0], dates[-1]}))}; Python {platform.python_version()},"
    text = f"{tables} {versions}.\n"
    found = re.sub(
        r"(<!-- steps -->\n).*?(<!-- end -->)", lambda at: at[1] + text + at[2], page.read_text(), flags=re.DOTALL
    )
    page.write_text(found)
    plot(runs, out / "speed.png")


def main(_: list[str]) -> None:
    if FLAGS.worker:
        print(json.dumps(timed(*FLAGS.models)))
        return
    out = None if FLAGS.out is None else Path(FLAGS.out)
    kept = out / "speed.json" if out else None
    runs = json.loads(kept.read_text()) if kept and kept.exists() else []
    for cores in map(int, [] if FLAGS.write_only else FLAGS.cores):
        for name in FLAGS.models:
            found = measured(name, cores)
            for one in found:
                timings = "keras {keras_ms:.2f} ms  private {private_ms:.2f} ms  ratio {ratio:.2f} {ratio_range}"
                print(f"{name}, {cores} core(s) {one['method']:10} {timings.format(**one)}", flush=True)
            new = {key(run) for run in found}
            runs = [run for run in runs if key(run) not in new] + found
            if kept:
                kept.write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")
    if out and runs:
        write(out, runs)


if __name__ == "__main__":
    app.run(main)
