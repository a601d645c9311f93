"""The cost of composed threshold tests and Laplace releases: basic, zCDP and PLD composition."""

import functools
import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from dp_accounting.pld import common, privacy_loss_distribution

from tfdp_layers.accounting.rounding import left_of

__all__ = ["NumericSparseDpEvent", "basic_epsilon", "concentrated", "pld_epsilon", "renyi"]

# A power of two, so that a multiple of the interval is hit exactly: rounding the loss up would add a step every time.
_STEPS_PER_TEST = 32
_WIDEST = 0.01
_MOST_POINTS = 4e6
_LARGEST_EPSILON = 300.0  # Of one event, and still far below the logarithm of the largest float.


@dataclass(frozen=True)
class NumericSparseDpEvent(DpEvent):
    """One threshold test of NumericSparse and the value released after it; holds under any neighbouring relation.

    Attributes:
        test_epsilon: the test, however many values it looks at, is test_epsilon-differentially private.
        value_epsilon: Laplace's mechanism with noise of scale (sensitivity / value_epsilon).
    """

    test_epsilon: float
    value_epsilon: float


Tests = tuple[tuple[NumericSparseDpEvent, int], ...]
"""Distinct events, and how often each was released."""


def basic_epsilon(counts: Tests) -> float:
    """The sum of all epsilons: pure differential privacy, delta = 0."""
    return math.fsum(count * (event.test_epsilon + event.value_epsilon) for event, count in counts)


def concentrated(counts: Tests) -> float:
    """rho: the sum of epsilon^2 / 2. Source: Bun, Steinke 2016, arXiv:1605.02065, Proposition 1.4."""
    return math.fsum(count * (event.test_epsilon**2 + event.value_epsilon**2) / 2.0 for event, count in counts)


def renyi(counts: Tests, orders: np.ndarray) -> np.ndarray:
    """Renyi divergence at each order: the smaller of rho times the order and of the basic epsilon."""
    return np.minimum(orders * concentrated(counts), basic_epsilon(counts))


def pld_epsilon(counts: Tests, delta: float) -> float:
    """Epsilon by privacy loss distributions.

    A test is dominated by randomized response of the same epsilon (Kairouz, Oh, Viswanath 2015, arXiv:1311.0776), a
    value by Laplace's mechanism. Every interval of discretisation gives an upper bound. Infinity for an event of more
    than 300: no floating point number holds its probabilities; and where delta is so small that rounding shows.
    """
    left = left_of(delta, 2 * sum(count for _, count in counts))
    if left is None or any(max(event.test_epsilon, event.value_epsilon) > _LARGEST_EPSILON for event, _ in counts):
        return math.inf
    interval = _interval(counts)
    composed = None
    for event, count in counts:
        part = _loss(event, interval).self_compose(count)
        composed = part if composed is None else composed.compose(part)
    return 0.0 if composed is None else max(0.0, float(composed.get_epsilon_for_delta(left)))


def _interval(counts: Tests) -> float:
    """A fraction of the smallest test's epsilon, unless that would take too many points."""
    finest = min((event.test_epsilon for event, _ in counts), default=1.0) / _STEPS_PER_TEST
    while finest > _WIDEST:
        finest /= 2.0
    extent = min(basic_epsilon(counts), concentrated(counts) + 20.0 * math.sqrt(concentrated(counts)))
    while 2.0 * extent / finest > _MOST_POINTS:
        finest *= 2.0
    return finest


@functools.lru_cache(maxsize=64)
def _loss(event: NumericSparseDpEvent, interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    test = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(event.test_epsilon, 0.0), interval
    )
    value = privacy_loss_distribution.from_laplace_mechanism(
        1.0 / event.value_epsilon, value_discretization_interval=interval
    )
    return test.compose(value)
