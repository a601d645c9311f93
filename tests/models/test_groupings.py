"""One statement is about one unit: of trainings, and of all else that one ledger pays for."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but

X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
Y = np.ones((60, 1), "float32")
A, B = np.arange(60) // 3, np.arange(60) // 5
IN_A, OWNED = {"unit_ids": A}, {"owners": A, "records_per_owner": 3}
SHARED = {"owners": [[one, 99] for one in A], "records_per_owner": 60}


def model_of():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


def fit(model, x=X, **options):
    model.fit(x, Y[: len(x)], batch_size=5, verbose=0, **options)
    return model


REFUSED = {
    "other units": (IN_A, {"unit_ids": B}, "These very records were grouped into other units"),
    "units of one record": (IN_A, {"unit_ids": np.arange(60)}, "These very records were grouped into other units"),
    "no units": (IN_A, {}, "This ledger protects one unit"),
    "units later": ({}, IN_A, "This ledger protects one record"),
    "owners": (IN_A, OWNED, "This ledger protects one unit"),
    "units after owners": (OWNED, IN_A, "This ledger protects one owner"),
    "other owners": (OWNED, SHARED, "These very records were grouped into other owners"),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(["other units", "other owners", "no units"], [*REFUSED]))
def test_another_fit_with_other_units_is_refused_before_a_step(name):
    first, second, why = REFUSED[name]
    model = fit(model_of(), **first)
    before = model.ledger.to_json()
    with pytest.raises(ValueError, match=why):
        fit(model, **second)
    assert model.ledger.to_json() == before


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "second", [{"unit_ids": [f"p{one}" for one in A]}, {"unit_ids": A, "records_per_unit": 3}], ids=["names", "rows"]
)
def test_the_same_units_go_on_whatever_they_are_called(second):
    model = fit(fit(model_of(), **IN_A), **second)
    assert model.privacy_statement(1e-3, "patient").notes == ()


@pytest.mark.slow
def test_a_saved_model_remembers_in_this_process_and_holds_no_comparison(tmp_path):
    model = fit(model_of(), **IN_A)
    model.save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="These very records"):
        fit(tfdp.load_model(tmp_path / "m.keras"), unit_ids=B)
    fit(model, X + 1.0, unit_ids=B)
    assert model.privacy_statement(1e-3, "patient").notes == ()
    assert "mean the same patient" in " ".join(str(model.privacy_statement(1e-3, "patient")).split())
    assert "grouping" not in model.ledger.to_json()


def test_what_else_a_ledger_pays_for_is_of_the_same_units():
    """Quantiles of hospitals and a training of patients were one epsilon."""
    layer = tfdp.layers.DPPCA(2, noise_multiplier=9.0)
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    settings = {"lower": 0.0, "upper": 1.0, "noise_multiplier": 9.0}
    tfdp.preprocessing.quantiles(X, model.ledger, [0.5], unit_ids=A, **settings)
    for other in (
        lambda: tfdp.preprocessing.quantiles(X, model.ledger, [0.5], unit_ids=B, **settings),
        lambda: layer.adapt(X, unit_ids=B),
    ):
        with pytest.raises(ValueError, match="These very records"):
            other()
    layer.adapt(X, unit_ids=A)
    with pytest.raises(ValueError, match="These very records"):
        fit(model, unit_ids=B)
    fit(model, **IN_A)
    tfdp.release_metric(Y[:, 0], model.ledger, stddev=0.5, unit_ids=A)
    assert model.privacy_statement(1e-3).notes == ()
    tfdp.release_metric(Y[:, 0], model.ledger, stddev=0.5, unit_ids=B)
    assert model.privacy_statement(1e-3).notes == ()


@pytest.mark.slow
def test_a_search_on_units_pays_for_them(tmp_path):
    found = tfdp.tuning.random_search(
        lambda settings: open_model(),
        {"a": [1]},
        X,
        Y,
        budget=(8.0, 1e-3),
        objective=tfdp.tuning.NoisyMean(lambda model: Y[:, 0], 0.5, unit_ids=A),
        ledger=tfdp.accounting.Ledger(tmp_path / "ledger.json"),
        unit_ids=A,
        batch_size=5,
        trials=2.0,
        verbose=0,
    )
    assert found.model.privacy_statement(1e-3).notes == ()
    with pytest.raises(ValueError, match="These very records"):
        fit(found.model, unit_ids=B)


def open_model():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd"), "mse")
    return model
