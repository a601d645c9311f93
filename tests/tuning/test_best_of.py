"""The best of a random number of trials, against the truth: exact divergences of a toy mechanism, and simulations."""

import itertools
import math
import random

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import stats

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import Selection, epsilon
from tfdp_layers.sampling import Poisson
from tfdp_layers.tuning.best_of import Best, NumberOfTrials, best_of

DELTA = 1e-3
CASES = [(mean, shape) for mean in (1.0, 2.0, 10.0, 60.0) for shape in (0.0, 0.5, 1.0, 4.0, math.inf)]


def generating(number, values):
    """E[values^K], for numbers in [0, 1]."""
    if number.shape == math.inf:
        return np.exp(number.mean * (values - 1))
    gamma, shape = number.gamma, number.shape
    if number.mean == 1:
        return values
    if shape == 0:
        return np.log1p(-(1 - gamma) * values) / math.log(gamma)
    return ((1 - (1 - gamma) * values) ** -shape - 1) / (gamma**-shape - 1)


@pytest.mark.parametrize(("mean", "shape"), CASES)
def test_the_number_of_trials_has_its_mean_and_never_more(mean, shape):
    number = NumberOfTrials(mean, shape)
    ks = np.arange(0, 20_000)
    probabilities = np.array([number.probability(int(k)) for k in ks])
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-9)
    assert probabilities @ ks == pytest.approx(mean, rel=1e-6)
    for value in (0.3, 0.9):
        expected = generating(number, np.array(value))
        assert probabilities @ value ** ks.astype(float) == pytest.approx(expected, rel=1e-7)
    if shape < math.inf:
        assert probabilities @ ks <= mean * (1 + 1e-12)
        accounted = rdp_privacy_accountant._gamma_truncated_negative_binomial(shape, mean)
        assert number.gamma >= accounted, "what is accounted is the larger mean"
        assert number.gamma == pytest.approx(accounted, rel=1e-6)


@pytest.mark.parametrize(("mean", "shape"), [(4.0, 0.0), (4.0, 1.0), (4.0, 0.5), (2.0, math.inf)])
def test_draws_have_the_distribution(mean, shape):
    number, randomness = NumberOfTrials(mean, shape), random.Random(7)
    draws = np.array([number.draw(randomness) for _ in range(20_000)])
    edges = [0, 1, 2, 3, 4, 6, 9]
    expected = [number.probability(k) for k in range(9)]
    expected = np.array([sum(expected[a:b]) for a, b in itertools.pairwise(edges)])
    expected = 20_000 * np.append(expected, 1 - expected.sum())
    observed = np.array([((draws >= a) & (draws < b)).sum() for a, b in zip(edges, [*edges[1:], 10**9], strict=True)])
    kept = expected > 0
    assert not observed[~kept].any()
    assert stats.chisquare(observed[kept], expected[kept]).pvalue > 1e-4


@pytest.mark.parametrize("bad", [{"mean": 0.5}, {"mean": math.nan}, {"mean": "ten"}, {"shape": -1}, {"mean": True}])
def test_a_distribution_out_of_range_is_refused(bad):
    with pytest.raises(ValueError, match="number of trials"):
        NumberOfTrials(**bad)


# The toy: a trial releases a number of variance z^2 whose mean a record moves from 0 to 1, and its score is the number.


def claimed(z, mean, shape):
    release = release_of(Poisson(100), z, examples=100)  # every record in the one step
    return float(epsilon(ledger_of(Selection((((release, 1),),), mean, shape), 1), DELTA))


def one_trial(z):
    return float(epsilon(ledger_of(release_of(Poisson(100), z, examples=100), 1), DELTA))


def exact_delta(number, z, level):
    """The hockey-stick divergence of the best trial, in the worse of both directions, by its distribution function."""
    x = np.linspace(-12 * z, 1 + 12 * z, 400_001)
    cdfs = [generating(number, stats.norm.cdf(x, mean, z)) for mean in (0.0, 1.0)]
    masses = [np.append(cdf[0], np.append(np.diff(cdf), 1 - cdf[-1])) for cdf in cdfs]
    return max(np.maximum(p - math.exp(level) * q, 0).sum() for p, q in (masses, masses[::-1]))


@pytest.mark.parametrize(("mean", "shape"), [case for case in CASES if case[0] > 1])
@pytest.mark.parametrize("z", [0.7, 2.0, 8.0])
def test_no_search_loses_more_than_is_accounted(mean, shape, z):
    assert exact_delta(NumberOfTrials(mean, shape), z, claimed(z, mean, shape)) <= DELTA


@pytest.mark.parametrize(("mean", "shape"), [(10.0, 0.0), (10.0, 1.0), (10.0, math.inf)])
def test_a_search_charged_as_one_trial_is_caught(mean, shape):
    """The planted bug: the truth exceeds it."""
    assert exact_delta(NumberOfTrials(mean, shape), 2.0, one_trial(2.0)) > 1.5 * DELTA


def test_the_toy_itself_is_exact():
    assert exact_delta(NumberOfTrials(1.0), 2.0, one_trial(2.0)) == pytest.approx(DELTA, rel=1e-3)


SETTINGS = ((1.0, 1), (2.0, 4))  # noise multiplier and releases of a trial


def simulated(mean, seed, runs=20_000):
    """Numbers of the best of 10 trials on average, by the library's own draws; each trial draws its settings."""
    number, draws, rng = NumberOfTrials(10.0, 1.0), random.Random(seed), np.random.default_rng(seed)

    def trial():
        z, releases = SETTINGS[draws.randrange(2)]
        seen = float(rng.normal(mean, z / math.sqrt(releases)))
        return seen, seen

    return np.array([best_of(number.draw(draws), trial).output for _ in range(runs)])


def test_a_simulated_search_over_unlike_settings_keeps_to_its_cost_and_not_to_that_of_one_trial():
    """By the event "the number exceeds 2.7", whose probabilities are estimated to five standard deviations."""
    p, q = (simulated(mean, seed) > 2.7 for mean, seed in ((1.0, 1), (0.0, 2)))
    delta = 0.05
    parts = tuple(((release_of(Poisson(100), z, examples=100), count),) for z, count in SETTINGS)
    paid = float(epsilon(ledger_of(Selection(parts, 10.0, 1.0), 1), delta))
    one = max(float(epsilon(ledger_of(release, count), delta)) for ((release, count),) in parts)

    def lost(level):
        """And five standard deviations of the estimate."""
        error = 5 * math.hypot(p.std(), math.exp(level) * q.std()) / math.sqrt(len(p))
        return p.mean() - math.exp(level) * q.mean(), error

    value, error = lost(paid)
    assert value + error <= delta
    value, error = lost(one)
    assert value - error > delta, "the planted bug: charged as the worst single trial"


# What is kept ---------------------------------------------------------------------------------------------------------


def outputs(*scores):
    left = list(enumerate(scores))

    def trial():
        number, score = left.pop(0)
        if isinstance(score, BaseException):
            raise score
        return score, number

    return best_of(len(scores), trial)


def test_the_first_of_the_best_is_kept_and_failures_are_the_worst():
    assert outputs(1.0, 3.0, 3.0, 2.0) == Best(3.0, 1)
    assert outputs(math.nan, ValueError(), -9.0) == Best(-9.0, 2)
    assert outputs(-math.inf, math.nan, RuntimeError(), "text") is None
    assert outputs() is None
    assert outputs(np.float32(2.0), 1) == Best(2.0, 0)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_an_interruption_shows_nothing(stop):
    with pytest.raises(type(stop)):
        outputs(1.0, stop, 2.0)
