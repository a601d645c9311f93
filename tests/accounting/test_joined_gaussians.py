"""Gaussian mechanisms on all records count as the one that they compose to, before anything is discretised."""

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import (
    GroupNoise,
    Ledger,
    Release,
    calibrate_noise_multiplier,
    composition,
    epsilon,
    exact_multiplier,
    privacy_profile,
    profile,
)
from tfdp_layers.accounting.fixed_size import sampled_pld
from tfdp_layers.accounting.gaussian_events import canonical, joined
from tfdp_layers.accounting.loss_distributions import composed_pld, pld_epsilon, pld_interval
from tfdp_layers.accounting.renyi import rdp_epsilon
from tfdp_layers.sampling import Cyclic, Partition, Poisson
from tfdp_layers.sampling.correlated import Correlated

ADD_REMOVE, REPLACE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
DELTA = 1e-5
DRAWN = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))
STREAM = 33_505_864_640  # charges of a short stream of correlated noise, each 2^-32 of a Gaussian mechanism


def split(multiplier: float, parts: int) -> GaussianDpEvent:
    return GaussianDpEvent(multiplier * math.sqrt(parts))


def with_stream(owned: bool = False) -> Ledger:
    """Steps on Poisson draws, and a stream of correlated noise, in one ledger."""
    ledger, groups = Ledger(), (GroupNoise("all", 1.0, 3.0),)
    whose: dict[str, Any] = {"unit": "owner", "records_per_owner": 2} if owned else {}
    noisy = (GroupNoise("all", 1.0, 9.0),)
    stream = Release(noisy, Cyclic(100), 400, noise=Correlated(0.7), **whose)
    ledger.reserve(ledger.begin(stream), 12)
    if owned:
        ledger.reserve(ledger.begin(Release(groups, Poisson(100), 400, **whose)), 8)
    return ledger


def test_the_one_has_no_more_noise_than_the_exact_one_and_hardly_less() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        multipliers = np.exp(rng.uniform(-3, 14, rng.integers(1, 40)))
        counts = canonical({GaussianDpEvent(float(z)): int(10 ** rng.uniform(0, 11)) + 1 for z in multipliers})
        ((event, count),) = joined(counts)
        precision = sum(Fraction(times) / Fraction(one.noise_multiplier) ** 2 for one, times in counts)
        share = Fraction(event.noise_multiplier) ** 2 * precision
        assert count == 1
        assert 1 - 1e-12 < share <= 1


def test_what_is_drawn_stays_and_what_is_drawn_for_certain_joins() -> None:
    certain = (PoissonSampledDpEvent(1.0, GaussianDpEvent(2.0)), SampledWithoutReplacementDpEvent(9, 9, split(2.0, 1)))
    counts = canonical({DRAWN: 5, certain[0]: 1, certain[1]: 1})
    found = dict(joined(counts))
    assert found.pop(DRAWN) == 5
    ((event, count),) = found.items()
    assert count == 1
    assert event.noise_multiplier == pytest.approx(2.0 / math.sqrt(2.0), rel=1e-12)
    for unchanged in (((DRAWN, 5),), ((GaussianDpEvent(2.0), 1),), ((GaussianDpEvent(0.0), 3),), ()):
        assert joined(unchanged) == unchanged
    endless = ((GaussianDpEvent(1e200), 2),)  # no float holds its square
    assert joined(endless) == endless


@pytest.mark.parametrize("parts", [1, 7, 4096, STREAM])
@pytest.mark.parametrize(
    ("relation", "drawn"),
    [(ADD_REMOVE, DRAWN), (REPLACE_ONE, SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(2.0)))],
    ids=["poisson", "fixed_size"],
)
def test_epsilon_does_not_depend_on_how_a_gaussian_is_cut(relation: Any, drawn: Any, parts: int) -> None:
    """A stream of correlated noise is 3.3e10 charges: composed one after the other they took 12 GiB, and no epsilon."""
    whole, cut = (canonical({drawn: 40, split(3.0, n): n}) for n in (1, parts))
    assert pld_epsilon(cut, relation, DELTA) == pytest.approx(pld_epsilon(whole, relation, DELTA), rel=1e-9)
    assert pld_interval(cut) == pld_interval(whole)


def test_never_below_what_dp_accounting_alone_proves_from_below() -> None:
    multipliers, options = (3.0, 4.0, 5.5, 7.0), {"value_discretization_interval": 1e-3}
    below, above = (
        privacy_loss_distribution.from_gaussian_mechanism(2.0, sampling_prob=0.1, pessimistic_estimate=side, **options)
        for side in (False, True)
    )
    below, above = below.self_compose(40), above.self_compose(40)
    for z in multipliers:
        for _ in range(2):
            parts = [
                privacy_loss_distribution.from_gaussian_mechanism(z, pessimistic_estimate=side, **options)
                for side in (False, True)
            ]
            below, above = below.compose(parts[0]), above.compose(parts[1])
    found = pld_epsilon(canonical({DRAWN: 40} | {GaussianDpEvent(z): 2 for z in multipliers}), ADD_REMOVE, DELTA)
    assert below.get_epsilon_for_delta(DELTA) <= found <= above.get_epsilon_for_delta(DELTA) * 1.002


def test_without_replacement_it_is_what_the_parts_compose_to() -> None:
    interval, drawn = 2e-4, SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(2.0))
    parts = [sampled_pld(0.1, 2.0, interval).self_compose(40), sampled_pld(1.0, 6.0, interval).self_compose(9)]
    slow = parts[0].compose(parts[1]).get_epsilon_for_delta(DELTA)
    found = pld_epsilon(canonical({drawn: 40, GaussianDpEvent(6.0): 9}), REPLACE_ONE, DELTA, interval)
    assert slow * 0.999 <= found <= slow * (1 + 1e-6)


@pytest.mark.parametrize("parts", [1, 9, STREAM])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 8.0])
def test_gaussians_alone_are_never_below_the_analytic_one(multiplier: float, parts: int) -> None:
    truth = dp_accounting.get_epsilon_gaussian(multiplier, DELTA)
    found = pld_epsilon(((split(multiplier, parts), parts),), ADD_REMOVE, DELTA)
    assert truth * (1 - 1e-9) <= found <= truth * 1.001 + 1e-3


def test_many_different_gaussians_are_no_reason_to_state_more() -> None:
    ledger = ledger_of(release_of(Poisson(6000), 2.0), 40)
    for number in range(40):
        ledger.reserve(ledger.begin(release_of(Poisson(60_000), 20.0 + number)), 1)
    found = epsilon(ledger, DELTA)
    joint = sum((20.0 + number) ** -2 for number in range(40)) ** -0.5
    one = ledger_of(release_of(Poisson(6000), 2.0), 40)
    one.reserve(one.begin(release_of(Poisson(60_000), joint)), 1)
    assert found.accountant == "PLD"
    assert float(found) == pytest.approx(float(epsilon(one, DELTA)), rel=1e-6)


def test_a_stream_beside_owned_records_is_stated_calibrated_and_drawn() -> None:
    ledger = with_stream(owned=True)
    found = epsilon(ledger, DELTA)
    assert found.accountant == "PLD"
    assert float(epsilon(with_stream(), DELTA)) < float(found) < 5.0
    epsilons, deltas = privacy_profile(ledger)
    assert len(epsilons) > 50
    for e, d in list(zip(epsilons, deltas, strict=True))[5:90:17]:
        assert float(epsilon(ledger, float(d))) <= e * 1.01 + 2e-3
    options: dict[str, Any] = {"noise": Correlated(0.7), "records_per_owner": 2}
    multiplier = calibrate_noise_multiplier(6.0, DELTA, Cyclic(100), 400, 12, ledger, **options)
    groups = (GroupNoise("all", 1.0, multiplier),)
    more = Release(groups, Cyclic(100), 400, noise=Correlated(0.7), unit="owner", records_per_owner=2)
    ledger.reserve(ledger.begin(more), 12)
    assert 5.98 < float(epsilon(ledger, DELTA)) <= 6.0


@pytest.mark.parametrize("multiplier", [0.07, 0.5, 1.0, 4.0, 300.0])
def test_the_profile_of_a_gaussian_is_the_closed_form(multiplier: float) -> None:
    ledger = ledger_of(release_of(Partition(600), multiplier), 3)
    epsilons, deltas = privacy_profile(ledger)
    assert len(epsilons) > 50
    half = 0.5 / multiplier
    exact = norm.cdf(half - epsilons * multiplier) - np.exp(epsilons + norm.logcdf(-half - epsilons * multiplier))
    assert np.all(deltas >= exact - 1e-14)
    assert np.all(deltas <= exact * (1 + 1e-6) + 1e-13)
    stream = with_stream()
    epsilons, deltas = privacy_profile(stream)
    near = np.argmin(np.abs(deltas - 1e-5))
    assert float(epsilon(stream, float(deltas[near]))) == pytest.approx(epsilons[near], rel=1e-6)
    assert exact_multiplier(stream) is not None


def no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError("Unable to allocate 41.0 GiB")


def test_where_the_memory_of_one_accountant_ends_another_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(release_of(Poisson(6000), 2.125), 41)
    counts = canonical(ledger.events())
    monkeypatch.setattr(composition, "pld_epsilon", no_memory)
    composition._smallest_epsilon.cache_clear()
    found = epsilon(ledger, DELTA)
    assert (float(found), found.accountant) == (rdp_epsilon(counts, ADD_REMOVE, DELTA), "RDP")
    monkeypatch.setattr(profile, "composed_pld", no_memory)
    epsilons, deltas = privacy_profile(ledger)
    assert len(deltas) == 24
    assert epsilons[12] == rdp_epsilon(counts, ADD_REMOVE, deltas[12])
    monkeypatch.setattr(composition, "rdp_epsilon", no_memory)
    composition._smallest_epsilon.cache_clear()
    with pytest.raises(MemoryError, match="41"):
        epsilon(ledger, DELTA)
    composition._smallest_epsilon.cache_clear()


def test_an_estimate_goes_on_where_the_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfdp_layers.accounting import calibration

    counts = Counter({DRAWN: 40, GaussianDpEvent(3.0): 2})
    near = calibration._estimate(counts, ADD_REMOVE, DELTA, 4.0)
    monkeypatch.setattr(calibration, "pld_epsilon", no_memory)
    assert near <= calibration._estimate(counts, ADD_REMOVE, DELTA, 4.0) <= 1.1 * near


def test_composing_is_no_longer_than_the_points_it_was_planned_with() -> None:
    composed = composed_pld(canonical({DRAWN: 40, split(3.0, STREAM): STREAM}), ADD_REMOVE)
    assert composed is not None
    assert composed._pmf_remove.size < 1_000_000
