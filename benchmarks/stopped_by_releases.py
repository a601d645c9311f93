"""A training that its own releases end: how far delta is exceeded where each number of steps states its own epsilon.

    python benchmarks/stopped_by_releases.py --noise 3 --steps 60 --delta 1e-5

Gaussian steps on all records: with a record the privacy loss is a walk of steps N(m^2 / 2, m^2), m = 1 / noise; without
it the same outcomes are e^-loss as likely. A target rule ends at the first step at which the loss reaches a target, as
the score of public rows does (of eight targets the worst); the worst rule ends where that gains most; both end after
the planned steps. Prints the total delta, the sum over k of the largest P(A_k) - e^epsilon_k Q(A_k), by quadrature, and
what would have to be added to each epsilon_k. docs/guarantee.md, "Assumed".
"""

import argparse
import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm


def epsilon_of(m: float, delta: float) -> float:
    """Of one Gaussian mechanism whose mean moves by m deviations (Balle and Wang 2018, arXiv:1805.06530, theorem 8)."""
    return float(brentq(lambda e: norm.cdf(m / 2 - e / m) - math.exp(e) * norm.cdf(-m / 2 - e / m) - delta, 0.0, 200.0))


def total(m: float, stated: list[float], target: float | None) -> float:
    """The sum over the numbers of steps, backwards from the last; without a target of the worst rule."""
    far = 9.0 * m * math.sqrt(len(stated))
    loss, width = np.linspace(-far, far + len(stated) * m * m / 2, 4001, retstep=True)
    reach = int(9.0 * m / width) + 1
    step = norm.pdf(np.arange(-reach, reach + 1) * width, m * m / 2, m)[::-1]
    value = np.zeros_like(loss)
    for k, epsilon in reversed(list(enumerate(stated, 1))):  # value: of going on after k steps, then of k - 1
        here = np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - loss)))
        ends = k == len(stated) or loss >= (np.inf if target is None else target)
        value = np.where(ends, here, np.maximum(value, here) if target is None else value)
        value = np.convolve(np.pad(value, reach, mode="edge"), step / step.sum(), "valid")
    return float(np.interp(0.0, loss, value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--delta", type=float, default=1e-5)
    given = parser.parse_args()
    m, delta = 1.0 / given.noise, given.delta
    stated = [epsilon_of(m * math.sqrt(k), delta) for k in range(1, given.steps + 1)]
    print(f"delta {delta}: epsilon of 1 step {stated[0]:.3f}, of 2 {stated[1]:.3f}, of all planned {stated[-1]:.3f}")
    for rule in ("target", "worst"):

        def needed(more: float, targets: bool = rule == "target") -> float:
            larger = [one + more for one in stated]
            return max(total(m, larger, one) for one in (larger[:8] if targets else [None]))

        more = brentq(lambda c, needed=needed: needed(c) - delta, 0.0, 5.0, xtol=1e-3)
        print(f"{rule} rule: {needed(0.0) / delta:.2f} delta in all; with {more:.2f} more epsilon one delta")


if __name__ == "__main__":
    main()
