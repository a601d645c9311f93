"""What backpropagation clipping reaches at the true epsilons of its paper's figures, in a convolutional net.

Run: python benchmarks/backprop_clipping.py [--data_dir DIR] [--seeds 3] [--cases mnist:0.07,...]

Each run is the command `tfdp train`, as a user types it, and is kept in docs/backprop_clipping.json as it ends. Prints
for docs/backpropagation_clipping.md the mean and standard deviation of the test accuracy of each.
"""

import itertools
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from absl import app, flags
from accuracy import Results, Run, Settings

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "Where the data sets lie.")
flags.DEFINE_integer("seeds", 3, "Runs of each.", lower_bound=1)
flags.DEFINE_list(
    "cases",
    ["mnist:0.07", "mnist:0.101", "mnist:0.211", "mnist:3.185", "fashion_mnist:0.87"],
    "Data sets and budgets: those printed, and those that the authors' corrected figures truly cost.",
)
flags.DEFINE_list("methods", ["backprop_clipping"], "As in `tfdp train`.")
flags.DEFINE_string("out", str(Path(__file__).parents[1] / "docs" / "backprop_clipping.json"), "File of the runs.")


def main(_: list[str]) -> None:
    results = Results(Path(FLAGS.out))
    found = defaultdict(list)
    for seed, case, method in itertools.product(range(1, 1 + FLAGS.seeds), FLAGS.cases, FLAGS.methods):
        dataset, epsilon = case.split(":")
        settings: Settings = {"dataset": dataset, "epsilon": epsilon, "method": method, "seed": seed}
        found[dataset, epsilon, method].append(100 * results.get(settings, run)["test_accuracy"])
    for key, accuracies in found.items():
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        print(*key, f"{statistics.mean(accuracies):.1f}% (sd {spread:.1f}, {len(accuracies)} seeds)")


def run(settings: Settings) -> Run:
    """One training in a process of its own."""
    options = ["--model=cnn", *(f"--{name}={value}" for name, value in settings.items())]
    if FLAGS.data_dir:
        options.append(f"--data-dir={FLAGS.data_dir}")
    line = [sys.executable, "-m", "tfdp_layers.commands.cli", "train", *options, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    kept = ("test_accuracy", "delta", "accountant", "relation", "steps", "epochs", "batch_size", "noise_multiplier")
    return {name: result[name] for name in kept} | {"spent": result["epsilon"], "fit_seconds": result["seconds"]}


if __name__ == "__main__":
    app.run(main)
