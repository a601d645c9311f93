"""Whether numbers are the noise that is stated: one rule that sees 3/2 or 2/3 of it, and refuses no right sample.

Noise is drawn afresh in every run, so a test at p > 1e-3 would fail once in a thousand runs of nothing.
"""

import numpy as np
from scipy import stats

CHANCE = 1e-6  # of a right sample that is refused
WRONG = (2 / 3, 3 / 2)  # of the stated deviation: surely refused from 1,500 numbers on


def is_normal(sample: np.ndarray, stddev: float = 1.0) -> bool:
    """Kolmogorov and Smirnov's test of Gaussian noise. Raises AssertionError for a sample that could not fail it."""
    scaled = np.ravel(sample) / stddev
    assert len(scaled) >= 1500, f"{len(scaled)} numbers are too few to tell 3/2 of the deviation from it"
    return bool(stats.kstest(scaled, "norm").pvalue > CHANCE)


def assert_normal(sample: np.ndarray, stddev: float = 1.0) -> None:
    """The sample has this deviation, and neither 2/3 nor 3/2 of it."""
    assert is_normal(sample, stddev)
    assert not any(is_normal(sample, stddev * wrong) for wrong in WRONG)
