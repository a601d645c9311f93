"""Epochs with correlated noise, epochs with independent noise, and Poisson sampling at the same epsilon.

Run: python benchmarks/epochs.py [--data_dir DIR] [--cache_dir DIR] [--epsilons 2.7,8] [--seeds 3]

Fashion-MNIST, one dense layer on wavelet features (J = 2), each record's gradient clipped by its own norm, 2,048
records a step, 40 epochs, gradient descent with momentum 0.9. Each method's rates are tried with the first seed on
10,000 training records held out, at each epsilon; the best one then trains on all records, with every seed, and is
tested on the test set. Runs are kept in docs/epochs.json as they come, and not made again; the table between the marks
in docs/epochs.md and docs/epochs.png are made from it.

`--time` prints in place of all that what a step costs with correlated noise, in units of one with independent noise.

A seed names a run: the layer starts from zeros, and noise and draws are keyed by the operating system.
"""

import dataclasses
import functools
import re
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import app, flags
from accuracy import Results, Run, Settings

import tfdp_layers as tfdp
from tfdp_layers.zoo import datasets, recipes, scattering

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "Where the data set lies.")
flags.DEFINE_string("cache_dir", None, "Where features are kept between runs.")
flags.DEFINE_string("dataset", "fashion_mnist", "Or mnist.")
flags.DEFINE_list("epsilons", ["2.7", "8"], "Budgets, at delta 1e-5.")
flags.DEFINE_integer("seeds", 3, "Runs of each.", lower_bound=1)
flags.DEFINE_bool("time", False, "Only time steps.")
flags.DEFINE_string("out", str(Path(__file__).parents[1] / "docs"), "Folder of epochs.json, epochs.md and epochs.png.")

BATCH, EPOCHS, DELTA, CLIP, HELD_OUT = 2048, 40, 1e-5, 1.0, 10_000
METHODS: dict[str, tuple[Any, Any]] = {
    "Poisson": (tfdp.sampling.Poisson, None),
    "Cyclic, correlated noise": (tfdp.sampling.Cyclic, tfdp.noise.Correlated()),
    "Partition, correlated noise": (tfdp.sampling.Partition, tfdp.noise.Correlated()),
    "Partition, independent noise": (tfdp.sampling.Partition, None),
}
RATES = {"2.7": (0.0625, 0.125, 0.25, 0.5), "8": (0.25, 0.5, 1.0, 2.0)}
"""Tried for every method alike."""


@functools.lru_cache(maxsize=1)
def data(dataset: str) -> Any:
    """The features of a data set, in half precision."""
    images = datasets.load(dataset, FLAGS.data_dir)
    cache = None if FLAGS.cache_dir is None else Path(FLAGS.cache_dir)
    recipe = recipes.recipe_for("scattering", dataset)
    one_scale = dataclasses.replace(recipe, feature_scales=(2,), mirrored=False, random_filters=0)
    found = scattering.on_features(images, scattering.prefix(images.x_train.shape[1:], one_scale), cache)
    return [np.array(part) for part in (found.x_train, found.y_train, found.x_test, found.y_test)]


def run(settings: Settings) -> Run:
    """Trains one model; its accuracy on the records that it was not trained on."""
    keras.utils.set_random_seed(settings["seed"])
    x, y, x_test, y_test = data(settings["dataset"])
    if settings["held_out"]:
        x, y, x_test, y_test = x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:]
    sampling, noise = METHODS[settings["method"]]
    head = tfdp.layers.ClippedDense(10, gradient_clip=CLIP, kernel_initializer="zeros")
    model = tfdp.PrivateSequential([keras.Input(x.shape[1:]), head])
    descent = keras.optimizers.SGD(settings["rate"], momentum=0.9, use_ema=True, ema_momentum=0.9)
    model.compile(
        tfdp.optimizers.NoisyOptimizer(descent, noise=noise),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    budget = tfdp.callbacks.PrivacyBudget(float(settings["epsilon"]), DELTA)
    started = time.perf_counter()
    model.fit(x, y, sampling=sampling(BATCH), epochs=EPOCHS, verbose=0, callbacks=[budget])
    seconds = time.perf_counter() - started
    accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0, return_dict=True)["accuracy"]
    (entry,) = model.ledger.entries
    return {
        "accuracies": [round(float(accuracy), 4)],
        "spent": float(tfdp.accounting.epsilon(model.ledger, DELTA)),
        "noise_multiplier": entry.release.noise_multiplier,
        "decay": None if entry.release.noise is None else entry.release.noise.decay,
        "steps": entry.steps,
        "fit_seconds": round(seconds, 1),
    }


def runs_of(results: Results, epsilon: str) -> dict[str, list[Run]]:
    """Each method at its best rate, which is chosen on records held out."""
    found = {}
    for method in METHODS:
        common = {"dataset": FLAGS.dataset, "method": method, "epsilon": epsilon}
        tried = [
            results.get(common | {"rate": rate, "seed": 1, "held_out": True}, run)
            for rate in RATES.get(epsilon, (1.0,))
        ]
        rate = max(tried, key=lambda one: one["accuracies"][-1])["rate"]
        seeds = range(1, FLAGS.seeds + 1)
        found[method] = [results.get(common | {"rate": rate, "seed": s, "held_out": False}, run) for s in seeds]
    return found


def table(found: dict[str, dict[str, list[Run]]]) -> str:
    """The runs as Markdown: mean and range of the test accuracies, in percent."""
    epsilons = list(found)
    lines = [
        "| draws and noise | " + " | ".join(f"epsilon {epsilon}" for epsilon in epsilons) + " |",
        "|---" * (len(epsilons) + 1) + "|",
    ]
    for method in METHODS:
        cells = []
        for epsilon in epsilons:
            accuracies = [100 * one["accuracies"][-1] for one in found[epsilon][method]]
            spread = f"{min(accuracies):.2f}-{max(accuracies):.2f}, {len(accuracies)}"
            first = found[epsilon][method][0]
            noise = f"noise {first['noise_multiplier']:.3g}"
            noise += "" if first["decay"] is None else f", decay {first['decay']:.3g}"
            cells.append(f"**{statistics.mean(accuracies):.2f}** ({spread} runs; {noise}; rate {first['rate']:g})")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(found: dict[str, dict[str, list[Run]]], path: Path) -> None:
    """Accuracy against epsilon, a line for each method."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No plot: matplotlib is not installed.")
        return
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    axes = figure.subplots()
    for method in METHODS:
        runs = {float(e): [100 * r["accuracies"][-1] for r in of[method]] for e, of in found.items()}
        means = [statistics.mean(one) for one in runs.values()]
        away = [[m - min(o) for m, o in zip(means, runs.values(), strict=True)]]
        away.append([max(o) - m for m, o in zip(means, runs.values(), strict=True)])
        axes.errorbar(list(runs), means, yerr=away, marker=".", capsize=3, label=method)
    axes.set(xscale="log", xlabel="epsilon (two relations: see the page)", ylabel="test accuracy, %")
    axes.set_xticks([float(e) for e in found], labels=list(found))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=80)


def step_times(width: int, batch: int, rounds: int = 15) -> str:
    """Processor time of 100 steps, correlated over independent noise: median and quartiles of interleaved rounds."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8192, width)).astype("float32"), rng.integers(0, 10, 8192)
    pairs = []
    for noise in (None, tfdp.noise.Correlated(0.9)):
        layers = [tfdp.layers.ClippedDense(n, gradient_clip=1.0, activation=a) for n, a in ((256, "relu"), (10, None))]
        model = tfdp.PrivateSequential([keras.Input((width,)), *layers])
        optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), 1.0, noise=noise)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        pairs.append((model, tfdp.PrivateBatches(x, y, tfdp.sampling.Cyclic(batch))))
        model.fit(pairs[-1][1], steps_per_epoch=5, verbose=0)
    ratios = []
    for number in range(rounds):
        seconds = {}
        for which in (0, 1) if number % 2 else (1, 0):
            taken = []
            for steps in (5, 105):  # what a fit costs besides its steps is in both
                started = time.process_time()
                pairs[which][0].fit(pairs[which][1], steps_per_epoch=steps, verbose=0)
                taken.append(time.process_time() - started)
            seconds[which] = taken[1] - taken[0]
        ratios.append(seconds[1] / seconds[0])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{pairs[0][0].count_params():,} weights, batches of {batch}: {middle:.2f} ({low:.2f}-{high:.2f})"


def main(_: list[str]) -> None:
    if FLAGS.time:
        print("\n".join(step_times(width, batch) for width, batch in ((784, 256), (784, 2048), (3969, 256))))
        return
    out = Path(FLAGS.out)
    results = Results(out / "epochs.json")
    found = {epsilon: runs_of(results, epsilon) for epsilon in FLAGS.epsilons}
    text = table(found)
    print(text)
    page = out / "epochs.md"
    if page.exists():
        marked = f"<!-- runs -->\n{text}\n<!-- end -->"
        page.write_text(re.sub("<!-- runs -->.*?<!-- end -->", lambda _: marked, page.read_text(), flags=re.DOTALL))
    plot(found, out / "epochs.png")


if __name__ == "__main__":
    app.run(main)
