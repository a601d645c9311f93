"""Printed algorithms: the ledger holds what they cost, and every report shows it beside what the paper states."""

import json
import math

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.ordinary import compiled, mlp
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger, Release, epsilon, nominal_epsilon
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.callbacks import PrivacyBudget

DELTA = 1e-2
WEIGHTS = 63


def tanh(**options):
    return tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.5, output_scale=2.0, **({"as_published": True} | options))


def adadp(**options):
    return tfdp.optimizers.AdaDPOptimizer(0.01, 1.5, **({"as_published": True} | options))


PRINTED = {"tanh": (tanh, 1.5 / (2.0 * math.sqrt(WEIGHTS))), "adadp": (adadp, 0.0)}


def fit(optimizer, *callbacks, **options):
    model, x, y = compiled(mlp, optimizer)
    model.history = model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=list(callbacks), **options)
    return model


def as_accounted(noise_multiplier, model):
    """The epsilon of as many steps of a sound optimizer of this noise multiplier."""
    release = model.ledger.entries[0].release
    group = tfdp.accounting.GroupNoise("all", 1.0, noise_multiplier)
    ledger = Ledger()
    ledger.settle(ledger.begin(Release((group,), release.sampling, release.examples)), model.ledger.steps)
    return float(epsilon(ledger, DELTA))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_the_ledger_holds_the_true_cost_and_reports_show_both(name, tmp_path):
    make, multiplier = PRINTED[name]
    budget = PrivacyBudget(50.0, DELTA, accept_nominal=True)
    model = fit(make(), budget, tfdp.callbacks.PrivacyTensorBoard(tmp_path))
    (entry,) = model.ledger.entries
    assert entry.release.noise_multiplier == pytest.approx(multiplier)
    true, nominal = as_accounted(multiplier, model), as_accounted(1.5, model)
    assert float(epsilon(model.ledger, DELTA)) == pytest.approx(true)
    assert float(nominal_epsilon(model.ledger, DELTA)) == pytest.approx(nominal)
    assert nominal < true
    logs = model.history.history
    assert logs["epsilon"][-1] == pytest.approx(true)
    assert logs["nominal_epsilon"][-1] == pytest.approx(nominal)
    statement = model.privacy_statement(DELTA)
    assert (statement.epsilon, statement.nominal_epsilon) == (pytest.approx(true), pytest.approx(nominal))
    assert "Nominal:" in str(statement)
    assert "does not hold" in " ".join(str(statement).split())
    assert json.loads(statement.to_json())["nominal_epsilon"] == pytest.approx(nominal)
    assert scalars(tmp_path) >= {"privacy/epsilon", "privacy/nominal_epsilon"}


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return set(found.Tags()["tensors"])


@pytest.mark.parametrize("name", slow_but(["tanh"], PRINTED))
def test_a_budget_refuses_the_printed_algorithm_unless_told_otherwise(name):
    model, x, y = compiled(mlp, PRINTED[name][0]())
    with pytest.raises(ValueError, match="accept_nominal=True"):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[PrivacyBudget(50.0, DELTA)])
    assert model.ledger.steps == 0


@pytest.mark.slow
def test_an_accepted_nominal_budget_still_ends_the_training():
    model = fit(tanh(), PrivacyBudget(1.0, DELTA, accept_nominal=True), steps_per_epoch=50)
    assert 0 < model.ledger.steps < 150
    assert nominal_epsilon(model.ledger, DELTA) <= 1.0


@pytest.mark.slow
def test_what_the_printed_algorithm_spent_counts_in_full_for_a_sound_one():
    printed = fit(tanh())
    model, x, y = compiled(mlp, tanh(as_published=False))
    model.ledger.merge(printed.ledger)
    with pytest.raises(tfdp.callbacks.BudgetExhausted):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[PrivacyBudget(20.0, DELTA)])


@pytest.mark.slow
@pytest.mark.parametrize("make", slow_but([adadp], [tanh, adadp]))
def test_the_sound_default_has_no_nominal_figure(make):
    model = fit(make(as_published=False))
    assert model.ledger.entries[0].release.noise_multiplier == pytest.approx(1.5)
    assert nominal_epsilon(model.ledger, DELTA) is None
    assert model.privacy_statement(DELTA).nominal_epsilon is None
    assert "Nominal" not in str(model.privacy_statement(DELTA))


@pytest.mark.slow
def test_ledgers_with_and_without_a_nominal_figure_are_read(tmp_path):
    model = fit(tanh())
    release = model.ledger.entries[0].release
    assert release.nominal_noise_multiplier == 1.5
    assert Ledger.from_json(model.ledger.to_json()).entries[0].release == release
    old = release.to_json()
    del old["nominal_noise_multiplier"]
    assert release_from_json(old).nominal_noise_multiplier is None
    for value in (None, -1.0, np.inf, "1"):
        with pytest.raises(ValueError, match="nominal"):
            release_from_json(old | {"nominal_noise_multiplier": value})
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.as_published
    assert nominal_epsilon(loaded.ledger, DELTA) == nominal_epsilon(model.ledger, DELTA)
