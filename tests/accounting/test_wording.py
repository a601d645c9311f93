"""No number that stands for a privacy cost is printed below it."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Epsilon
from tfdp_layers.accounting.wording import rounded_up

ROOT = Path(__file__).parents[2]
SOURCES = [path for room in ("accounting", "callbacks", "tfdp_layers") for path in (ROOT / room).rglob("*.py")]
COST = re.compile(r"epsilon|spent|claimed|reached|\balone\b|curve")
PUBLIC = re.compile(r"^(\w+\.)*budget\.epsilon$|audited_epsilon_lower")
"""A budget is no cost, and what an attack refutes no bound from above."""


def costs_rounded_to_nearest(text):
    """What a text of Python prints to so many digits, where it seems to be a cost."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            shown = ast.unparse(node.value)
            cut = re.search(r"\.\d", ast.unparse(node.format_spec))
            if cut and COST.search(shown) and not PUBLIC.search(shown) and "rounded_up" not in shown:
                found.append(shown)
    return found


def test_every_cost_is_printed_rounded_up():
    assert len(SOURCES) > 200
    assert {str(path): found for path in SOURCES if (found := costs_rounded_to_nearest(path.read_text("utf-8")))} == {}


def test_a_planted_one_is_found():
    assert costs_rounded_to_nearest('f"{float(epsilon(ledger, delta)):.4g} of {budget.epsilon:.3g}"') != []
    assert costs_rounded_to_nearest('f"{rounded_up(spent)}, {spent:g}, {accuracy:.4f}"') == []


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
