"""A plan's rows are what calibration finds, shares stay below the most, and the row to start from is by its rule."""

import json
import math
import re

import pytest

from tfdp_layers.accounting import calibrate_noise_multiplier, calibration, plan
from tfdp_layers.accounting.signal import signal_to_noise
from tfdp_layers.sampling import FixedSize, Partition, Poisson

GIVEN = {"examples": 6_000, "epsilon": 2.0, "delta": 1e-5}


@pytest.fixture(scope="module")
def table():
    return plan(**GIVEN, batch_sizes=[512, 64], epochs=[10, 5, 20], weights=100)


def test_each_row_is_what_calibration_finds_to_a_hundredth(table):
    assert [(run.batch_size, run.epochs) for run in table.runs] == [(b, e) for b in (64, 512) for e in (5, 10, 20)]
    for run in table.runs[::5]:
        noise = calibrate_noise_multiplier(2.0, 1e-5, Poisson(run.batch_size), 6_000, run.steps)
        assert run.noise_multiplier == pytest.approx(noise, rel=0.015)
        assert run.steps == run.epochs * math.ceil(6_000 / run.batch_size)
        assert run.signal == signal_to_noise(run.noise_multiplier, run.batch_size, run.steps, 100)
        assert run.step_signal == pytest.approx(run.signal / math.sqrt(run.steps))


@pytest.mark.parametrize("given", [(60_000, 2.7, 1e-5), (300, 0.3, 1e-3)], ids=["usual", "few records"])
def test_a_row_takes_few_evaluations(given, monkeypatch):
    """They took six of each row's epsilon, and ten of a quicker estimate: five seconds for twenty rows."""
    evaluated, estimate = [], calibration._estimate
    monkeypatch.setattr(calibration, "_estimate", lambda *args: evaluated.append(args[-1]) or estimate(*args))
    sizes = [given[0] // 64, given[0] // 8]
    rows = len(plan(*given, batch_sizes=sizes, epochs=[10, 40]).runs)
    assert sum(map(math.isfinite, evaluated)) <= 3.5 * rows
    assert len(evaluated) <= 3.5 * rows + 25


@pytest.mark.slow
def test_where_noise_hardly_counts_the_least_is_planned():
    """A delta above the chance of being drawn at all: no noise has a cost, and no secant leads anywhere."""
    (run,) = plan(100, 1.0, 0.7, batch_sizes=[1], epochs=[1]).runs
    assert run.noise_multiplier == calibrate_noise_multiplier(1.0, 0.7, Poisson(1), 100, 100)


def test_no_run_has_more_signal_than_a_step_on_all_records_which_attains_it(table):
    assert all(0.2 < run.share < 1.01 for run in table.runs)
    (whole,) = plan(**GIVEN, batch_sizes=[6_000], epochs=[1]).runs
    assert whole.share == 1.0
    (apart,) = plan(**GIVEN, batch_sizes=[500], epochs=[1], sampling=Partition).runs
    # One Gaussian for the epoch, as the step on all records; of the twelve sums each holds a twelfth of the records.
    assert apart.noise_multiplier == pytest.approx(whole.noise_multiplier, rel=0.01)
    assert apart.share == pytest.approx(1 / math.sqrt(12), rel=0.01)


def test_gains_are_over_half_of_the_epochs(table):
    gains = [run.gain for run in table.runs]
    assert gains[0] is gains[3] is None
    assert gains[1] == pytest.approx(table.runs[1].signal / table.runs[0].signal - 1)
    assert 0 < gains[5] < gains[4] < gains[1]


def test_the_row_to_start_from_is_the_least_work_with_enough_signal_and_steps(table):
    found = plan(**GIVEN, batch_sizes=[256, 512], epochs=[10, 40])
    enough = [run for run in found.runs if run.share >= 0.9 and run.steps >= 500]
    assert found.recommended in enough
    assert found.recommended.epochs == min(run.epochs for run in enough)
    assert table.recommended == max(table.runs, key=lambda run: run.signal)  # none has both


def test_text_and_json_say_the_same(table):
    lines = str(table).splitlines()
    (marked,) = [line for line in lines if line.startswith(">")]
    assert marked.split()[1:4] == ["512", "20", "240"]
    assert len([line for line in lines if "%" in line and line.strip()[0] in "56>"]) >= 6
    read = json.loads(json.dumps(table.to_json()))
    assert [run["noise_multiplier"] for run in read["runs"]] == [run.noise_multiplier for run in table.runs]
    assert read["recommended"]["batch_size"] == 512


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"epsilon": 0.0}, "epsilon must be a number above 0"),
        ({"examples": 0}, "examples"),
        ({"batch_sizes": [0]}, "batch_sizes must be whole numbers"),
        ({"epochs": [2.5]}, "epochs must be whole numbers"),
        ({"weights": -1}, "weights must be whole numbers"),
        ({"batch_sizes": [7_000]}, "fits into 6000 records"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        plan(**(GIVEN | wrong))


@pytest.mark.slow
def test_owners_are_planned_for_all_their_records():
    found = plan(**GIVEN, batch_sizes=[64], epochs=[5], records_per_owner=3)
    noise = calibrate_noise_multiplier(2.0, 1e-5, Poisson(64), 6_000, 5 * 94, records_per_owner=3)
    assert found.runs[0].noise_multiplier == pytest.approx(noise, rel=0.015)
    assert str(found).startswith("6,000 records, epsilon 2 at delta 1e-05 for each owner of at most 3 of them.")
    assert found.to_json()["records_per_owner"] == 3


def test_draws_that_do_not_hide_an_owner_are_not_planned():
    with pytest.raises(ValueError, match="not known here"):
        plan(**GIVEN, sampling=FixedSize, records_per_owner=1)
    with pytest.raises(ValueError, match="records_per_owner must be whole numbers"):
        plan(**GIVEN, records_per_owner=0)


def test_one_record_is_one_and_no_gain_is_below_zero_by_rounding():
    said = str(plan(1, 2.0, 1e-5))
    assert said.startswith("1 record, epsilon 2")
    assert "-0%" not in said


def test_the_noise_that_is_printed_is_never_less_than_the_noise_that_was_found(table):
    rows = [line.removeprefix(">").split() for line in str(table).splitlines() if re.match(r"^[> ] +[\d,]+  ", line)]
    assert len(rows) == len(table.runs)
    for run, row in zip(table.runs, rows, strict=True):
        assert run.noise_multiplier <= float(row[3]) <= 1.01 * run.noise_multiplier
    usual = plan(60_000, 2.7, 1e-5, batch_sizes=[1024], epochs=[20])
    assert "1.17" in str(usual), "1.1631 is no 1.16, which costs 2.7028"
