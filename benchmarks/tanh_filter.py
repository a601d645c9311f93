"""Tanh-filtered DP-SGD against DP-SGD, at the same true epsilon.

Run: python benchmarks/tanh_filter.py --out results/tanh_filter.json [--datasets mnist,fashion_mnist] [--data_dir DIR]
         [--steps 300] [--noise_multiplier 1.1] [--rates 0.25,1.0] [--seeds 3] [--methods ...]

The CNN of 26,010 weights of TensorFlow Privacy's tutorial, batch 256 by Poisson sampling, plain SGD, noise multiplier
1.1, as in the paper's experiments, but for fewer steps. Every method but the printed one is one Gaussian mechanism of
this multiplier a step, so all have the same epsilon. c: output scale, k: active range, C: clip of the (filtered) norm.
Each learning rate is tried with the first seed, and the best one taken for the others. A plot lies beside the results.
"""

from pathlib import Path
from typing import Any

import accuracy
import keras
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers import datasets
from tfdp_layers.accounting import epsilon, nominal_epsilon

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results/tanh_filter.json", "File for the runs.")
flags.DEFINE_list("datasets", ["mnist", "fashion_mnist"], "Data sets.")
flags.DEFINE_string("data_dir", None, "Folder with the data sets.")
flags.DEFINE_integer("steps", 300, "Updates of a run.")
flags.DEFINE_float("noise_multiplier", 1.1, "Of every update.")
flags.DEFINE_list("rates", ["0.25", "1.0"], "Learning rates to choose from.")
flags.DEFINE_integer("seeds", 3, "Runs of each method: seeds of the initial weights.")

BATCH, DELTA = 256, 1e-5
METHODS: dict[str, dict[str, Any]] = {
    "DP-SGD, C=1": {"l2_norm_clip": 1.0},
    "DP-SGD, C=0.1": {"l2_norm_clip": 0.1, "rates": 10.0},
    "DP-SGD, normalised": {"clipping": "automatic"},
    "tanh, c=1, k=1": {"active_range": 1.0},
    "tanh, c=1, k=0.1": {"active_range": 0.1},
    "tanh, c=1, k=0.01": {"active_range": 0.01},
    "tanh, c=1, k=0.001": {"active_range": 0.001},
    "tanh, c=10, k=1": {"active_range": 1.0, "output_scale": 10.0},
    "tanh, c=1, k=0.01, noise for c sqrt(P)": {"active_range": 0.01, "bound": "dimension", "rates": 0.01},
    "tanh as printed, c=1, k=1": {"active_range": 1.0, "as_published": True},
}
flags.DEFINE_list("methods", None, "Of the methods, by their numbers from 0; all if left out.")


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
    options = {name: value for name, value in METHODS[method].items() if name != "rates"}
    sgd = keras.optimizers.SGD(rate)
    kind = tfdp.optimizers.TanhFilteredOptimizer if method.startswith("tanh") else tfdp.optimizers.ClippedOptimizer
    return kind(sgd, FLAGS.noise_multiplier, **options)


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


def main(_: list[str]) -> None:
    results = accuracy.Results(Path(FLAGS.out))
    chosen = [list(METHODS)[int(i)] for i in FLAGS.methods] if FLAGS.methods else list(METHODS)
    groups: dict[str, dict[str, list[accuracy.Run]]] = {}
    for dataset in FLAGS.datasets:
        for method in chosen:
            settings = {"dataset": dataset, "method": method, "steps": FLAGS.steps, "noise": FLAGS.noise_multiplier}
            rates = [float(rate) * METHODS[method].get("rates", 1.0) for rate in FLAGS.rates]
            runs = accuracy.at_best_rate(results, settings, rates, range(FLAGS.seeds), run)
            groups.setdefault(dataset, {})[method] = runs
            print(f"| {dataset} | {method} | {runs[0]['rate']:g} | {accuracy.summary(runs)} | {runs[0]['epsilon']} |")
    accuracy.plot(groups, Path(FLAGS.out).with_suffix(".png"), FLAGS.steps)


if __name__ == "__main__":
    app.run(main)
