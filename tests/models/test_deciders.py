"""A callback that reads private numbers and sets what Keras' own callbacks decide by, decides in their place."""

import time
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.watched import PUBLIC, X, Y, model_of
from tfdp_layers.models.deciders import Deciders

FIT = {"batch_size": 4, "epochs": 4, "verbose": 0, "validation_data": PUBLIC}


class Sets(keras.callbacks.Callback):
    """Looks at the logs at the end of an epoch, and changes something in whichever hook."""

    def __init__(self, change, read="loss", at="on_epoch_end"):
        super().__init__()
        self._change, self._key, self._at, self._least = change, read, at, None

    def on_epoch_end(self, epoch, logs=None):
        self._least = logs[self._key]
        if self._at == "on_epoch_end":
            self._change()

    def on_train_batch_end(self, batch, logs=None):
        if self._at == "on_train_batch_end" and self._least is not None:
            self._change()


def said(callbacks, **options):
    model = model_of()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(X, Y, callbacks=callbacks, **(FIT | options))
    found = [str(one.message) for one in caught if "and then" in str(one.message)]
    assert [any("and then" in note for note in model.privacy_statement(1e-2).notes)] == [bool(found)]
    return found, history


def setting(callback, **values):
    return lambda: vars(callback).update(values)


@pytest.mark.few(1)
@pytest.mark.parametrize("first", [True, False], ids=["before it", "behind it"])
@pytest.mark.parametrize("at", ["on_epoch_end", "on_train_batch_end"])
def test_a_training_that_ends_by_the_training_loss_through_early_stopping_is_noted(first, at):
    """No word was said of it, as `EarlyStopping` itself was taken for the one that stopped."""
    early = keras.callbacks.EarlyStopping("val_loss", patience=50)
    steering = Sets(setting(early, patience=0, best=-1.0, wait=10), at=at)
    (found,), history = said([steering, early] if first else [early, steering])
    assert len(history.epoch) < FIT["epochs"]
    assert "Sets read 'loss' and then changed 'best', 'patience', 'wait' of EarlyStopping, by which that" in found


def forget_it(weights):
    """Puts other weights into the list."""
    weights[:] = [one + 1.0 for one in weights]


def decided_by(kind, tmp_path):
    """A callback of Keras', or ours, and a change of it."""
    kc = keras.callbacks
    if kind == "checkpoint":
        made = kc.ModelCheckpoint(tmp_path / "best.keras", "val_loss", save_best_only=True)
        return made, setting(made, best=1e9)
    if kind == "every epoch":
        made = kc.ModelCheckpoint(tmp_path / "{epoch}.keras")
        return made, setting(made, save_freq=10**6)
    if kind == "rate":
        made = kc.ReduceLROnPlateau("val_loss", patience=50)
        return made, setting(made, wait=60)
    if kind == "direction":
        made = kc.EarlyStopping("val_loss", mode="min", patience=50)
        return made, setting(made, monitor_op=np.greater)
    if kind == "weights":
        made = kc.EarlyStopping("val_loss", patience=50, restore_best_weights=True)
        return made, lambda: forget_it(made.best_weights)
    if kind == "schedule":
        made = kc.LearningRateScheduler(lambda epoch: 0.1)
        return made, setting(made, schedule=lambda epoch: 0.01)
    if kind == "backup":
        made = kc.BackupAndRestore(str(tmp_path))
        return made, setting(made, save_freq=10**6)
    made = tfdp.callbacks.PrivacyBudget(1e6, 1e-2)
    return made, setting(made, _allowed=1, _planned=2)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "kind", ["checkpoint", "every epoch", "rate", "direction", "weights", "schedule", "backup", "budget"]
)
def test_whatever_decides_is_looked_at(kind, tmp_path):
    callback, change = decided_by(kind, tmp_path)
    (found,), _ = said([callback, Sets(change)])
    assert f"of {type(callback).__name__}, by which that decides" in found


def test_weights_that_are_put_back_are_nobodys_to_write_to():
    early = keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True)
    with pytest.raises(ValueError, match="read-only"):
        said([early, Sets(lambda: early.best_weights[0].fill(7.0), "val_loss")])


def test_others_in_their_place_are_noted_whoever_read_nothing():
    early = keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True)
    model = model_of()
    change = Sets(lambda: setattr(early, "best_weights", [one + 1.0 for one in early.best_weights]), "val_loss")
    model.fit(X, Y, callbacks=[early, change], **FIT)
    assert any("EarlyStopping puts back changed" in note for note in model.privacy_statement(1e-2).notes)


def steered(model, early):
    with model.private_run(X, Y, callbacks=[early], **FIT) as run:
        for batch in run:
            if run.step(batch)["loss"] < 1e9:
                early.patience = 0


@pytest.mark.slow
def test_a_loop_that_sets_early_stopping_by_what_its_steps_say_is_noted():
    with pytest.warns(UserWarning, match=r"The loop read .* and then changed 'patience' of EarlyStopping"):
        steered(model_of(), keras.callbacks.EarlyStopping("val_loss", patience=50))


@pytest.mark.slow
def test_who_read_nothing_private_or_changes_nothing_is_left_in_peace(tmp_path):
    early = keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True)
    rate = keras.callbacks.ReduceLROnPlateau("val_loss", patience=0)
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "val_loss", save_best_only=True)
    own = [early, rate, checkpoint, tfdp.callbacks.PrivacyBudget(1e6, 1e-2)]
    for change, read in (
        (setting(early, wait=0), "val_loss"),  # by a public number
        (lambda: (early.patience, rate.best, checkpoint.best), "loss"),  # looks on
        (lambda: setattr(early, "patience", 50), "loss"),  # the same again
    ):
        assert said([Sets(change, read), *own])[0] == []
        assert said([*own, Sets(change, read)])[0] == []


def test_looking_costs_microseconds():
    deciders = Deciders([keras.callbacks.EarlyStopping("val_loss"), keras.callbacks.ReduceLROnPlateau("val_loss")])
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(100):
            deciders.compare(deciders.held(), deciders.held(), lambda _: None)
        times.append((time.perf_counter() - start) / 100)
    assert min(times) < 1e-3
