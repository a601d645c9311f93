"""Streams of correlated noise in the ledger: one entry each, exact at every step, and never read as independent."""

import json
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest

from tfdp_layers.accounting import (
    EpsilonCurve,
    GroupNoise,
    Ledger,
    LedgerError,
    MetricRelease,
    Release,
    Statement,
    affordable_steps,
    calibrate_noise_multiplier,
    epsilon,
    exact_multiplier,
)
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.accounting.signal import signal_to_noise
from tfdp_layers.sampling import Cyclic, Partition, Poisson
from tfdp_layers.sampling.correlated import Correlated

EXAMPLES, CYCLIC, NOISE, DELTA = 100, Cyclic(30), Correlated(0.8), 1e-5
GROUPS = (GroupNoise("a", 1.0, 10.0), GroupNoise("b", 0.5, 5.0))
RELEASE = Release(GROUPS, CYCLIC, EXAMPLES, noise=NOISE)
JOINT = 10.0 / math.sqrt(2)


def squared(*streams: int) -> float:
    """Delta^2 of streams of so many steps, by the recursion, of the decay as float32 has it."""
    total, decay = 0.0, float(np.float32(0.8))
    for steps in streams:
        v = 0.0
        for t in range(steps):
            v = decay * v + (t % 4 == 0)
            total += v * v
    return total


def exact(*streams: int, joint: float = JOINT) -> float:
    return float(dp_accounting.get_epsilon_gaussian(joint / math.sqrt(squared(*streams)), DELTA))


def ledger_of(*streams: int, release: Release = RELEASE) -> Ledger:
    ledger = Ledger()
    for steps in streams:
        ledger.reserve(ledger.begin(release), steps)
    return ledger


def test_epsilon_is_exact_at_every_step_of_every_stream() -> None:
    for streams in ([1], [4], [5], [9], [5, 3], [5, 3, 11], [40, 1, 1]):
        ledger = ledger_of(*streams)
        assert epsilon(ledger, DELTA) == pytest.approx(exact(*streams), rel=1e-7)
        assert epsilon(ledger, DELTA).accountant == "analytic Gaussian"
        assert len(ledger.entries) == len(streams)
        assert exact_multiplier(ledger) == pytest.approx(JOINT / math.sqrt(squared(*streams)), rel=1e-8)
    # Reservations that come in parts and are given back are the same stream.
    ledger = Ledger()
    token = ledger.begin(RELEASE)
    for reserved, made in ((3, 2), (4, 4), (5, 0)):
        ledger.reserve(token, reserved)
        ledger.settle(token, made)
    assert epsilon(ledger, DELTA) == epsilon(ledger_of(6), DELTA)


def test_a_stream_that_goes_on_costs_more_than_two_that_start_afresh() -> None:
    assert float(epsilon(ledger_of(8), DELTA)) > float(epsilon(ledger_of(4, 4), DELTA)) * 1.02


def test_what_is_released_beside_a_stream_adds_up_with_it() -> None:
    ledger = ledger_of(9)
    metric = MetricRelease((GroupNoise("mean", 1.0, 4.0),), Partition(EXAMPLES), EXAMPLES)
    ledger.reserve(ledger.begin(metric), 2)
    assert exact_multiplier(ledger) == pytest.approx((squared(9) / JOINT**2 + 2 / 16.0) ** -0.5, rel=1e-8)


def test_curves_and_plans_go_on_where_a_stream_stands() -> None:
    ledger, joint = ledger_of(6), RELEASE.noise_multiplier
    for held, streams in ((0, lambda more: (6, more)), (6, lambda more: (6 + more,))):
        curve = EpsilonCurve(ledger, RELEASE, DELTA, held)
        before = 0.0
        for more in range(1, 30):
            found = exact(*streams(more))
            assert curve.at(more) == pytest.approx(found, rel=1e-7)
            assert found <= curve.bound(more) * (1 + 1e-9)
            assert before <= curve.bound(more)
            before = curve.bound(more)
        target = (exact(*streams(20)) + exact(*streams(21))) / 2
        steps = affordable_steps(target, DELTA, CYCLIC, EXAMPLES, joint, ledger, noise=NOISE, held=held)
        assert steps == 20
    for other in (1.1 * joint, joint):
        with pytest.raises(ValueError, match="as `held` says"):
            affordable_steps(3.0, DELTA, CYCLIC, EXAMPLES, other, ledger, noise=NOISE, held=7 if other == joint else 6)
    with pytest.raises(ValueError, match="as `held` says"):
        EpsilonCurve(ledger, RELEASE, DELTA, 7)


def test_a_data_sets_budget_ends_a_stream_at_its_last_step() -> None:
    limit = exact(17) * (1 + 1e-6)
    ledger = Ledger(dataset="d", budget=(limit, DELTA))
    token = ledger.begin(RELEASE)
    made = 0
    while ledger.affordable(token, 3):
        made += ledger.affordable(token, 3)
        ledger.reserve(token, ledger.affordable(token, 3))
    assert made == 17


@pytest.mark.parametrize("sampling", [CYCLIC, Partition(30)], ids=lambda s: s.kind)
def test_calibration_keeps_to_the_target_and_chooses_a_decay(sampling: Cyclic | Partition) -> None:
    found = calibrate_noise_multiplier(2.0, DELTA, sampling, EXAMPLES, 50, noise=Correlated())
    chosen = sampling.settled(Correlated(), 50, EXAMPLES)
    release = Release((GroupNoise("a", 1.0, found),), sampling, EXAMPLES, noise=chosen)
    assert 2.0 * 0.998 < float(epsilon(ledger_of(50, release=release), DELTA)) <= 2.0
    independent = calibrate_noise_multiplier(2.0, DELTA, sampling, EXAMPLES, 50)
    assert signal_to_noise(found, 30, 50, 1, chosen) > 1.3 * signal_to_noise(independent, 30, 50, 1)
    assert signal_to_noise(found, 30, 50, 1, Correlated(0.0)) == pytest.approx(signal_to_noise(found, 30, 50, 1))


def test_files_keep_the_decay_and_old_readers_cannot_miss_it() -> None:
    value = RELEASE.to_json()
    assert value["decay"] == 0.8
    assert release_from_json(json.loads(json.dumps(value))) == RELEASE
    assert "decay" not in Release(GROUPS, CYCLIC, EXAMPLES).to_json()
    copied = Ledger.from_json(ledger_of(7, 2).to_json())
    assert epsilon(copied, DELTA) == epsilon(ledger_of(7, 2), DELTA)
    copied.reserve(copied.begin(RELEASE), 3)  # never the same stream
    assert [entry.steps for entry in copied.entries] == [7, 2, 3]
    text = ledger_of(7).to_json()
    with pytest.raises(LedgerError, match="digest"):
        Ledger.from_json(text.replace('"decay": 0.8', '"decay": 0.1'))


@pytest.mark.parametrize("decay", [None, 1.0, -1.0, "0.8", [0.8], float("nan")])
def test_a_file_with_a_decay_that_is_none_is_refused(decay: Any) -> None:
    with pytest.raises(ValueError, match="decay"):
        release_from_json(RELEASE.to_json() | {"decay": decay})


def test_releases_that_may_not_be_correlated_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tfdp\.sampling\.Cyclic or Partition"):
        Release(GROUPS, Poisson(30), EXAMPLES, noise=NOISE)
    with pytest.raises(ValueError, match="no decay yet"):
        Release(GROUPS, CYCLIC, EXAMPLES, noise=Correlated())
    with pytest.raises(ValueError, match="for the steps of an optimizer"):
        MetricRelease(GROUPS[:1], Cyclic(EXAMPLES), EXAMPLES, noise=NOISE)


def test_the_statement_says_what_a_stream_is_and_who_neighbours_are() -> None:
    statement = Statement.from_ledger(ledger_of(9, 5), DELTA)
    (stated,) = statement.releases
    assert (stated.steps, stated.decay) == (14, 0.8)
    assert stated.joint_noise_multiplier == pytest.approx(JOINT / math.sqrt(squared(9, 5)), rel=1e-8)
    text = " ".join(str(statement).split())
    for part in ("z_t - 0.8 z_(t-1)", "one secret order of 100 records", "every 4 steps", "the two do not compare"):
        assert part in text
    assert json.loads(statement.to_json())["releases"][0]["decay"] == 0.8
