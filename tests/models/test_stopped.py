"""A training that a callback, or its loop, ends before its plan: what it states is for that number of steps alone."""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, Statement
from tfdp_layers.models.steered import STOPPED

X, Y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.ones((40, 1), "float32")
PUBLIC = X[:8] + 5.0, Y[:8]
SAID = "what covers when it ended, too"
PLANNED = 16


class Stop(keras.callbacks.Callback):
    """Stops at a target for public data."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1 and logs["val_loss"] < 1e9


class PrunedError(Exception):
    """As Optuna's `TrialPruned`, which its callback for Keras raises."""


class Raising(keras.callbacks.Callback):
    """Ends a training by an error, at a target for public data."""

    def __init__(self, error=None):
        super().__init__()
        self._error = PrunedError() if error is None else error

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and logs["val_loss"] < 1e9:
            raise self._error


def made(noise=3.0, together=1):
    model = tfdp.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=noise), "mse", steps_per_execution=together)
    return model


def fitted(*callbacks, model=None, **options):
    model = made() if model is None else model
    options = {"batch_size": 10, "epochs": 4, "validation_data": PUBLIC, "verbose": 0} | options
    with warnings.catch_warnings(), contextlib.suppress(KeyboardInterrupt, PrunedError, StopIteration):
        warnings.simplefilter("ignore")
        model.fit(X, Y, callbacks=list(callbacks), **options)
    return model


def looped(most, error=None):
    model = made()
    with contextlib.suppress(PrunedError), model.private_run(X, Y, batch_size=10, epochs=4, verbose=0) as run:
        for number, batch in enumerate(run, 1):
            run.step(batch)
            if number == most:
                if error is not None:
                    raise error
                break
    return model


def notes(model):
    return [note for note in model.privacy_statement(1e-3).notes if SAID in note]


def budget(epsilon, *, more=()):
    return (tfdp.callbacks.PrivacyBudget(epsilon, 1e-3), *more)


STOPPED_EARLY = {
    "a callback of one's own": (lambda: fitted(Stop()), 8),
    "Keras' early stopping": (lambda: fitted(keras.callbacks.EarlyStopping("val_loss", min_delta=1e9, patience=1)), 8),
    "a loop that is left": (lambda: looped(3), 3),
    "an error of a callback": (lambda: fitted(Raising()), 8),
    "StopIteration of a callback": (lambda: fitted(Raising(StopIteration())), 8),
    "an error of a loop": (lambda: looped(5, PrunedError()), 5),
    "noise by a budget": (lambda: fitted(*budget(1.0, more=[Stop()]), model=made("calibrate")), 8),
}


@pytest.mark.parametrize("way", STOPPED_EARLY)
def test_a_training_that_is_ended_early_says_of_how_many_steps_its_epsilon_is(way):
    make, steps = STOPPED_EARLY[way]
    model = make()
    assert model.ledger.steps == steps
    assert notes(model) == [STOPPED.format(made=steps, planned=PLANNED)]


def test_files_and_ledgers_that_take_it_over_say_so(tmp_path):
    model, other = fitted(Stop()), Ledger(tmp_path / "ledger.json")
    model.save(tmp_path / "model.keras")
    assert notes(tfdp.load_model(tmp_path / "model.keras")) == notes(model)
    other.merge(model.ledger)
    other.close()
    (note,) = Statement.from_ledger(Ledger.read(tmp_path / "ledger.json"), 1e-3).notes
    assert SAID in note
    fitted(model=model)  # all that the second one planned
    assert len(notes(model)) == 1


def test_a_training_that_ends_before_its_budget_says_that_the_budget_covers_it():
    model = fitted(*budget(0.8, more=[Stop()]), epochs=200)
    assert notes(model) == [STOPPED.format(made=8, planned=800)]
    assert "or of as many of them as its budget affords" in notes(model)[0]


class Within(keras.callbacks.Callback):
    """Trains another model after the first epoch."""

    def __init__(self, other):
        super().__init__()
        self._other = other

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            fitted(model=self._other, epochs=200)


def test_the_budget_of_another_training_that_ends_one_is_a_budget():
    """It was told as ended by a callback, since that budget is gone once the other training is over."""
    outer, inner = made(), made()
    outer.ledger = inner.ledger = Ledger()
    fitted(*budget(0.8, more=[Within(inner)]), model=outer)
    assert 4 < outer.ledger.steps < 800
    assert notes(inner) == notes(outer) == []


def of_a_data_set():
    model = made()
    model.ledger = Ledger(dataset="patients", budget=(0.8, 1e-3))
    return fitted(model=model, epochs=200)


def interrupted():
    model = made()
    with contextlib.suppress(KeyboardInterrupt), model.private_run(X, Y, batch_size=10, verbose=0) as run:
        run.step(next(run))
        raise KeyboardInterrupt
    return model


ORDINARY = {
    "all steps": fitted,
    "stopping that never stops": lambda: fitted(keras.callbacks.EarlyStopping("val_loss", patience=9)),
    "stopping after the last epoch": lambda: fitted(Stop(), epochs=2),
    "the budget of a data set": of_a_data_set,
    "the budget of a callback": lambda: fitted(*budget(0.8), epochs=200),
    "a budget in the middle of a call": lambda: fitted(*budget(0.8), model=made(together=7), epochs=200),
    "an error after the last step": lambda: fitted(Raising(), epochs=2),
    "fewer steps an epoch": lambda: fitted(steps_per_epoch=2),
    "a loop": lambda: looped(PLANNED),
    "interrupted by hand": lambda: fitted(Raising(KeyboardInterrupt())),
    "a loop that is interrupted by hand": interrupted,
}


@pytest.mark.few(13)
@pytest.mark.parametrize("way", ORDINARY)
def test_what_was_planned_and_what_a_budget_ends_brings_no_note(way):
    model = ORDINARY[way]()
    assert model.ledger.steps
    assert notes(model) == []


def stepped(model):
    """As `fit`, by a loop."""

    def train(*data, **options):
        with model.private_run(*data, **options) as run:
            for batch in run:
                run.step(batch)

    return train


def unreadable():
    yield from [(X[:4], Y[:4])] * 3
    raise ValueError("a record that cannot be read")


@pytest.mark.parametrize("way", ["fit", "loop"])
def test_an_error_out_of_the_data_keeps_its_own_note(way):
    spec = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
    data = tf.data.Dataset.from_generator(unreadable, output_signature=spec)
    model = made()
    train = {"fit": model.fit, "loop": stepped(model)}[way]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        declared = tfdp.declare_sampling(data, tfdp.sampling.Poisson(4), examples=64)
        with pytest.raises(tf.errors.InvalidArgumentError):
            train(declared, steps_per_epoch=16, verbose=0)
    assert any("whether, and when, may depend on" in note for note in model.privacy_statement(1e-3).notes)
    assert notes(model) == []


def test_of_data_that_ran_out_one_note_says_so():
    stream = iter([(X[:4], Y[:4])] * 3)
    spec = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
    data = tf.data.Dataset.from_generator(lambda: stream, output_signature=spec)
    model = made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        declared = tfdp.declare_sampling(data, tfdp.sampling.Poisson(4), examples=64)
        model.fit(declared, steps_per_epoch=16, verbose=0)
    assert any("The data of a training ran out" in note for note in model.privacy_statement(1e-3).notes)
    assert notes(model) == []
