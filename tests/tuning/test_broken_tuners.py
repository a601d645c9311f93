"""An error that ends a trial of `PrivateTuner` ends the search, and is told to neither the oracle nor the folder."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.searches import CODES, LABELS, PUBLIC, X, Y, build, looking_up
from tfdp_layers.accounting import Ledger
from tfdp_layers.tuning import SearchFailed

OTHERS = (np.zeros((8, 3), "int32"), np.ones((8, 1), "float32"))
FIT = {"batch_size": 16, "epochs": 1, "verbose": 0}
keras_tuner = pytest.importorskip("keras_tuner")


class Failing(keras_tuner.HyperModel):
    """Its `fit` looks at records before it trains."""

    def build(self, hp):
        hp.Choice("size", [47])
        return looking_up(48, 1.0)

    def fit(self, hp, model, x, *args, **kwargs):
        raise ValueError(f"47 is not in [0, 47): {x[0]}")


class Looks(tfdp.tuning.PrivateTuner):
    """So does its `run_trial`."""

    error: BaseException = keras_tuner.errors.FailedTrialError("47 is not in [0, 47)")

    def run_trial(self, trial, *args, **kwargs):
        raise self.error


class Interrupts(Looks):
    error = KeyboardInterrupt("47 is not in [0, 47)")


def tuner_in(tmp_path, kind=tfdp.tuning.PrivateTuner, hypermodel=None, trials=2):
    oracle = keras_tuner.oracles.GridSearchOracle(keras_tuner.Objective("val_accuracy", "max"), max_trials=trials)
    ledger = Ledger(tmp_path / "ledger.json", dataset="d", budget=(40.0, 1e-3))
    return kind(oracle, hypermodel or Failing(), ledger=ledger, directory=tmp_path, project_name="p")


def told(tmp_path, words):
    """The files below that say it."""
    return [file.name for file in tmp_path.rglob("*") if file.is_file() and words.encode() in file.read_bytes()]


@pytest.mark.parametrize(
    ("kind", "hypermodel", "raises"),
    [
        (tfdp.tuning.PrivateTuner, lambda hp: looking_up(hp.Choice("size", [47, 48]), 1.0), SearchFailed),
        (tfdp.tuning.PrivateTuner, None, SearchFailed),
        (Looks, None, SearchFailed),
        (Interrupts, None, KeyboardInterrupt),
    ],
    ids=["a step", "fit of ones own", "run_trial of ones own", "an interruption"],
)
def test_what_ends_a_trial_reaches_neither_the_oracle_nor_a_file(tmp_path, kind, hypermodel, raises):
    """The folder, which may be shown, had the text of the error, with the code of the record that caused it."""
    tuner = tuner_in(tmp_path, kind, hypermodel)
    with pytest.raises(raises) as raised:
        tuner.search(CODES, LABELS, validation_data=OTHERS, **FIT)
    if raises is SearchFailed:
        assert "is not to be published" in str(raised.value)
        assert "47 is not in [0, 47)" not in str(raised.value)
        assert "47 is not in [0, 47)" in str(raised.value.__cause__)
    (trial,) = tuner.oracle.trials.values()
    assert (trial.status, trial.message) == ("RUNNING", None)
    assert told(tmp_path, "is not in") == []
    assert told(tmp_path, "FAILED") == told(tmp_path, "INVALID") == []


@pytest.mark.slow
def test_another_search_of_a_broken_oracle_is_refused_as_its_choices_tell_of_the_first(tmp_path):
    tuner = tuner_in(tmp_path)
    with pytest.raises(SearchFailed):
        tuner.search(CODES, LABELS, validation_data=OTHERS, **FIT)
    again = tfdp.tuning.PrivateTuner(
        tuner.oracle, lambda hp: looking_up(48, 1.0), ledger=tuner.ledger, directory=tmp_path, project_name="q"
    )
    for one in (tuner, again):
        with pytest.raises(SearchFailed, match="An earlier search with this oracle failed") as raised:
            one.search(CODES, LABELS, validation_data=OTHERS, **FIT)
        assert "47" not in str(raised.value)
    assert len(tuner.oracle.trials) == 1
    (tmp_path / "other").mkdir()
    other = tuner_in(tmp_path / "other", hypermodel=lambda hp: looking_up(hp.Fixed("size", 48), 1.0), trials=1)
    other.search(CODES, LABELS, validation_data=OTHERS, **FIT)
    assert [one.status for one in other.oracle.trials.values()] == ["COMPLETED"]


def test_a_program_that_is_started_again_does_not_go_on_with_a_search_that_failed(tmp_path):
    """It found the trial that failed in the folder, made it again without the record, and stated one release more."""
    with pytest.raises(SearchFailed):
        tuner_in(tmp_path).search(CODES, LABELS, validation_data=OTHERS, **FIT)
    for _ in range(2):
        with pytest.raises(SearchFailed, match=r"earlier search in the folder .* is not to be published") as raised:
            tuner_in(tmp_path)
        assert "47" not in str(raised.value)
    oracle = keras_tuner.oracles.GridSearchOracle(keras_tuner.Objective("val_accuracy", "max"), max_trials=1)
    ledger = Ledger(tmp_path / "ledger.json")
    anew = tfdp.tuning.PrivateTuner(
        oracle, lambda hp: looking_up(48, 1.0), ledger=ledger, directory=tmp_path, project_name="p", overwrite=True
    )
    assert anew.oracle.trials == {}


def unbuilt(hp):
    if hp.Choice("size", [1, 2]) == 2:
        raise ValueError("two make no model")
    return loud(0.1, 1.0)


def diverging(hp):
    size = hp.Choice("size", [1, 2])
    return loud(1e38 if size == 2 else 0.1, 1e6)


def loud(rate, clip):
    model = build({})
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(rate), 1.0, l2_norm_clip=clip)
    model.compile(optimizer, "mse", metrics=[keras.metrics.BinaryAccuracy(name="accuracy")])
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hypermodel", "says"),
    [(unbuilt, "two make no model"), (diverging, "weights are NaN or infinite")],
)
def test_what_no_record_decides_is_a_failed_trial_as_before(tmp_path, hypermodel, says):
    tuner = tuner_in(tmp_path, hypermodel=hypermodel)
    tuner.search(X, Y, validation_data=PUBLIC, batch_size=32, epochs=2, verbose=0)
    first, second = tuner.oracle.trials.values()
    assert first.status == "COMPLETED"
    assert second.status in ("FAILED", "INVALID")
    assert says in second.message
    assert tuner.get_best_models()
