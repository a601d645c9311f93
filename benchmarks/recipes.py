"""The accuracies of `tfdp train --recipe`, at a true epsilon: docs/accuracy.md, its table, ablations and plot.

Run: python benchmarks/recipes.py [--data_dir DIR] [--cache_dir DIR] [--datasets mnist,fashion_mnist]
         [--epsilons 1,2.7,8] [--recipe scattering] [--seeds 3] [--ablations] [--write_only]

Each run is the command `tfdp train`, as a user types it, and is written to docs/accuracy.json as it ends; a run that is
there already is not made again. `--ablations` makes those of `ABLATIONS`, one seed each, on 10,000 training records
held out. The tables between the marks in docs/accuracy.md and docs/accuracy.png are then made from the file.
"""

import itertools
import json
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from absl import app, flags
from accuracy import Results, Run, Settings

from tfdp_layers.accounting.wording import never_below

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "Where the data sets lie.")
flags.DEFINE_string("cache_dir", None, "Where features are kept between runs.")
flags.DEFINE_list("datasets", ["mnist", "fashion_mnist", "digits"], "Data sets to train on.")
flags.DEFINE_list("epsilons", ["1", "2.7", "8"], "Budgets; on MNIST 2.93 in place of 2.7, on CIFAR-10 3.")
flags.DEFINE_string("recipe", "scattering", "As in `tfdp train`.")
flags.DEFINE_integer("seeds", 3, "Runs of each.", lower_bound=1)
flags.DEFINE_bool("ablations", False, "Make the ablations.")
flags.DEFINE_bool("write_only", False, "Only write the page and the plot.")
flags.DEFINE_string("out", str(Path(__file__).parents[1] / "docs"), "Folder of accuracy.json, accuracy.md and .png.")

PUBLISHED = {"mnist": "2.93", "cifar10": "3"}
"""The budget of the literature that stands for 2.7."""
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10 (JPEG copy)", "digits": "digits"}
GOALS = {
    "mnist": {"1": 98.5, "2.93": 99.0, "8": 99.2},
    "fashion_mnist": {"1": 89.2, "2.7": 90.8, "8": 91.7},
    "cifar10": {"1": 61.0, "3": 69.0, "8": 72.5},
    "digits": {"2.7": 90.0},
}
"""Of the best recipe."""
GOALS_FROM_SCRATCH = {"fashion_mnist": {"2.7": 86.5}}
"""Of networks on pixels whose layers bound the gradients."""
REFERENCES = {
    "mnist": {"scattering, linear (Tramer, Boneh 2021)": {2.93: 98.7}},
    "fashion_mnist": {"scattering, linear (Tramer, Boneh 2021)": {2.7: 89.7}},
    "cifar10": {
        "CNN on scattering (Tramer, Boneh 2021)": {3: 69.3},
        "wide ResNet (De et al. 2022)": {1: 56.8, 8: 78.7},
    },
}
STYLES = {
    "scattering": ("o", "-"),
    "exact": ("s", "--"),
    "dpsgd": ("^", "-."),
    "cnn": ("v", ":"),
    "mlp": ("D", ":"),
    "dfa": ("P", "--"),
}
"""Marker and line of each recipe: they tell apart in grey."""
ABLATIONS: dict[str, list[str]] = {
    "as it is": [],
    "features not centered": ["centering_noise=0"],
    "features not whitened": ["whitening_noise=0"],
    "the last weights, no mean of them": ["ema_momentum=0"],
    "one scale, J = 2": ["feature_scales=(2,)"],
    "two scales, J = 2, 3": ["feature_scales=(2, 3)"],
    "two scales, J = 1, 2": ["feature_scales=(1, 2)"],
    "every gradient normalised (automatic)": ["gradient_clip=automatic"],
}
"""Settings in place of the recipe's, by what they mean."""


def main(_: list[str]) -> None:
    out = Path(FLAGS.out)
    results = Results(out / "accuracy.json")
    if not FLAGS.write_only:
        kinds: dict[str | None, list[str]] = ABLATIONS if FLAGS.ablations else {None: []}  # type: ignore[assignment]
        seeds = range(1, 1 + (1 if FLAGS.ablations else FLAGS.seeds))
        every = itertools.product(seeds, FLAGS.datasets, FLAGS.epsilons, kinds.items())
        for seed, dataset, budget, (name, changes) in every:
            epsilon = PUBLISHED.get(dataset, budget) if budget == "2.7" else budget
            settings: Settings = {"dataset": dataset, "epsilon": epsilon, "recipe": FLAGS.recipe}
            results.get(settings | {"ablation": name, "changes": changes, "seed": seed}, run)
    page = out / "accuracy.md"
    text = page.read_text()
    for mark, table in {"accuracy": accuracy(results.runs), "ablations": ablations(results.runs)}.items():
        text = re.sub(
            f"(<!-- {mark} -->\n).*?(<!-- end -->)",
            lambda found, table=table: found[1] + table + found[2],
            text,
            flags=re.DOTALL,
        )
    page.write_text(text)
    plot(results.runs, out / "accuracy.png")


def command(settings: Settings) -> list[str]:
    """`tfdp train` with these settings, but for where data and features lie."""
    options = ["--recipe", settings["recipe"], "--dataset", settings["dataset"], "--epsilon", settings["epsilon"]]
    options += [part for change in settings["changes"] for part in ("--setting", change)]
    return ["tfdp", "train", *options, *(["--holdout", "10000"] if settings["ablation"] else [])]


def run(settings: Settings) -> Run:
    """One training in a process of its own."""
    places = [
        f"--{name.replace('_', '-')}={FLAGS[name].value}" for name in ("data_dir", "cache_dir") if FLAGS[name].value
    ]
    _, *options = command(settings)
    line = [
        sys.executable,
        "-m",
        "tfdp_layers.commands.cli",
        *options,
        *places,
        "--seed",
        str(settings["seed"]),
        "--json",
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    kept = ("test_accuracy", "delta", "accountant", "relation", "steps", "epochs", "batch_size", "noise_multiplier")
    return {name: result[name] for name in kept} | {
        "spent": result["epsilon"],
        "fit_seconds": result["seconds"],
        "date": time.strftime("%Y-%m-%d"),
        "versions": result["versions"],
    }


def grouped(runs: list[Run], ablation: bool) -> dict[tuple[Any, ...], list[Run]]:
    """Runs that differ by the seed alone."""
    groups = defaultdict(list)
    for one in runs:
        if (one["ablation"] is not None) == ablation:
            groups[one["dataset"], one["epsilon"], one["recipe"], one["ablation"]].append(one)
    return dict(groups)


def of(runs: list[Run]) -> tuple[float, float]:
    """Mean and standard deviation of the accuracy, in percent."""
    found = [100 * one["test_accuracy"] for one in runs]
    return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0


def accuracy(runs: list[Run]) -> str:
    lines = [
        "| data | epsilon | test accuracy | goal | seeds | minutes of training | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for (dataset, epsilon, recipe, _), group in sorted(grouped(runs, False).items(), key=lambda one: order(one[0])):
        mean, spread = of(group)
        goals = {"scattering": GOALS, "exact": GOALS_FROM_SCRATCH}.get(recipe, {})
        goal = goals.get(dataset, {}).get(epsilon)
        minutes = statistics.mean(one["fit_seconds"] for one in group) / 60
        aim = "" if goal is None else f"{goal:g}{'' if mean >= goal else ', not reached'}"
        spent = max(one["spent"] for one in group)
        typed = f"`{' '.join(command(group[0]))}`"
        cells = (
            NAMES[dataset],
            never_below(spent, ".3f"),
            f"**{mean:.2f}%**{f' ({spread:.2f})' if len(group) > 1 else ''}",
            aim,
            len(group),
            f"{minutes:.1f}",
            typed,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    versions = ", ".join(f"{name} {found}" for name, found in runs[-1]["versions"].items())
    dates = sorted({one["date"] for one in runs})
    lines += ["", f"Made {' to '.join(sorted({dates[0], dates[-1]}))}; {versions}."]
    return "\n".join(lines) + "\n"


def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (list(NAMES).index(key[0]), float(key[1]), key[2:])


def ablations(runs: list[Run]) -> str:
    lines = ["| data | epsilon | change | accuracy on the held-out 10,000 | seeds |", "|---|---|---|---|---|"]
    for (dataset, epsilon, _, name), group in grouped(runs, True).items():
        changes = ", ".join(f"`{change}`" for change in group[0]["changes"])
        mean, _ = of(group)
        lines.append(
            f"| {NAMES[dataset]} | {epsilon} | {name}{f': {changes}' if changes else ''} | {mean:.2f}% | {len(group)} |"
        )
    return "\n".join(lines) + "\n"


def plot(runs: list[Run], path: Path) -> None:
    """Accuracy against epsilon, a panel for each data set, beside the references."""
    if find_spec("matplotlib") is None:
        print("No plot: matplotlib is not installed.")
        return
    from matplotlib.figure import Figure

    groups = grouped(runs, False)
    shown = [name for name in NAMES if len({key[1] for key in groups if key[0] == name}) > 1]  # at several budgets
    figure = Figure(figsize=(4.6 * len(shown), 4.5), layout="constrained")
    for axes, dataset in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        own = {key[2] for key in groups if key[0] == dataset}
        for recipe, (marker, line) in STYLES.items():
            found = {key[1]: group for key, group in groups.items() if (key[0], key[2]) == (dataset, recipe)}
            if recipe in own:
                points = sorted((float(epsilon), *of(group)) for epsilon, group in found.items())
                at, means, spreads = zip(*points, strict=True)
                axes.errorbar(at, means, spreads, marker=marker, linestyle=line, capsize=3, label=f"--recipe {recipe}")
        for name, published in REFERENCES.get(dataset, {}).items():
            axes.plot(list(published), list(published.values()), marker="x", linestyle=":", label=name)
        axes.set(title=NAMES[dataset], xlabel="epsilon (delta 1e-5)", xscale="log", ylabel="test accuracy, %")
        every = sorted({float(key[1]) for key in groups if key[0] == dataset})
        axes.set_xticks(every, [f"{one:g}" for one in every])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.17))
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    app.run(main)
