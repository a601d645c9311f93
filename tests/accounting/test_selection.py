"""A search in the ledger costs dp-accounting's figure for the event, and that of the worst candidate at every order."""

import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import rdp_privacy_accountant

from helpers.accounting_tools import ledger_of, release_of, sealed
from tfdp_layers.accounting import (
    Budget,
    BudgetExhausted,
    EpsilonCurve,
    GroupNoise,
    Ledger,
    LedgerError,
    MetricRelease,
    Selection,
    Statement,
    affordable_steps,
    calibrate_noise_multiplier,
    epsilon,
    privacy_profile,
)
from tfdp_layers.accounting.calibration import calibrate_release
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.accounting.renyi import _orders, rdp_of
from tfdp_layers.accounting.selection import selected_rdp
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

N = dp_accounting.NeighboringRelation
STEP = release_of(Poisson(60), 2.0, examples=600)
LOUD = release_of(Poisson(300), 9.0, examples=600)
SHAPES = (0.0, 0.5, 1.0, 3.0, math.inf)


def search(*candidates, mean=10.0, shape=1.0):
    return Selection(candidates, mean, shape)


def by_dp_accounting(event, relation, mean, shape, orders=None):
    accountant = rdp_privacy_accountant.RdpAccountant(list(orders or _orders(relation)), relation)
    return accountant.compose(RepeatAndSelectDpEvent(event, mean, shape)).get_epsilon(1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sampling", [Poisson(60), FixedSize(60), Partition(60)], ids=lambda s: s.kind)
def test_a_search_costs_what_dp_accounting_says_of_the_event(sampling, shape):
    release = release_of(sampling, 2.0, examples=600)
    counts = dp_accounting.SelfComposedDpEvent(release.event(), release.charges(50))
    expected = by_dp_accounting(counts, release.relation, 10.0, shape)
    found = epsilon(ledger_of(search(((release, 50),), shape=shape), 1), 1e-5)
    assert found == pytest.approx(expected, rel=1e-12)
    assert found > epsilon(ledger_of(release, 50), 1e-5)
    assert found.accountant == "RDP"


def test_a_search_that_makes_one_trial_costs_that_trial_at_least():
    one = epsilon(ledger_of(Selection((((STEP, 50),),), 1.0, 1.0), 1), 1e-5)
    plain = rdp_privacy_accountant.RdpAccountant(list(_orders(N.ADD_OR_REMOVE_ONE))).compose(STEP.event(), 50)
    assert one >= plain.get_epsilon(1e-5)


def test_several_candidates_cost_the_worst_of_them_at_every_order():
    both = search(((STEP, 50),), ((LOUD, 20),)).event()
    curves = [50 * rdp_of(STEP.event(), N.ADD_OR_REMOVE_ONE), 20 * rdp_of(LOUD.event(), N.ADD_OR_REMOVE_ONE)]
    orders = np.array(_orders(N.ADD_OR_REMOVE_ONE))
    assert (curves[0] > curves[1]).any()
    assert (curves[1] > curves[0]).any(), "neither is the worse one everywhere"
    expected = selected_rdp(orders, np.maximum(*curves), 10.0, 1.0)
    np.testing.assert_allclose(rdp_of(both, N.ADD_OR_REMOVE_ONE), expected)
    for one in (((STEP, 50),), ((LOUD, 20),)):
        assert (rdp_of(search(one).event(), N.ADD_OR_REMOVE_ONE) <= expected + 1e-12).all()


@pytest.mark.parametrize("broken", [math.nan, -5.0, -math.inf])
@pytest.mark.parametrize("shape", [1.0, math.inf])
def test_an_order_at_which_a_computation_failed_counts_as_unknown(broken, shape):
    """The theorem takes a minimum over orders: one failed order would lower the cost at all of them."""
    orders, curve = np.array(_orders(N.ADD_OR_REMOVE_ONE)), 50 * rdp_of(STEP.event(), N.ADD_OR_REMOVE_ONE)
    whole = selected_rdp(orders, curve, 10.0, shape)
    damaged = curve.copy()
    damaged[40] = broken
    assert (selected_rdp(orders, damaged, 10.0, shape) >= whole - 1e-12).all()


@pytest.mark.slow
def test_searches_and_trainings_share_a_ledger_and_its_budget():
    ledger = Ledger(dataset="d", budget=(9.0, 1e-5))
    token = ledger.begin(Selection((((STEP, 50),),), 5.0))
    ledger.reserve(token, 1)
    alone = float(epsilon(ledger, 1e-5))
    noise = calibrate_noise_multiplier(9.0, 1e-5, Poisson(60), 600, 30, ledger)
    more = release_of(Poisson(60), noise, examples=600)
    assert affordable_steps(9.0, 1e-5, Poisson(60), 600, noise, ledger) >= 30
    assert alone < EpsilonCurve(ledger, more, 1e-5).at(30) <= 9.0
    with pytest.raises(BudgetExhausted):
        ledger.reserve(token, 50)
    assert epsilon(ledger, 1e-5) <= 9.0
    assert (ledger.steps, ledger.updates) == (1, 50)
    assert len(privacy_profile(ledger)[0]) > 3


def test_calibration_is_one_sided_and_counts_what_was_spent():
    def make(z):
        return Selection((((release_of(Poisson(60), z, examples=600), 50),),), 10.0)

    for ledger in (None, ledger_of(STEP, 3)):
        z = calibrate_release(Budget(3.0, 1e-5), make, ledger)
        found = Ledger() if ledger is None else ledger.copy()
        found.reserve(found.begin(make(z)), 1)
        assert 2.99 < epsilon(found, 1e-5) <= 3.0
    with pytest.raises(BudgetExhausted, match="larger budget"):
        calibrate_release(Budget(0.5, 1e-5), make, ledger_of(STEP, 30))
    with pytest.raises(ValueError, match="new ledger"):
        calibrate_release(Budget(0.5, 1e-5), make, ledger_of(release_of(FixedSize(60), 2.0), 1))


@pytest.mark.parametrize("shape", SHAPES)
def test_json_round_trip(shape, tmp_path):
    metric = MetricRelease((GroupNoise("score", 0.5, 9.0),), Poisson(600), 600)
    selection = Selection((((STEP, 50), (metric, 1)), ((LOUD, 3),)), 7.0, shape)
    assert release_from_json(json.loads(json.dumps(selection.to_json(), allow_nan=False))) == selection
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.reserve(ledger.begin(selection), 1)
    ledger.close()
    assert Ledger(tmp_path / "ledger.json").entries == ledger.entries
    assert ledger.updates == 50


DAMAGE = [
    {"mean": 0.5},
    {"mean": "ten"},
    {"shape": -1.0},
    {"candidates": []},
    {"candidates": [[]]},
    {"candidates": [7]},
    {"candidates": [[{"release": STEP.to_json(), "steps": 0}]]},
    {"candidates": [[{"release": STEP.to_json(), "steps": True}]]},
    {"candidates": [[{"release": STEP.to_json()}]]},
    {"candidates": [[{"release": {"kind": "numeric_sparse"}, "steps": 1}]]},
    {"candidates": [[{"release": r.to_json(), "steps": 1}] for r in (STEP, release_of(FixedSize(60), 1.0))]},
    {"more": 1},
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: str(d)[:40])
def test_a_damaged_search_in_a_file_is_refused(damage):
    text = json.loads(ledger_of(Selection((((STEP, 50),),), 10.0), 1).to_json())
    text["releases"][0].update(damage)
    with pytest.raises(LedgerError, match="left as it is"):
        Ledger.from_json(json.dumps(sealed(text)))


def test_what_cannot_be_searched_is_refused():
    printed = release_of(Poisson(60), 2.0, examples=600, nominal_noise_multiplier=3.0)
    with pytest.raises(ValueError, match="as_published=False"):
        Selection((((printed, 1),),), 10.0)
    with pytest.raises(ValueError, match=r"cannot draw by TruncatedPoisson.*Use sampling.Poisson\(batch_size\)"):
        Selection((((STEP, 1), (release_of(TruncatedPoisson(60), 2.0, examples=600), 1)),), 10.0)
    with pytest.raises(ValueError, match=r"Received: add_or_remove_one of a record and .*NoisyMean"):
        Selection((((STEP, 1),), ((release_of(FixedSize(60), 1.0), 1),)), 10.0)
    for mean, shape in ((0.9, 1.0), (math.nan, 1.0), (10.0, -0.1), (10.0, math.nan), (math.inf, 1.0)):
        with pytest.raises(ValueError, match="trials"):
            Selection((((STEP, 1),),), mean, shape)
    with pytest.raises(ValueError, match="new ledger"):
        ledger_of(release_of(FixedSize(60), 1.0), 1).begin(Selection((((STEP, 1),),), 10.0))


def test_the_statement_says_what_a_search_shows_and_hides():
    ledger = ledger_of(Selection((((STEP, 50),),), 10.0, 0.0), 1)
    statement = Statement.from_ledger(ledger, 1e-5)
    text = " ".join(str(statement).split())
    for part in (
        "once the best of a random number of trials and nothing else: 10 on average, by a logarithmic",
        "at most 50 noisy gradient sums, noise multiplier 2",
        "How many trials a search made",
        "by a source that nobody else knows",
        "add or remove one record",
    ):
        assert part in text
    assert statement.steps == 50
    assert json.loads(statement.to_json())["releases"][0]["mean"] == 10.0
    assert "NOT HOLD" not in text
    seeded = release_of(Poisson(60), 2.0, examples=600, seeded=True)
    assert "NOT HOLD" in str(Statement.from_ledger(ledger_of(Selection((((seeded, 1),),), 10.0), 1), 1e-5))
