"""No number that stands for a privacy cost is printed below it."""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Epsilon, PlannedRun, RunPlan
from tfdp_layers.accounting.wording import rounded_down, rounded_up

ROOT = Path(__file__).parents[2]
SOURCES = [path for room in ("accounting", "callbacks", "tfdp_layers") for path in (ROOT / room).rglob("*.py")]
COST = re.compile(r"epsilon|spent|claimed|reached|\balone\b|curve|\bdelta\b|\bbudget\b|\bfailures\b")
BEFORE = re.compile(r"(epsilon|delta|budget)[ =(]*$")
NOISE = re.compile(r"noise|multiplier")
TOLD = {
    "accounting/gaussian_events.py",
    "accounting/stated_releases.py",
    "tfdp_layers/commands/sampled_run.py",
    "tfdp_layers/models/prospects.py",
    "tfdp_layers/models/calibrating.py",
    "tfdp_layers/noise/sources.py",
    "tfdp_layers/tuning/released.py",
}
"""Where what is printed is noise as it was or was given, a decay, or rounded up already: none is said to suffice."""


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
    cost = (COST.search(shown) or BEFORE.search(told)) and "rounded_" not in shown
    return [shown] if cost and re.search(r"\.\d|[efgn]'$", form) else []


def test_every_cost_is_printed_rounded_up():
    assert len(SOURCES) > 200
    found = {str(path): costs_rounded_to_nearest(path.read_text("utf-8")) for path in SOURCES}
    assert {path: costs for path, costs in found.items() if costs} == {}


def noise_rounded_to_nearest(text):
    """What a text of Python prints of noise to so many digits."""
    shown = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FormattedValue) and one.format_spec]
    names = [ast.unparse(one.value) for one in shown if not re.search("decay|rounded_|needed", ast.unparse(one.value))]
    return [name for name in names if NOISE.search(name)]


def test_noise_that_suffices_is_printed_rounded_up():
    found = {str(path.relative_to(ROOT)) for path in SOURCES if noise_rounded_to_nearest(path.read_text("utf-8"))}
    assert found == TOLD
    assert noise_rounded_to_nearest('f"{run.noise_multiplier:.3g} {noise:g}"') == ["run.noise_multiplier", "noise"]


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


PLACES = ["{}12{}", "*^12{}", "9>12{}", "0=+12{}", ".<12{}", "-^ 12{}", "e=#012,{}", "x^z3{}", "%>_{}", "{{<,{}"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("digits", ["", ".0f", ".2f", ".3g", ".1e", ".2%", "n", ".3n"])
def test_an_epsilon_that_is_put_in_its_place_has_the_digits_that_it_has_anywhere(place, digits):
    """`*^12.2f` printed 1.00444 as ****1.00****: around a number may be anything, digits and signs included."""
    form = place.replace("{{", "{").removeprefix("{}").replace("{}", digits)
    if digits.endswith("n"):
        form = form.replace(",", "").replace("_", "")
    for value in (1.00444, 2.5, 0.0, 0.9999999, 1234.5678, 0.0410004, float("inf")):
        bare = format(Epsilon(value, 1e-5, "PLD", None, ""), digits)
        number = float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
        assert number >= value
        text = format(Epsilon(value, 1e-5, "PLD", None, ""), form)
        assert text in (format(number, form), format(value, form))
        assert text == format(number, form) or number == value or not digits


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
        audit = tfdp.audit.Audit(9.0, cost, 1e-5, 0.95, "", {"other": cost})
        proved = [float(one) for one in re.findall(r"epsilon >= (\S+)", str(audit))]
        assert len(proved) == 2
        assert all(0.99 * cost <= one <= cost for one in proved), "of what is proved no more is told than is true"


@pytest.mark.parametrize("value", [0.0, 1e-9, 1.2, 2.699, 2.6996, 1234567.0, math.inf])
def test_what_is_rounded_down_is_no_more(value):
    assert 0.98 * value <= float(rounded_down(value, 3)) <= value


@pytest.mark.parametrize("noise", [1.2345649, 0.98765432, 2.0])
def test_noise_beside_an_epsilon_suffices_for_it(noise, capsys):
    from tfdp_layers.commands.cli import main

    run = ["--examples", "300", "--batch-size", "30", "--steps", "7", "--delta", "1e-5"]
    main(["epsilon", *run, "--noise-multiplier", str(noise)])
    shown = float(re.search(r"at noise multiplier (\S+)", capsys.readouterr().out.replace("\n    ", " "))[1])
    assert noise <= shown < noise * (1 + 1e-5)


def test_noise_of_a_search_suffices():
    class Tried:
        def __init__(self, noise_multiplier):
            self.noise_multiplier = noise_multiplier

    from tfdp_layers.tuning.search import _said

    of, budget = type("Number", (), {"mean": 3.0})(), tfdp.accounting.Budget(1.0, 1e-5)
    text = _said(of, budget, (Tried(1.2345649), Tried(2.0000001)))
    low, high = map(float, re.search(r"multiplier (\S+) to ([^:]+):", text).groups())
    assert low >= 1.2345649
    assert high >= 2.0000001
    assert "multiplier 2:" in _said(of, budget, (Tried(2.0),))
