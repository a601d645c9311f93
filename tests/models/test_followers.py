"""The model of a worker that is not the chief: nothing is charged to its ledger, and no way leads around it.

Here there is one process, which says that it is such a worker; `test_replicas.py` has real ones.
"""

import copy
import pickle
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.accounting_tools import charged, release_of
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.following import copy_of_chiefs
from tfdp_layers.models import bookkeeping, training
from tfdp_layers.models.counting import CountedStep
from tfdp_layers.sampling import Poisson

REFUSED = r"This worker is not the chief.*task_id == 0"
STEP = release_of(Poisson(10), 4.0, 40)
X = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def small():
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, "sigmoid")]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=4.0), "binary_crossentropy")
    return model


def fit(model, **given):
    model.fit(X, Y, batch_size=10, epochs=1, verbose=0, **given)
    return model.ledger


@pytest.fixture
def worker(monkeypatch):
    for room in (training, bookkeeping):
        monkeypatch.setattr(room, "follows_chief", lambda _: True)


def metric(ledger):
    tfdp.release_metric(X[:, 0] > 0, ledger, stddev=0.1, name="accuracy")
    return ledger


def quantiles(ledger):
    tfdp.preprocessing.quantiles(X, ledger, [0.5], lower=-3.0, upper=3.0, noise_multiplier=4.0)
    return ledger


def merged(ledger):
    ledger.merge(own())
    return ledger


def given_one():
    model = small()
    model.ledger = Ledger(dataset="clinic")
    return model


CHARGES = {
    "metric": lambda: metric(small().ledger),
    "metric of one that was given": lambda: metric(given_one().ledger),
    "metric of a copied model": lambda: metric(copy.deepcopy(small()).ledger),
    "quantiles": lambda: quantiles(small().ledger),
    "fit by itself": lambda: fit(small()),
    "merge of its own": lambda: merged(small().ledger),
}


def own():
    return metric(Ledger())


@pytest.mark.parametrize("charge", CHARGES.values(), ids=CHARGES)
def test_a_worker_charges_nothing(charge, worker):
    with pytest.raises(LedgerError, match=REFUSED):
        charge()


@pytest.mark.parametrize("charge", CHARGES.values(), ids=CHARGES)
def test_everybody_else_charges_without_a_word(charge):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*__array__ implementation doesn't accept a copy keyword.*")
        ledger = charge()
    assert ledger.entries


def test_a_worker_states_saves_and_loads(worker, tmp_path):
    model = small()
    model.ledger = Ledger(tmp_path / "ledger.json")
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    assert loaded.privacy_statement(1e-5).epsilon == model.privacy_statement(1e-5).epsilon == 0.0


def loaded(model, path):
    model.save(path / "model.keras")
    return tfdp.load_model(path / "model.keras")


def loaded_by_keras(model, path):
    model.save(path / "model.keras")
    return keras.models.load_model(path / "model.keras")


def with_loaded_weights(model, path):
    model.save_weights(path / "model.weights.h5")
    other = small()
    other.load_weights(path / "model.weights.h5")
    return other


def with_weights(model, path):
    other = small()
    other.set_weights([value.copy() for value in model.get_weights()])
    return other


def with_ledger(ledger):
    other = small()
    other.ledger = ledger
    return other


COPIES = {
    "load_model": loaded,
    "keras.models.load_model": loaded_by_keras,
    "load_weights": with_loaded_weights,
    "set_weights": with_weights,
    "pickle": lambda model, path: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, path: copy.deepcopy(model),
    "make_private": lambda model, path: tfdp.make_private(model.to_keras()),
    "shared layers": lambda model, path: tfdp.PrivateModel(model.inputs, model.layers[-1].output),
    "given copy": lambda model, path: with_ledger(model.ledger.copy()),
}


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
def test_whatever_model_holds_what_the_chiefs_does_charges_nothing(way, tmp_path):
    """Each worker released a metric on one of these: 3.574 stated of 5.319. On the chief they are charged as ever."""
    model = small()
    fit(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*can learn next to nothing.*")
        assert metric(way(model, tmp_path).ledger) is not None  # no copy came from a chief yet
    copy_of_chiefs(model.ledger.to_json())
    made = way(model, tmp_path)
    assert made.ledger.is_copy
    assert made.privacy_statement(1e-5).epsilon == model.privacy_statement(1e-5).epsilon
    for act in (
        lambda: metric(made.ledger),
        lambda: made.ledger.merge(own()),
        lambda: metric(copy.deepcopy(made).ledger),
    ):
        with pytest.raises(LedgerError, match=REFUSED):
            act()


def test_a_copy_is_not_trained_by_one_worker_alone(tmp_path):
    fit(model := small())
    copy_of_chiefs(model.ledger.to_json())
    copied = loaded(model, tmp_path)
    with pytest.raises(LedgerError, match=REFUSED):
        fit(copied)


def test_a_worker_assigns_what_the_chief_counts_and_nothing_of_its_own(worker, tmp_path):
    model, mine = small(), own()
    with pytest.raises(LedgerError, match="counts what this process itself released"):
        model.ledger = mine
    assert not mine.is_copy
    model.ledger = copy_of_chiefs(charged(Ledger(tmp_path / "chiefs.json"), STEP, 4).to_json())
    model.ledger = model.ledger.copy()
    assert model.ledger.steps == 4
    assert model.ledger.is_copy


class Saves(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path, self.stated = path, []

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(self.path)
        self.stated.append(self.model.privacy_statement(1e-5).epsilon)


def test_a_training_that_its_own_entry_lacks_states_and_saves_nothing(monkeypatch, tmp_path):
    """The planted bug: the step is made, and nothing counts it. A ledger with last month's training passed before."""
    earlier, model = small(), small()
    fit(earlier)
    model.ledger = earlier.ledger
    assert model.ledger.updates == 4
    monkeypatch.setattr(CountedStep, "_reserved", lambda *_: 4)
    monkeypatch.setattr(Ledger, "settle", lambda *_: None)
    with pytest.raises(RuntimeError, match="made 1 releases, and its ledger counts 0 of them"):
        fit(model, callbacks=[Saves(tmp_path / "model.keras")], steps_per_epoch=1)


def test_a_training_whose_entry_goes_on_is_saved_as_it_runs(tmp_path):
    model, saves = small(), Saves(tmp_path / "model.keras")
    for _ in range(3):
        fit(model, callbacks=[saves])
    assert saves.stated == sorted(saves.stated)
    assert tfdp.load_model(tmp_path / "model.keras").ledger.steps == model.ledger.steps == 12
