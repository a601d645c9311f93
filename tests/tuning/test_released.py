"""An oracle that learns from released scores chooses what later ones draw: statements say so, of no other search."""

import json
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger, Statement
from tfdp_layers.accounting.remarks import SEARCHED, told

keras_tuner = pytest.importorskip("keras_tuner")

RNG = np.random.default_rng(0)
X, PUBLIC = (RNG.normal(size=(48, 5)).astype(np.float32) for _ in range(2))
Y = (X[:, :1] > 0).astype(np.float32)
FIT = {"batch_size": 24, "epochs": 1, "validation_data": (PUBLIC, (PUBLIC[:, :1] > 0).astype(np.float32)), "verbose": 0}
OBJECTIVE = keras_tuner.Objective("val_mse", "min")
DIFFER = "Trials of this search release different things"


class Turns(keras_tuner.Oracle):
    """Gives every hyper-parameter its values in turn: one of the caller's own, which might go by scores."""

    def __init__(self, trials=2):
        super().__init__(OBJECTIVE, max_trials=trials)

    def populate_space(self, trial_id):
        values = {one.name: one.values[len(self.trials) % len(one.values)] for one in self.hyperparameters.space}
        return {"status": "RUNNING", "values": values}


class Random(keras_tuner.oracles.RandomSearchOracle):
    """A subclass, whose `populate_space` may be anything."""


def compiled(noise=2.0, rate=0.1, clip=1.0, layers=()):
    model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1)])
    model = tfdp.make_private(model)
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(rate), noise, clip)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mse"], jit_compile=False)
    return model


class Build(keras_tuner.HyperModel):
    """Each of the named hyper-parameters in turn; `fit` hands on batch size and epochs."""

    def __init__(self, fixed=2.0, **choices):
        super().__init__()
        self.fixed, self.choices = fixed, choices

    def build(self, hp):
        given = {name: hp.Choice(name, values) for name, values in self.choices.items()}
        layers = [keras.layers.Dense(given["units"]) for _ in range(given.get("depth", 1))] if "units" in given else []
        own = {name: given[name] for name in ("rate", "clip") if name in given}
        return compiled(given.get("noise", self.fixed), **own, layers=layers)

    def fit(self, hp, model, *args, **kwargs):
        own = {name: hp.get(name) for name in ("batch_size", "epochs") if name in self.choices}
        return model.fit(*args, **(kwargs | own))


def ledger_in(folder, epsilon=30.0):
    return Ledger(folder / "ledger.json", dataset="d", budget=(epsilon, 1e-3))


def tuner_in(folder, hypermodel, oracle=None, ledger=None, kind=tfdp.tuning.PrivateTuner):
    return kind(oracle or Turns(), hypermodel, ledger=ledger or ledger_in(folder), directory=folder, project_name="p")


def searched(tuner, **options):
    """What was warned of, and whether the ledger's file says the note."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuner.search(X, Y, **(FIT | options))
    notes = Statement.from_ledger(Ledger.read(tuner.ledger.path), 1e-3).notes
    return [str(one.message) for one in caught if DIFFER in str(one.message)], told([SEARCHED])[0] in notes


class Batches(tfdp.tuning.PrivateTuner):
    """A `run_trial` of one's own, as docs/tuning.md has it."""

    def run_trial(self, trial, *args, **kwargs):
        kwargs["batch_size"] = trial.hyperparameters.Choice("rows", [16, 48])
        return super().run_trial(trial, *args, **kwargs)


CHOSEN = {
    "batch size": Build(batch_size=[16, 48]),
    "epochs": Build(epochs=[1, 2]),
    "noise": Build(noise=[2.0, 3.0]),
    "batch size, noise that fit finds": Build("calibrate", batch_size=[16, 48]),
}


@pytest.mark.parametrize("name", slow_but(["noise"], list(CHOSEN)))
def test_what_an_oracle_that_learns_chose_is_warned_of_once_and_noted(name, tmp_path):
    found, noted = searched(tuner_in(tmp_path, CHOSEN[name], Turns(3)))
    assert len(found) == 1
    assert noted


def test_so_it_is_where_run_trial_hands_it_on(tmp_path):
    (found,), noted = searched(tuner_in(tmp_path, Build(), kind=Batches))
    assert "3 of step by Poisson(batch_size=16) from 48, noise 2; 1 of step by Poisson(batch_size=48)" in found
    assert noted


@pytest.mark.slow
def test_a_fit_before_the_one_that_scores_counts_too(tmp_path):
    class Twice(Build):
        def fit(self, hp, model, x, y, **kwargs):
            model.fit(x, y, batch_size=hp.Choice("first", [16, 48]), verbose=0)
            return model.fit(x, y, **kwargs)

    assert searched(tuner_in(tmp_path, Twice()))[1]


@pytest.mark.slow
def test_bayesian_and_a_subclass_of_random_search_may_learn(tmp_path):
    for kind in (keras_tuner.oracles.BayesianOptimizationOracle, Random):
        (tmp_path / kind.__name__).mkdir()
        oracle = kind(OBJECTIVE, max_trials=2, seed=0)
        found, noted = searched(tuner_in(tmp_path / kind.__name__, CHOSEN["batch size"], oracle))
        assert len(found) == 1
        assert noted


def test_a_search_that_goes_on_compares_with_the_trials_of_before(tmp_path):
    """The second process makes one trial, which alone differs from nothing."""
    assert searched(tuner_in(tmp_path, CHOSEN["batch size"], Turns(1))) == ([], False)
    tuner = tuner_in(tmp_path, CHOSEN["batch size"], Turns(2), Ledger(tmp_path / "ledger.json"))
    assert len(tuner.oracle.trials) == 1
    found, noted = searched(tuner)
    assert len(found) == 1
    assert noted


@pytest.mark.slow
def test_a_folder_of_an_earlier_version_goes_on(tmp_path):
    first = tuner_in(tmp_path, Build(), Turns(1))
    assert searched(first) == ([], False)
    (path,) = (tmp_path / "p").glob("tuner*.json")
    state = json.loads(path.read_text())
    assert list(state.pop("released").values()) == [2]
    path.write_text(json.dumps(state))
    assert searched(tuner_in(tmp_path, Build(), Turns(2), Ledger(tmp_path / "ledger.json"))) == ([], False)


ORDINARY = {
    "rate and clip": Build(rate=[0.1, 0.2], clip=[0.5, 2.0]),
    "rate and clip, noise that fit finds": Build("calibrate", rate=[0.1, 0.2], clip=[0.5, 2.0]),
    "layers": Build(units=[2, 3], depth=[1, 2]),
}


@pytest.mark.parametrize("name", slow_but(["layers"], list(ORDINARY)))
def test_rates_clips_and_layers_bring_no_note(name, tmp_path):
    assert searched(tuner_in(tmp_path, ORDINARY[name])) == ([], False)


@pytest.mark.parametrize("kind", slow_but(["GridSearchOracle"], ["GridSearchOracle", "RandomSearchOracle"]))
def test_oracles_that_do_not_learn_may_choose_all_of_it(kind, tmp_path):
    oracle = getattr(keras_tuner.oracles, kind)(OBJECTIVE, max_trials=2)
    tuner = tuner_in(tmp_path, Build(batch_size=[16, 48]), oracle)
    assert searched(tuner) == ([], False)
    assert len(tuner.ledger.releases) == 2


@pytest.mark.slow
def test_a_trial_that_the_budget_cuts_short_brings_no_note(tmp_path):
    tuner = tuner_in(tmp_path, Build(rate=[0.1, 0.2]), Turns(3), ledger_in(tmp_path, 5.0))
    assert searched(tuner, epochs=10) == ([], False)
    assert 20 < tuner.ledger.steps < 60
    assert tuner.ledger.steps % 20, "one was cut short"


@pytest.mark.slow
def test_early_stopping_brings_its_own_note_alone(tmp_path):
    tuner = tuner_in(tmp_path, Build(rate=[0.1, 0.2]))
    stop = keras.callbacks.EarlyStopping("val_mse", baseline=-1.0, mode="min", patience=1)
    assert searched(tuner, epochs=3, callbacks=[stop]) == ([], False)
    assert tuner.ledger.noted == {"stopped"}


@pytest.mark.slow
def test_trials_whose_model_fails_or_becomes_nan_bring_no_note(tmp_path):
    class Fails(Build):
        def build(self, hp):
            model = super().build(hp)
            if hp.get("rate") == 0.2:
                raise ValueError("no such model")
            return model

    tuner = tuner_in(tmp_path, Fails(rate=[0.1, 0.2, float("inf")]), Turns(3))
    assert searched(tuner) == ([], False)
    assert [one.status for one in tuner.oracle.trials.values()] == ["COMPLETED", "FAILED", "FAILED"]
    assert tuner.ledger.steps == 4
