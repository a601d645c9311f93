"""Worst cases: the record attains every bound, claims that hold stand, broken ones and printed ones fall."""

import json
import math

import keras
import numpy as np
import pytest

from tfdp_layers import optimizers
from tfdp_layers.accounting import calibrate_noise_multiplier
from tfdp_layers.audit import mechanisms
from tfdp_layers.audit.report import Audit
from tfdp_layers.noise import SeededNoise, add_noise
from tfdp_layers.optimizers import base
from tfdp_layers.sampling import FixedSize, Poisson
from tfdp_layers.zoo.worst_cases import METHODS, worst_case

RUNS = 100


def audit(case, sampling=None, runs=RUNS, **options):
    sampling = sampling or Poisson(2)
    defaults = {"examples": 2, "steps": case.steps, "score": case.score, "nominal": case.nominal}
    options = defaults | options | {"runs": runs, "sampling_seed": 1}
    return mechanisms.audit_steps(case.model, case.present, case.absent, sampling, **options)


def noise_for(epsilon, steps=1):
    return calibrate_noise_multiplier(epsilon, 1e-5, Poisson(2), 2, steps)


@pytest.mark.parametrize("method", METHODS)
def test_the_record_attains_the_bound_of_every_group(method):
    """So that a worst case is one: the largest that the model's own statement allows, and nothing without it."""
    case = worst_case(method, 1.0)
    one, other = (case.model.bounded_gradient_sums(*data) for data in (case.present, case.absent))
    moved = {id(v): np.asarray(a - b) for v, a, b in zip(case.model.trainable_variables, one, other, strict=True)}
    for group in case.model.sensitivities():
        size = np.sqrt(sum(np.sum(moved[id(v)] ** 2) for v in group.variables))
        if group.variables and method != "adadp as printed":
            assert 0.99 < size / group.bound <= 1 + 1e-5, group.name


@pytest.mark.slow
def test_a_claim_that_holds_stands_and_one_with_noise_four_times_too_small_falls(monkeypatch):
    def little(source, sums, stddevs):
        return add_noise(source, sums, [s / 4 for s in stddevs])

    case = worst_case("backprop_clipping", noise_for(3.0), SeededNoise(5))
    sound = audit(case)
    assert sound.claimed_epsilon == pytest.approx(3.0, rel=1e-3)
    assert not sound.refuted
    monkeypatch.setattr(base, "add_noise", little)
    case.model.train_function = None
    broken = audit(case)
    assert broken.claimed_epsilon == pytest.approx(3.0, rel=1e-3)
    assert broken.refuted
    assert broken.audited_epsilon_lower > 6


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tanh as printed", "adadp as printed"])
def test_the_nominal_claims_of_printed_algorithms_fall(method):
    case = worst_case(method, noise_for(8.0, 2 if "adadp" in method else 1), SeededNoise(6))
    found = audit(case)
    assert found.claimed_epsilon == pytest.approx(8.0, rel=1e-3)
    assert found.refuted
    with pytest.raises(ValueError, match="no nominal claim"):
        audit(worst_case("dpsgd", 1.0), runs=10, nominal=True)


def test_runs_are_cut_out_of_one_fit_and_leave_the_model_as_it_was():
    case = worst_case("adadp", 1.0)
    before = case.model.get_weights()
    seen = []
    kept = mechanisms.repeated_scores(
        case.model, *case.present, Poisson(1), lambda history: seen.append(len(history)) or 0.0, 2, 3, 4
    )
    assert seen == [4] * 4
    assert len(kept.array()) == 4
    np.testing.assert_array_equal(case.model.get_weights()[0], before[0])
    assert float(case.model.optimizer._switch) == 0.0
    assert kept.claim(3).steps == 3
    assert case.model.ledger.steps == 12


@pytest.mark.slow
def test_a_replaced_record_is_audited_against_replacement():
    """FixedSize: replacing a record by its opposite moves the sum by twice the bound, and the claim says so."""
    model = worst_case("dpsgd", 2.0, SeededNoise(7)).model
    x = np.full((1, 64), 1e4, "float32")
    y = np.full((1, 1), 1e4, "float32")
    found = mechanisms.audit_steps(model, (x, y), (-x, y), FixedSize(1), examples=1, runs=300, sampling_seed=1)
    assert 0.2 * found.claimed_epsilon < found.audited_epsilon_lower <= found.claimed_epsilon
    assert found.claimed_epsilon == pytest.approx(4.37, abs=0.01)  # noise 2 over 2 bounds


def test_the_report_says_what_it_means():
    found = Audit(3.0, 3.5, 1e-5, 0.95, "by rates", {}, 1, 1, 20, 19)
    assert found.refuted
    assert "Claimed: epsilon <= 3 at delta = 1e-05" in str(found)
    assert "REFUTED" in str(found)
    unbounded = json.loads(Audit(math.inf, 3.5, 1e-5, 0.95, "by rates", {}).to_json())
    assert (unbounded["claimed_epsilon"], unbounded["refuted"]) == (None, False)


def test_an_optimizer_whose_observer_is_taken_away_is_not_observed():
    optimizer = optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 1.0)
    optimizer.observe(lambda means: None)
    optimizer.observe(None)
    assert optimizer._observer is None
