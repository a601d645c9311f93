"""The table of distributed selective SGD (Shokri, Shmatikov 2015) on MNIST, beside the printed figures.

Run from the root of the checkout, with the package installed (about ten minutes on two cores):

    python benchmarks/selective_sgd.py --data_dir FOLDER              # the whole table
    python benchmarks/selective_sgd.py --only cnn --rounds 60         # settings whose name holds "cnn"
    python benchmarks/selective_sgd.py --out docs/selective_sgd.csv   # and keep the results, with a plot beside them

With --out the rows of settings that were run replace those of the file; `--only nothing` draws the plot again.

Each party has 600 records, a hundredth of MNIST, and trains for one epoch in a turn. "sgd" is one party that holds all
60,000 records, "standalone" one that holds 600 and hears of nobody.
"""

import csv
import dataclasses
import math
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

from tfdp_layers.federated.party import Budget
from tfdp_layers.federated.simulation import Federation, simulate
from tfdp_layers.zoo import datasets

_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder with mnist.npz; else Keras' cache or download")
_ROUNDS = flags.DEFINE_integer("rounds", 30, "turns of every party", lower_bound=1)
_ONLY = flags.DEFINE_string("only", "", "run only settings whose name holds this")
_OUT = flags.DEFINE_string("out", None, "CSV file of the results")
_SEED = flags.DEFINE_integer("seed", 0, "of weights, split and order")

COLUMNS = ("setting", "rounds", "test_accuracy", "printed", "epsilon", "seconds")
_ALONE = Federation(parties=1, upload=1.0)
_PRIVATE = Federation(upload=0.01, selection="random", bound=1e-3, threshold=1e-4, budget=Budget(math.inf, 1e-5))


def settings(rounds: int) -> dict[str, tuple[Federation, float | None]]:
    """Each setting, and the accuracy that was printed for it."""
    plans: dict[str, tuple[Federation, float | None]] = {}
    printed = {"cnn": (0.9917, 0.9914, 0.9871, 0.9645, 0.9316), "mlp": (0.9810, None, None, None, 0.8832)}
    for model, (sgd, tenth, hundredth, thousandth, standalone) in printed.items():
        plans[f"{model} sgd"] = (dataclasses.replace(_ALONE, records=60_000, rounds=5), sgd)
        for upload, figure in ((0.1, tenth), (0.01, hundredth), (0.001, thousandth)):
            plans[f"{model} upload {upload}"] = (Federation(upload=upload, rounds=rounds), figure)
        plans[f"{model} standalone"] = (dataclasses.replace(_ALONE, rounds=rounds), standalone)
    few = Federation(upload=0.01, rounds=rounds)
    plans["mlp upload 0.01 random"] = (dataclasses.replace(few, selection="random"), None)
    plans["mlp upload 0.01 random order"] = (dataclasses.replace(few, order="random"), None)
    plans["mlp upload 0.01, 90 parties"] = (dataclasses.replace(few, parties=90, rounds=max(1, rounds // 3)), None)
    for parties in (30, 90, 150):
        many = Federation(upload=0.1, parties=parties, rounds=max(1, rounds // 3))
        plans[f"mlp upload 0.1, {parties} parties for {many.rounds} rounds"] = (many, None)
    plans["mlp upload 0.1 asynchronous"] = (Federation(upload=0.1, rounds=rounds, order="asynchronous"), None)
    for model, uploads in (("mlp", (1e1, 1e3, 1e5, 1e7)), ("cnn", (1e1, 1e5, 1e7))):
        for each in uploads:
            private = dataclasses.replace(_PRIVATE, epsilon_per_epoch=each, rounds=max(1, rounds // 3))
            plans[f"{model} private {each:g} an epoch"] = (private, None)
    return {name: (dataclasses.replace(plan, model=name[:3], seed=_SEED.value), p) for name, (plan, p) in plans.items()}


def keep(path: Path, found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The rows of the file, by setting, with those found in their place; the file then holds the same."""
    rows = {}
    if path.exists():
        with path.open(newline="") as file:
            rows = {row["setting"]: row for row in csv.DictReader(file)}
    rows |= found
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
    return rows


def plot(rows: dict[str, dict[str, str]], path: Path) -> None:
    """Accuracy against the uploaded part, beside the printed figures; and against epsilon."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 4.2), layout="constrained")
    shared, private = figure.subplots(1, 2)
    for color, model in enumerate(("cnn", "mlp")):
        points = [(u, rows.get(f"{model} upload {u}")) for u in (0.1, 0.01, 0.001)]
        points = [(u, row) for u, row in points if row]
        style = {"color": f"C{color}", "marker": "o"}
        shared.plot([u for u, _ in points], [float(row["test_accuracy"]) for _, row in points], label=model, **style)
        printed = [(u, float(row["printed"])) for u, row in points if row["printed"]]
        if printed:
            label = f"{model}, printed"
            shared.plot(*zip(*printed, strict=True), **style | {"marker": "x"}, linestyle=":", label=label)
        for name, line in (("sgd", "-"), ("standalone", "--")):
            if f"{model} {name}" in rows:
                height = float(rows[f"{model} {name}"]["test_accuracy"])
                shared.axhline(height, color=f"C{color}", linestyle=line, alpha=0.4, label=f"{model}, {name}")
        found = [row for name, row in rows.items() if name.startswith(f"{model} private")]
        found.sort(key=lambda row: float(row["epsilon"]))
        values = [[float(row[key]) for row in found] for key in ("epsilon", "test_accuracy")]
        private.plot(*values, label=f"{model}, upload 0.01", **style)
    shared.set(title="without privacy, 30 parties", xlabel="largest part of the weights in an upload", xscale="log")
    private.set(title="private uploads", xlabel="epsilon of a party after 10 rounds (delta 1e-5)", xscale="log")
    for axes in (shared, private):
        axes.set_ylabel("test accuracy")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=80)


def main(arguments: list[str]) -> None:
    del arguments
    data = datasets.load("mnist", _DATA_DIR.value)
    found = {}
    print("| setting | rounds | test accuracy | printed | epsilon of a party (delta 1e-5) | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, (plan, printed) in settings(_ROUNDS.value).items():
        if _ONLY.value in name:
            out = simulate(plan, data)
            spent = "" if out.epsilon_per_party is None else f"{out.epsilon_per_party:.4g}"
            figure = "" if printed is None else f"{printed:.4f}"
            row = (name, str(out.rounds), f"{out.test_accuracy:.4f}", figure, spent, f"{out.seconds:.0f}")
            print("| " + " | ".join(row) + " |", flush=True)
            found[name] = dict(zip(COLUMNS, row, strict=True))
            if _OUT.value:
                keep(Path(_OUT.value), found)
    if _OUT.value:
        plot(keep(Path(_OUT.value), found), Path(_OUT.value).with_suffix(".png"))


if __name__ == "__main__":
    app.run(main)
