"""Tanh-filtered DP-SGD against DP-SGD, at the same true epsilon.

Run: python benchmarks/tanh_filter.py --out results/tanh_filter.json [--datasets mnist,fashion_mnist] [--data_dir DIR]
         [--steps 300] [--noise_multiplier 1.1] [--rates 1.0,2.0] [--seeds 3] [--families clip]
         [--only 'C=1|k=1$']

The CNN of 26,010 weights of TensorFlow Privacy's tutorial, batch 256 by Poisson sampling, plain SGD, noise multiplier
1.1, as in the paper's experiments, but for fewer steps. Every method but the printed ones is one Gaussian mechanism of
this multiplier a step, so all have the same epsilon. c: output scale, k: active range, C = 1: clip of the (filtered)
norm. Every method and learning rate is tried with the first seed; the best of each family, and the printed default
(c = 1, k = 1), are run with the other seeds. `rates` are multiplied by what suits the method's units. A plot and a
table lie beside the results.
"""

import re
from pathlib import Path
from typing import Any

import accuracy
import keras
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.accounting import epsilon, nominal_epsilon
from tfdp_layers.zoo import datasets

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results/tanh_filter.json", "File for the runs.")
flags.DEFINE_list("datasets", ["mnist", "fashion_mnist"], "Data sets.")
flags.DEFINE_string("data_dir", None, "Folder with the data sets.")
flags.DEFINE_integer("steps", 300, "Updates of a run.")
flags.DEFINE_float("noise_multiplier", 1.1, "Of every update.")
flags.DEFINE_list("rates", ["1.0", "2.0"], "Learning rates to choose from.")
flags.DEFINE_integer("seeds", 3, "Runs of the best methods: seeds of the initial weights.")
flags.DEFINE_list("families", None, "DP-SGD, clip, dimension, printed; all if left out.")
flags.DEFINE_string("only", "", "Regular expression of the methods' names.")

BATCH, DELTA = 256, 1e-5
SCALES, RANGES = (1, 10, 100), (0.1, 1, 10)
DEFAULT = ", c=1, k=1"
Methods = dict[str, tuple[float, dict[str, Any]]]
"""Names, with what the rates are multiplied by, and the optimizer's options."""


def tanh(scale: float, active_range: float, **options: Any) -> dict[str, Any]:
    return {"output_scale": float(scale), "active_range": float(active_range), **options}


FAMILIES: dict[str, Methods] = {
    "DP-SGD": {"DP-SGD, C=1": (1.0, {}), "DP-SGD, C=0.1": (10.0, {"l2_norm_clip": 0.1})},
    "clip": {f"tanh, c={c}, k={k}": (1.0, tanh(c, k)) for c in SCALES for k in RANGES},
    "dimension": {
        f"tanh, c=1, k={k}, noise for c sqrt(P)": (0.01, tanh(1, k, bound="dimension")) for k in (0.001, 0.01, 0.1)
    },
    "printed": {
        f"tanh as printed, c={c}, k={k}": (rate, tanh(c, k, as_published=True))
        for c, k, rate in ((1, 1, 0.25), (1, 10, 1.0), (10, 1, 0.025), (10, 10, 0.25))
    },
}


def network() -> list[Any]:
    """Convolutions 16@8x8/2 and 32@4x4/2, pools, 32 units, 10 classes."""
    kl = keras.layers
    return [
        *(keras.Input((28, 28, 1)), kl.Conv2D(16, 8, strides=2, padding="same", activation="relu")),
        *(kl.MaxPooling2D(2, 1), kl.Conv2D(32, 4, strides=2, activation="relu"), kl.MaxPooling2D(2, 1)),
        *(kl.Flatten(), kl.Dense(32, activation="relu"), kl.Dense(10)),
    ]


def optimizer(method: str, rate: float) -> Any:
    """The method's optimizer around plain SGD."""
    _, options = next(family[method] for family in FAMILIES.values() if method in family)
    kind = tfdp.optimizers.TanhFilteredOptimizer if method.startswith("tanh") else tfdp.optimizers.ClippedOptimizer
    return kind(keras.optimizers.SGD(rate), FLAGS.noise_multiplier, **options)


def run(settings: accuracy.Settings) -> accuracy.Run:
    """One training run."""
    keras.utils.set_random_seed(settings["seed"])
    data = datasets.load(settings["dataset"], FLAGS.data_dir)
    model = tfdp.PrivateSequential(network())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(settings["method"], settings["rate"]), loss, metrics=["accuracy"], steps_per_execution=20)
    arrays = (data.x_train, data.y_train, data.x_test, data.y_test)
    found = accuracy.train(model, arrays, tfdp.sampling.Poisson(BATCH), settings["steps"], 5)
    nominal = nominal_epsilon(model.ledger, DELTA)
    return {
        "accuracies": found,
        "epsilon": float(f"{float(epsilon(model.ledger, DELTA)):.5g}"),
        "nominal_epsilon": None if nominal is None else float(f"{float(nominal):.5g}"),
    }


def repeated(results: accuracy.Results, dataset: str, family: Methods) -> dict[str, list[accuracy.Run]]:
    """Runs of the methods of a family: all with one seed, the best of them and the printed default with every seed."""
    base = {"dataset": dataset, "steps": FLAGS.steps, "noise": FLAGS.noise_multiplier}
    runs = {}
    for method, (factor, _) in family.items():
        rates = [round(float(rate) * factor, 6) for rate in FLAGS.rates]
        runs[method] = accuracy.at_best_rate(results, base | {"method": method}, rates, [0], run)
    best = max(runs, key=lambda method: runs[method][0]["accuracies"][-1], default=None)
    for method in runs:
        if method == best or method.endswith(DEFAULT):
            again = base | {"method": method, "rate": runs[method][0]["rate"]}
            runs[method] += [results.get(again | {"seed": seed}, run) for seed in range(1, FLAGS.seeds)]
    return runs


def main(_: list[str]) -> None:
    results = accuracy.Results(Path(FLAGS.out))
    groups: dict[str, dict[str, list[accuracy.Run]]] = {}
    rows = [
        "| data | method | rate | test accuracy, mean (range) | seeds | true epsilon |",
        "|---|---|---|---|---|---|",
    ]
    for dataset in FLAGS.datasets:
        for name in FLAGS.families or FAMILIES:
            family = {method: how for method, how in FAMILIES[name].items() if re.search(FLAGS.only, method)}
            for method, runs in repeated(results, dataset, family).items():
                shown = (dataset, method, f"{runs[0]['rate']:g}", accuracy.summary(runs), len(runs), runs[0]["epsilon"])
                rows.append("| " + " | ".join(map(str, shown)) + " |")
                print(rows[-1], flush=True)
                if len(runs) > 1:
                    groups.setdefault(dataset, {})[method] = runs
    Path(FLAGS.out).with_suffix(".md").write_text("\n".join(rows) + "\n")
    accuracy.plot(groups, Path(FLAGS.out).with_suffix(".png"), FLAGS.steps)


if __name__ == "__main__":
    app.run(main)
