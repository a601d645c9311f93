"""Threshold tests of a party: cost, figures of the paper's setting, and a ledger that never mixes them with records."""

import json
import math

import dp_accounting
import pytest

from helpers.accounting_tools import ledger_of, release_of, sealed
from tfdp_layers.accounting import (
    EpsilonCurve,
    Ledger,
    LedgerError,
    NumericSparse,
    Statement,
    composition,
    epsilon,
    pure,
)
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.sampling import FixedSize, Poisson


def threshold_tests(each: float, bound: float = 1.0, **flags: bool) -> NumericSparse:
    """Dwork and Roth's split of `each`: 8/9 for a test, 1/9 for its value."""
    test, value = each * 8 / 9, each / 9
    return NumericSparse(bound, 2 * bound / test, 4 * bound / test, 2 * bound / value, **flags)


def test_the_cost_follows_from_bound_and_noise():
    release = threshold_tests(0.01, bound=0.3)
    assert release.test_epsilon == pytest.approx(0.08 / 9)
    assert release.value_epsilon == pytest.approx(0.01 / 9)
    louder = NumericSparse(0.3, release.threshold_scale, release.query_scale, 2 * release.value_scale)
    assert louder.value_epsilon == pytest.approx(release.value_epsilon / 2)
    assert louder.test_epsilon == release.test_epsilon


def test_the_papers_setting_costs_106_by_basic_and_about_4_by_pld_composition():
    counts = ((threshold_tests(0.01).event(), 106 * 100),)
    assert pure.basic_epsilon(counts) == pytest.approx(106.0)
    rho = pure.concentrated(counts)
    assert rho + 2 * math.sqrt(rho * math.log(1e5)) == pytest.approx(4.85, abs=0.005)
    assert pure.pld_epsilon(counts, 1e-5) == pytest.approx(3.99, abs=0.005)
    spent = epsilon(ledger_of(threshold_tests(0.01), 106 * 100), 1e-5)
    assert spent == pytest.approx(3.99, abs=0.005)
    assert (spent.accountant, spent.sampling) == ("PLD", "whole_data_set")


def test_one_test_costs_at_most_its_pure_epsilon_and_every_accountant_agrees_on_the_order():
    for each, steps in ((0.01, 1), (0.5, 3), (2.0, 50), (400.0, 2)):
        counts = ((threshold_tests(each).event(), steps),)
        smallest = composition.smallest_epsilon(dict(counts), NumericSparse.relation, 1e-6)[0]
        assert 0 < smallest <= pure.basic_epsilon(counts) == pytest.approx(each * steps)


@pytest.mark.parametrize(("each", "steps"), [(0.05, 200), (0.7, 12), (3.0, 4)])
def test_pld_lies_above_the_exact_loss_of_randomized_response_alone(each, steps):
    """A lower bound: the tests alone, their worst case, composed exactly by binomials."""
    event = threshold_tests(each).event()
    chance = 1 / (1 + math.exp(-event.test_epsilon))

    def delta_at(level: float) -> float:
        total = 0.0
        for ones in range(steps + 1):
            loss = (2 * ones - steps) * event.test_epsilon
            weight = math.comb(steps, ones) * chance**ones * (1 - chance) ** (steps - ones)
            total += weight * max(0.0, -math.expm1(level - loss))
        return total

    pld = pure.pld_epsilon(((event, steps),), 1e-5)
    assert delta_at(pld) <= 1e-5, "a claim below what the tests alone lose"
    assert delta_at(0.8 * pld) > 1e-5, "the bound is within a quarter of the truth"


def test_tests_of_several_kinds_compose_above_each_alone():
    few, many = threshold_tests(0.3), threshold_tests(0.07)
    ledger = ledger_of(few, 10)
    ledger.merge(ledger_of(many, 100))
    both = epsilon(ledger, 1e-5)
    assert max(epsilon(ledger_of(few, 10), 1e-5), epsilon(ledger_of(many, 100), 1e-5)) < both
    assert both <= 10 * 0.3 + 100 * 0.07
    assert EpsilonCurve(ledger_of(few, 10), many, 1e-5).at(100) == both


def test_json_round_trip_and_refusals(tmp_path):
    release = threshold_tests(0.01, bound=1e-3, seeded=True)
    assert release_from_json(json.loads(json.dumps(release.to_json()))) == release
    path = tmp_path / "ledger.json"
    ledger = Ledger(path)
    token = ledger.begin(release)
    ledger.reserve(token, 106)
    ledger.settle(token, 17)
    ledger.close()
    assert Ledger(path).entries == ledger.entries
    whole = ledger.to_json()
    for damage in ({"bound": 0.0}, {"value_scale": -1.0}, {"query_scale": "1"}, {"extra": 1}, {"kind": "laplace"}):
        text = json.loads(path.read_text())
        text["releases"][0].update(damage)
        path.write_text(json.dumps(sealed(text)))
        with pytest.raises(LedgerError, match="left as it is"):
            Ledger(path)
        path.write_text(whole)


@pytest.mark.parametrize("field", ["bound", "threshold_scale", "query_scale", "value_scale"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_a_release_without_noise_or_bound_is_refused(field, value):
    numbers = {"bound": 1.0, "threshold_scale": 1.0, "query_scale": 1.0, "value_scale": 1.0, field: value}
    with pytest.raises(ValueError, match=field):
        NumericSparse(**numbers)


@pytest.mark.parametrize("other", [FixedSize(600), Poisson(600)], ids=lambda sampling: sampling.kind)
def test_a_ledger_never_mixes_parties_with_records(other):
    party, record = threshold_tests(0.01), release_of(other, 1.0)
    for first, second in ((party, record), (record, party)):
        ledger = ledger_of(first, 3)
        with pytest.raises(ValueError, match="new ledger"):
            ledger.begin(second)
        with pytest.raises(ValueError, match="new ledger"):
            ledger.merge(ledger_of(second, 1))
        assert ledger.steps == 3
    mixed = json.loads(ledger_of(party, 1).to_json())
    mixed["releases"].append(release_of(FixedSize(600), 1.0).to_json())
    mixed["entries"].append(["0" * 32, 1, 1])
    with pytest.raises(LedgerError, match="mix"):
        Ledger.from_json(json.dumps(sealed(mixed)))


def test_the_statement_protects_a_party_and_says_so():
    ledger = ledger_of(threshold_tests(0.01), 10_600)
    statement = Statement.from_ledger(ledger, 1e-5)
    text = " ".join(str(statement).split())
    for part in ("one party's whole data set", "10600 threshold tests", "Laplace", "replace all its records"):
        assert part in text
    assert "One record is one person" not in text
    assert json.loads(statement.to_json())["releases"][0]["tests"] == 10_600
    assert "NOT HOLD" not in text
    assert "THIS STATEMENT DOES NOT HOLD" in str(
        Statement.from_ledger(ledger_of(threshold_tests(1.0, seeded=True), 1), 1e-5)
    )
    assert max(map(len, str(statement).splitlines())) < 100


def test_relation_and_unit():
    ledger = ledger_of(threshold_tests(0.01), 1)
    assert ledger.relation is dp_accounting.NeighboringRelation.REPLACE_ONE
    assert ledger.unit == "party"
    assert ledger_of(release_of(Poisson(600), 1.0), 1).unit == "record"
