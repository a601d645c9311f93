"""What a step on a truncated Poisson draw costs: dp-accounting's own numbers, without a loop over points."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, TruncatedSubsampledGaussianDpEvent
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, stats

from tfdp_layers.accounting import gaussian_events, loss_distributions
from tfdp_layers.accounting.loss_distributions import pld_epsilon
from tfdp_layers.accounting.truncated_draws import _replaced, truncated_pmf

EPSILONS = np.array([0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
CASES = [
    (100_000, 0.00256, 256, 2.0),
    (1000, 0.1, 110, 0.8),
    (1000, 0.5, 400, 1.2),
    (60_000, 0.034, 2300, 1.9),
    (50, 0.2, 10, 0.5),
    (100, 1.0, 50, 1.0),
    (300, 0.01, 3, 5.0),
    (300, 0.1, 300, 1.0),
]


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_deltas_are_those_of_dp_accounting(case, order):
    theirs = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(*case, 1e-2)
    ours = truncated_pmf(TruncatedSubsampledGaussianDpEvent(*case), 1e-2, order).get_delta_for_epsilon(EPSILONS)
    expected = (theirs._pmf_add if order else theirs._pmf_remove).get_delta_for_epsilon(EPSILONS)
    assert ours == pytest.approx(expected, rel=1e-5, abs=1e-20)


@pytest.mark.parametrize("multiplier", [0.4, 1.0, 8.0])
@pytest.mark.parametrize("probability", [0.001, 0.4, 1.0])
def test_what_a_replaced_record_costs_is_the_integral(probability, multiplier):
    shift = 1.0 / multiplier

    def density(sign):
        parts = stats.norm(0.0, 1.0), stats.norm(sign * shift, 1.0)
        return lambda x: (1.0 - probability) * parts[0].pdf(x) + probability * parts[1].pdf(x)

    upper, lower = density(1.0), density(-1.0)
    for epsilon in (-0.5, 0.0, 0.01, 0.3, 1.5):

        def excess(x, epsilon=epsilon):
            return max(0.0, upper(x) - math.exp(epsilon) * lower(x))

        whole, _ = integrate.quad(excess, -12.0, 12.0 + shift, limit=500, points=[0.0, shift])
        found = float(_replaced(np.array([epsilon]), probability, multiplier)[0])
        assert found == pytest.approx(whole, rel=1e-4, abs=1e-9)


def test_an_accounting_that_connects_no_dots_bounds_no_truncated_draw(monkeypatch):
    """As a plain Poisson draw, which costs less, it must not count."""
    counts = ((TruncatedSubsampledGaussianDpEvent(1000, 0.1, 110, 0.8), 10),)
    assert pld_epsilon(counts, NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-5) > 0.0
    monkeypatch.setattr(gaussian_events, "HAS_PLD", False)
    monkeypatch.setattr(loss_distributions, "HAS_PLD", False)
    assert math.isinf(pld_epsilon(counts, NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-5))
