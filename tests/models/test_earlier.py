"""Weights that an ordinary optimizer trained before bring a warning: nobody knows on whose records it did."""

import copy
import gc
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

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


@pytest.mark.few(2)
@pytest.mark.parametrize("use", [tfdp.make_private, clipped, within])
def test_a_model_that_was_trained_without_privacy_is_named(use):
    (message,) = said(use, plain(3))
    assert "Model 'first' took 3 steps of an ordinary optimizer (Adam)" in message


@pytest.mark.parametrize("use", [tfdp.make_private, within])
def test_so_is_one_that_comes_from_a_file(use, tmp_path):
    plain(2).save(tmp_path / "plain.keras")
    assert len(said(use, keras.models.load_model(tmp_path / "plain.keras"))) == 1


@pytest.mark.few(1)
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


NOTE = "took steps of an ordinary optimizer, without noise"


def noted(model):
    return sum(NOTE in note for note in model.privacy_statement(1e-2).notes)


def private(base=None):
    model = tfdp.make_private(plain() if base is None else base)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


def fit(model):
    model.fit(X, Y, batch_size=4, verbose=0)
    return model


def around(model):
    """An ordinary training of a model around a private one."""
    outer = keras.Sequential([keras.Input((3,)), model])
    outer.compile("adam", "mse")
    outer.fit(X, Y, batch_size=8, verbose=0)
    return outer


def by_a_tape(model):
    optimizer = keras.optimizers.SGD(0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True))
    return optimizer


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("train", [around, by_a_tape])
def test_what_trained_a_private_model_before_its_first_fit_stays_in_all_its_statements(train, tmp_path):
    """`fit` warned, of what nothing said afterwards; and the file that was saved before it said nothing anywhere."""
    model = private()
    by = train(model)
    assert noted(model) == 1
    model.save(tmp_path / "first.keras")
    fit(model).save(tmp_path / "then.keras")
    del by
    for one in (model, copy.deepcopy(model), tfdp.load_model(tmp_path / "then.keras")):
        assert noted(one) == 1
    assert noted(fit(tfdp.load_model(tmp_path / "first.keras"))) == 1
    assert "ordinary" in model.ledger.noted


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [tfdp.make_private, clipped])
def test_what_make_private_warns_of_is_said_of_the_model_that_it_made_once(make):
    base = plain(1)
    model = make(base)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    del base
    gc.collect()
    assert noted(model) == noted(tfdp.make_private(model)) == 1
    assert noted(fit(model)) == 1


@pytest.mark.slow
def test_what_is_declared_public_before_fit_or_took_no_step_is_not_said(tmp_path):
    base = plain(1)
    model = private(base)
    tfdp.public(base)
    assert noted(model) == 0
    base.load_weights(written(plain(), tmp_path / "w.weights.h5"))
    for layer in model.layers:
        layer.set_weights([weight + 1 for weight in layer.get_weights()])
    assert noted(fit(model)) == noted(fit(private())) == 0
    assert model.ledger.noted == frozenset()


def written(model, path):
    model.save_weights(path)
    return path


def test_what_took_no_step_or_is_private_has_nothing_to_declare():
    private = tfdp.make_private(plain())
    private.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    private.fit(X, Y, batch_size=4, verbose=0)
    for model in (plain(), private):
        with pytest.raises(ValueError, match="took no steps of an ordinary optimizer: there is nothing to declare"):
            tfdp.public(model)


def wrapping(inner, model):
    model.compile(tfdp.optimizers.ClippedOptimizer(inner, 1.0), "mse")
    return model


def stepped(inner, base):
    base.compile(inner, "mse")
    base.fit(X, Y, batch_size=8, verbose=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["make, wrap, step", "make, step, wrap", "step, make, wrap"])
def test_steps_of_an_optimizer_that_a_private_one_wraps_are_ordinary_where_it_took_them_alone(order):
    base, inner = plain(), keras.optimizers.SGD(0.1)
    held = [base]
    do = {
        "step": lambda: stepped(inner, base),
        "make": lambda: held.append(tfdp.make_private(base)),
        "wrap": lambda: wrapping(inner, held[-1]),
    }
    assert len(said(lambda: [do[one]() for one in order.split(", ")] and fit(held[-1]))) == 1
    assert noted(held[-1]) == 1


def test_steps_of_private_trainings_are_not_whoever_else_holds_their_optimizer(tmp_path):
    base, inner = plain(), keras.optimizers.SGD(0.1)
    base.compile(inner, "mse")
    model = fit(wrapping(inner, tfdp.make_private(base)))
    fit(wrapping(inner, model)).save(tmp_path / "twice.keras")  # its private optimizer counts fewer than the one inside
    loaded = tfdp.load_model(tmp_path / "twice.keras")
    again = wrapping(loaded.optimizer.inner_optimizer, tfdp.make_private(loaded))
    assert said(fit, again) == said(lambda: fit(wrapping(inner, tfdp.make_private(base)))) == []
    with pytest.raises(ValueError, match="there is nothing to declare"):
        tfdp.public(again)


@pytest.mark.slow
def test_a_count_that_was_set_before_any_weights_were_known_or_came_by_a_checkpoint_is_of_no_step(tmp_path):
    inner = keras.optimizers.SGD(0.1)
    inner.iterations.assign(100)
    model = wrapping(inner, tfdp.make_private(plain()))
    assert said(fit, model) == []
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(tmp_path / "at")
    fit(model)
    checkpoint.restore(path)
    model.layers[-1].bias.assign([5.0])  # so that optimizers are asked for
    assert said(fit, model) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("inner", ["adam", "adagrad", keras.optimizers.SGD(0.1, momentum=0.5)])
def test_steps_are_told_where_their_count_was_set_back(inner):
    base = plain()
    base.compile(inner, "mse")
    base.optimizer.build(base.trainable_variables)
    assert said(tfdp.make_private, base) == []
    base.fit(np.arange(24, dtype="float32").reshape(8, 3), Y, verbose=0)
    base.optimizer.iterations.assign(0)
    (message,) = said(tfdp.make_private, base)
    assert "took 1 step of an ordinary optimizer" in message
