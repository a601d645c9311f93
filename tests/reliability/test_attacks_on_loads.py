"""Weights that are loaded bring what they cost, whoever looks meanwhile, and wherever they are loaded."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.accounting.passing import Passing

X = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")
Y = np.zeros((12, 4), "float32")


def private(optimizer=None):
    layers = [keras.layers.Dense(6, "tanh"), keras.layers.Dense(4)]
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), *layers]))
    model.compile(tfdp.optimizers.ClippedOptimizer(optimizer or "sgd", noise_multiplier=1.0), "mse")
    return model


def fit(model, **arguments):
    model.fit(X, Y, batch_size=4, verbose=0, **{"epochs": 1, **arguments})
    return model


def steps_of_copy(weights):
    """What a new model counts that has these weights."""
    model = private()
    model.set_weights(weights)
    model.privacy_statement(1e-3)
    return model.ledger.steps


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A model's file; of what was in it this process knows nothing any more."""
    monkeypatch.setattr(released_numbers, "_released", {})
    model, path = fit(private()), tmp_path / "model.keras"
    model.save(path)
    released_numbers._released.clear()
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("load", [keras.saving.load_model, tfdp.load_model])
def test_a_look_of_another_thread_remembers_no_numbers_that_a_file_replaces(load, path, monkeypatch):
    other, looks, initial = private(), [], []
    inner = keras.layers.Dense.load_own_variables

    def looking(layer, store):
        initial.append(layer.kernel.numpy())
        with ThreadPoolExecutor(1) as pool:
            looks.append(pool.submit(other.privacy_statement, 1e-3).result(timeout=60))
        inner(layer, store)

    with monkeypatch.context() as patched:
        patched.setattr(keras.layers.Dense, "load_own_variables", looking)
        loaded = load(path)
    assert len(looks) == 2
    assert steps_of_copy(loaded.get_weights()) == 3
    assert not list(released_numbers.costs_of(initial))


def test_another_thread_recognises_what_one_that_lives_on_has_loaded(path):
    handed, done = [], threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: handed.append(keras.saving.load_model(path))).result(timeout=60)
        waits = pool.submit(done.wait, 60)
        assert steps_of_copy(handed[0].get_weights()) == 3
        done.set()
        assert waits.result(timeout=60)


class _Loading(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path, self.loaded = path, None

    def on_train_begin(self, logs=None):
        self.loaded = keras.saving.load_model(self.path)


@pytest.mark.slow
def test_a_callback_loads_before_the_step_is_traced(path):
    loading, model = _Loading(path), private()
    fit(model, callbacks=[loading])
    assert model.ledger.steps == int(model.optimizer.iterations) == 3
    assert steps_of_copy(loading.loaded.get_weights()) == 3


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_a_loop_copies_its_model_between_steps(copied):
    model, copies = private(), []
    with model.private_run(X, Y, batch_size=4, epochs=2, verbose=0) as run:
        for batch in run:
            run.step(batch)
            copies.append(copied(model))
    assert model.ledger.steps == int(model.optimizer.iterations) == 6
    assert all(steps_of_copy(one.get_weights()) > 0 for one in copies)


@pytest.mark.slow
def test_a_loop_loads_before_its_first_step(path):
    model = private()
    with model.private_run(X, Y, batch_size=4, epochs=1, verbose=0) as run:
        loaded = keras.saving.load_model(path)
        for batch in run:
            run.step(batch)
    assert model.ledger.steps == 3
    assert steps_of_copy(loaded.get_weights()) == 3


class _Taking(keras.callbacks.Callback):
    """Takes what the second epoch left."""

    weights = moments = None

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            self.weights = self.model.get_weights()
            self.moments = [np.array(variable) for variable in self.model.optimizer.variables if variable.ndim]


@pytest.mark.slow
def test_copies_of_an_early_epoch_of_a_long_training_bring_its_cost(monkeypatch):
    monkeypatch.setattr(released_numbers, "_passing", Passing())
    taking = _Taking()
    model = fit(private(keras.optimizers.Adam(0.01)), epochs=3, callbacks=[taking])
    released_numbers.remember_passing(model._privacy.account, np.random.default_rng(0).normal(size=(10_000, 3)))
    assert steps_of_copy(taking.weights) == 9
    assert taking.moments
    moved = private(keras.optimizers.Adam(0.01))
    moved.optimizer.build(moved.trainable_variables)
    theirs = [variable for variable in moved.optimizer.variables if variable.ndim]
    for variable, value in zip(theirs, taking.moments, strict=True):
        variable.assign(value)
    assert moved.ledger.steps == 9  # of moments alone


def test_a_training_says_what_is_recognised_no_longer(monkeypatch):
    monkeypatch.setattr(released_numbers, "_passing", Passing(8))
    with pytest.warns(UserWarning, match="copies of early epochs' weights are recognised no longer"):
        fit(private(keras.optimizers.Adam(0.01)), epochs=6, callbacks=[_Taking()])
