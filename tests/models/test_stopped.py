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


class Interrupted(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


def made(noise=3.0):
    model = tfdp.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=noise), "mse")
    return model


def fitted(*callbacks, model=None, **options):
    model = made() if model is None else model
    options = {"batch_size": 10, "epochs": 4, "validation_data": PUBLIC, "verbose": 0} | options
    with warnings.catch_warnings(), contextlib.suppress(KeyboardInterrupt):
        warnings.simplefilter("ignore")
        model.fit(X, Y, callbacks=list(callbacks), **options)
    return model


def looped(most):
    model = made()
    with model.private_run(X, Y, batch_size=10, epochs=4, verbose=0) as run:
        for number, batch in enumerate(run, 1):
            run.step(batch)
            if number == most:
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


def test_what_a_budget_does_not_afford_is_not_planned():
    """So the budget's epsilon covers when such a training ended."""
    spent = fitted(*budget(0.8), epochs=200)
    affords = spent.ledger.steps
    assert 8 < affords < 800
    assert notes(spent) == []
    assert notes(fitted(*budget(0.8, more=[Stop()]), epochs=200)) == [STOPPED.format(made=8, planned=affords)]


def of_a_data_set():
    model = made()
    model.ledger = Ledger(dataset="patients", budget=(0.8, 1e-3))
    return fitted(model=model, epochs=200)


ORDINARY = {
    "all steps": fitted,
    "stopping that never stops": lambda: fitted(keras.callbacks.EarlyStopping("val_loss", patience=9)),
    "stopping after the last epoch": lambda: fitted(Stop(), epochs=2),
    "the budget of a data set": of_a_data_set,
    "fewer steps an epoch": lambda: fitted(steps_per_epoch=2),
    "a loop": lambda: looped(PLANNED),
    "interrupted by hand": lambda: fitted(Interrupted()),
}


@pytest.mark.few(9)
@pytest.mark.parametrize("way", ORDINARY)
def test_what_was_planned_and_what_a_budget_ends_brings_no_note(way):
    model = ORDINARY[way]()
    assert model.ledger.steps
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
