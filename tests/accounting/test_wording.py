"""No number that stands for a privacy cost is printed below it."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Epsilon, PlannedRun, RunPlan
from tfdp_layers.accounting.wording import rounded_up

ROOT = Path(__file__).parents[2]
SOURCES = [path for room in ("accounting", "callbacks", "tfdp_layers") for path in (ROOT / room).rglob("*.py")]
COST = re.compile(r"epsilon|spent|claimed|reached|\balone\b|curve|\bdelta\b|\bbudget\b|\bfailures\b")
BEFORE = re.compile(r"(epsilon|delta|budget)[ =(]*$")
PUBLIC = re.compile(r"audited_epsilon_lower")
"""What an attack refutes is no bound from above."""


def costs_rounded_to_nearest(text):
    """What a text of Python prints to so many digits, or to six by "g", where it seems to be a cost, or its delta."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            for before, value in zip([None, *node.values], node.values, strict=False):
                if isinstance(value, ast.FormattedValue) and value.format_spec is not None:
                    told = str(before.value) if isinstance(before, ast.Constant) else ""
                    found += _cut(ast.unparse(value.value), ast.unparse(value.format_spec), told)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "round" and COST.search(ast.unparse(node)):
            found.append(ast.unparse(node))
    return found


def _cut(shown, form, told):
    cost = (COST.search(shown) or BEFORE.search(told)) and not PUBLIC.search(shown) and "rounded_up" not in shown
    return [shown] if cost and re.search(r"\.\d|[efgn]'$", form) else []


def test_every_cost_is_printed_rounded_up():
    assert len(SOURCES) > 200
    found = {str(path): costs_rounded_to_nearest(path.read_text("utf-8")) for path in SOURCES}
    assert {path: costs for path, costs in found.items() if costs} == {}


def test_a_planted_one_is_found():
    assert costs_rounded_to_nearest('f"{float(epsilon(ledger, delta)):.4g} of {budget.epsilon:.3g}"') != []
    for planted in ("{self.delta:g}", "budget {budget:g}", "at epsilon {x[0]:g}", "{failures:e}", "{spent:g}"):
        assert len(costs_rounded_to_nearest(f"f'{planted}'")) == 1, planted
    assert costs_rounded_to_nearest("round(curve.at(steps), 3)") != []
    right = "{rounded_up(spent)}, {accuracy:.4f}, {delta}, {x[0]:g} epochs, {delta_clip:.4g}, epsilon >= {lower:.3g}"
    assert costs_rounded_to_nearest(f"f'{right}'") == []


@pytest.mark.parametrize("digits", [2, 3, 4, 6])
def test_rounded_up_is_never_below_and_never_a_unit_above(digits):
    for value in [*np.exp(np.random.default_rng(0).uniform(-30, 30, 300)), 1.0, 9.9999999, 2.70000001, 1e-5]:
        shown = float(rounded_up(value, digits))
        assert value <= shown <= value * (1 + 1.01 * 10.0 ** (1 - digits))


FORMS = ["", ".0f", ".1f", ".2f", ".4f", ".3g", ".4g", ".2e", "10.3f", "+.2f", ",.2f", ".1%", "g", "f"]


@pytest.mark.parametrize("form", FORMS)
def test_an_epsilon_prints_no_less_than_it_is_whoever_formats_it(form):
    """Keras' progress bar has four decimals, a name of a checkpoint those that its user wrote."""
    for value in [*np.exp(np.random.default_rng(0).uniform(-9, 9, 60)), 0.0, 2.5, 1234.5678, float("inf")]:
        one = Epsilon(value, 1e-5, "PLD", None, "")
        text = format(one, form)
        shown = float(text.strip().replace(",", "").removesuffix("%")) / (100 if "%" in form else 1)
        assert shown >= value
        assert len(text) <= len(format(value, form)) + 6
        assert format(one / 1, form) == text  # as Keras divides before it prints
        assert type(one / 2) is type(one + 1) is float


@pytest.mark.parametrize("digits", [0, 1, 2, 3, 6, 12, 17, 400, -1, -2])
def test_an_epsilon_is_rounded_up(digits):
    for value in [*np.exp(np.random.default_rng(0).uniform(-9, 9, 60)), 0.0, 0.1, 2.5, 2.7, 2.344, 2.3449, 1234.5678]:
        one = Epsilon(value, 1e-5, "PLD", None, "")
        shown = round(one, digits)
        assert value <= shown <= value + 1.0000001 * 10.0**-digits
        assert shown == round(float(shown), digits)
        assert shown == value or round(value, digits) != value  # what has so few decimals stays as it is
        assert (type(shown), shown.delta, shown.accountant) == (Epsilon, 1e-5, "PLD")
    assert round(Epsilon(2.0001, 1e-5, "PLD", None, "")) == 3
    assert type(round(Epsilon(2.0, 1e-5, "PLD", None, ""))) is int
    assert round(Epsilon(float("inf"), 1e-5, "PLD", None, ""), 2) == float("inf")
    assert f"{round(Epsilon(2.3449, 1e-5, 'PLD', None, ''), 3):.2f}" == "2.35"


def test_a_budget_that_is_repeated_is_not_repeated_smaller():
    """As 1 / 30000 is, to six digits: 3.33333e-05 is less."""
    epsilon_, delta = 1.2345612, 1 / 30_000
    ledger = tfdp.accounting.Ledger(dataset="d", budget=(epsilon_, delta))
    release = tfdp.accounting.Release((tfdp.accounting.GroupNoise("w", 1.0, 0.3),), tfdp.sampling.Poisson(300), 300)
    with pytest.raises(tfdp.accounting.BudgetExhausted) as refused:
        ledger.reserve(ledger.begin(release), 9)
    run = PlannedRun(10, 1, 10, 1.0, 1.0, 1.0, 1.0, None)
    plan = RunPlan(100, epsilon_, delta, None, (run,), run)
    for text in (repr(ledger), str(refused.value), str(plan)):
        assert "1.23457" in text, text
        assert "3.33334e-05" in text, text
        assert "1.23456" not in text.replace("1.23457", "")
        assert "3.33333e" not in text


@pytest.mark.parametrize("delta", [1 / 30_000, 1.00000049e-5, 1e-5, 0.1 / 70_000])
def test_no_delta_is_printed_below_itself_beside_an_epsilon(delta):
    """One over the number of records has more digits than are printed: 3.33333e-05 is less."""
    ledger = tfdp.accounting.Ledger()
    release = tfdp.accounting.Release((tfdp.accounting.GroupNoise("w", 1.0, 1.0),), tfdp.sampling.Poisson(30), 300)
    ledger.reserve(ledger.begin(release), 7)
    text = str(tfdp.accounting.Statement.from_ledger(ledger, delta))
    found = [float(one) for one in re.findall(r"delta\s+=\s+([\d.e-]+\d)", text)]
    assert len(found) >= 2, text
    assert all(delta <= one <= delta * (1 + 1e-5) for one in found)


def test_commands_and_reports_print_no_less(capsys):
    from tfdp_layers.commands.cli import main

    run = ["--examples", "300", "--batch-size", "30", "--steps", "7", "--delta", "1e-5"]
    for noise in ("1.1", "2.3", "0.71"):
        ledger = tfdp.accounting.Ledger()
        release = tfdp.accounting.Release(
            (tfdp.accounting.GroupNoise("w", 1.0, float(noise)),), tfdp.sampling.Poisson(30), 300
        )
        ledger.reserve(ledger.begin(release), 7)
        cost = float(tfdp.accounting.epsilon(ledger, 1e-5))
        main(["epsilon", *run, "--noise-multiplier", noise])
        assert float(re.search(r"epsilon = (\S+)", capsys.readouterr().out)[1]) >= cost
        report = str(tfdp.audit.Audit(cost, 0.0, 1e-5, 0.95, "", {}))
        assert float(re.search(r"epsilon <= (\S+)", report)[1]) >= cost
