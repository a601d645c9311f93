"""Weights that an ordinary optimizer trained before bring a warning: nobody knows on whose records it did."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


def plain(steps=0):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="first")
    model.compile("adam", "mse")
    if steps:
        model.fit(X, Y, batch_size=8, epochs=steps, verbose=0)
    return model


def within(base):
    model = tfdp.PrivateSequential([keras.Input((3,)), base, keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")


def clipped(model):
    return tfdp.make_private(model, "backprop_clipping")


def said(do, *given):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do(*given)
    return [str(one.message) for one in caught if "of an ordinary optimizer" in str(one.message)]


@pytest.mark.parametrize("use", [tfdp.make_private, clipped, within])
def test_a_model_that_was_trained_without_privacy_is_named(use):
    (message,) = said(use, plain(3))
    assert "Model 'first' took 3 steps of an ordinary optimizer (Adam)" in message


@pytest.mark.parametrize("use", [tfdp.make_private, within])
def test_so_is_one_that_comes_from_a_file(use, tmp_path):
    plain(2).save(tmp_path / "plain.keras")
    assert len(said(use, keras.models.load_model(tmp_path / "plain.keras"))) == 1


@pytest.mark.parametrize("use", [tfdp.make_private, clipped, within])
def test_models_that_took_no_such_step_are_left_in_peace(use):
    private = tfdp.make_private(plain())
    private.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    private.fit(X, Y, batch_size=4, verbose=0)
    for model in (plain(), keras.models.clone_model(plain(1)), private):
        assert said(use, model) == []


def test_a_public_training_is_declared_and_one_more_step_is_named_again():
    base = tfdp.public(plain(3))
    assert said(tfdp.make_private, base) == said(within, base) == []
    outer = keras.Sequential([keras.Input((3,)), plain(1)])
    assert said(tfdp.make_private, tfdp.public(outer)) == said(within, outer) == []
    base.fit(X, Y, batch_size=8, verbose=0)
    (message,) = said(tfdp.make_private, base)
    assert "took 4 steps" in message


def test_what_took_no_step_or_is_private_has_nothing_to_declare():
    private = tfdp.make_private(plain())
    private.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    private.fit(X, Y, batch_size=4, verbose=0)
    for model in (plain(), private):
        with pytest.raises(ValueError, match="took no steps of an ordinary optimizer: there is nothing to declare"):
            tfdp.public(model)
