"""Rows without outliers, by z-scores: what one person decides about the others, and what released weights show of it.

    python benchmarks/chosen_rows.py --runs 60

300 people with ordinary values and 30 with an unusual one; the other data set has one person of an extreme value more,
who is an outlier in either, and makes the 30 ordinary. Each training states epsilon 1 at delta 1e-5. Prints how often a
threshold between the two kinds of released weights errs, and the epsilon that this proves at 95% (Clopper and Pearson
1934, each rate at 97.5%): docs/watched.md, "Which records there are".
"""

import argparse
import math
import warnings

import keras
import numpy as np
from scipy.stats import beta

import tfdp_layers as tfdp

DELTA = 1e-5


def rows(extreme: bool) -> tuple[np.ndarray, np.ndarray]:
    value = np.random.default_rng(1).normal(size=300)
    x = np.concatenate([np.stack([value, np.zeros(300)], 1), np.tile([40.0, 1.0], (30, 1))])
    y = np.concatenate([value > 0.0, np.ones(30)])
    if extreme:
        x, y = np.concatenate([x, [[1e5, 0.0]]]), np.append(y, 0.0)
    kept = np.abs((x[:, 0] - x[:, 0].mean()) / x[:, 0].std()) < 3.0
    x, y = x[kept], y[kept]
    x[:, 0] = np.clip(x[:, 0] / 50.0, -1.0, 1.0)
    return x.astype("float32"), y[:, None].astype("float32")


def released(extreme: bool) -> tuple[float, float]:
    """A weight, and the epsilon that is stated for it."""
    dense = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")
    model = tfdp.make_private(keras.Sequential([keras.Input((2,)), dense]))
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0)), "binary_crossentropy")
    budget = tfdp.callbacks.PrivacyBudget(1.0, DELTA)
    model.fit(*rows(extreme), batch_size=150, epochs=3, callbacks=[budget], verbose=0)
    return float(model.get_weights()[0][1, 0]), model.privacy_statement(DELTA).epsilon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60, help="trainings of each data set")
    runs = parser.parse_args().runs
    warnings.simplefilter("ignore")
    made = [[released(extreme) for _ in range(runs)] for extreme in (False, True)]
    without, extreme = (np.array([weight for weight, _ in found]) for found in made)
    threshold = (np.median(without) + np.median(extreme)) / 2.0
    wrong = int((without > threshold).sum()), int((extreme <= threshold).sum())
    most = [float(beta.ppf(0.975, k + 1, runs - k)) if k < runs else 1.0 for k in wrong]
    proved = math.log(max((1.0 - most[1] - DELTA) / most[0], (1.0 - most[0] - DELTA) / most[1]))
    print(f"rows that fit gets: {len(rows(False)[0])} and {len(rows(True)[0])}")
    print(f"stated: epsilon {max(epsilon for found in made for _, epsilon in found):.4f} at delta {DELTA:g}")
    print(f"weights: {without.mean():.3f} ({without.std():.3f}) and {extreme.mean():.3f} ({extreme.std():.3f})")
    print(f"errors: {wrong[0]} and {wrong[1]} of {runs}; epsilon at least {proved:.2f} (95%)")


if __name__ == "__main__":
    main()
