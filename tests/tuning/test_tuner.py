"""KerasTuner over private models: all trials in one ledger; without one it is refused."""

import json

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.accounting import BudgetExhausted, Ledger, epsilon

keras_tuner = pytest.importorskip("keras_tuner")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 5)).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)
PUBLIC = (X[:32].copy(), Y[:32].copy())
FIT = {"batch_size": 32, "epochs": 2, "validation_data": PUBLIC, "verbose": 0}


def build(hp):
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
    rate = hp.Float("rate", 0.01, 1.0, sampling="log")
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(rate), l2_norm_clip=hp.Choice("clip", [0.5, 2.0]))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)])
    return model


def loud(hp):
    """With a noise of its own: nothing is to be found before it trains."""
    model = build(hp)
    optimizer = tfdp.optimizers.ClippedOptimizer("sgd", 2.0, 1.0)
    model.compile(optimizer, model.loss, metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)])
    return model


def oracle(trials=3, objective="val_accuracy"):
    return keras_tuner.oracles.RandomSearchOracle(keras_tuner.Objective(objective, "max"), max_trials=trials, seed=0)


def ledger_in(tmp_path):
    return Ledger(tmp_path / "ledger.json", dataset="d", budget=(4.0, 1e-3))


@pytest.mark.slow
def test_all_trials_are_in_one_ledger_and_within_its_budget(tmp_path):
    ledger = ledger_in(tmp_path)
    tuner = tfdp.tuning.PrivateTuner(oracle(2), build, ledger=ledger, directory=tmp_path, project_name="p")
    tuner.search(X, Y, **FIT)
    assert ledger.steps == 2 * 2 * 3
    assert 3.5 < epsilon(ledger, 1e-3) <= 4.0
    noises = [release.noise_multiplier for release in ledger.releases]
    assert len(noises) == 2
    assert max(noises) < 1.6 * min(noises), "trials get about equal noise"
    (best,) = tuner.get_best_models()
    assert best.ledger is ledger
    assert ledger.steps == 12
    best.evaluate(*PUBLIC, verbose=0)
    assert best.privacy_statement(1e-3).epsilon <= 4.0
    with pytest.raises(BudgetExhausted):
        tfdp.tuning.PrivateTuner(oracle(), build, ledger=ledger, directory=tmp_path, project_name="q").search(
            X, Y, **FIT
        )
    assert ledger.steps == 12


@pytest.mark.slow
def test_a_search_that_the_budget_ends_keeps_what_it_found(tmp_path):
    def louder(hp):
        model = loud(hp)
        model.optimizer.noise_multiplier = 1.2
        return model

    ledger = ledger_in(tmp_path)
    tuner = tfdp.tuning.PrivateTuner(oracle(30), louder, ledger=ledger, directory=tmp_path, project_name="p")
    with pytest.warns(UserWarning, match="The budget ended the search after"):
        tuner.search(X, Y, **FIT)
    assert 3.0 < epsilon(ledger, 1e-3) <= 4.0
    assert tuner.get_best_models()


def test_a_plain_tuner_over_private_models_is_told_of_it(tmp_path):
    tuner = keras_tuner.Tuner(oracle(1), build, directory=tmp_path, project_name="p")
    budget = tfdp.callbacks.PrivacyBudget(3.0, 1e-3)
    with pytest.raises(ValueError, match=r"tfdp\.tuning\.PrivateTuner"):
        tuner.search(X, Y, callbacks=[budget], **FIT)


@pytest.mark.slow
def test_a_plain_tuner_may_train_models_that_count_into_the_ledger_of_a_data_set(tmp_path):
    ledger = ledger_in(tmp_path)

    def charged(hp):
        model = build(hp)
        model.ledger = ledger
        return model

    tuner = keras_tuner.Tuner(oracle(1), charged, directory=tmp_path, project_name="p")
    tuner.search(X, Y, callbacks=[tfdp.callbacks.PrivacyBudget(3.0, 1e-3)], **FIT)
    assert ledger.steps == 6


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ledger": Ledger()}, "with a budget"),
        ({"ledger": Ledger(dataset="d")}, "with a budget"),
        ({"executions_per_trial": 2}, "more trials"),
        ({"oracle": keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=None)}, "max_trials"),
    ],
)
def test_a_tuner_without_a_budget_to_share_out_is_refused(tmp_path, change, match):
    options = {"oracle": oracle(), "hypermodel": build, "ledger": ledger_in(tmp_path)} | change
    with pytest.raises(ValueError, match=match):
        tfdp.tuning.PrivateTuner(**options, directory=tmp_path, project_name="p")


def test_models_that_are_not_private_are_refused(tmp_path):
    def plain(hp):
        return keras.Sequential([keras.Input((5,)), keras.layers.Dense(hp.Int("units", 1, 3))])

    with pytest.raises(keras_tuner.errors.FatalTypeError, match="make_private"):
        tfdp.tuning.PrivateTuner(oracle(), plain, ledger=ledger_in(tmp_path), directory=tmp_path, project_name="p")


@pytest.mark.slow
def test_a_space_of_keras_tuner_can_be_searched_for_the_price_of_one_entry(monkeypatch):
    monkeypatch.setattr(tfdp.tuning.NumberOfTrials, "draw", lambda self, randomness: 1)
    ledger = Ledger()
    options = {"batch_size": 32, "epochs": 1, "validation_data": PUBLIC, "verbose": 0, "trials": 2}
    built, space = tfdp.tuning.keras_tuner_space(build)
    assert set(space) == {"rate", "clip"}
    found = tfdp.tuning.random_search(
        built, space, X, Y, budget=(3.0, 1e-3), objective="val_accuracy", ledger=ledger, **options
    )
    assert found.settings["clip"] in (0.5, 2.0)
    assert float(found.model.optimizer.learning_rate) == pytest.approx(found.settings["rate"])
    assert ledger.steps == 1
    with pytest.raises(ValueError, match="nothing to tune"):
        tfdp.tuning.keras_tuner_space(lambda hp: None)


class Fitted(keras_tuner.HyperModel):
    """Makes something of its own of what `fit` gives."""

    def __init__(self, score):
        super().__init__()
        self.score = score

    def build(self, hp):
        return loud(hp)

    def fit(self, hp, model, *args, **kwargs):
        return self.score(model, lambda: model.fit(*args, **kwargs), kwargs)


def plain(hp):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    metrics = [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]
    model.compile(keras.optimizers.SGD(hp.Float("rate", 0.01, 1.0)), "mse", metrics=metrics)
    return model


def edited(model, fit, kwargs):
    history = fit()
    history.history["val_accuracy"][-1] = float(history.history["accuracy"][-1]) + 0.125
    return history


def added(model, fit, kwargs):
    history = fit()
    history.history["val_mine"] = history.history["loss"]
    return history


def made_up(model, fit, kwargs):
    fit()
    history = keras.callbacks.History()
    history.epoch, history.history = [0], {"val_accuracy": [0.5]}
    return history


def of_another(model, fit, kwargs):
    return plain(keras_tuner.HyperParameters()).fit(X, Y, validation_data=PUBLIC, verbose=0)


def changed_as_it_is_made(model, fit, kwargs):
    def change(epoch, logs):
        model.history.history.setdefault("val_accuracy", []).append(0.5)

    kwargs["callbacks"].append(keras.callbacks.LambdaCallback(on_epoch_end=change))
    return fit()


SCORES = {
    "a number": lambda model, fit, kwargs: float(fit().history["loss"][-1]),
    "a name": lambda model, fit, kwargs: {"val_accuracy": fit() and model.evaluate(X, Y, verbose=0)[1]},
    "nothing": lambda model, fit, kwargs: fit() and None,
    "edited": edited,
    "added": added,
    "made up": made_up,
    "of another model": of_another,
    "changed as it is made": changed_as_it_is_made,
}


@pytest.mark.parametrize("score", slow_but(["edited", "of another model"], list(SCORES)))
def test_a_score_of_the_hypermodels_own_is_refused(tmp_path, score):
    """The oracle chose by a number of the private records, and the results showed it, at no cost."""
    hypermodel = Fitted(SCORES[score])
    tuner = tfdp.tuning.PrivateTuner(oracle(1), hypermodel, ledger=ledger_in(tmp_path), directory=tmp_path)
    with pytest.raises(TypeError, match=r"fit gives, a History|not what the last model\.fit|did not train the model"):
        tuner.search(X, Y, **FIT)
    assert all(trial.score is None for trial in tuner.oracle.trials.values())


def test_a_fit_of_ones_own_that_gives_what_fit_gave_is_taken(tmp_path):
    """Also of numbers of its own; and the folder, which may be shown, holds none of the training data."""

    def own(model, fit, kwargs):
        mine = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(val_mine=0.25 + epoch))
        kwargs["callbacks"].append(mine)
        return fit()

    ledger = ledger_in(tmp_path)
    tuner = tfdp.tuning.PrivateTuner(oracle(1, "val_mine"), Fitted(own), ledger=ledger, directory=tmp_path)
    tuner.search(X, Y, **FIT)
    assert tuner.oracle.get_best_trials()[0].score == 1.25
    (held,) = tmp_path.glob("untitled_project/trial_*/trial.json")
    named = set(json.loads(held.read_text())["metrics"]["metrics"])
    assert named == {"val_mine", "val_accuracy", "val_loss", "epsilon"}


class Reports(tfdp.tuning.PrivateTuner):
    def run_trial(self, trial, *args, **kwargs):
        super().run_trial(trial, *args, **kwargs)
        return 0.5


class Updates(tfdp.tuning.PrivateTuner):
    def run_trial(self, trial, *args, **kwargs):
        found = super().run_trial(trial, *args, **kwargs)
        self.oracle.update_trial(trial.trial_id, {"val_accuracy": 0.5})
        return found


class Exchanges(tfdp.tuning.PrivateTuner):
    def on_trial_begin(self, trial):
        self.hypermodel = Fitted(of_another)


class ByTheLoss(tfdp.tuning.PrivateTuner):
    def on_trial_begin(self, trial):
        self.oracle.objective = keras_tuner.Objective("loss", "min")


class Uncharged(tfdp.tuning.PrivateTuner):
    def on_trial_begin(self, trial):
        self.hypermodel.build = loud


@pytest.mark.parametrize("kind", slow_but([Reports], [Reports, Updates, Exchanges, ByTheLoss, Uncharged]))
def test_a_tuner_of_ones_own_does_not_change_what_is_scored(tmp_path, kind):
    tuner = kind(oracle(1), loud, ledger=ledger_in(tmp_path), directory=tmp_path)
    with pytest.raises(keras_tuner.errors.FatalError, match=r"choose by it|exchanged|would leak|count into the ledger"):
        tuner.search(X, Y, **FIT)
    assert all(trial.score is None for trial in tuner.oracle.trials.values())


@pytest.mark.slow
def test_a_tuner_of_ones_own_may_change_what_a_trial_gets(tmp_path):
    class Batches(tfdp.tuning.PrivateTuner):
        def run_trial(self, trial, *args, **kwargs):
            kwargs["batch_size"] = trial.hyperparameters.Choice("batch_size", [24])
            return super().run_trial(trial, *args, **kwargs)

    ledger = ledger_in(tmp_path)
    tuner = Batches(oracle(1), loud, ledger=ledger, directory=tmp_path)
    tuner.search(X, Y, **FIT)
    assert ledger.releases[0].sampling.batch_size == 24
    assert tuner.oracle.get_best_trials()[0].score > 0.0


def tuner_in(tmp_path, ledger, trials=1, made=None):
    return tfdp.tuning.PrivateTuner(made or oracle(trials), build, ledger=ledger, directory=tmp_path)


def test_a_search_goes_on_with_the_ledger_that_paid_for_it(tmp_path):
    """In the folder that KerasTuner takes by itself there may lie a search by models that are not private."""
    ledger = ledger_in(tmp_path)
    tuner_in(tmp_path, ledger).save()
    assert tuner_in(tmp_path, Ledger(ledger.path)).oracle.trials == {}
    with pytest.raises(ValueError, match="holds a search that this ledger did not pay for"):
        tuner_in(tmp_path, Ledger(tmp_path / "other.json", dataset="d", budget=(4.0, 1e-3)))
    keras_tuner.Tuner(oracle(1), plain, directory=tmp_path, project_name="plain").save()
    with pytest.raises(ValueError, match="holds a search that this ledger did not pay for"):
        tfdp.tuning.PrivateTuner(oracle(1), build, ledger=ledger, directory=tmp_path, project_name="plain")


def test_an_oracle_brings_no_scores_of_elsewhere(tmp_path):
    used = oracle(2)
    tuner = keras_tuner.Tuner(used, plain, directory=tmp_path, project_name="plain")
    tuner.oracle.create_trial("tuner0")
    with pytest.raises(ValueError, match="This oracle holds 1 trials that this ledger did not pay for"):
        tuner_in(tmp_path, ledger_in(tmp_path), made=used)


@pytest.mark.parametrize("objective", [None, "loss", "accuracy"])
def test_an_objective_that_is_no_metric_of_public_data_is_refused_at_once(tmp_path, objective):
    """Callbacks of KerasTuner were looked at, which a `fit` of the hypermodel's own may leave out."""
    named = None if objective is None else keras_tuner.Objective(objective, "min")
    private = keras_tuner.oracles.RandomSearchOracle(named, max_trials=2)
    with pytest.raises(ValueError, match="objective must be a metric of validation data"):
        tfdp.tuning.PrivateTuner(private, build, ledger=ledger_in(tmp_path), directory=tmp_path)


class Splits(Fitted):
    def fit(self, hp, model, *args, **kwargs):
        return model.fit(*args, **kwargs, validation_split=0.25)


@pytest.mark.parametrize(
    ("hypermodel", "options", "says"),
    [
        (loud, {"validation_split": 0.25, "validation_data": None}, "validation_split carves"),
        (Splits(None), {"validation_data": None}, "validation_split carves"),
        (loud, {"validation_data": (X, Y)}, "is the private training data itself"),
        (loud, {"validation_data": (X[:8, :2].copy(), Y[:8].copy())}, "In validation_data, "),
    ],
    ids=["split", "of its own", "training data", "columns"],
)
def test_arguments_that_every_trial_would_refuse_end_the_search(tmp_path, hypermodel, options, says):
    """KerasTuner took the refusal for a failed trial, and `search` returned as if it had trained."""
    ledger = ledger_in(tmp_path)
    tuner = tfdp.tuning.PrivateTuner(oracle(1), hypermodel, ledger=ledger, directory=tmp_path, project_name="p")
    with pytest.raises(ValueError, match=says):
        tuner.search(X, Y, **(FIT | options))
    assert ledger.steps == 0


def test_an_oracle_without_a_number_of_trials_is_refused(tmp_path):
    hyperband = keras_tuner.oracles.HyperbandOracle("val_accuracy", max_epochs=2)
    with pytest.raises(ValueError, match="an oracle of KerasTuner with max_trials"):
        tfdp.tuning.PrivateTuner(hyperband, build, ledger=ledger_in(tmp_path), directory=tmp_path)
