"""Many settings counted as fewer that cost no less: sound, and nearly as tight as all of them composed."""

from collections import Counter
from typing import Any

import pytest
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp_layers.accounting import gaussian_events, loss_distributions
from tfdp_layers.accounting.composition import _smallest_epsilon, smallest_epsilon
from tfdp_layers.accounting.gaussian_events import canonical, fewer, sampled_gaussian
from tfdp_layers.accounting.renyi import rdp_epsilon
from tfdp_layers.sampling.owners import OwnerDpEvent

DELTA = 1e-5
ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def drawn(probability: float, noise: float) -> DpEvent:
    return PoissonSampledDpEvent(probability, GaussianDpEvent(noise))


def fixed(size: int, noise: float) -> DpEvent:
    return SampledWithoutReplacementDpEvent(10_000, size, GaussianDpEvent(noise))


MANY: dict[str, tuple[dict[DpEvent, int], Any]] = {
    "noise that grows": ({drawn(0.01, 0.9 + 0.02 * k): 40 + k for k in range(30)}, ADD),
    "data that grow": ({drawn(256 / (20_000 + 1_000 * k), 1.1): 80 for k in range(30)}, ADD),
    "both": ({drawn(256 / (20_000 + 1_000 * k), 1.0 + 0.01 * (k % 7)): 50 for k in range(30)}, ADD),
    "owners": ({OwnerDpEvent(0.01, 3, 2.0 + 0.03 * k): 40 for k in range(30)}, ADD),
    "draws of one size": ({fixed(100, 1.0 + 0.02 * k): 40 for k in range(30)}, REPLACE),
    "cut draws": ({TruncatedSubsampledGaussianDpEvent(10_000, 0.01, 160, 1.0 + 0.02 * k): 40 for k in range(30)}, ADD),
    "epochs beside": ({GaussianDpEvent(20.0): 3} | {drawn(0.01, 1.0 + 0.02 * k): 40 for k in range(30)}, ADD),
}


def answers(counts: dict[DpEvent, int], relation: Any, monkeypatch: pytest.MonkeyPatch, most: int) -> tuple[float, str]:
    monkeypatch.setattr(loss_distributions, "_MOST_PLDS", most)
    _smallest_epsilon.cache_clear()
    found = smallest_epsilon(counts, relation, DELTA)
    _smallest_epsilon.cache_clear()
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MANY)
def test_many_settings_cost_no_less_than_all_of_them_and_hardly_more(name: str, monkeypatch: Any) -> None:
    counts, relation = MANY[name]
    exact, _ = answers(counts, relation, monkeypatch, 1_000)
    found, accountant = answers(counts, relation, monkeypatch, 12)
    assert accountant == "PLD"
    assert exact <= found < 1.07 * exact
    if name != "cut draws":  # of which Renyi divergences know nothing
        assert found < rdp_epsilon(canonical(counts), relation, DELTA)


def test_counting_all_as_the_one_of_most_noise_would_be_seen(monkeypatch: Any) -> None:
    counts, relation = MANY["noise that grows"]
    exact, _ = answers(counts, relation, monkeypatch, 1_000)
    monkeypatch.setattr(gaussian_events, "min", max, raising=False)
    assert answers(counts, relation, monkeypatch, 12)[0] < exact


def test_counting_all_as_the_smallest_draw_would_be_seen(monkeypatch: Any) -> None:
    counts, relation = MANY["data that grow"]
    exact, _ = answers(counts, relation, monkeypatch, 1_000)
    monkeypatch.setattr(gaussian_events, "max", min, raising=False)
    assert answers(counts, relation, monkeypatch, 12)[0] < exact


NOISE, CHANCE = st.floats(0.3, 50.0), st.floats(1e-5, 0.9)
EVENTS = st.one_of(
    st.builds(drawn, CHANCE, NOISE),
    st.builds(OwnerDpEvent, CHANCE, st.integers(2, 4), NOISE),
    st.builds(fixed, st.sampled_from([10, 100, 101]), NOISE),
    st.builds(TruncatedSubsampledGaussianDpEvent, st.just(1_000), CHANCE, st.sampled_from([100, 200]), NOISE),
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(EVENTS, st.integers(1, 100), min_size=2, max_size=40), st.integers(2, 20))
def test_each_setting_is_counted_as_one_of_no_more_noise_and_no_smaller_draw(counts: Any, most: int) -> None:
    found = fewer(tuple(counts.items()), most)
    if found is None:
        return
    assert len(found) <= most
    assert sum(count for _, count in found) == sum(counts.values())
    room = Counter({event: count for event, count in found})
    kinds = {(type(event), getattr(event, "records", 1)) for event in counts}
    assert {(type(event), getattr(event, "records", 1)) for event in room} == kinds
    for event in counts:
        probability, noise = sampled_gaussian(event)
        assert any(
            type(one) is type(event)
            and getattr(one, "records", 1) == getattr(event, "records", 1)
            and sampled_gaussian(one)[0] >= probability
            and sampled_gaussian(one)[1] <= noise
            for one in room
        )


def test_draws_of_other_sizes_stay_apart_where_no_rule_orders_them() -> None:
    counts = tuple((fixed(100 + k, 1.0), 1) for k in range(5))
    assert fewer(counts, 4) is None
    assert fewer(counts, 5) == tuple(sorted(counts, key=repr))
