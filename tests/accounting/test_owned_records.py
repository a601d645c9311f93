"""Several records of one owner on a Poisson draw: never below the truth, equal to it where all records pull one way."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import logsumexp
from scipy.stats import binom, norm

from helpers.accounting_tools import ledger_of, release_of
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger, Release, Selection, affordable_steps, calibrate_noise_multiplier, epsilon
from tfdp_layers.accounting.loss_distributions import pld_epsilon, pld_interval
from tfdp_layers.accounting.owned_records import owner_pld, owner_profiles, owner_rdp
from tfdp_layers.accounting.renyi import rdp_epsilon
from tfdp_layers.sampling import Cyclic, FixedSize, Partition, Poisson, TruncatedPoisson
from tfdp_layers.sampling.correlated import Correlated
from tfdp_layers.sampling.owners import OwnerDpEvent

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
EPSILONS = np.array([-3.0, -0.5, -0.01, 0.0, 0.01, 0.3, 1.0, 2.0, 4.0])
GRID = np.linspace(-30.0, 30.0, 20_001)
CASES = [(2, 0.1, 1.0), (3, 0.5, 0.7), (4, 0.9, 3.0), (2, 0.01, 0.5)]
QUICK_AND_SLOW = slow_but(CASES[:2], [*CASES, (5, 0.02, 0.4), (30, 0.01, 5.0)], several=True)


def drawn(event: OwnerDpEvent) -> tuple[np.ndarray, np.ndarray]:
    """How many records of the owner are drawn, and the probability of each."""
    counts = np.arange(1.0, event.records + 1)
    return counts, binom.pmf(counts, event.records, event.sampling_probability)


def density(contributions, probability: float, stddev: float) -> np.ndarray:
    """The exact density of the noisy sum over a Poisson draw, on GRID: every draw enumerated."""
    found = np.zeros_like(GRID)
    for drawn in itertools.product([0, 1], repeat=len(contributions)):
        chance = math.prod(probability if one else 1.0 - probability for one in drawn)
        found += chance * norm.pdf(GRID, sum(c for c, one in zip(contributions, drawn, strict=True) if one), stddev)
    return found


def divergences(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.array([np.trapezoid(np.maximum(p - math.exp(e) * q, 0.0), GRID) for e in EPSILONS])


def true_profiles(owned, others, probability, stddev) -> tuple[np.ndarray, np.ndarray]:
    """The exact deltas at EPSILONS, in both orders, when all owned records are emptied and the others stay."""
    full = density((*owned, *others), probability, stddev)
    emptied = density((*[0.0] * len(owned), *others), probability, stddev)
    return divergences(full, emptied), divergences(emptied, full)


@pytest.mark.parametrize(("records", "probability", "stddev"), slow_but(CASES[:2], CASES, several=True))
def test_no_records_cost_more_than_the_profile_and_the_worst_cost_as_much(records, probability, stddev):
    event, rng = OwnerDpEvent(probability, records, stddev), np.random.default_rng(records)
    bounds = owner_profiles(EPSILONS, event)
    for _ in range(6):
        owned = rng.choice([-1.0, 1.0, 0.0, rng.uniform(-1, 1)], size=int(rng.integers(1, records + 1)))
        for true, bound in zip(true_profiles(owned, rng.uniform(-1, 1, 2), probability, stddev), bounds, strict=True):
            assert np.all(true <= bound + 1e-6)  # quadrature
    worst = true_profiles([1.0] * records, [], probability, stddev)
    np.testing.assert_allclose(worst, bounds, atol=1e-6)
    # One record too few, or the cost of one record: both would be exceeded, so the test can fail.
    for fewer in {records - 1, 1}:
        assert np.any(worst[0] > owner_profiles(EPSILONS, OwnerDpEvent(probability, fewer, stddev))[0] + 1e-3)


def test_records_that_pull_different_ways_cost_less():
    """In two dimensions, by quadrature on a plane: Kahane's inequality, in the cases that one line cannot show."""
    line = np.linspace(-10.0, 12.0, 221)
    x, y = np.meshgrid(line, line)
    probability, stddev = 0.4, 1.0
    bounds = owner_profiles(EPSILONS, OwnerDpEvent(probability, 2, stddev))
    for angle in (math.pi / 2, 2.5):
        vectors, full = [(1.0, 0.0), (math.cos(angle), math.sin(angle))], np.zeros_like(x)
        for drawn in itertools.product([0, 1], repeat=2):
            chance = math.prod(probability if one else 1.0 - probability for one in drawn)
            at = np.array(drawn) @ np.array(vectors)
            full += chance * norm.pdf(x, at[0], stddev) * norm.pdf(y, at[1], stddev)
        empty = norm.pdf(x, 0.0, stddev) * norm.pdf(y, 0.0, stddev)
        cell = (line[1] - line[0]) ** 2
        for p, q, bound in ((full, empty, bounds[0]), (empty, full, bounds[1])):
            true = np.array([np.sum(np.maximum(p - math.exp(e) * q, 0.0)) * cell for e in EPSILONS])
            assert np.all(true <= bound + 1e-4)  # quadrature


@pytest.mark.parametrize(("records", "probability", "stddev"), QUICK_AND_SLOW)
def test_a_discretised_step_is_never_below_the_profile_and_close_to_it(records, probability, stddev):
    event = OwnerDpEvent(probability, records, stddev)
    pld, profiles = owner_pld(event, 1e-3), owner_profiles(EPSILONS, event)
    for order, parts in enumerate(((pld._pmf_remove,), (pld._pmf_add,))):
        deltas = np.array([parts[0].get_delta_for_epsilon(e) for e in EPSILONS])
        assert np.all(deltas >= profiles[order] - 1e-12)
        np.testing.assert_allclose(deltas, profiles[order], atol=1e-3 * probability * records)


def test_hardly_any_noise_and_chances_that_are_no_floats_cost_no_less_than_they_must():
    """The chance that all 200 records are drawn is 1e-600, and with this noise it decides the divergence."""
    event = OwnerDpEvent(1e-3, 200, 0.1)
    (found,) = owner_rdp(event, (2.0,))
    furthest = 2.0 * 200 * math.log(1e-3) + (200 / 0.1) ** 2  # the term of 200 drawn records alone
    assert furthest <= found <= (200 / 0.1) ** 2
    for noise in (1e-6, 1e-12):
        alone = rdp_epsilon(((OwnerDpEvent(0.01, 1, noise), 10),), ADD_OR_REMOVE, 1e-5)
        both = rdp_epsilon(((OwnerDpEvent(0.01, 2, noise), 10),), ADD_OR_REMOVE, 1e-5)
        assert both == pytest.approx(4.0 * alone, rel=1e-3)


@pytest.mark.slow
def test_two_steps_cost_what_quadrature_says():
    """The true delta at the stated epsilon is at most the stated one, and a little below that epsilon it is above."""
    rng, delta = np.random.default_rng(0), 1e-3
    line = np.linspace(-12.0, 20.0, 801)
    cell = (line[1] - line[0]) ** 2
    for _ in range(6):
        event = OwnerDpEvent(float(rng.uniform(0.02, 0.8)), int(rng.integers(2, 5)), float(rng.uniform(0.8, 3.0)))
        stated = pld_epsilon(((event, 2),), ADD_OR_REMOVE, delta)
        counts, chances = drawn(event)
        q = norm.pdf(line)
        p = (1.0 - chances.sum()) * q + chances @ norm.pdf(line[None, :], counts[:, None] / event.noise_multiplier)
        p, q = np.outer(p, p), np.outer(q, q)

        def true(at, p=p, q=q):
            return max(np.sum(np.maximum(a - math.exp(at) * b, 0.0)) * cell for a, b in ((p, q), (q, p)))

        assert true(stated) <= delta * (1 + 1e-3)  # quadrature
        assert true(0.99 * stated) > delta


def test_it_is_what_dp_accounting_says_of_the_mixture():
    event, interval = OwnerDpEvent(0.03, 3, 1.2), 0.02
    chances = [1.0 - float(drawn(event)[1].sum()), *drawn(event)[1]]
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.2, [0.0, 1.0, 2.0, 3.0], chances, value_discretization_interval=interval
    )
    ours = owner_pld(event, interval)
    for steps in (1, 300):
        a, b = (one.self_compose(steps).get_epsilon_for_delta(1e-5) for one in (ours, theirs))
        assert a == pytest.approx(b, rel=1e-6)


@pytest.mark.parametrize(("records", "probability", "stddev"), [(2, 0.1, 1.0), (4, 0.5, 2.0)])
def test_renyi_divergences_are_the_integrals_and_prove_a_larger_epsilon(records, probability, stddev):
    event, orders = OwnerDpEvent(probability, records, stddev), (1.1, 2.0, 3.5, 16.0)
    counts, chances = drawn(event)

    line, step = np.linspace(-60.0, 120.0, 180_001, retstep=True)
    jumps = counts[:, None] / stddev
    logs = np.logaddexp(
        math.log(1.0 - chances.sum()), logsumexp(np.log(chances)[:, None] + jumps * line - jumps**2 / 2, 0)
    )

    def mean(order):
        return float(logsumexp(norm.logpdf(line) + order * logs)) + math.log(step)

    for order, found in zip(orders, owner_rdp(event, orders), strict=True):
        exact = max(mean(order), mean(1.0 - order)) / (order - 1.0)
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-9) + 1e-9
    assert rdp_epsilon(((event, 50),), ADD_OR_REMOVE, 1e-5) > pld_epsilon(((event, 50),), ADD_OR_REMOVE, 1e-5)


def owned(sampling, multiplier, records, **fields):
    return release_of(sampling, multiplier, 1000, unit="owner", records_per_owner=records, **fields)


def test_one_record_an_owner_costs_what_a_record_costs():
    for sampling in (Poisson(50), Partition(50), Cyclic(50)):
        alone, of_owner = release_of(sampling, 1.3, 1000), owned(sampling, 1.3, 1)
        assert of_owner.event() == alone.event()
        assert (of_owner.kind, of_owner.counted) == ("owner_step", "record")


def test_more_records_an_owner_cost_more_and_group_privacy_costs_more_still():
    spent = [float(epsilon(ledger_of(owned(Poisson(50), 3.0, k), 100), 1e-5)) for k in (1, 2, 3, 8)]
    assert spent == sorted(spent)
    assert spent[1] > 1.5 * spent[0]  # k forgotten would state half of it
    all_at_once = float(epsilon(ledger_of(release_of(Poisson(50), 3.0 / 2, 1000), 100), 1e-5))
    assert spent[1] < 0.9 * all_at_once  # two records seldom meet in a batch


@pytest.mark.parametrize("sampling", [Partition(50), Cyclic(50), Poisson(1000)], ids=lambda s: s.kind)
def test_records_that_may_come_in_one_batch_count_as_one_of_their_joint_size(sampling):
    """Equal records in one batch attain it: their sum is one record of k times the bound."""
    assert owned(sampling, 6.0, 3).event() == GaussianDpEvent(2.0)
    steps = 2 * sampling.steps_per_epoch(1000)
    spent = epsilon(ledger_of(owned(sampling, 6.0, 3), steps), 1e-5)
    assert spent == pytest.approx(get_epsilon_gaussian(2.0 / math.sqrt(2), 1e-5), rel=1e-6)


def test_correlated_noise_counts_an_owner_as_so_many_records():
    noise = Correlated(0.9)
    alone, of_owner = (owned(Cyclic(50), z, k, noise=noise) for z, k in ((2.0, 1), (6.0, 3)))
    assert (of_owner.event(), of_owner.charges(40)) == (alone.event(), alone.charges(40))


@pytest.mark.parametrize("sampling", [FixedSize(50), TruncatedPoisson(50)], ids=lambda s: s.kind)
def test_draws_that_do_not_hide_an_owner_are_refused(sampling):
    with pytest.raises(ValueError, match=r"not known here.*Poisson"):
        owned(sampling, 1.0, 1)
    with pytest.raises(ValueError, match="not known here"):
        sampling.event(1.0, 1000, None, 2)


def test_a_ledger_keeps_and_states_owners_and_mixes_them_with_no_others():
    ledger = ledger_of(owned(Poisson(50), 2.0, 3), 10)
    read = Ledger.from_json(ledger.to_json())
    assert read.releases == ledger.releases
    assert read.releases[0].records_per_owner == 3
    assert epsilon(read, 1e-5) == epsilon(ledger, 1e-5)
    with pytest.raises(ValueError, match=r"protects one owner.*owners="):
        ledger.begin(release_of(Poisson(50), 2.0, 1000))
    assert epsilon(ledger, 1e-5).relation is NeighboringRelation.REPLACE_SPECIAL
    more = ledger_of(owned(Poisson(50), 2.0, 3), 10)
    for further in (owned(Poisson(50), 2.0, 1), owned(Partition(50), 20.0, 2)):  # all are of emptied records
        before = epsilon(more, 1e-5)
        more.reserve(more.begin(further), 10)
        assert epsilon(more, 1e-5) > before
    for wrong in ({"unit": "record", "records_per_owner": 2}, {"unit": "owner", "records_per_owner": 0}):
        with pytest.raises(ValueError, match="records_per_owner"):
            Release(ledger.releases[0].groups, Poisson(50), 1000, **wrong)


def test_the_best_of_several_trainings_is_accounted_for_owners():
    trained = owned(Poisson(50), 4.0, 3)
    best = Selection((((trained, 40),),), mean=3.0)
    assert best.unit == "owner"
    assert epsilon(ledger_of(best, 1), 1e-5) > epsilon(ledger_of(trained, 40), 1e-5)
    read = Ledger.from_json(ledger_of(best, 1).to_json())
    assert read.releases == (best,)


@pytest.mark.slow
def test_calibration_and_affordable_steps_keep_to_the_target_for_owners():
    noise = calibrate_noise_multiplier(2.0, 1e-4, Poisson(50), 1000, 40, records_per_owner=3)
    spent = epsilon(ledger_of(owned(Poisson(50), noise, 3), 40), 1e-4)
    assert 1.98 < spent <= 2.0
    assert affordable_steps(2.0, 1e-4, Poisson(50), 1000, noise, records_per_owner=3, maximum=1000) >= 40
    assert affordable_steps(2.0, 1e-4, Poisson(50), 1000, noise, records_per_owner=4, maximum=1000) < 40


@pytest.mark.parametrize(("records", "batch", "multiplier", "steps"), [(2, 512, 1.0, 1000), (16, 60, 3.0, 1000)])
def test_halving_the_interval_changes_little(records, batch, multiplier, steps):
    counts = ((OwnerDpEvent(batch / 60_000, records, multiplier), steps),)
    halved = pld_epsilon(counts, ADD_OR_REMOVE, 1e-5, pld_interval(counts) / 2)
    assert halved * (1 - 1e-9) <= pld_epsilon(counts, ADD_OR_REMOVE, 1e-5) <= halved * 1.002
