"""What a search cannot look at is not empty: oracles whose trials others make are refused before anything is paid."""

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger
from tfdp_layers.models.trials import refuse_uncounted_trials

keras_tuner = pytest.importorskip("keras_tuner")

RNG = np.random.default_rng(0)
X, PUBLIC = (RNG.normal(size=(64, 5)).astype(np.float32) for _ in range(2))
Y = (X[:, :1] > 0).astype(np.float32)
FIT = {"batch_size": 32, "epochs": 1, "validation_data": (PUBLIC, (PUBLIC[:, :1] > 0).astype(np.float32)), "verbose": 0}
SEVERAL = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": "9", "KERASTUNER_TUNER_ID": "tuner0"}
REFUSED = r"distributed search.*several processes.*in one process.*MirroredStrategy.*one ledger"


def build(hp):
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(hp.Float("rate", 0.01, 1.0)), 2.0, 1.0)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mse"])
    return model


class Random(keras_tuner.oracles.RandomSearchOracle):
    def __init__(self, trials=2):
        super().__init__(keras_tuner.Objective("val_mse", "min"), max_trials=trials, seed=0)


def ledger_in(folder, name="ledger.json"):
    return Ledger(folder / name, dataset="d", budget=(9.0, 1e-3))


def tuner_in(folder, oracle=None, ledger=None, **options):
    ledger = ledger or ledger_in(folder)
    return tfdp.tuning.PrivateTuner(
        oracle or Random(), build, ledger=ledger, directory=folder, project_name="p", **options
    )


def several(monkeypatch, name="tuner0"):
    for key, value in (SEVERAL | {"KERASTUNER_TUNER_ID": name}).items():
        monkeypatch.setenv(key, value)


@pytest.mark.parametrize("name", ["chief", "tuner0", "tuner1"])
def test_a_search_of_several_processes_is_refused_in_each_before_anything_is_written(name, tmp_path, monkeypatch):
    """KerasTuner shows the best of all trials, and each worker's ledger counted its own: 8 trials, 4 and 4."""
    several(monkeypatch, name)
    ledger = ledger_in(tmp_path)
    with pytest.raises(ValueError, match=REFUSED):
        tuner_in(tmp_path, ledger=ledger)
    assert ledger.steps == 0
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("name", ["chief", "tuner0"])
def test_one_that_becomes_such_a_search_later_is_refused_too(name, tmp_path, monkeypatch):
    tuner = tuner_in(tmp_path)
    several(monkeypatch, name)
    with pytest.raises(ValueError, match=REFUSED):
        tuner.search(X, Y, **FIT)
    assert tuner.ledger.steps == 0


def test_an_oracle_whose_trials_cannot_be_read_is_refused(tmp_path, monkeypatch):
    class Asks:
        """As the client of a chief: it shows what it is asked for, and holds nothing."""

        max_trials, objective = 2, keras_tuner.Objective("val_mse", "min")

    with pytest.raises(ValueError, match=r"cannot be read in this process.*Asks.*no dict"):
        tuner_in(tmp_path, Asks())
    tuner = tuner_in(tmp_path)
    tuner.oracle = Asks()
    with pytest.raises(ValueError, match="cannot be read in this process"):
        tuner.search(X, Y, **FIT)
    oracle = Random()
    oracle.trials = None
    with pytest.raises(ValueError, match="cannot be read in this process"):
        tuner_in(tmp_path, oracle)
    assert tuner.ledger.steps == 0


def test_an_oracle_that_shows_trials_of_others_as_the_best_is_refused(tmp_path):
    """As one behind a service does, which many processes ask for trials."""

    class Service(Random):
        found = ()

        def get_best_trials(self, num_trials=1):
            return [*self.found, *super().get_best_trials(num_trials)]

    tuner = tuner_in(tmp_path, Service(1))
    tuner.search(X, Y, **FIT)  # whose best are its own
    assert tuner.ledger.steps == 2
    other = keras_tuner.engine.trial.Trial(keras_tuner.HyperParameters(), "of another", "COMPLETED")
    tuner.oracle.found = (other,)
    with pytest.raises(ValueError, match="holds 1 trials that this ledger did not pay for"):
        tuner.search(X, Y, **FIT)
    assert tuner.ledger.steps == 2


class Sorts(Random):
    """As a user's own: of a trial without a score it makes an error."""

    asked = 0

    def get_best_trials(self, num_trials=1):
        self.asked += 1
        return sorted(self.trials.values(), key=lambda trial: trial.score)[:num_trials]


def test_an_oracle_is_asked_for_its_best_where_keras_tuner_may_ask(tmp_path, monkeypatch):
    """It was asked while a trial ran, which has no score: a TypeError ended the search."""
    oracle = Sorts()
    tuner = tuner_in(tmp_path, oracle)
    assert oracle.asked == 0  # of no trials
    tuner.search(X, Y, **FIT)
    assert tuner.ledger.steps == 4
    assert oracle.asked == 1  # at the end
    trial = next(iter(oracle.trials.values()))
    trial.status, score, trial.score = "FAILED", trial.score, None
    tuner.search(X, Y, **FIT)  # KerasTuner gets no answer either
    trial.status, trial.score = "COMPLETED", score

    def broken(self, num_trials=1):
        raise OSError("the service is away")

    monkeypatch.setattr(Sorts, "get_best_trials", broken)
    with pytest.raises(OSError, match="the service is away"):
        tuner.search(X, Y, **FIT)


def test_trials_of_others_that_are_shown_after_a_search_alone_are_refused(tmp_path):
    class Service(Random):
        def get_best_trials(self, num_trials=1):
            other = keras_tuner.engine.trial.Trial(keras_tuner.HyperParameters(), "of another", "COMPLETED")
            return [other, *super().get_best_trials(num_trials)]

    tuner = tuner_in(tmp_path, Service(1))
    with pytest.raises(ValueError, match="holds 1 trials that this ledger did not pay for"):
        tuner.search(X, Y, **FIT)


def states(folder, **held):
    (folder / "p").mkdir(exist_ok=True)
    for name, value in held.items():
        (folder / "p" / f"{name}.json").write_text(json.dumps(value))


@pytest.mark.parametrize("held", [{}, {"ledger": "0" * 32, "ended_by_an_error": False}], ids=["none", "another ledger"])
def test_a_folder_in_which_a_tuner_of_another_name_searched_is_refused(held, tmp_path):
    """All tuners of a folder write their trials under the same names, and the next one goes on from them."""
    keras_tuner.Tuner(Random(), build, directory=tmp_path, project_name="p", tuner_id="tuner7").save()
    assert json.loads((tmp_path / "p" / "tuner7.json").read_text()) == {}
    states(tmp_path, tuner7=held)
    with pytest.raises(ValueError, match=r"holds a search that this ledger did not pay for.*tuner7\.json"):
        tuner_in(tmp_path)
    mine = ledger_in(tmp_path)
    states(tmp_path, tuner0={"ledger": mine.uid, "ended_by_an_error": False})
    with pytest.raises(ValueError, match=r"holds a search that.*tuner7\.json"):
        tuner_in(tmp_path, ledger=mine)
    assert tuner_in(tmp_path, ledger=mine, overwrite=True).ledger is mine


def test_a_folder_in_which_a_search_of_another_name_failed_is_refused(tmp_path):
    mine = ledger_in(tmp_path)
    states(tmp_path, tuner7={"ledger": mine.uid, "ended_by_an_error": True})
    (tmp_path / "p" / "trial_0").mkdir()
    (tmp_path / "p" / "trial_0" / "trial.json").write_text("{}")
    with pytest.raises(tfdp.tuning.SearchFailed, match="An earlier search in the folder"):
        tuner_in(tmp_path, ledger=mine)


@pytest.mark.parametrize("held", [{}, {"ledger": "mine"}, {"ended_by_an_error": True}])
def test_a_file_of_one_s_own_is_no_search(held, tmp_path):
    """`{}` is what a plain tuner leaves, but never without an oracle or a trial beside."""
    states(tmp_path, params=held)
    (tmp_path / "p" / "trial_of_mine").mkdir()
    assert tuner_in(tmp_path).ledger.steps == 0


def test_ordinary_searches_are_taken_without_a_word(tmp_path, monkeypatch):
    """With a name but no chief, in a folder with files of one's own, on devices of one machine, gone on with."""
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "chief")
    ledger = ledger_in(tmp_path)
    states(tmp_path, mine={"rate": 0.1}, numbers=[1, 2])
    (tmp_path / "p" / "x.json").mkdir()
    (tmp_path / "p" / "lines.json").write_text("{}\n{}\n")
    devices = tf.distribute.MirroredStrategy(["cpu:0"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tuner_in(tmp_path, Random(1), ledger, distribution_strategy=devices).search(X, Y, **FIT)
        assert ledger.steps == 2
        again = tuner_in(tmp_path, Random(2), ledger)
        again.search(X, Y, **FIT)
    assert ledger.steps == 4
    assert len(again.oracle.trials) == 2
    assert again.get_best_models()[0].ledger is ledger
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "another")
    assert tuner_in(tmp_path, Random(1), ledger).ledger is ledger


def test_a_plain_search_of_several_processes_is_refused_by_fit_whichever_ledger_pays(tmp_path, monkeypatch):
    ledger = ledger_in(tmp_path)

    def charged(hp):
        model = build(hp)
        model.ledger = ledger
        return model

    tuner = keras_tuner.Tuner(Random(), charged, directory=tmp_path, project_name="p")
    several(monkeypatch)
    trial = keras_tuner.engine.trial.Trial(tuner.oracle.get_space(), "0")
    with pytest.raises(ValueError, match=REFUSED):
        tuner.run_trial(trial, X, Y, **FIT)
    assert ledger.steps == 0
    refuse_uncounted_trials([keras.callbacks.EarlyStopping("val_mse")], ledger)  # of no tuner
