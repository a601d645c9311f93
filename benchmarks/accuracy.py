"""What the accuracy experiments share: runs that are kept in one JSON file as they come, and looked up again there."""

import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Settings = dict[str, Any]
Run = dict[str, Any]


class Results:
    """Runs by their settings, in a JSON file that is rewritten after every run: an interrupted experiment goes on.

    Args:
        path: of the file; read if it exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: list[Run] = json.loads(path.read_text())["runs"] if path.exists() else []

    def get(self, settings: Settings, run: Callable[[Settings], Run]) -> Run:
        """The run of these settings: made now unless the file holds it."""
        for found in self.runs:
            if all(found.get(name) == value for name, value in settings.items()):
                return found
        started = time.perf_counter()
        made = settings | run(settings)
        gc.collect()  # a model and its data refer to each other
        made["seconds"] = round(time.perf_counter() - started, 1)
        self.runs.append(made)
        self._write()
        short = {name: value for name, value in made.items() if name != "accuracies"}
        print(" ".join(f"{name}={value}" for name, value in short.items()), flush=True)
        return made

    def _write(self) -> None:
        packages = ("tensorflow", "keras", "dp-accounting", "numpy")
        about = {
            "command": " ".join(sys.argv),
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in packages},
        }
        lines = ",\n".join(json.dumps(run) for run in self.runs)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f'{{"about": {json.dumps(about)},\n"runs": [\n{lines}\n]}}\n')


def at_best_rate(
    results: Results, settings: Settings, rates: Sequence[float], seeds: Iterable[int], run: Callable[[Settings], Run]
) -> list[Run]:
    """Each rate once, with the first seed; the best of them by final accuracy with every seed.

    The rate is so chosen on the test set, for every method in the same way: the figures compare methods.
    """
    first, *others = seeds
    tried = [results.get(settings | {"rate": rate, "seed": first}, run) for rate in rates]
    best = max(tried, key=lambda one: one["accuracies"][-1])
    return [best, *(results.get(settings | {"rate": best["rate"], "seed": seed}, run) for seed in others)]


def summary(runs: Sequence[Run]) -> str:
    """Mean final accuracy of several runs, and their range, in percent."""
    final = [100 * run["accuracies"][-1] for run in runs]
    return f"{statistics.mean(final):.1f}% ({min(final):.1f}-{max(final):.1f})"


def train(model: Any, data: tuple[Any, ...], sampling: Any, steps: int, evaluations: int) -> list[float]:
    """Trains for `steps` updates; the test accuracy after each of `evaluations` equal parts."""
    x, y, x_test, y_test = data
    history = model.fit(
        x,
        y,
        sampling=sampling,
        epochs=evaluations,
        steps_per_epoch=steps // evaluations,
        validation_data=(x_test, y_test),
        validation_batch_size=1000,
        verbose=0,
    )
    return [round(float(value), 4) for value in history.history["val_accuracy"]]


def plot(groups: dict[str, dict[str, list[Run]]], path: Path, steps: int) -> None:
    """Mean accuracy over seeds against updates, the range shaded; a panel for each group, a line for each method."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No plot: matplotlib is not installed.")
        return
    figure = Figure(figsize=(5.2 * len(groups), 4.2), layout="constrained")
    for axes, (title, methods) in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True):
        for name, runs in methods.items():
            curves = list(zip(*(run["accuracies"] for run in runs), strict=True))
            at = [steps * (i + 1) / len(curves) for i in range(len(curves))]
            axes.plot(at, [statistics.mean(values) for values in curves], label=name, marker=".")
            axes.fill_between(at, [min(values) for values in curves], [max(values) for values in curves], alpha=0.15)
        axes.set(title=title, xlabel="updates", ylabel="test accuracy")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=80)
