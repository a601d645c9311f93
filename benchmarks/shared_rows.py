"""Rows that several people share, under ids that say otherwise: how far one person moves a step's sum, in bounds.

    python benchmarks/shared_rows.py --trainings 20

`fit` warns of each of them, and states what it would of people who share nothing (docs/data.md, "Records from
anywhere"). Prints the movement by one person there or not, or for pairs emptied: one record of each person that is
drawn. With `--trainings` also how often released weights tell whether a patient is in windows cut across people.
"""

import argparse
import warnings
from typing import Any

import keras
import numpy as np

import tfdp_layers as tfdp

CLIP, DELTA, STEPS = 0.5, 1e-5, 30
RARE = 30
"""The person who is there or not, with a value that nobody else has."""


def model_of(shapes: list[tuple[int, ...]]) -> Any:
    inputs = [keras.Input(shape) for shape in shapes]
    pooled = [keras.layers.GlobalAveragePooling1D()(one) if len(one.shape) > 2 else one for one in inputs]
    joined = keras.layers.Concatenate()(pooled) if len(pooled) > 1 else pooled[0]
    outputs = keras.layers.Dense(1, kernel_initializer="zeros")(joined)
    model = tfdp.make_private(keras.Model(inputs if len(inputs) > 1 else inputs[0], outputs))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), l2_norm_clip=CLIP)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def visits(there: bool) -> tuple[np.ndarray, np.ndarray]:
    """Three a patient, sorted by patient, and whose each is."""
    numbers = 0.1 * np.random.default_rng(1).normal(size=(180, 4))
    who = np.repeat(np.arange(60), 3)
    numbers[:, 3] = np.where(who == RARE, 30.0, 0.0)
    kept = there | (who != RARE)
    return numbers[kept].astype("float32"), who[kept]


def across(there: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Windows of 30 visits, with the id of the last one."""
    rows, who = visits(there)
    windows = np.lib.stride_tricks.sliding_window_view(rows, STEPS, axis=0).swapaxes(1, 2)
    return [np.ascontiguousarray(windows)], who[STEPS - 1 :]


def apart(there: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """The same of each patient's own visits, behind zeros."""
    rows, who = visits(there)
    found = []
    for one in np.unique(who):
        own = np.concatenate([np.zeros((STEPS - 1, 4), "float32"), rows[who == one]])
        found += [own[at : at + STEPS] for at in range(3)]
    return [np.stack(found)], who


def matched(there: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """120 cases beside controls, of whom one has 20 cases, with the ids of the cases."""
    rng = np.random.default_rng(3)
    cases, controls, chosen = rng.normal(size=(120, 6)), rng.normal(size=(30, 6)), rng.integers(0, 30, 120)
    chosen[:20] = 7
    controls[7] = [0.0, 0.0, 0.0, 0.0, 0.0, 40.0] if there else 0.0
    return [cases.astype("float32"), controls[chosen].astype("float32")], np.arange(120)


def renamed(there: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Exports of eight departments, each with ids of its own."""
    rows, who = visits(there)
    return [np.tile(rows, (8, 1))], np.concatenate([1000 * department + who for department in range(8)])


def movement(of: Any) -> float:
    """By one person, of one record of each id; in bounds."""
    sums = []
    for there in (True, False):
        x, ids = of(there)
        first = np.unique(ids, return_index=True)[1]
        given = [one[first] for one in x]
        model = model_of([one.shape[1:] for one in x])
        found = model.bounded_gradient_sums(given if len(given) > 1 else given[0], np.ones((len(first), 1), "float32"))
        sums.append(np.concatenate([np.ravel(one) for one in keras.tree.flatten(found)]))
    return float(np.linalg.norm(sums[0] - sums[1])) / CLIP


def told(of: Any, trainings: int) -> tuple[float, int]:
    """The epsilon stated, and how many trainings of twice as many a weight beside the middle tells right."""
    weights: dict[bool, list[float]] = {True: [], False: []}
    stated = 0.0
    for there in (True, False) * trainings:
        x, ids = of(there)
        model = model_of([one.shape[1:] for one in x])
        budget = tfdp.callbacks.PrivacyBudget(epsilon=1.0, delta=DELTA)
        given = {"unit_ids": ids, "batch_size": 25, "epochs": 4, "callbacks": [budget], "verbose": 0}
        model.fit(x[0], np.ones((len(ids), 1), "float32"), **given)
        stated = max(stated, float(tfdp.accounting.epsilon(model.ledger, DELTA)))
        weights[there].append(float(model.get_weights()[0][3, 0]))
    middle = (np.mean(weights[True]) + np.mean(weights[False])) / 2
    return stated, sum(one > middle for one in weights[True]) + sum(one < middle for one in weights[False])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=0, help="of each data set")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds = {
        "windows across people, ids of the last visit": across,
        "windows of each person's own": apart,
        "pairs, ids of the cases": matched,
        "eight ids a person": renamed,
    }
    for name, of in kinds.items():
        print(f"{name}: {movement(of):.3f} bounds", flush=True)
    for of in (across, apart) if options.trainings else ():
        stated, right = told(of, options.trainings)
        print(f"{of.__name__}: stated {stated:.4f}, told right {right} of {2 * options.trainings}", flush=True)


if __name__ == "__main__":
    main()
