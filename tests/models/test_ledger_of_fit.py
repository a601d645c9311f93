"""What was released is what the ledger says, whatever happens inside of `fit`."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import compiled, mlp
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.callbacks import PrivacyBudget


class Calls(keras.callbacks.Callback):
    """Calls a function of the model once, at the given moment of training."""

    def __init__(self, moment, function):
        super().__init__()
        self.function = function
        setattr(self, moment, lambda *_, **__: self.function(self.model))


@pytest.mark.parametrize("ends", ["whole", pytest.param("broken off", marks=pytest.mark.slow)])
def test_the_file_counts_a_hundredth_ahead_and_no_more_once_fit_has_ended(ends, tmp_path):
    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append((Ledger.read(path).steps, self.model.ledger.steps))
            if ends == "broken off" and len(found) == 205:
                raise KeyboardInterrupt

    found, path = [], tmp_path / "ledger.json"
    model, x, y = compiled(mlp())
    model.ledger = Ledger(path)
    with pytest.raises(KeyboardInterrupt) if ends == "broken off" else contextlib.nullcontext():
        model.fit(x, y, batch_size=4, steps_per_epoch=100, epochs=3, verbose=0, callbacks=[Looks()])
    assert all(made <= counted <= made + 3 for counted, made in found)
    assert {counted - made for counted, made in found} == {0, 1, 2, 3}
    assert Ledger.read(path).steps == model.ledger.steps == (300 if ends == "whole" else 205)


def releases(model):
    return int(model.optimizer.releases.numpy())


@pytest.mark.few(1)
@pytest.mark.parametrize("moment", slow_but(["on_train_batch_end"], ["on_train_begin", "on_train_batch_end"]))
@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m.optimizer, "noise_multiplier", 1e-3),
        lambda m: setattr(m.layers[0], "input_clip", 1e4),
        lambda m: setattr(m.layers[0], "trainable", False),
        lambda m: setattr(m.optimizer, "noise_source", tfdp.noise.SeededNoise(1)),
    ],
)
def test_what_the_ledger_states_cannot_be_changed_in_mid_run(change, moment):
    model, x, y = compiled(mlp())
    with pytest.raises(RuntimeError, match="changed while fit runs"):
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Calls(moment, change)])
    assert releases(model) == model.ledger.steps <= 1


@pytest.mark.slow
def test_nothing_is_released_outside_of_what_the_ledger_reserved():
    model, x, y = compiled(mlp())
    model.fit(x, y, batch_size=4, verbose=0)
    before = model.get_weights()
    batch = tf.constant(x), tf.constant(y), tf.ones(12)

    def releases_own_sums(m):
        m.optimizer.release(m.bounded_gradient_sums(x, y), m.trainable_variables, m.sensitivities(), 4)

    def sneaks(m):
        for call in (lambda: m.train_step(batch), lambda: releases_own_sums(m)):
            with pytest.raises(RuntimeError, match="other than the training that runs"):
                call()

    with pytest.raises(RuntimeError, match="other than the training that runs"):
        releases_own_sums(model)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[Calls("on_train_batch_end", sneaks)])
    assert releases(model) == model.ledger.steps == 6


@pytest.mark.slow
def test_a_budget_holds_over_backup_and_restore_in_a_fresh_model(tmp_path):
    _, x, y = mlp()
    budget = 8.0

    def run(epochs, callbacks):
        model, _, _ = compiled(mlp(), noise=2.0)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        model.fit(
            x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=[PrivacyBudget(budget, 1e-2), backup, *callbacks]
        )
        return model

    def stops(model):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(100, [Calls("on_epoch_end", lambda m: stops(m) if releases(m) >= 30 else None)])
    resumed = run(100_000, [])
    assert releases(resumed) > 30
    assert tfdp.accounting.epsilon(resumed.ledger, 1e-2) <= budget


@pytest.mark.slow
def test_weights_restored_without_their_cost_are_refused(tmp_path, monkeypatch):
    model, x, y = compiled(mlp())
    model.fit(x, y, batch_size=4, verbose=0)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    fresh, _, _ = compiled(mlp())
    fresh.optimizer.build(fresh.trainable_variables)
    monkeypatch.setattr(released_numbers, "_released", {})  # as in another process, which did not see the training
    tf.train.Checkpoint(model=fresh).restore(path)
    assert releases(fresh) == 3
    with pytest.raises(ValueError, match="without what they cost"):
        fresh.fit(x, y, batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="without what they cost"):
        fresh.privacy_statement(1e-2)
    fresh.ledger.merge(model.ledger)
    assert fresh.privacy_statement(1e-2).steps == 3
    assert tfdp.make_private(model).ledger.steps == 3


def test_an_error_in_a_step_never_under_counts():
    model, x, y = compiled(mlp(), steps_per_execution=1, run_eagerly=True)
    inner, made = model.optimizer.inner_optimizer, []
    apply = inner.apply

    def fails(*args):
        apply(*args)
        made.append(1)
        if len(made) == 2:
            raise OSError("disk")

    inner.apply = fails
    with pytest.raises(OSError, match="disk"):
        model.fit(x, y, batch_size=4, verbose=0)
    assert len(made) == model.ledger.steps == 2


def test_views_of_the_private_data_are_no_public_validation_data():
    model, x, y = compiled(mlp())
    for data in (x, tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(4))):
        labels = {"y": y, "batch_size": 4} if data is x else {}
        with pytest.raises(ValueError, match="validation_data"):
            model.fit(data, **labels, verbose=0, validation_data=(x[2:5], y[2:5]))


def test_the_ledger_stays_while_fit_runs():
    model, x, y = compiled(mlp())
    exchange = Calls("on_train_batch_end", lambda m: setattr(m, "ledger", tfdp.accounting.Ledger()))
    with pytest.raises(RuntimeError, match="can't be exchanged"):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[exchange])
