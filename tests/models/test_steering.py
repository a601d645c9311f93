"""Decisions by private numbers are refused, whatever an output, a metric or a callback is called."""

import contextlib

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but

X, Y = np.ones((8, 3), np.float32), np.zeros((8, 1), np.float32)
PUBLIC = (np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32))


def model_with(output="head", metrics=(), **options):
    inputs = keras.Input((3,))
    clips = {"input_clip": 1.0, "upstream_clip": 0.1}
    model = tfdp.PrivateModel(inputs, tfdp.layers.ClippedDense(1, name=output, **clips)(inputs))
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse", metrics=list(metrics), **options)
    return model


def stopping(monitor):
    return keras.callbacks.EarlyStopping(monitor=monitor)


class Objective:
    name = "accuracy"


def tuner_callback():
    class SaveBestEpoch(keras.callbacks.Callback):
        objective = Objective()

    SaveBestEpoch.__module__ = "keras_tuner.src.engine.tuner_utils"
    return SaveBestEpoch()


def orbax_checkpoint():
    """Of newer versions of Keras, and made without its package: which names decide is all that is asked."""
    kind = getattr(keras.callbacks, "OrbaxCheckpoint", None)
    if kind is None:
        pytest.skip("this Keras has no OrbaxCheckpoint")
    made = kind.__new__(kind)
    keras.callbacks.Callback.__init__(made)
    made.monitor, made.save_best_only = "loss", True
    return made


@pytest.mark.parametrize(
    ("model", "callback", "validation", "match"),
    [
        (lambda: model_with("val", ["mae"]), lambda: stopping("val_mae"), None, "got no validation_data"),
        (lambda: model_with("head", [named("val_mse")]), lambda: stopping("val_mse"), PUBLIC, "named like validation"),
        (lambda: model_with("val", ["mae"]), lambda: stopping("val_mae"), PUBLIC, "named like validation"),
        (model_with, lambda: keras.callbacks.ReduceLROnPlateau("val_loss"), None, "got no validation_data"),
        (model_with, tuner_callback, PUBLIC, "decides by 'accuracy'"),
        (
            model_with,
            lambda: keras.callbacks.ModelCheckpoint("best.keras", "loss", save_best_only=True),
            PUBLIC,
            "decides by 'loss'",
        ),
        (model_with, orbax_checkpoint, PUBLIC, "decides by 'loss'"),
    ],
)
def test_decisions_by_private_numbers_are_refused(model, callback, validation, match):
    with pytest.raises(ValueError, match=match):
        model().fit(X, Y, batch_size=4, verbose=0, callbacks=[callback()], validation_data=validation)


def named(name):
    return keras.metrics.MeanSquaredError(name=name)


class Counts(keras.layers.Layer):
    """Its metric is made when it is built, which is after `fit` looked at its arguments."""

    def build(self, shape):
        self.seen = keras.metrics.Mean(name="val_seen")

    def call(self, x):
        return x


def test_metrics_that_are_made_late_have_no_names_of_public_numbers():
    model = tfdp.PrivateSequential([Counts(), tfdp.layers.ClippedDense(1)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    with pytest.raises(ValueError, match=r"logs \['val_seen'\]"):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[stopping("val_seen")], validation_data=PUBLIC)
    assert model.ledger.steps == 0


class Keeping(keras.metrics.MeanSquaredError):
    def reset_state(self):
        pass


class Counting(keras.metrics.MeanSquaredError):
    """Forgets its sum, and not how many records it saw."""

    def reset_state(self):
        self.total.assign(0.0)


class Forgetting(keras.metrics.MeanSquaredError):
    def reset_state(self):
        self.total.assign(0.0)
        self.count.assign(0.0)


@pytest.mark.few(1)
@pytest.mark.parametrize("eagerly", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [Keeping, Counting, Forgetting])
def test_validation_metrics_hold_nothing_of_the_training(kind, eagerly):
    model = model_with("head", [kind(name="mine")], run_eagerly=eagerly)
    with pytest.raises(ValueError, match="keeps numbers") if kind is not Forgetting else contextlib.nullcontext():
        model.fit(X, Y, batch_size=4, verbose=0, validation_data=PUBLIC)
    assert model.ledger.steps == (2 if kind is Forgetting else 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("monitor", slow_but(["val_mae", "epsilon"], ["val_loss", "val_mae", "epsilon"]))
def test_decisions_by_public_numbers_are_taken(monitor):
    callbacks = [tfdp.callbacks.PrivacyBudget(1e6, 1e-2), keras.callbacks.EarlyStopping(monitor=monitor, mode="min")]
    model = model_with("head", ["mae"])
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=callbacks, validation_data=PUBLIC)
    assert model.ledger.steps == 2
