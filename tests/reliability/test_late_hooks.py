"""Hooks that are set, or replaced, while a training runs are watched as those that it began with."""

import os
import threading
import warnings
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.late_hooks import EARLIER, FITTED, LATE, NOW, QUICK, VALIDATION, model_of, replaced, trained, weights_of
from helpers.variants import slow_but
from tfdp_layers.models import hooks

kc = keras.callbacks


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", ["fit", "private_run"])
@pytest.mark.parametrize("name", slow_but([*QUICK, "its own, again"], LATE))
def test_weights_that_a_late_hook_puts_in_cost_what_they_cost(name, call):
    if call == "private_run" and name == "its own on_test_end":
        pytest.skip("a loop without validation data")
    callbacks = LATE[name](weights_of(trained(EARLIER, seed=1)))
    assert trained(NOW, callbacks, call=call).ledger.steps == NOW + EARLIER


def test_a_late_hook_that_decides_by_the_loss_is_told_of():
    class Stops(kc.Callback):
        def on_train_begin(self, logs=None):
            self.on_epoch_end = self.stops

        def stops(self, epoch, logs=None):
            self.model.stop_training = logs["loss"] > 0

    with pytest.warns(UserWarning, match="The callback Stops read 'loss' and then stopped the training"):
        model = trained(NOW, [Stops()])
    assert model.ledger.steps == FITTED


def test_a_hook_that_the_generator_of_validation_data_sets_is_watched():
    plain = kc.CSVLogger(os.devnull)

    def stops(epoch, logs=None):
        plain.model.stop_training = logs["loss"] > 0

    def rows():
        plain.on_epoch_end = stops
        yield VALIDATION

    spec = tuple(tf.TensorSpec(part.shape, part.dtype) for part in VALIDATION)
    model, x = model_of(), np.ones((24, 4), "float32")
    public = tf.data.Dataset.from_generator(rows, output_signature=spec)
    with pytest.warns(UserWarning, match="read 'loss' and then stopped the training"):
        model.fit(x, x[:, :1], batch_size=12, epochs=3, verbose=0, callbacks=[plain], validation_data=public)


def test_weights_that_set_model_changes_are_in_the_statement():
    class Changes(kc.Callback):
        def set_model(self, model):
            super().set_model(model)
            model.trainable_variables[0].assign_add(np.ones((4, 3), "float32"))

    notes = trained(2, [Changes()]).privacy_statement(1e-2).notes
    assert [note for note in notes if "The weights changed before the first step" in note]


@pytest.mark.slow
def test_a_callback_is_of_one_thread_at_a_time_and_nested_trainings_leave_nothing_behind():
    nested, refused = [], []

    class Both(kc.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if not nested:
                nested.append(True)
                trained(2, [self])
                thread = threading.Thread(target=in_another)
                thread.start()
                thread.join()

    callback = Both()

    def in_another():
        other = model_of()
        with pytest.raises(ValueError, match="The callback Both is in use: another thread trains with it") as error:
            trained(2, [callback], other)
        refused.append((error, other.ledger.steps))

    trained(NOW, [callback])
    assert [steps for _, steps in refused] == [0]
    assert not [name for name in vars(callback) if name.startswith("on_")]
    trained(2, [callback])


def test_what_was_set_stays_and_what_was_put_around_it_goes():
    callbacks = [*LATE["its own, again"](lambda model: None), *LATE["its own on_epoch_end"](lambda model: None)]
    first, second = callbacks
    trained(2, callbacks)
    assert first.on_epoch_end == first.second
    assert second.on_epoch_end == second.second
    assert [name for one in callbacks for name in vars(one) if name.startswith("on_")] == ["on_epoch_end"] * 2


def test_harmless_callbacks_that_set_hooks_are_left_in_peace():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = trained(NOW, [*LATE["its own on_epoch_end"](lambda model: None), *replaced(lambda model: None)])
    assert not [note for note in model.privacy_statement(1e-2).notes if "callback" in note]


def test_nothing_goes_around_hooks_of_keras():
    """History, which Keras adds by itself, is none of the callbacks that may do anything."""
    seen = []

    class Looks(kc.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([name for name in vars(self.model.history) if name.startswith("on_")])

    trained(2, [Looks()])
    assert seen == [[], []]


def test_hooks_that_cannot_be_watched_are_refused():
    class Given(kc.Callback):
        @property
        def on_epoch_end(self):
            return lambda *args: None

    class Slots:
        __slots__ = ()

        def set_model(self, model):
            pass

    class Another(kc.Callback):
        def __getattribute__(self, name):
            return (lambda *args: None) if name == "on_epoch_end" else super().__getattribute__(name)

    refused = (
        (Given(), "on_epoch_end of Given is a property"),
        (Another(), "on_epoch_end of Another is a property"),
        (Slots(), "Slots has __slots__"),
    )
    for callback, why in refused:
        model = model_of()
        with pytest.raises(ValueError, match=why):
            trained(2, [callback], model)
        assert model.ledger.steps == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("hook", ["on_test_end", "on_test_begin", "on_test_batch_end"])
def test_hooks_of_a_validation_that_look_at_training_records_are_told_of(hook):
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")

    def looks(self, *args, logs=None):
        if float(np.sum(self.model.predict_on_batch(x))) < np.inf:
            self.model.stop_training = True

    model = model_of()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(
            x,
            x[:, :1],
            batch_size=12,
            epochs=2,
            verbose=0,
            validation_data=VALIDATION,
            callbacks=[type("Looks", (kc.Callback,), {hook: looks})()],
        )
    assert any("stopped the training" in note for note in model.privacy_statement(1e-2).notes)


class Passes:
    """Gives all that is asked of it to another callback: no callback of Keras by its class."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):  # before it has an inner one, as a copy has none, it asks for it again and again
        return getattr(self.inner, name)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["passes on", "a mock", "a mock that wraps"])
def test_what_only_looks_like_a_callback_is_watched(kind):
    def puts(epoch, logs=None):
        inner.model.layers[-1].kernel.assign(np.ones((3, 1)))

    inner = kc.LambdaCallback(on_epoch_end=puts)
    seen = mock.MagicMock()
    seen.on_epoch_end.side_effect, seen.set_model = puts, inner.set_model
    callback = {"passes on": Passes(inner), "a mock": seen, "a mock that wraps": mock.Mock(wraps=inner)}[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = trained(NOW, [callback])
    assert any("changed the weights" in note for note in model.privacy_statement(1e-2).notes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_without_a_second_look_they_are_missed(monkeypatch):
    """The planted bug."""
    monkeypatch.setattr(hooks.Hooks, "look", lambda self: None)
    late = LATE["its own on_epoch_end"](weights_of(trained(EARLIER, seed=1)))
    assert trained(NOW, late).ledger.steps == NOW
