import math

import pytest
from dp_accounting.pld import pld_pmf
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounting_tools import charged, ledger_of, release_of
from tfdp_layers.accounting import Ledger, affordable_steps, calibrate_noise_multiplier, calibration, epsilon
from tfdp_layers.accounting.composition import smallest_epsilon
from tfdp_layers.accounting.loss_distributions import composed_pld
from tfdp_layers.accounting.searching import least
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

EXAMPLES = 60_000
KINDS = [Poisson, TruncatedPoisson, FixedSize, Partition]


def spent(sampling, multiplier, steps):
    return epsilon(ledger_of(release_of(sampling, multiplier, EXAMPLES), steps), 1e-5)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    batch=st.integers(1000, 8000),
    target=st.floats(0.3, 8.0),
    steps=st.integers(1, 1500),
)
def test_calibration_is_one_sided_and_tight(kind, batch, target, steps):
    sampling = kind(batch)
    multiplier = calibrate_noise_multiplier(target, 1e-5, sampling, EXAMPLES, steps)
    assert spent(sampling, multiplier, steps) <= target
    assert spent(sampling, multiplier * 0.998, steps) > target


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    batch=st.integers(1000, 8000),
    target=st.floats(0.3, 8.0),
    multiplier=st.floats(0.9, 6.0),
)
def test_one_more_step_than_affordable_exceeds_the_target(kind, batch, target, multiplier):
    sampling = kind(batch)
    steps = affordable_steps(target, 1e-5, sampling, EXAMPLES, multiplier)
    assert (spent(sampling, multiplier, steps) if steps else 0.0) <= target
    assert spent(sampling, multiplier, steps + 1) > target


def test_a_ledger_is_paid_for_first():
    sampling = Poisson(2048)
    ledger = ledger_of(release_of(sampling, 1.3), 400)
    steps = affordable_steps(4.0, 1e-5, sampling, EXAMPLES, 1.3, ledger)
    assert steps + 400 == affordable_steps(4.0, 1e-5, sampling, EXAMPLES, 1.3)
    multiplier = calibrate_noise_multiplier(4.0, 1e-5, sampling, EXAMPLES, steps, ledger)
    assert multiplier == pytest.approx(1.3, rel=2e-3)
    assert multiplier <= 1.3 * 1.0005
    ledger.reserve(ledger.begin(release_of(sampling, multiplier)), steps)
    assert epsilon(ledger, 1e-5) <= 4.0
    with pytest.raises(ValueError, match="already holds"):
        calibrate_noise_multiplier(1.0, 1e-5, sampling, EXAMPLES, 1, ledger)
    assert affordable_steps(1.0, 1e-5, sampling, EXAMPLES, 1.3, ledger) == 0
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        affordable_steps(4.0, 1e-5, FixedSize(2048), EXAMPLES, 1.3, ledger)


def test_what_is_left_of_a_budget_is_reached_where_an_estimate_says_it_is_not():
    """By RDP, which searches begin with, the ledger alone holds 2.63."""
    ledger = ledger_of(release_of(Poisson(2048), 2.0), 1000)
    multiplier = calibrate_noise_multiplier(2.5, 1e-5, Poisson(2048), EXAMPLES, 400, ledger)
    ledger.reserve(ledger.begin(release_of(Poisson(2048), multiplier)), 400)
    assert 2.498 < float(epsilon(ledger, 1e-5)) <= 2.5


def test_nothing_and_everything_affordable():
    assert affordable_steps(0.01, 1e-5, Poisson(2048), EXAMPLES, 0.5) == 0
    assert affordable_steps(1e4, 1e-5, Partition(2048), EXAMPLES, 10.0, maximum=77) == 77
    assert affordable_steps(1.0, 1e-5, Poisson(2048), EXAMPLES, 1.0, maximum=0) == 0


def test_partition_affords_whole_epochs():
    steps = affordable_steps(2.0, 1e-5, Partition(7000), EXAMPLES, 5.0)
    assert steps > 0
    assert steps % Partition(7000).steps_per_epoch(EXAMPLES) == 0


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_targets_out_of_range(target):
    with pytest.raises(ValueError, match="target_epsilon must be finite and above 0"):
        calibrate_noise_multiplier(target, 1e-5, Poisson(10), 100, 1)
    with pytest.raises(ValueError, match="target_epsilon must be finite and above 0"):
        affordable_steps(target, 1e-5, Poisson(10), 100, 1.0)


def test_other_arguments_out_of_range():
    with pytest.raises(ValueError, match="delta must lie"):
        calibrate_noise_multiplier(1.0, 1.0, Poisson(10), 100, 1)
    with pytest.raises(ValueError, match="larger than the data"):
        calibrate_noise_multiplier(1.0, 1e-5, Poisson(101), 100, 1)
    for wrong in (128, "poisson", 60_000.0, None):
        with pytest.raises(ValueError, match=r"sampling must be a sampler.*Poisson\(256\). The order is"):
            calibrate_noise_multiplier(1.0, 1e-5, wrong, 100, 1)
        with pytest.raises(ValueError, match="sampling must be a sampler"):
            affordable_steps(1.0, 1e-5, wrong, 100, 1.0)
    with pytest.raises(ValueError, match="sampling must be a sampler"):
        calibrate_noise_multiplier(Poisson(10), 100, 1.0, 1e-5, 1)
    with pytest.raises(ValueError, match="target_epsilon must be finite and above 0"):
        calibrate_noise_multiplier("2.7", 1e-5, Poisson(10), 100, 1)
    for steps in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="steps must be an integer"):
            calibrate_noise_multiplier(1.0, 1e-5, Poisson(10), 100, steps)
    for multiplier in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier must be finite and above 0"):
            affordable_steps(1.0, 1e-5, Poisson(10), 100, multiplier)


def test_a_large_delta_is_warned_about():
    with pytest.warns(UserWarning, match="above 0.01, one over the number of records"):
        affordable_steps(1.0, 0.02, Partition(10), 100, 1.0)


@pytest.mark.parametrize("stride", [1.002, 1.05, 2.0])
@pytest.mark.parametrize("smallest", [0.0, 0.003, 0.01, 0.0123, 1.0, 37.0, 1e6])
def test_the_search_for_noise_ends_also_where_none_is_needed(smallest, stride):
    asked = []

    def cost(noise):
        asked.append(noise)
        return 1.0 if noise >= smallest else 2.0

    found = least(cost, 1.0, 1.0, tolerance=5e-4, stride=stride)
    assert cost(found) <= 1.0
    assert found <= max(smallest, 0.01) * (1 + 1e-3)
    assert min(asked) >= 0.01
    assert len(asked) < 60


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "steps", "batch"), [(5.0, 1, 100), (9.0, 100, 300), (2.0, 100, 300), (3.0, 2000, 256), (0.5, 3000, 1024)]
)
def test_little_is_computed_exactly(target, steps, batch, monkeypatch):
    """With few steps and little noise each exact epsilon takes seconds: three to five of them were computed."""
    found = []

    def counts(*args):
        found.append(smallest_epsilon(*args)[0])
        return found[-1], ""

    monkeypatch.setattr(calibration, "smallest_epsilon", counts)
    calibrate_noise_multiplier(target, 1e-6, Poisson(batch), 300_000, steps)
    before, *exact = found
    assert before == 0.0
    assert len(exact) <= 2
    assert target * (1.0 - 1e-3) <= exact[-1] <= target


@pytest.mark.parametrize("earlier", [0, 3])
def test_few_exact_epsilons_find_how_many_steps_are_affordable(earlier, monkeypatch):
    """Each takes seconds where a million steps fit: 17 were computed, and 13 of a coarser grid."""
    asked, counts = [], calibration._Plan.epsilon

    def counted(plan, noise, steps, interval=None):
        asked.append((interval, steps))
        return counts(plan, noise, steps, interval)

    sampling, ledger = Poisson(256), Ledger()
    for number in range(earlier):
        charged(ledger, release_of(sampling, 3.0 + number), 50)
    monkeypatch.setattr(calibration._Plan, "epsilon", counted)
    steps = affordable_steps(3.0, 1e-5, sampling, EXAMPLES, 1.1, ledger)
    assert len({one for one in asked if one[0] is None}) <= 8
    assert len({one for one in asked if one[0] == calibration._COARSE}) <= 5
    for more, fits in ((steps, True), (1, False)):
        ledger = charged(ledger, release_of(sampling, 1.1), more)
        assert (epsilon(ledger, 1e-5) <= 3.0) is fits


def test_what_a_ledger_leaves_is_used_to_the_same_share():
    """Near enough is told by what is left, not by the whole target: next to nothing of it is given away."""
    sampling = Poisson(2048)
    ledger = ledger_of(release_of(sampling, 1.3), 400)
    whole = epsilon(ledger, 1e-5)
    multiplier = calibrate_noise_multiplier(whole * 1.01, 1e-5, sampling, EXAMPLES, 20, ledger)
    for factor, fits in ((1.0, True), (0.997, False)):
        again = ledger.copy()
        again.reserve(again.begin(release_of(sampling, multiplier * factor)), 20)
        assert (epsilon(again, 1e-5) <= whole * 1.01) is fits


@pytest.mark.slow
def test_a_target_that_no_accountant_can_show_is_not_called_out_of_reach():
    """Beyond a multiplier of 1e7 nothing is tried; what the accountants' rounding hides, less noise might reach."""
    with pytest.raises(ValueError, match=r"1e\+07 can be shown to reach.*Less noise may do.*larger target or delta"):
        calibrate_noise_multiplier(1e-7, 1e-14, Poisson(2048), EXAMPLES, 1200)


def test_a_delta_above_the_chance_of_being_drawn_needs_no_noise():
    with pytest.warns(UserWarning, match="above"):
        assert calibrate_noise_multiplier(0.1324, 0.0985, Poisson(13), 825, 1) == 0.01


@pytest.mark.parametrize("kind", [Poisson, FixedSize])
def test_many_steps_are_composed_in_arrays_at_once(kind, monkeypatch):
    """dp-accounting chose between dict and array by `points ** steps`: a million steps took 32 s to calibrate."""
    event = release_of(kind(256), 7.3, EXAMPLES).event()
    relation, interval = kind(256).relation, 2.0**-9
    for steps in (1, 2, 9, 10, 500):
        single = composed_pld(((event, 1),), relation, interval)
        found, plain = composed_pld(((event, steps),), relation, interval), single.self_compose(steps)
        for delta in (1e-9, 1e-5):
            assert found.get_epsilon_for_delta(delta) == pytest.approx(plain.get_epsilon_for_delta(delta), rel=1e-7)

    def slow(pmf, steps, *_):
        raise AssertionError(f"{pmf.size} ** {steps}")

    monkeypatch.setattr(pld_pmf.SparsePLDPmf, "self_compose", slow)
    assert composed_pld(((event, 10**6),), relation, interval) is not None
