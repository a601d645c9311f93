"""What is trained stays what it was while `fit` runs, and whoever changes it by private numbers is noted."""

import warnings

import keras
import pytest

import tfdp_layers as tfdp
from helpers.watched import X, Y

CHANGES = {
    "the flag of a weight": (lambda model: setattr(model.layers[-2].kernel, "trainable", False), "which weights"),
    "LoRA": (lambda model: model.layers[-2].enable_lora(2), "which weights"),
    "a list of Keras": (lambda model: model.layers[-2]._trainable_variables.pop(), "which weights"),
    "quantized": (lambda model: model.quantize("int8"), "train_function is None"),
    "no step": (lambda model: setattr(model, "train_function", None), "train_function is None"),
}


def fitted(change, epoch):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")

    class Changes(keras.callbacks.Callback):
        def on_epoch_end(self, number, logs=None):
            if number == epoch and float(logs["loss"]) < 1e9:
                change(model)

    error = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[Changes()])
        except Exception as raised:
            error = raised
    return error, " ".join(model.privacy_statement(1e-2).notes)


@pytest.mark.few(2)
@pytest.mark.parametrize("way", CHANGES)
def test_a_hook_that_changes_what_is_trained_ends_fit_with_words_and_a_note(way):
    """Some ended obscurely ('NoneType' object is not callable), and none was noted."""
    change, said = CHANGES[way]
    error, notes = fitted(change, 0)
    assert isinstance(error, RuntimeError)
    assert said in str(error)
    assert "between two calls of fit" in " ".join(str(error).split())
    assert "Changes read 'loss' and then ended fit by an exception" in notes


def test_behind_the_last_step_it_is_noted():
    error, notes = fitted(CHANGES["the flag of a weight"][0], 1)
    assert error is None
    assert "Changes read 'loss' and then changed what is trained, or how" in notes


def test_a_hook_that_changes_nothing_is_not():
    error, notes = fitted(lambda model: model.trainable_variables, 0)
    assert error is None
    assert "Changes" not in notes
