"""The best epoch's weights: what the choice among all epochs tells of one record.

    python benchmarks/best_epochs.py --runs 400000 --seed 0

One record, full batches, 60 epochs of one step, noise multiplier 3. The weight is a walk of steps N(-1/3, 1) with the
record and N(0, 1) without it (in units of the noise); public validation data find the largest weight the best. Prints
how often the first epoch stays the best, the epsilon of one step, and the delta that an (epsilon, delta) statement of
one step would need: docs/guarantee.md, "The best of a training's weights". Without the record the chance is exactly
C(2n, n) / 4^n for n = 59 later steps (Sparre Andersen 1953).
"""

import argparse
import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

EPOCHS, NOISE, DELTA = 60, 3.0, 1e-5


def stays(shift: float, runs: int, rng: np.random.Generator) -> float:
    """How often no later weight is larger than the first."""
    hits = 0
    for some in np.array_split(np.arange(runs), math.ceil(runs / 10_000)):
        later = np.cumsum(rng.normal(shift, 1.0, (len(some), EPOCHS - 1)), axis=1)
        hits += int(np.sum(later.max(axis=1) < 0.0))
    return hits / runs


def gaussian_delta(epsilon: float) -> float:
    """Of one Gaussian mechanism (Balle and Wang 2018, arXiv:1805.06530, theorem 8)."""
    half, scaled = 0.5 / NOISE, epsilon * NOISE
    return float(norm.cdf(half - scaled) - math.exp(epsilon) * norm.cdf(-half - scaled))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, later = np.random.default_rng(given.seed), EPOCHS - 1
    present, absent = stays(-1.0 / NOISE, given.runs, rng), stays(0.0, given.runs, rng)
    print(f"the first epoch is the best: {present:.4f} with the record, {absent:.4f} without it")
    print(f"without it, exactly: {math.comb(2 * later, later) / 4**later:.4f}")
    epsilon = brentq(lambda e: gaussian_delta(e) - DELTA, 0.0, 50.0)
    print(f"one step: epsilon = {epsilon:.4f} at delta = {DELTA}; needed: {present - math.exp(epsilon) * absent:.3f}")


if __name__ == "__main__":
    main()
