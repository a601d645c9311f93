"""The best of a random number of trials: how many are made, and which one is kept."""

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from scipy import optimize

__all__ = ["Best", "Broken", "NumberOfTrials", "best_of"]

Output = TypeVar("Output")
_MOST = 1e5
"""Times the mean: more trials than that have a probability below that of any random number."""
_MARGIN = 1e-9
"""By which more often few trials are made than the mean allows, against what the root finder rounds."""


@dataclass(frozen=True)
class NumberOfTrials:
    """The distribution of the number of trials of a search, K.

    P(K = k) is proportional to (1 - gamma)^k prod_{l < k} (l + shape) / (l + 1) for k >= 1 (Definition 1 of the
    source), gamma in (0, 1] so that the mean is `mean`; Poisson's for an infinite shape. The smaller the shape, the
    less a search of this mean costs, and the more K varies.

    Attributes:
        mean: of K, at least 1.
        shape: 0 logarithmic, 1 geometric, else truncated negative binomial; infinity Poisson, which may draw 0.
    Raises:
        ValueError: a number out of range.
    Source: Papernot, Steinke 2022, arXiv:2110.03620.
    """

    mean: float = 10.0
    shape: float = 1.0

    def __post_init__(self) -> None:
        for name, least, most in (("mean", 1.0, 1e6), ("shape", 0.0, math.inf)):
            value = getattr(self, name)
            if isinstance(value, bool | str) or not least <= float(value) <= most:
                raise ValueError(f"The {name} of the number of trials must be at least {least:g}. Received: {value!r}.")
            object.__setattr__(self, name, float(value))

    @functools.cached_property
    def gamma(self) -> float:
        """The parameter that gives the mean, or a little less than it: the bound that is accounted grows with both."""
        if self.mean == 1:
            return 1.0
        # The mean falls from infinity to 1 as gamma rises; see `_mean_at` for a bound on where it is `mean`.
        lowest = min(0.5, 1e-3 / self.mean ** (1.0 if self.shape else 2.0))
        root = optimize.brentq(lambda g: _mean_at(g, self.shape) - self.mean, lowest, 1.0 - 1e-12, rtol=1e-12)
        return min(1.0, float(root) * (1.0 + _MARGIN))

    def probability(self, k: int) -> float:
        """P(K = k)."""
        if self.shape == math.inf:
            return math.exp(k * math.log(self.mean) - self.mean - math.lgamma(k + 1))
        if k < 1 or self.mean == 1:
            return float(k == 1)
        gamma, shape = self.gamma, self.shape
        fall = k * math.log1p(-gamma)
        if shape == 0:
            return math.exp(fall - math.log(k) - math.log(-math.log(gamma)))
        ways = math.lgamma(k + shape) - math.lgamma(shape) - math.lgamma(k + 1)
        return math.exp(fall + ways - math.log(math.expm1(-shape * math.log(gamma))))

    def draw(self, randomness: random.Random) -> int:
        """One K, by its distribution function."""
        left, k = randomness.random(), 0 if self.shape == math.inf else 1
        while (left := left - self.probability(k)) > 0 and k < _MOST * self.mean:
            k += 1
        return k


def _mean_at(gamma: float, shape: float) -> float:
    """The mean of a truncated negative binomial distribution: shape (1 / gamma - 1) / (1 - gamma^shape), or its limit
    for shape 0, (1 / gamma - 1) / log(1 / gamma)."""
    log = -math.log(gamma)
    return (1.0 / gamma - 1.0) / (log if shape == 0 else -math.expm1(-shape * log) / shape)


@dataclass(frozen=True)
class Best(Generic[Output]):
    """What a search shows: the output of the best trial, and its score."""

    score: float
    output: Output


class Broken(Exception):  # noqa: N818 (named as what happened)
    """A trial ended by an error that may depend on what a record holds: no cost of a trial covers that."""


def best_of(count: int, trial: Callable[[], tuple[float, Output]]) -> Best[Output] | None:
    """Makes `count` trials and keeps one of the highest score: the first of equal ones.

    A trial that raises an `Exception` other than `Broken`, or whose score is no number, is one of the lowest score: it
    is not made again, and nobody is told. None where no trial got a score.

    Args:
        count: drawn from `NumberOfTrials` before the first trial; secret.
        trial: makes one, independently of all others and by one distribution; returns its score and its output.
    Raises: `Broken`, and what is no `Exception` (an interruption); then nothing is kept.
    """
    best: Best[Output] | None = None
    for _ in range(count):
        try:
            score, output = trial()
            score = float(score)
        except Broken:
            raise
        except Exception:  # settings that make no model, a score of public data: no record decided
            continue
        if not math.isnan(score) and score > (-math.inf if best is None else best.score):
            best = Best(score, output)
        del output
    return best
