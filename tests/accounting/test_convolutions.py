"""Epsilon of Poisson draws on few points: never below closed forms, as tight as dp-accounting's, and soon found."""

import math

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import log_ndtr, ndtr

from tfdp_layers.accounting import loss_distributions, owned_records
from tfdp_layers.accounting.convolutions import least_epsilon, points, repeated
from tfdp_layers.accounting.loss_distributions import composed_pld, pld_epsilon, pld_interval

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
RATES = [(3.2e-5, 0.3), (1e-3, 1.0), (1e-3, 20.0), (0.2, 1.0), (0.999, 5.0)]


def counts_of(probability, multiplier, steps):
    return ((PoissonSampledDpEvent(probability, GaussianDpEvent(multiplier)), steps),)


def delta_of(epsilon, probability, multiplier):
    """Of one draw, for a record that is there: q (P(x > a) - e^e Q(x > a)), e = log(1 + (e^epsilon - 1) / q)."""
    inner = math.log1p(math.expm1(epsilon) / probability)
    a = 0.5 / multiplier - inner * multiplier
    return probability * (ndtr(a) - math.exp(inner + log_ndtr(a - 1.0 / multiplier)))


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize(("probability", "multiplier"), RATES)
def test_one_draw_is_never_below_the_closed_form_and_close_to_it(probability, multiplier, planted, monkeypatch):
    """Planted: the points of the grid stand for losses that are rounded down."""
    counts = counts_of(probability, multiplier, 1)
    if planted:
        exact, down = owned_records.owner_profile, pld_interval(counts)
        monkeypatch.setattr(owned_records, "owner_profile", lambda at, **rest: exact(at + down, **rest))
        owned_records.owner_pmf.cache_clear()
        loss_distributions._kept.clear()
    found = pld_epsilon(counts, ADD_OR_REMOVE, 1e-7)
    owned_records.owner_pmf.cache_clear()
    loss_distributions._kept.clear()
    assert (delta_of(found, probability, multiplier) <= 1e-7) != planted
    assert planted or delta_of(found * 0.999, probability, multiplier) > 1e-7


@pytest.mark.parametrize("steps", [2, 7, 1000])
@pytest.mark.parametrize(("probability", "multiplier"), RATES)
def test_it_composes_to_what_dp_accounting_says(probability, multiplier, steps):
    counts = counts_of(probability, multiplier, steps)
    interval = 16 * pld_interval(counts)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=probability, value_discretization_interval=interval
    )
    whole = theirs.self_compose(steps)
    for order, pmf in enumerate((theirs._pmf_remove, theirs._pmf_add)):
        single = privacy_loss_distribution.PrivacyLossDistribution(pmf)
        ours = composed_pld(counts, ADD_OR_REMOVE, interval, order)
        for delta in (1e-8, 1e-5):
            plain = (whole._pmf_remove, whole._pmf_add)[order].get_epsilon_for_delta(delta)
            assert least_epsilon(ours, delta) == pytest.approx(plain, rel=1e-4, abs=1e-12)
            composed = repeated(single, steps)
            assert composed.get_epsilon_for_delta(delta) == pytest.approx(plain, rel=1e-6, abs=1e-12)
            assert least_epsilon(composed, delta) == pytest.approx(composed.get_epsilon_for_delta(delta), rel=1e-9)


def test_no_mass_below_delta_and_none_that_is_certain():
    nothing = privacy_loss_distribution.identity(0.1)
    assert least_epsilon(nothing, 1e-9) == 0.0
    certain = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        {0: 0.5, 9: 0.25}, 0.25, 0.1
    )
    assert [least_epsilon(certain, delta) for delta in (0.2, 0.26, 0.6)] == [
        certain.get_epsilon_for_delta(delta) for delta in (0.2, 0.26, 0.6)
    ]
    huge = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        {0: 0.5, 9: 0.5}, 0.0, 100.0
    )
    assert least_epsilon(huge, 0.1) >= huge.get_epsilon_for_delta(0.1)


@pytest.mark.parametrize(
    ("probability", "multiplier", "steps", "delta"),
    [(3.2e-5, 0.5, 1000, 1e-8), (2.56e-4, 0.6, 4000, 1e-7), (1e-3, 1.0, 10_000, 1e-5), (0.01, 2.0, 10_000, 1e-6)],
)
def test_it_takes_few_points_and_is_as_tight_as_the_finest_grid(probability, multiplier, steps, delta, monkeypatch):
    """One epsilon of 32 of 10^6 records took 7 s: 730,000 points, visited one by one."""
    counts, made = counts_of(probability, multiplier, steps), []
    finest = pld_epsilon(counts, ADD_OR_REMOVE, delta, pld_interval(counts))
    monkeypatch.setattr(loss_distributions, "_kept", {})
    monkeypatch.setattr(
        loss_distributions, "repeated", lambda *one: made.append(points(repeated(*one))) or repeated(*one)
    )
    found = pld_epsilon(counts, ADD_OR_REMOVE, delta)
    assert finest * (1 - 1e-5) <= found <= finest * (1 + 5e-4)
    assert sum(made) < 300_000


def test_a_search_looks_less_closely():
    counts = counts_of(1e-3, 1.0, 10_000)
    exact, rough = (pld_epsilon(counts, ADD_OR_REMOVE, 1e-5, coarser=times) for times in (1.0, 4.0))
    assert exact < rough < 1.02 * exact
