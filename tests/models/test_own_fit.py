"""What a tool puts in the place of Keras' `fit` for all models has no part in a private training."""

import functools
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.callbacks import own_fit

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
SAVED = []


class KeepsTheBest(keras.callbacks.Callback):
    """As mlflow's `MlflowModelCheckpointCallback`, put behind all checks."""

    def on_epoch_end(self, epoch, logs=None):
        SAVED.append(logs["loss"])


def patched(fit):
    @functools.wraps(fit)
    def logs_by_itself(self, *args, callbacks=None, **kwargs):
        return fit(self, *args, callbacks=[*(callbacks or []), KeepsTheBest()], **kwargs)

    return logs_by_itself


def model_of():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=2.0), "mse")
    return model


@pytest.fixture(autouse=True)
def nothing_saved():
    SAVED.clear()


def test_keras_own_runs_in_its_place_and_fit_says_so(monkeypatch):
    monkeypatch.setattr(keras.Model, "fit", patched(keras.Model.fit))
    model = model_of()
    with pytest.warns(UserWarning, match="fit was replaced"):
        history = model.fit(X, X[:, :1], batch_size=10, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    assert model.ledger.steps == 8
    assert not SAVED
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    plain.fit(X, X[:, :1], verbose=0)
    assert len(SAVED) == 1


@pytest.mark.filterwarnings("ignore:keras.Model.fit was replaced")
def test_a_search_hands_no_trial_to_it(monkeypatch):
    monkeypatch.setattr(keras.Model, "fit", patched(keras.Model.fit))
    options = {"budget": (3.0, 1e-3), "objective": lambda model: 0.0, "batch_size": 10, "trials": 2.0, "verbose": 0}

    def build(_):
        model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd"), "mse")
        return model

    tfdp.tuning.random_search(build, {"a": [1, 2]}, X, X[:, :1], **options)
    assert not SAVED


def wrapped(fit):
    """As the library wrapt does, on which TensorFlow rests: it says of itself what it wraps."""
    wrapt = pytest.importorskip("wrapt")

    @wrapt.decorator
    def logs_by_itself(method, model, args, kwargs):
        kwargs["callbacks"] = [*(kwargs.get("callbacks") or []), KeepsTheBest()]
        return method(*args, **kwargs)

    return logs_by_itself(fit)


def unnamed(fit):
    """Without its signature."""
    return lambda self, *args, **kwargs: fit(self, *args, callbacks=[KeepsTheBest()], **kwargs)


TRAINER = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
WAYS = {
    "a wrapper of wrapt": (keras.Model, wrapped),
    "a function without a signature": (keras.Model, unnamed),
    "where Keras defines it": (TRAINER, patched),
    "where Keras defines it, by wrapt": (TRAINER, wrapped),
}


@pytest.mark.parametrize("way", WAYS)
def test_however_it_was_replaced_keras_own_runs(monkeypatch, way):
    kind, replace = WAYS[way]
    monkeypatch.setattr(kind, "fit", replace(keras.Model.fit))
    model = model_of()
    with pytest.warns(UserWarning, match="fit was replaced"):
        model.fit(X, X[:, :1], None, 1, 0, sampling=tfdp.sampling.Poisson(10))
    assert model.ledger.steps == 4
    assert not SAVED


@pytest.mark.parametrize("replace", [patched, wrapped])
def test_where_keras_own_is_gone_nothing_is_charged(monkeypatch, replace):
    """Replaced where Keras defines it before this library was imported."""
    monkeypatch.setattr(TRAINER, "fit", replace(keras.Model.fit))
    monkeypatch.setattr(own_fit, "_FIT", own_fit._defined())
    model = model_of()
    with pytest.raises(ValueError, match="was replaced before"):
        model.fit(X, X[:, :1], verbose=0)
    assert model.ledger.steps == 0
    assert not SAVED


def test_there_is_one_door_to_keras_fit():
    package = Path(tfdp.__file__).parent
    calls = [(path.name, line.strip()) for path in package.rglob("*.py") for line in path.read_text().splitlines()]
    found = {(name, line) for name, line in calls if "super().fit" in line or "Model.fit(" in line}
    assert found == {
        ("counted.py", "fit = fit_of_keras(self, super().fit)  # type: ignore[misc]"),
        ("charged.py", "fit = self._inner.fit if own else super().fit"),  # of KerasTuner: it calls the model's own
    }


def test_nothing_is_said_where_nobody_replaced_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = model_of().fit(X, X[:, :1], batch_size=10, verbose=0)
    assert len(history.history["loss"]) == 1
