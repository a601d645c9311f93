"""The table of distributed selective SGD (Shokri, Shmatikov 2015) on MNIST, beside the printed figures.

Run from the root of the checkout, with the package installed (about ten minutes on two cores):

    python benchmarks/selective_sgd.py --data_dir FOLDER              # the whole table
    python benchmarks/selective_sgd.py --only cnn --rounds 60         # settings whose name holds "cnn"

Each party has 600 records, a hundredth of MNIST, and trains for one epoch in a turn. "sgd" is one party that holds all
60,000 records, "standalone" one that holds 600 and hears of nobody.
"""

import dataclasses
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

from tfdp_layers import datasets
from tfdp_layers.federated.party import Budget
from tfdp_layers.federated.simulation import Federation, simulate

_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder with mnist.npz; else Keras' cache or download")
_ROUNDS = flags.DEFINE_integer("rounds", 30, "turns of every party", lower_bound=1)
_ONLY = flags.DEFINE_string("only", "", "run only settings whose name holds this")
_SEED = flags.DEFINE_integer("seed", 0, "of weights, split and order")

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


def main(arguments: list[str]) -> None:
    del arguments
    data = datasets.load("mnist", _DATA_DIR.value)
    print("| setting | rounds | test accuracy | printed | epsilon of a party (delta 1e-5) | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, (plan, printed) in settings(_ROUNDS.value).items():
        if _ONLY.value in name:
            out = simulate(plan, data)
            spent = "" if out.epsilon_per_party is None else f"{out.epsilon_per_party:.4g}"
            figure = "" if printed is None else f"{printed:.4f}"
            row = (name, out.rounds, f"{out.test_accuracy:.4f}", figure, spent, f"{out.seconds:.0f}")
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    app.run(main)
