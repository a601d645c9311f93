"""Weights that became trainable after `compile` are refused by name before a step is charged; frozen ones are fine."""

from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = X[:, :1]
OPTIONS = {"batch_size": 10, "epochs": 1, "verbose": 0}
OPTIMIZERS = {
    "adam": lambda: "adam",
    "sgd": lambda: "sgd",
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
}
SAYS = r"Layer 'first' \(Dense\) became trainable after compile: .* Nothing was charged\. Compile the model again"


def compiled(optimizer: Any = "sgd", trainable: bool = False) -> Any:
    first = keras.layers.Dense(4, "tanh", name="first", trainable=trainable)
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), first, keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer(optimizer, 1.0), "mse")
    return model


def unfreeze(model: Any) -> None:
    model.get_layer("first").trainable = True


def enable_lora(model: Any) -> None:
    model.get_layer("first").enable_lora(2)


def assert_refused(model: Any, match: str = SAYS) -> None:
    steps = model.ledger.steps
    for _ in range(2):  # each try
        with pytest.raises(ValueError, match=match):
            model.fit(X, Y, **OPTIONS)
    with pytest.raises(ValueError, match=match), model.private_run(X, Y, **OPTIONS):
        pass
    assert model.ledger.steps == steps
    assert len(model.ledger.entries) == bool(steps)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("change", [unfreeze, enable_lora])
def test_weights_that_the_optimizer_was_not_built_for_are_refused(change, optimizer):
    model = compiled(OPTIMIZERS[optimizer](), trainable=change is enable_lora)
    model.optimizer.build(model.trainable_variables)  # as the first fit does
    change(model)
    assert_refused(model)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("entry", ["fit", "private_run"])
def test_compile_behind_it_goes_on_with_the_ledger(entry):
    model = compiled("adam")
    if entry == "fit":
        model.fit(X, Y, **OPTIONS)
    else:
        with model.private_run(X, Y, **OPTIONS) as run:
            for batch in run:
                run.step(batch)
    assert model.ledger.steps == 4
    unfreeze(model)
    assert_refused(model)
    before = model.get_layer("first").kernel.numpy()
    model.compile(tfdp.optimizers.ClippedOptimizer("adam", 1.0), "mse")
    model.fit(X, Y, **OPTIONS)
    assert model.ledger.steps == 8
    assert np.any(model.get_layer("first").kernel.numpy() != before)


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_freezing_needs_no_compile(optimizer):
    model = compiled(optimizer, trainable=True)
    model.optimizer.build(model.trainable_variables)
    model.get_layer("first").trainable = False
    before = model.get_layer("first").kernel.numpy()
    model.fit(X, Y, **OPTIONS)
    assert model.ledger.steps == 4
    assert np.all(model.get_layer("first").kernel.numpy() == before)


def test_a_model_that_was_frozen_as_a_whole_is_told_of_its_layer():
    model = compiled("sgd")
    model.trainable = False
    with pytest.raises(ValueError, match="has no weights to train"):
        model.fit(X, Y, **OPTIONS)
    model.trainable = True
    assert_refused(model)


def test_an_optimizer_of_another_model_is_told_as_that():
    other, model = compiled("sgd"), compiled("sgd")
    other.optimizer.build(other.trainable_variables)
    model.compile(other.optimizer, "mse")
    assert_refused(model, r"\(SGD\) was built for the weights of another model.*Compile the model again")
