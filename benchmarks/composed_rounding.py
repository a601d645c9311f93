"""What composing privacy loss distributions rounds away of delta, in units of releases times 2^-53.

    python benchmarks/composed_rounding.py --most 1e8

Every record but one in 10^12 is drawn, so that n steps with noise multiplier z compose to one Gaussian mechanism, whose
delta has a closed form: P >= q^n P_all, and so delta(epsilon) >= q^n delta_Gauss(epsilon - n log q) at sqrt(n) / z
(Balle and Wang 2018, arXiv:1805.06530, theorem 8). The distributions are discretised to the safe side: what lies below
the closed form is rounding, and where both are below 1e-11 or so, what lies above it as well. Minutes, and 20 GB of
memory for 10^8. Its result is the factor in accounting/rounding.py.
"""

import argparse
import math

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from scipy.special import log_ndtr, ndtr

from tfdp_layers.accounting.loss_distributions import composed_pld

RATE = 1.0 - 1e-12


def exact(epsilon: np.ndarray, mu: float) -> np.ndarray:
    """Of one Gaussian mechanism whose mean moves by mu deviations."""
    return np.asarray(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=float, default=1e7, help="releases of the largest composition")
    most, worst = parser.parse_args().most, 0.0
    for n in (one for one in (10**3, 10**4, 10**5, 10**6, 3 * 10**6, 10**7, 10**8) if one <= most):
        for mu in (0.1, 0.3, 1.0, 3.0, 6.0):
            event = PoissonSampledDpEvent(RATE, GaussianDpEvent(math.sqrt(n) / mu))
            composed = composed_pld(((event, n),), NeighboringRelation.ADD_OR_REMOVE_ONE)
            assert composed is not None
            epsilons = mu * mu / 2 + mu * np.linspace(0.5, 8.0, 61)
            least = RATE**n * exact(epsilons - n * math.log(RATE), mu)
            found = np.asarray(composed.get_delta_for_epsilon(list(epsilons)))
            below = np.max(np.where(least < 1e-7, least - found, 0.0)) / (n * 2.0**-53)
            above = np.max(np.where(least < 1e-14, found - least, 0.0)) / (n * 2.0**-53)
            worst = max(worst, below, above)
            print(f"{n:>11,} releases, {mu} deviations: {below:.3f} below, {above:.3f} above", flush=True)
    print(f"largest: {worst:.3f} n 2^-53")


if __name__ == "__main__":
    main()
