"""What `PrivateTuner` goes on from, and what its models bring, its ledger has paid for, whenever that came."""

import keras
import pytest

import tfdp_layers as tfdp
from helpers.searches import PUBLIC, X, Y, build
from tfdp_layers.accounting import Ledger, epsilon

keras_tuner = pytest.importorskip("keras_tuner")
FIT = {"batch_size": 32, "epochs": 1, "validation_data": PUBLIC, "verbose": 0}


def loud(hp):
    """With a noise of its own: nothing is to be found before it trains."""
    hp.Float("rate", 0.01, 1.0)
    return compiled(build({}))


def compiled(model):
    metrics = [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 2.0), "mse", metrics=metrics)
    return model


def plain(hp):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    metrics = [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]
    model.compile(keras.optimizers.SGD(hp.Float("rate", 0.01, 1.0)), "mse", metrics=metrics)
    return model


def oracle(trials=3):
    return keras_tuner.oracles.RandomSearchOracle(keras_tuner.Objective("val_accuracy", "max"), max_trials=trials)


def tuner_in(tmp_path, made, ledger=None, hypermodel=loud, kind=tfdp.tuning.PrivateTuner):
    ledger = ledger or Ledger(tmp_path / "ledger.json", dataset="d", budget=(9.0, 1e-3))
    return kind(made, hypermodel, ledger=ledger, directory=tmp_path, project_name="p")


def used_elsewhere(made, tmp_path, most=1):
    """Has another tuner, over models that are not private, make trials of an oracle."""
    trials, made.max_trials = made.max_trials, most
    keras_tuner.Tuner(made, plain, directory=tmp_path, project_name="q").search(X, Y, **FIT)
    made.max_trials = trials


def test_an_oracle_that_was_used_elsewhere_since_is_refused_by_search(tmp_path):
    """It was asked when the tuner was made, and not when it searched: the best was one that nobody paid for."""
    made = oracle()
    tuner = tuner_in(tmp_path, made)
    used_elsewhere(made, tmp_path)
    with pytest.raises(ValueError, match="This oracle holds 1 trials that this ledger did not pay for"):
        tuner.search(X, Y, **FIT)
    assert tuner.ledger.steps == 0


class Between(tfdp.tuning.PrivateTuner):
    """Does something as the second trial begins."""

    def on_trial_begin(self, trial):
        if trial.trial_id == "1":
            self.between()


@pytest.mark.parametrize("way", ["another trial", "another score"])
def test_an_oracle_that_gets_scores_of_elsewhere_between_two_trials_is_refused_before_the_next(way, tmp_path):
    made = oracle()
    tuner = tuner_in(tmp_path, made, kind=Between)
    tuner.between = lambda: made.update_trial(
        "0" if way == "another score" else made.create_trial("other").trial_id, {"val_accuracy": 2.0}, step=7
    )
    with pytest.raises(ValueError, match="This oracle holds 1 trials that this ledger did not pay for"):
        tuner.search(X, Y, **FIT)
    assert tuner.ledger.steps == 3  # of the first


@pytest.mark.slow
def test_an_interrupted_trial_that_another_tuner_ends_is_refused(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    made = oracle()
    tuner = tuner_in(tmp_path, made, kind=Between)
    tuner.between = interrupt
    with pytest.raises(KeyboardInterrupt):
        tuner.search(X, Y, **FIT)
    used_elsewhere(made, tmp_path, most=2)  # goes on with the trial that began
    tuner.between = lambda: None
    with pytest.raises(ValueError, match="This oracle holds 1 trials that this ledger did not pay for"):
        tuner.search(X, Y, **FIT)


@pytest.mark.slow
def test_a_search_that_was_interrupted_goes_on(tmp_path):
    """In this process, by the same tuner; and started again, from the folder."""

    def interrupt():
        raise KeyboardInterrupt

    tuner = tuner_in(tmp_path, oracle(2), kind=Between)
    tuner.between = interrupt
    with pytest.raises(KeyboardInterrupt):
        tuner.search(X, Y, **FIT)
    ledger = tuner.ledger
    again = tuner_in(tmp_path, oracle(2), ledger)
    assert sorted(again.oracle.trials) == ["0", "1"]
    again.search(X, Y, **FIT)
    tuner.between = lambda: None
    tuner.search(X, Y, **FIT)
    for one in (again, tuner):
        assert [trial.status for trial in one.oracle.trials.values()] == ["COMPLETED"] * 2
        one.oracle.max_trials = 3
        one.search(X, Y, **FIT)  # and is made longer
        assert len(one.oracle.trials) == 3
    assert ledger.steps == 5 * 3


def centred(hp, layer=None):
    """A model whose first layer is adapted to the private records: in build, unless it is given."""
    layer = layer or tfdp.layers.DPCentering(noise_multiplier=1.0, l2_norm_clip=5.0)
    hp.Int("units", 2, 8)
    model = compiled(tfdp.PrivateSequential([keras.Input((5,)), layer, keras.layers.Dense(1)]))
    if not layer.adapted:
        layer.adapt(X)
    return model


def test_a_build_that_adapts_a_layer_is_refused_before_it_is_charged(tmp_path):
    """Making the tuner, which builds models, spent more than the budget of the search."""
    ledger = Ledger(tmp_path / "ledger.json", dataset="d", budget=(3.0, 1e-3))
    with pytest.raises(ValueError, match=r"build returned a model whose weights .*ledger\.merge\(layer\.ledger\)"):
        tuner_in(tmp_path, oracle(1), ledger, centred)
    assert epsilon(ledger, 1e-3) == 0.0


@pytest.mark.slow
def test_a_layer_that_was_adapted_and_counted_before_the_search_is_taken(tmp_path):
    layer = tfdp.layers.DPCentering(noise_multiplier=4.0, l2_norm_clip=5.0)
    layer.adapt(X)
    ledger = Ledger(tmp_path / "ledger.json", dataset="d", budget=(9.0, 1e-3))
    ledger.merge(layer.ledger)
    tuner = tuner_in(tmp_path, oracle(2), ledger, lambda hp: centred(hp, layer))
    tuner.search(X, Y, **FIT)
    assert ledger.steps == 1 + 2 * 3
