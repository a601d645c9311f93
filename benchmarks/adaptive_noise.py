"""AdaDP, its two halves AdaL and AdaN, and DP-SGD at the same epsilon, behind the same DP-PCA.

Run: python benchmarks/adaptive_noise.py --out results/adaptive_noise.json [--datasets mnist] [--data_dir DIR]
         [--noises 8:16,4:7,2:4] [--steps 400] [--seeds 3] [--methods ...]

The paper's network for MNIST: 60 private principal components, 1,000 ReLU units, 10 classes; lots of 600 by Poisson
sampling, C = 4, beta = 1.2. `noises` are its (sigma*, sigma_p): the noise multipliers of a step, and of the principal
components, whose cost is in every epsilon here. Records are clipped to norm 1 for the components, and not for the
network. Each method's learning rates (the paper's, and three times that) are tried with the first seed at each
noise, and the best one is taken for the others. A plot lies beside the results.
"""

import functools
from pathlib import Path
from typing import Any

import accuracy
import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, epsilon, nominal_epsilon
from tfdp_layers.zoo import datasets

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results/adaptive_noise.json", "File for the runs.")
flags.DEFINE_list("datasets", ["mnist"], "Data sets.")
flags.DEFINE_string("data_dir", None, "Folder with the data sets.")
flags.DEFINE_list("noises", ["4:7", "8:16", "2:4"], "sigma*:sigma_p.")
flags.DEFINE_integer("steps", 400, "Updates of a run.")
flags.DEFINE_integer("seeds", 3, "Runs of each method: seeds of the initial weights.")

BATCH, DELTA, COMPONENTS, CLIP = 600, 1e-5, 60, 4.0
METHODS: dict[str, tuple[float, dict[str, Any]]] = {
    "DP-SGD": (0.1, {}),
    "DP-Adam": (2e-3, {}),
    "AdaL": (1e-3, {"adaptive_noise": False}),
    "AdaN (query)": (0.1, {"adaptive_rate": False, "scale_estimator": "query"}),
    "AdaDP (query)": (2e-3, {"scale_estimator": "query"}),
    "AdaDP (layer)": (2e-3, {"scale_estimator": "layer"}),
    "AdaDP (coordinate)": (2e-3, {"scale_estimator": "coordinate"}),
    "AdaDP as printed": (2e-3, {"as_published": True}),
}
flags.DEFINE_list("methods", None, "Of the methods, by their numbers from 0; all if left out.")


def optimizer(method: str, rate: float, noise: float) -> Any:
    """The method's optimizer. DP-SGD's rate falls to about half within ten epochs, as in the paper."""
    if method == "DP-SGD":
        schedule = keras.optimizers.schedules.PolynomialDecay(rate, 1000, 0.52 * rate)
        return tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(schedule), noise, CLIP)
    if method == "DP-Adam":
        return tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam(rate), noise, CLIP)
    return tfdp.optimizers.AdaDPOptimizer(rate, noise, l2_norm_clip=CLIP, **METHODS[method][1])


@functools.lru_cache(maxsize=3)
def components(dataset: str, noise: float, seed: int) -> tuple[tuple[np.ndarray, ...], Ledger]:
    """The data in their private principal components, and what those cost. Each seed draws its own."""
    data = datasets.load(dataset, FLAGS.data_dir)
    flat = [np.reshape(x, (len(x), -1)) for x in (data.x_train, data.x_test)]
    layer = tfdp.layers.DPPCA(COMPONENTS, noise)
    layer.adapt(flat[0])
    x_train, x_test = (np.asarray(layer(x)) for x in flat)
    return (x_train, data.y_train, x_test, data.y_test), layer.ledger


def run(settings: accuracy.Settings) -> accuracy.Run:
    """One training run."""
    noise, pca_noise = map(float, settings["noise"].split(":"))
    arrays, paid = components(settings["dataset"], pca_noise, settings["seed"])
    keras.utils.set_random_seed(settings["seed"])
    kl = keras.layers
    model = tfdp.PrivateSequential([keras.Input((COMPONENTS,)), kl.Dense(1000, activation="relu"), kl.Dense(10)])
    model.ledger.merge(paid)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made = optimizer(settings["method"], settings["rate"], noise)
    model.compile(made, loss, metrics=["accuracy"], steps_per_execution=20)
    found = accuracy.train(model, arrays, tfdp.sampling.Poisson(BATCH), settings["steps"], 5)
    nominal = nominal_epsilon(model.ledger, DELTA)
    return {
        "accuracies": found,
        "epsilon": float(f"{float(epsilon(model.ledger, DELTA)):.5g}"),
        "epsilon_of_components": float(f"{float(epsilon(paid, DELTA)):.5g}"),
        "nominal_epsilon": None if nominal is None else float(f"{float(nominal):.5g}"),
        "clamped": bool(made.switched()) if hasattr(made, "switched") else None,
    }


def main(_: list[str]) -> None:
    results = accuracy.Results(Path(FLAGS.out))
    chosen = [list(METHODS)[int(i)] for i in FLAGS.methods] if FLAGS.methods else list(METHODS)
    groups: dict[str, dict[str, list[accuracy.Run]]] = {}
    for dataset in FLAGS.datasets:
        for noise in FLAGS.noises:
            for method in chosen:
                settings = {"dataset": dataset, "method": method, "steps": FLAGS.steps, "noise": noise}
                own = METHODS[method][0]
                rates = [round(own * f, 6) for f in (1, 3)]
                runs = accuracy.at_best_rate(results, settings, rates, range(FLAGS.seeds), run)
                sound = [one["epsilon"] for one in runs if one["nominal_epsilon"] is None]
                title = f"{dataset}, sigma* {noise.split(':')[0]}" + (f", epsilon {sound[0]:.2f}" if sound else "")
                groups.setdefault(title if sound else next(reversed(groups)), {})[method] = runs
                print(
                    f"| {dataset} | {noise} | {method} | {runs[0]['rate']:g} | {accuracy.summary(runs)} |", flush=True
                )
    accuracy.plot(groups, Path(FLAGS.out).with_suffix(".png"), FLAGS.steps)


if __name__ == "__main__":
    app.run(main)
