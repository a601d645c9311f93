"""Statistics of audits: published and computed values, coverage where a claim holds, and power where it does not."""

import math

import numpy as np
import pytest
from scipy import special, stats

from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon, privacy_profile
from tfdp_layers.audit import guarantees, one_run, statistics
from tfdp_layers.audit.guarantees import GaussianCurve, GaussianFamily, PointFamily, Points, of_ledger
from tfdp_layers.audit.statistics import Guesses
from tfdp_layers.sampling import FixedSize, Poisson


def claim(noise, steps=1, sampling=None, examples=100):
    ledger = Ledger()
    release = Release((GroupNoise("all", 1.0, noise),), sampling or Poisson(examples), examples)
    ledger.reserve(ledger.begin(release), steps)
    return ledger


# One run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("canaries", [100, 500, 5000])
def test_all_guesses_right_gives_the_saturated_bound(canaries):
    """Steinke et al. 2023: no number of right guesses shows more than ln(c / (1 - c)), c = 0.05^(1/m)."""
    found = statistics.one_run_epsilon(Guesses(canaries, canaries, canaries))
    assert found == pytest.approx(special.logit(0.05 ** (1 / canaries)), abs=1e-4)
    assert found == pytest.approx({100: 3.493, 500: 5.114, 5000: 7.420}[canaries], abs=1e-3)


@pytest.mark.parametrize(
    ("guesses", "delta", "one_run", "gaussian"),
    [
        (Guesses(1000, 1000, 800), 1e-5, 1.25398, 2.33324),
        (Guesses(500, 100, 95), 1e-5, 2.16882, 3.65381),
        (Guesses(100, 100, 75), 1e-3, 0.67298, 1.04904),
    ],
)
def test_the_values_of_jax_privacy(guesses, delta, one_run, gaussian):
    """`_epsilon_one_run` and `_epsilon_one_run_fdp` of JAX-Privacy 2.0.0 at 95%."""
    assert statistics.one_run_epsilon(guesses, delta) == pytest.approx(one_run, abs=1e-4)
    found = statistics.one_run_bound([guesses], GaussianFamily(delta))
    assert gaussian * 0.985 <= found <= gaussian


def test_a_p_value_at_delta_zero_is_that_of_randomized_response():
    for epsilon_ in (0.0, 0.7, 3.0):
        q = math.exp(epsilon_) / (1 + math.exp(epsilon_))
        right = stats.binom.pmf(np.arange(80, 101), 100, q).sum()
        assert statistics.one_run_p_value(Guesses(300, 100, 80), epsilon_, 0.0) == pytest.approx(right)


def test_right_guesses_alone_show_no_more_than_about_eleven():
    """Against Gaussian mechanisms; JAX-Privacy 2.0.0: 11.1448."""
    found = statistics.one_run_bound([Guesses(500, 500, 500)], GaussianFamily(1e-5))
    assert 0.985 * 11.1448 <= found <= 11.1448


def test_randomized_response_refutes_itself_no_more_often_than_allowed():
    """Both one-run bounds are attained by randomized response up to the union over guesses: coverage of 90%."""
    epsilon_, level, runs, m = 1.0, 0.1, 400, 200
    right = np.random.default_rng(0).binomial(m, special.expit(epsilon_), runs)
    guesses = [Guesses(m, m, int(v)) for v in right]
    steinke = sum(statistics.one_run_epsilon(g, 0.0, 1 - level) > epsilon_ for g in guesses)
    curve = Points(np.array([epsilon_]), np.array([0.0]))
    by_curve = sum(statistics.one_run_refutes(g, curve, level) for g in guesses)
    allowed = stats.binom.ppf(1 - 1e-4, runs, level)
    assert 0 < steinke <= allowed
    assert by_curve <= allowed


def gaussian_scores(rng, m, mu):
    included = rng.random(m) < 0.5
    return rng.normal(size=m) + mu * included, included


def refuted(rng, m, true_mu, claimed_mu):
    scores, included = gaussian_scores(rng, m, true_mu)
    guesses = [statistics.guess(scores, included, int(f * m)) for f in statistics.FRACTIONS]
    level = 0.05 / len(guesses)
    return any(statistics.one_run_refutes(g, GaussianCurve(claimed_mu), level) for g in guesses)


@pytest.mark.parametrize("mu", [0.3, 1.0, 1.5])
def test_a_gaussian_claim_that_holds_is_seldom_refuted_and_one_of_four_times_the_noise_always(mu):
    rng = np.random.default_rng(1)
    assert sum(refuted(rng, 300, mu, mu) for _ in range(40)) <= 2
    assert all(refuted(rng, 500, 4 * mu, mu) for _ in range(10))


def test_guesses_never_look_at_the_coins():
    scores = np.array([3.0, 1.0, np.nan, 2.0, -1.0, 0.0])
    included = np.array([True, False, False, True, False, True])
    assert statistics.guess(scores, included, 4) == Guesses(6, 4, 4)
    assert statistics.guess(scores, ~included, 4) == Guesses(6, 4, 0)
    with pytest.raises(ValueError, match="one length"):
        statistics.guess(scores, included[:3], 2)
    with pytest.raises(ValueError, match="correct <= made"):
        Guesses(5, 3, 4)


@pytest.mark.parametrize("score", [0.0, 7.0, -np.inf, np.inf, np.nan])
@pytest.mark.parametrize("coins", ["sorted", "reversed", "tossed"])
def test_equal_scores_are_no_evidence_in_whatever_order_the_coins_lie(score, coins):
    """In the order of the canaries, equal scores read sorted coins out of their places: all guesses were right."""
    included = np.arange(500) >= 250
    included = {"sorted": included, "reversed": ~included, "tossed": np.random.default_rng(5).random(500) < 0.5}[coins]
    rng = np.random.default_rng(1)
    right = [statistics.guess(np.full(500, score), included, 500, rng).correct for _ in range(40)]
    assert max(abs(np.array(right) - 250)) < 5 * math.sqrt(500) / 2
    assert len(set(right)) > 5
    found = [one_run.audited(claim(3.0, 10), np.full(500, score), included, 1e-5, rng=rng) for _ in range(10)]
    assert not any(audit.refuted for audit in found)
    assert sum(audit.audited_epsilon_lower > 0 for audit in found) <= 3


def test_ties_at_a_cut_are_broken_at_random_and_what_stands_out_of_them_is_still_found():
    included = np.repeat([False, True], 250)
    scores = np.where(np.arange(500) < 200, 0.0, np.where(np.arange(500) < 300, 1.0, 2.0))
    assert statistics.guess(scores, included, 400).correct == 400  # keyed by the operating system
    # Of the hundred ties half are cut to each side: of those about half are right, whatever the order of the coins.
    whole = statistics.guess(scores, included, 500, np.random.default_rng(0)).correct
    assert 400 + 30 < whole < 400 + 70
    rng = np.random.default_rng(2)
    coins = rng.random(500) < 0.5
    rounded = np.round(rng.normal(size=500) + 4.0 * coins)  # few different scores, and a signal
    audit = one_run.audited(claim(3.0), rounded, coins, 1e-5)
    assert audit.refuted
    assert audit.audited_epsilon_lower > 3.0


@pytest.mark.parametrize("bad", [0.0, 1.0, 1.5])
def test_a_confidence_that_is_no_probability_is_refused(bad):
    with pytest.raises(ValueError, match="confidence"):
        statistics.one_run_epsilon(Guesses(10, 10, 10), confidence=bad)


# Trade-off curves -----------------------------------------------------------------------------------------------------


def test_points_of_a_gaussian_lie_below_its_curve_and_come_close():
    probabilities = [1e-4, 0.01, 0.2, 0.5, 0.9, 0.999]
    for noise in (0.5, 1.0, 3.0):
        curve = GaussianCurve(1 / noise)
        points = Points(*privacy_profile(claim(noise)))
        for p in probabilities:
            exact, found = curve.neighbour_at_least(p), points.neighbour_at_least(p)
            assert found <= exact * (1 + 1e-9) + 1e-12
            assert found >= exact - 0.02


@pytest.mark.parametrize("sampling", [Poisson(20), FixedSize(20)], ids=lambda s: s.kind)
def test_every_point_of_a_profile_is_what_the_accountant_proves(sampling):
    ledger = claim(1.5, 30, sampling)
    epsilons, deltas = privacy_profile(ledger)
    assert len(epsilons) > 50
    for e, d in list(zip(epsilons, deltas, strict=True))[5:90:17]:
        assert float(epsilon(ledger, float(d))) <= e * 1.01 + 2e-3


def test_a_profile_of_nothing_has_no_points_and_an_audit_of_nothing_is_refused():
    assert len(privacy_profile(Ledger())[0]) == 0
    with pytest.raises(ValueError, match="no release"):
        of_ledger(Ledger(), 1e-5)


def test_the_family_of_a_claim_holds_the_claim_at_parameter_one():
    ledger = claim(1.2, 40, Poisson(25))
    family = of_ledger(ledger, 1e-5)
    assert float(family.epsilon(1.0)) == float(epsilon(ledger, 1e-5))
    assert float(family.epsilon(4.0)) > 4 * float(family.epsilon(1.0))
    assert isinstance(of_ledger(claim(2.0, 9), 1e-5).at(1.0), guarantees.GaussianCurve)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.99])
def test_approximate_privacy_is_the_two_lines(probability):
    found = Points(np.array([1.0]), np.array([0.01])).neighbour_at_least(probability)
    lines = [(probability - 0.01) / math.e, 1 - 0.01 - math.e * (1 - probability), 0.0]
    assert found == pytest.approx(max(lines))


# Many runs ------------------------------------------------------------------------------------------------------------


def test_clopper_pearson_has_its_textbook_values():
    """0 of n: 1 - level^(1/n). 5 of 10 at 97.5%: (0.1871, 0.8129), the interval of 95%."""
    assert statistics.clopper_pearson(0, 50, 0.95) == (0.0, pytest.approx(1 - 0.05 ** (1 / 50)))
    assert statistics.clopper_pearson(50, 50, 0.95) == (pytest.approx(0.05 ** (1 / 50)), 1.0)
    assert statistics.clopper_pearson(5, 10, 0.975) == (
        pytest.approx(0.18709, abs=1e-4),
        pytest.approx(0.81291, abs=1e-4),
    )
    with pytest.raises(ValueError, match="hits"):
        statistics.clopper_pearson(3, 2, 0.95)


def test_many_runs_of_a_gaussian_come_near_its_epsilon_from_below():
    rng = np.random.default_rng(2)
    for noise in (0.5, 1.0):
        family = of_ledger(claim(noise), 1e-5)
        present, absent = rng.normal(1 / noise, 1, 4000), rng.normal(0, 1, 4000)
        found = statistics.many_runs_bound(present, absent, family)
        assert 0.75 * float(family.epsilon(1.0)) < found < float(family.epsilon(1.0))
        plain = statistics.many_runs_bound(present, absent, PointFamily(1e-5))
        assert 0 < plain < found


def test_many_runs_seldom_refute_what_holds():
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(100):
        present, absent = rng.normal(1.0, 1, 200), rng.normal(0, 1, 200)
        first = statistics.best_threshold(present[:40], absent[:40])
        counts = [(int(np.sum(s[40:] >= first)), 160) for s in (present, absent)]
        wrong += statistics.rates_refute(GaussianCurve(1.0), counts[0], counts[1], 0.2)
    assert wrong <= stats.binom.ppf(1 - 1e-4, 100, 0.2)
