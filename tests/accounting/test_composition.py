"""What accountants bound one by one has a bound together: the sum, each part at its own part of delta."""

import math

import dp_accounting
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent, TruncatedSubsampledGaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from helpers.accounting_tools import charged, ledger_of, release_of
from tfdp_layers.accounting import (
    BudgetExhausted,
    EpsilonCurve,
    Ledger,
    Selection,
    Statement,
    TokenSelection,
    affordable_steps,
    calibrate_noise_multiplier,
    composition,
    epsilon,
    loss_distributions,
    privacy_profile,
)
from tfdp_layers.accounting.gaussian_events import canonical
from tfdp_layers.accounting.pure import NumericSparseDpEvent
from tfdp_layers.accounting.renyi import _orders
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
DELTA, N, TRIALS = 1e-5, 600, 3.0
STEP = release_of(Poisson(60), 4.0, examples=N)
CUT = release_of(TruncatedPoisson(60), 4.0, examples=N)
SEARCH = Selection((((STEP, 5),),), TRIALS)
BOTH = "PLD and RDP, each at a part of delta"


@pytest.fixture(autouse=True)
def _anew():
    composition._smallest_epsilon.cache_clear()


def settings(sampling, number, first=4.0):
    """A ledger of so many trainings, each with noise of its own."""
    ledger = Ledger()
    for k in range(number):
        charged(ledger, release_of(sampling, first + 0.01 * k, examples=N), 3)
    return ledger


def search_by_hand(delta):
    accountant = RdpAccountant(list(_orders(ADD_REMOVE)), ADD_REMOVE)
    trial = dp_accounting.SelfComposedDpEvent(STEP.event(), 5)
    return accountant.compose(RepeatAndSelectDpEvent(trial, TRIALS, 1.0)).get_epsilon(delta)


def draws_by_hand(delta, *events):
    accountant = PLDAccountant(ADD_REMOVE, value_discretization_interval=1e-3)
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def test_a_search_and_truncated_draws_cost_the_sum_each_at_half_of_delta():
    ledger = charged(ledger_of(SEARCH, 1), CUT, 20)
    found = epsilon(ledger, DELTA)
    half, whole = (search_by_hand(d) + draws_by_hand(d, (CUT.event(), 20)) for d in (DELTA / 2.0, DELTA))
    assert found == pytest.approx(half, rel=2e-3)
    assert found.accountant == BOTH
    assert found > 1.02 * whole  # what an accounting that forgets to split delta states
    assert found > max(epsilon(ledger_of(SEARCH, 1), DELTA), epsilon(ledger_of(CUT, 20), DELTA))
    assert f"(by {BOTH})" in str(Statement.from_ledger(ledger, DELTA))
    epsilons, deltas = privacy_profile(ledger)
    assert len(deltas) > 3
    assert (epsilons[1:] <= epsilons[:-1]).all()


def test_a_delta_that_is_not_split_is_seen(monkeypatch):
    ledger = charged(ledger_of(SEARCH, 1), CUT, 20)
    sound = float(epsilon(ledger, DELTA))
    composition._smallest_epsilon.cache_clear()
    monkeypatch.setattr(composition.math, "nextafter", lambda share, _: DELTA)  # each part at all of delta
    planted = float(epsilon(ledger, DELTA))
    composition._smallest_epsilon.cache_clear()
    assert planted != pytest.approx(
        search_by_hand(DELTA / 2.0) + draws_by_hand(DELTA / 2.0, (CUT.event(), 20)), rel=2e-3
    )
    assert planted < 0.98 * sound


@pytest.mark.parametrize(
    "others", [(STEP,), (release_of(Poisson(N), 40.0, examples=N),), (STEP, CUT)], ids=("steps", "sum", "both")
)
def test_whatever_privacy_loss_distributions_know_is_one_part(others):
    """A few more draws cost less than they do at a third part of delta."""
    more = release_of(TruncatedPoisson(30), 3.0, examples=N)
    ledger, draws = charged(ledger_of(SEARCH, 1), more, 7), ledger_of(more, 7)
    for other in others:
        charged(ledger, other, 10)
        charged(draws, other, 10)
    by_hand = epsilon(ledger_of(SEARCH, 1), DELTA / 2.0) + epsilon(draws, DELTA / 2.0)
    assert epsilon(ledger, DELTA) == pytest.approx(by_hand, rel=1e-9)
    assert epsilon(ledger, DELTA).accountant == BOTH


def test_a_failure_is_taken_off_delta_before_it_is_split():
    words = TokenSelection(5, 8.0, 1e-6, Poisson(N), N)
    ledger = charged(charged(ledger_of(SEARCH, 1), CUT, 7), words, 1)
    share = (DELTA - 1e-6) / 2.0
    plain = dp_accounting.GaussianDpEvent(8.0)
    by_hand = search_by_hand(share) + draws_by_hand(share, (CUT.event(), 7), (plain, 1))
    assert epsilon(ledger, DELTA) == pytest.approx(by_hand, rel=2e-3)


def test_more_truncated_settings_than_are_composed_quickly_are_composed(monkeypatch):
    found = epsilon(settings(TruncatedPoisson(60), 34), DELTA)
    assert found.accountant == "PLD"
    fewer = epsilon(settings(TruncatedPoisson(60), 32), DELTA)
    assert 1.005 * fewer < found < 1.06 * fewer
    monkeypatch.setattr(loss_distributions, "_MOST_PLDS", 2)
    few = settings(TruncatedPoisson(60), 3)
    by_hand = draws_by_hand(DELTA, *((entry.release.event(), 3) for entry in few.entries))
    assert epsilon(few, DELTA) == pytest.approx(by_hand, rel=2e-3)
    charged(few, SEARCH, 1)  # both at once
    assert epsilon(few, DELTA).accountant == BOTH


def test_many_settings_are_never_below_the_closed_form():
    """Draws that hold all records are Gaussian mechanisms, though only loss distributions know these."""
    noises = [40.0 + 0.1 * k for k in range(64)]
    counts = {TruncatedSubsampledGaussianDpEvent(N, 1.0, N, z): 2 for z in noises}
    exact = dp_accounting.get_epsilon_gaussian(sum(2.0 / z**2 for z in noises) ** -0.5, DELTA)
    found, name = composition.smallest_epsilon(counts, ADD_REMOVE, DELTA)
    assert name == "PLD"
    assert exact <= found <= 1.002 * exact


@pytest.mark.parametrize(
    ("ledger", "accountant"),
    [
        (ledger_of(CUT, 5), "PLD"),
        (charged(ledger_of(SEARCH, 1), STEP, 20), "RDP"),
        (charged(ledger_of(SEARCH, 1), release_of(Poisson(N), 40.0, examples=N), 20), "RDP"),
        (settings(Poisson(60), 70), "PLD"),
        (settings(FixedSize(60), 2, 30.0), "PLD"),
        (settings(TruncatedPoisson(60), 3), "PLD"),
        (settings(Partition(60), 40), "analytic Gaussian"),
    ],
    ids=["truncated", "search", "search+epochs", "poisson", "fixed", "three", "epochs"],
)
def test_where_one_accountant_bounds_all_nothing_is_split(ledger, accountant, monkeypatch):
    monkeypatch.setattr(composition, "_in_parts", lambda *_: pytest.fail("split"))
    assert epsilon(ledger, DELTA).accountant == accountant


def test_curves_budgets_and_calibration_give_the_same_bound_and_keep_to_it():
    ledger = Ledger(dataset="d", budget=(1.0, DELTA))
    charged(ledger, SEARCH, 1)
    curve = EpsilonCurve(ledger, CUT, DELTA)
    exact = {steps: float(curve.at(steps)) for steps in (1, 7, 20)}
    assert list(exact.values()) == sorted(exact.values())
    assert all(value <= curve.bound(steps) for steps, value in exact.items())
    assert exact[20] == epsilon(charged(ledger_of(SEARCH, 1), CUT, 20), DELTA)
    most = affordable_steps(1.0, DELTA, CUT.sampling, N, 4.0, ledger)
    assert most > 20
    assert curve.at(most) <= 1.0 < curve.at(most + 1)
    noise = calibrate_noise_multiplier(1.0, DELTA, CUT.sampling, N, 20, ledger)
    planned = EpsilonCurve(ledger, release_of(CUT.sampling, noise, examples=N), DELTA).at(20)
    assert 0.99 < planned <= 1.0
    token = ledger.begin(CUT)
    ledger.reserve(token, most)
    with pytest.raises(BudgetExhausted):
        ledger.reserve(token, 1)
    assert epsilon(ledger, DELTA) <= 1.0


def test_where_parts_have_no_bound_together_each_event_is_bounded_by_itself(monkeypatch):
    events = [release_of(Poisson(60), z, examples=N).event() for z in (3.0, 4.0, 5.0)]
    alone = [composition.smallest_epsilon({event: 2}, ADD_REMOVE, DELTA / 3.0)[0] for event in events]
    composition._smallest_epsilon.cache_clear()
    for name in ("pld_epsilon", "rdp_epsilon"):
        bound = getattr(composition, name)
        monkeypatch.setattr(composition, name, lambda c, *a, bound=bound: bound(c, *a) if len(c) == 1 else math.inf)
    found, name = composition.smallest_epsilon(dict.fromkeys(events, 2), ADD_REMOVE, DELTA)
    assert found == pytest.approx(sum(alone), rel=1e-9)
    assert name == "PLD, each at a part of delta"


def test_an_error_names_what_no_accountant_bounds_even_alone_and_its_advice_holds():
    ledger = charged(ledger_of(SEARCH, 1), CUT, 20)
    with pytest.raises(NotImplementedError, match=r"20 times TruncatedSubsampled.*even alone.*larger delta") as error:
        epsilon(ledger, 1e-30)
    assert "Selection" not in str(error.value)
    assert epsilon(ledger, 1e-11) < math.inf
    plain = charged(ledger_of(SEARCH, 1), STEP, 20)
    assert epsilon(plain, 1e-30) < math.inf  # the same records by another sampling
    quiet = release_of(TruncatedPoisson(60), 1e-5, examples=N)
    with pytest.raises(NotImplementedError, match="more noise"):
        epsilon(ledger_of(quiet, 1), DELTA)


@pytest.mark.parametrize("sampling", [Poisson(60), TruncatedPoisson(60), FixedSize(60), Partition(60)], ids=str)
def test_noise_that_differs_by_rounding_alone_is_one_setting_of_the_least_noise(sampling):
    events = [release_of(sampling, z, examples=N).event() for z in (1.5, 1.4999999999999998, 1.5000000000000002)]
    assert canonical(dict.fromkeys(events, 10)) == ((events[1], 30),)
    more = release_of(sampling, 1.5 + 1e-9, examples=N).event()
    assert len(canonical(dict.fromkeys([*events, more], 1))) == 2


def test_events_that_differ_in_anything_else_stay_apart():
    draws = [release_of(Poisson(batch), 1.5, examples=n).event() for batch, n in ((60, 600), (61, 600), (60, 601))]
    cut = [release_of(TruncatedPoisson(60, most), 1.5, examples=N).event() for most in (90, 91)]
    searches = [Selection((((STEP, steps),),), TRIALS).event() for steps in (5, 6)]
    events = [*draws, *cut, *searches, NumericSparseDpEvent(0.1, 0.1), dp_accounting.GaussianDpEvent(1.5)]
    assert len(canonical(dict.fromkeys(events, 1))) == len(events)
