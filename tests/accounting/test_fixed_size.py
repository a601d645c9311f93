"""The privacy loss of sampling without replacement: never below the truth, equal to it where the worst is known."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import EpsilonCurve, calibrate_noise_multiplier, epsilon
from tfdp_layers.accounting.fixed_size import gaussian_profile, sampled_pld, sampled_profile
from tfdp_layers.accounting.loss_distributions import pld_epsilon, pld_interval
from tfdp_layers.accounting.renyi import rdp_epsilon
from tfdp_layers.sampling import FixedSize

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
EPSILONS = np.array([-3.0, -0.5, -0.01, 0.0, 0.01, 0.3, 1.0, 2.0, 4.0])
GRID = np.linspace(-30.0, 30.0, 60_001)


def batch_density(contributions: tuple[float, ...], batch: int, stddev: float) -> np.ndarray:
    """The exact density of the noisy sum over a uniformly drawn batch, on GRID: every batch enumerated."""
    sums = [sum(drawn) for drawn in itertools.combinations(contributions, batch)]
    return np.mean([norm.pdf(GRID, total, stddev) for total in sums], axis=0)


def divergence(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), GRID))


def true_profiles(contributions, replaced_by, batch, stddev) -> np.ndarray:
    """The exact delta at EPSILONS, in the worse order, when the first record is replaced."""
    before = batch_density(contributions, batch, stddev)
    after = batch_density((replaced_by, *contributions[1:]), batch, stddev)
    return np.array([max(divergence(before, after, e), divergence(after, before, e)) for e in EPSILONS])


@pytest.mark.few(2)
@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("stddev", [0.5, 1.0, 4.0])
def test_no_data_set_costs_more_than_the_profile_and_the_worst_costs_as_much(batch, stddev):
    examples, rng = 5, np.random.default_rng(0)
    bound = sampled_profile(EPSILONS, batch / examples, stddev / 2.0)
    for _ in range(30):
        values = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], size=examples + 1)  # each record contributes at most 1
        assert np.all(true_profiles(tuple(values[1:]), values[0], batch, stddev) <= bound + 1e-6)  # quadrature
    worst = true_profiles((1.0, *[-1.0] * (examples - 1)), -1.0, batch, stddev)
    np.testing.assert_allclose(worst, bound, atol=1e-6)
    # A sensitivity of S in the place of 2S would be exceeded: the test can fail.
    assert np.any(worst > sampled_profile(EPSILONS, batch / examples, stddev) + 1e-2)


def test_the_profile_is_one_of_a_pair_of_distributions():
    """Convex and decreasing in e^epsilon, from 1, and never below 1 - e^epsilon: also where its two halves meet."""
    for probability, multiplier in itertools.product([1e-3, 0.1, 0.7, 1.0], [0.2, 1.0, 30.0]):
        alpha = np.concatenate(
            [np.linspace(1e-6, 0.998, 400), 1 + np.linspace(-1e-3, 1e-3, 41), np.linspace(1.002, 9, 400)]
        )
        delta = sampled_profile(np.log(alpha), probability, multiplier)
        slopes = np.diff(delta) / np.diff(alpha)
        assert np.all(slopes <= 1e-9)
        assert np.all(np.diff(slopes) >= -1e-8)
        assert np.all(delta >= np.maximum(0.0, 1.0 - alpha) - 1e-12)
        assert sampled_profile(-800.0, probability, multiplier) == 1.0


def test_the_gaussian_profile_is_accurate_far_out():
    exact = {(0.3, 20.0): 3.0612650184698598e-06, (1.7, 5.0): 7.463328689143180e-18, (20.0, 1.0): 1.129033227097697e-91}
    for (multiplier, eps), value in exact.items():  # by 40-digit arithmetic
        assert float(gaussian_profile(eps, multiplier)) == pytest.approx(value, rel=1e-12, abs=0)
    eps = np.linspace(-5, 5, 101)
    direct = norm.cdf(0.5 - eps) - np.exp(eps) * norm.cdf(-0.5 - eps)
    np.testing.assert_allclose(gaussian_profile(eps, 1.0), direct, rtol=1e-9)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("probability", [0.001, 0.1, 0.9])
def test_a_discretised_step_is_never_below_the_profile_and_close_to_it(probability, multiplier):
    pld = sampled_pld(probability, multiplier, 1e-4)
    deltas = np.array([pld.get_delta_for_epsilon(e) for e in EPSILONS])
    truth = sampled_profile(EPSILONS, probability, multiplier)
    assert np.all(deltas >= truth - 1e-12)
    np.testing.assert_allclose(deltas, truth, atol=1e-4 * probability)


@pytest.mark.parametrize(("batch", "multiplier", "steps"), [(512, 3.4, 5850), (128, 6.4, 2000), (6000, 8.0, 50)])
def test_compositions_lie_between_explicit_pairs_and_renyi(batch, multiplier, steps):
    """Two data sets that exist: everyone else at -S, or at 0, and the record moved from S to -S."""
    release = release_of(FixedSize(batch), multiplier)
    counts = ((release.event(), steps),)
    ours = epsilon(ledger_of(release, steps), 1e-5)
    options = {"sampling_prob": batch / 60_000, "value_discretization_interval": pld_interval(counts)}
    others_low = privacy_loss_distribution.from_gaussian_mechanism(multiplier / 2.0, **options)
    others_zero = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, **options, neighboring_relation=REPLACE_ONE
    )
    low, zero = (pair.self_compose(steps).get_epsilon_for_delta(1e-5) for pair in (others_low, others_zero))
    assert ours >= max(low, zero) - 1e-9
    assert ours <= 1.3 * low
    assert ours < rdp_epsilon(counts, REPLACE_ONE, 1e-5)
    assert ours.accountant == "PLD"


def test_full_batches_are_the_gaussian_mechanism():
    for multiplier, steps in ((1.0, 1), (20.0, 100)):
        exact = get_epsilon_gaussian(multiplier / math.sqrt(steps), 1e-5)
        found = sampled_pld(1.0, multiplier, 1e-3 / multiplier).self_compose(steps).get_epsilon_for_delta(1e-5)
        assert exact <= found <= 1.001 * exact
    nearly = epsilon(ledger_of(release_of(FixedSize(9_999), 4.0, examples=10_000), 1), 1e-5)
    assert nearly == pytest.approx(
        epsilon(ledger_of(release_of(FixedSize(10_000), 4.0, examples=10_000), 1), 1e-5), rel=1e-3
    )


@pytest.mark.parametrize(("batch", "multiplier", "steps"), [(512, 3.4, 5850), (60, 2.0, 10_000), (6000, 20.0, 1000)])
def test_halving_the_interval_changes_little(batch, multiplier, steps):
    counts = ((release_of(FixedSize(batch), multiplier).event(), steps),)
    interval = pld_interval(counts)
    halved = pld_epsilon(counts, REPLACE_ONE, 1e-5, interval / 2)
    assert halved * (1 - 1e-9) <= pld_epsilon(counts, REPLACE_ONE, 1e-5) <= halved * 1.001


@pytest.mark.slow
def test_ledgers_of_several_noises_curves_and_calibration_use_it():
    ledger = ledger_of(release_of(FixedSize(512), 3.4), 500)
    ledger.reserve(ledger.begin(release_of(FixedSize(256), 5.0)), 300)
    spent = epsilon(ledger, 1e-5)
    assert spent.accountant == "PLD"
    assert spent > epsilon(ledger_of(release_of(FixedSize(512), 3.4), 500), 1e-5)
    curve = EpsilonCurve(ledger, release_of(FixedSize(256), 5.0), 1e-5)
    assert curve.at(0) == spent
    assert spent <= curve.bound(1) <= 1.2 * spent
    multiplier = calibrate_noise_multiplier(1.5, 1e-5, FixedSize(512), 60_000, 1000)
    least = epsilon(ledger_of(release_of(FixedSize(512), multiplier), 1000), 1e-5)
    assert 1.49 < least <= 1.5
