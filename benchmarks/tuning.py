"""What tuning costs and brings, on scikit-learn's digits: docs/tuning.md.

    python benchmarks/tuning.py --seeds 3 --out docs/tuning.json

Four ways to settings at one budget, (3, 1e-4), each repeated from fresh splits of the data: Keras' defaults, one draw
of the settings, the best of a random number of trials (`tfdp.tuning.random_search`), and the best of ten trials that
are all charged (`tfdp.tuning.PrivateTuner`). A fifth, the best of ten at the price of one, is what nobody may report.
"""

import argparse
import json
import math
import random
import tempfile
import time

import keras
import keras_tuner
import numpy as np
from sklearn import datasets

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, calibrate_noise_multiplier, epsilon

BUDGET = (3.0, 1e-4)
FIT = {"batch_size": 128, "epochs": 20}
SPACE = {
    "rate": tfdp.tuning.LogUniform(1e-4, 1e-1),
    "units": [16, 64, 256],
    "activation": ["relu", "tanh"],
}
TRIALS = 10


def data(seed):
    """Training records, and public ones: to choose by, and to report on."""
    digits = datasets.load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.data))
    x, y = (digits.data[order] / 16).astype("float32"), digits.target[order]
    return (x[:1200], y[:1200]), (x[1200:1500], y[1200:1500]), (x[1500:], y[1500:])


def build(settings, noise="calibrate"):
    layers = [keras.Input((64,))]
    if settings["units"]:
        layers.append(keras.layers.Dense(settings["units"], settings["activation"]))
    model = tfdp.make_private(keras.Sequential([*layers, keras.layers.Dense(10)]))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam(settings["rate"]), noise)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def one(train, settings, noise="calibrate"):
    model = build(settings, noise)
    budget = [tfdp.callbacks.PrivacyBudget(*BUDGET)] if noise == "calibrate" else []
    model.fit(*train, **FIT, callbacks=budget, verbose=0)
    return model


def accuracy(model, public):
    return model.evaluate(*public, verbose=0, return_dict=True)["accuracy"]


def searched(train, chosen_by, shape):
    number = tfdp.tuning.NumberOfTrials(TRIALS, shape)
    found = tfdp.tuning.random_search(
        build, SPACE, *train, budget=BUDGET, objective="val_accuracy", validation_data=chosen_by, trials=number,
        verbose=0, **FIT,
    )  # fmt: skip
    return found.model, found.noise_multiplier, found.settings


def composed(train, chosen_by, seed):
    """Ten trials, all charged: one noise multiplier for all, with which they keep to the budget together."""
    sampling, n = tfdp.sampling.Poisson(FIT["batch_size"]), len(train[1])
    noise = calibrate_noise_multiplier(*BUDGET, sampling, n, TRIALS * FIT["epochs"] * sampling.steps_per_epoch(n))

    def built(hp):
        rate = hp.Float("rate", 1e-4, 1e-1, sampling="log")
        units, activation = hp.Choice("units", [16, 64, 256]), hp.Choice("activation", ["relu", "tanh"])
        return build({"rate": rate, "units": units, "activation": activation}, noise)

    oracle = keras_tuner.oracles.RandomSearchOracle("val_accuracy", max_trials=TRIALS, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(dataset="digits", budget=BUDGET)
        tuner = tfdp.tuning.PrivateTuner(oracle, built, ledger=ledger, directory=folder, project_name="p")
        tuner.search(*train, **FIT, validation_data=chosen_by, verbose=0)
        return tuner.get_best_models()[0], noise, tuner.get_best_hyperparameters()[0].values


def measured(seed):
    """Rows of one split: (way, test accuracy, epsilon, noise multiplier, settings, seconds)."""
    train, chosen_by, public = data(seed)
    keras.utils.set_random_seed(seed)
    draws = random.Random(seed)

    def drawn():
        return {name: of.draw(draws) for name, of in tfdp.tuning.space.checked_space(SPACE).items()}

    def best_of_ten():
        models = [(accuracy(m, chosen_by), m, s) for s in (drawn() for _ in range(TRIALS)) for m in [one(train, s)]]
        _, model, settings = max(models, key=lambda row: row[0])
        return model, model.optimizer.multiplier.number, settings

    def fixed(settings):
        model = one(train, settings)
        return model, model.optimizer.multiplier.number, settings

    ways = {
        "Keras' defaults": lambda: fixed({"rate": 1e-3, "units": 64, "activation": "relu"}),
        "settings drawn once": lambda: fixed(drawn()),
        "random_search, logarithmic": lambda: searched(train, chosen_by, 0.0),
        "random_search, geometric": lambda: searched(train, chosen_by, 1.0),
        "random_search, Poisson": lambda: searched(train, chosen_by, math.inf),
        "PrivateTuner, ten charged": lambda: composed(train, chosen_by, seed),
        "ten at the price of one (not private)": best_of_ten,
    }
    for way, run in ways.items():
        started = time.perf_counter()
        model, noise, settings = run()
        spent = float(epsilon(model.ledger, BUDGET[1]))
        row = {"seed": seed, "way": way, "accuracy": accuracy(model, public), "epsilon": spent}
        row |= {"noise": noise, "settings": settings, "seconds": round(time.perf_counter() - started, 1)}
        print(json.dumps(row), flush=True)
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = [row for seed in range(options.seeds) for row in measured(seed)]
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.write("\n")
    for way in dict.fromkeys(row["way"] for row in rows):
        found = [row["accuracy"] for row in rows if row["way"] == way]
        print(f"{way:40} {100 * np.mean(found):.1f}% (from {100 * min(found):.1f} to {100 * max(found):.1f})")


if __name__ == "__main__":
    main()
