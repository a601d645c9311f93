"""Steps of an ordinary optimizer on a private model's layers, by whatever model or loop, are named before its fit."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.certificates.ordinary import undeclared

X, Y = np.random.default_rng(0).normal(size=(8, 3)).astype("float32"), np.ones((8, 1), "float32")


def net():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)], name="first")


def private(base, optimizer="sgd"):
    model = tfdp.make_private(base)
    model.compile(tfdp.optimizers.ClippedOptimizer(optimizer, noise_multiplier=1.0), "mse")
    return model


def plainly(model, optimizer="adam"):
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    return model


def fitted(model):
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0)


def run(model):
    with model.private_run(X, Y, batch_size=4, epochs=1) as steps:
        for batch in steps:
            steps.step(batch)


def said(do, *given):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do(*given)
    return [str(one.message) for one in caught if "of an ordinary optimizer" in str(one.message)]


def itself(base, model):
    return plainly(base)


def of_same_layers(base, model):
    return plainly(keras.Model(base.inputs, base.outputs, name="second"))


def around(base, model):
    return plainly(keras.Sequential([keras.Input((3,)), model, keras.layers.Softmax()], name="second"))


def scaled(base, model):
    return plainly(base, keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))


def distilled(base, model):
    teacher = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    loss = keras.distillation.LogitsDistillation()
    return plainly(keras.distillation.Distiller(teacher, model, distillation_losses=loss, name="second"))


def by_a_loop(base, model):
    optimizer = keras.optimizers.Adam()
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((base(X) - Y) ** 2)
        optimizer.apply(tape.gradient(loss, base.trainable_variables), base.trainable_variables)
    return optimizer


WAYS = [itself, of_same_layers, around, scaled, by_a_loop]
WAYS += [distilled] if hasattr(keras, "distillation") else []


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("train", [fitted, run])
@pytest.mark.parametrize("way", WAYS)
def test_steps_between_compile_and_the_first_private_training_are_named_once(way, train):
    base = net()
    model = private(base)
    kept = way(base, model)
    (message,) = said(train, model)
    assert "took 3 steps of an ordinary optimizer" in message
    assert "the private training begins from its" in message
    who = {of_same_layers: "Model 'second'", by_a_loop: "A loop around model 'first'", itself: "Model 'first'"}
    assert message.startswith(who.get(way, ""))
    assert said(train, model) == []
    del kept


def test_they_are_named_before_anything_is_spent():
    model = private(base := net())
    plainly(base)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Model 'first' took 3 steps")
        with pytest.raises(UserWarning, match="ordinary optimizer"):
            fitted(model)
    assert model.ledger.steps == 0


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_steps_that_were_declared_public_are_not(way):
    base = net()
    model = private(base)
    kept = way(base, model)
    tfdp.public(base)
    assert said(fitted, model) == []
    del kept


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("scaling", [False, True])
def test_what_make_private_named_is_not_named_again_but_further_steps_are(scaling):
    base = plainly(net(), keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()) if scaling else "adam")
    with pytest.warns(UserWarning, match="3 steps of an ordinary"):
        model = private(base)
    other = private(net())
    assert said(fitted, model) == said(fitted, other) == []
    with pytest.warns(UserWarning, match="3 steps of an ordinary"):
        model = private(base)
    base.fit(X, Y, batch_size=8, verbose=0)
    assert "took 4 steps" in said(fitted, model)[0]


def test_copies_of_weights_that_another_model_trained_are_named_as_they_are_made():
    base = net()
    kept = of_same_layers(base, None)
    (message,) = said(tfdp.make_private, base, "backprop_clipping")
    assert message.startswith("Model 'second' took 3 steps")
    del kept


@pytest.mark.slow
def test_private_trainings_and_those_of_other_weights_bring_no_word():
    adam, base = keras.optimizers.Adam(), net()
    first = private(base, adam)
    assert said(fitted, first) == []
    first.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")  # adam outlives its wrapper
    again = private(first)
    again.ledger = first.ledger
    clone = plainly(keras.models.clone_model(base))
    untouched = net()
    untouched.compile("adam", "mse")
    assert said(fitted, again) == said(fitted, private(untouched)) == []
    del clone


def part(base):
    return keras.Model(base.inputs, base.layers[0].output)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("prefix", [lambda base: base, part, lambda base: base.layers])
def test_features_of_a_prefix_that_was_trained_here_are_named_and_declared(prefix):
    base = plainly(net())
    (message,) = said(tfdp.features, prefix(base), X)
    assert "Model 'first' took 3 steps" in message
    assert "features are computed by its weights" in message
    declared = tfdp.public(plainly(net()))
    assert said(tfdp.features, prefix(declared), X) == said(tfdp.features, prefix(net()), X) == []


def test_nobody_looks_for_optimizers_where_all_weights_are_what_a_training_left(monkeypatch):
    """It takes a tenth of a second: as long as several steps of a small model."""
    looked = []
    monkeypatch.setattr("tfdp_layers.models.earlier.optimizers_on", lambda weights: looked.append(1) or [])
    model = private(net())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted(model)
        first = len(looked)
        fitted(model)
        assert len(looked) == first > 0
        model.layers[-1].bias.assign([3.0])
        fitted(model)
    assert len(looked) == first + 1


def stepped(optimizer, base, steps=3):
    for _ in range(steps):
        optimizer.apply([0.1 * weight for weight in base.trainable_variables], base.trainable_variables)


def through_a_file(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    optimizer.load_own_variables(store)


@pytest.mark.parametrize("declared", [False, True])
def test_ordinary_steps_stay_that_where_the_optimizer_loads_what_it_saved(declared):
    sgd, base = keras.optimizers.SGD(0.1), net()
    stepped(sgd, base)
    model = private(base, sgd)
    if declared:
        tfdp.public(base)
    through_a_file(model.optimizer)
    assert ["took 3 steps" in one for one in said(fitted, model)] == [True] * (not declared)
    through_a_file(model.optimizer)
    assert said(fitted, model) == []


def test_a_living_loss_scaling_hides_no_steps_and_names_no_private_ones():
    sgd, base = keras.optimizers.SGD(0.1), net()
    scaling = keras.optimizers.LossScaleOptimizer(sgd)
    stepped(sgd, base)
    assert not scaling.built
    assert "took 3 steps" in said(fitted, private(base, sgd))[0]
    base = net()
    scaling = keras.optimizers.LossScaleOptimizer(sgd := keras.optimizers.SGD(0.1))
    scaling.build(base.trainable_variables)
    model = private(base, sgd)
    assert said(fitted, model) == []
    model.layers[-1].bias.assign([3.0])
    assert said(fitted, model) == said(fitted, private(base, "sgd")) == []
    del scaling


@pytest.mark.parametrize("restored", [False, True])
def test_steps_after_the_iterations_were_set_back_are_ordinary_and_private_ones_are_not(restored):
    sgd, base = keras.optimizers.SGD(0.1), net()
    model = private(base, sgd)
    fitted(model)
    kept = {}
    model.optimizer.save_own_variables(kept)
    sgd.iterations.assign(0)
    assert undeclared(sgd) == 0
    if restored:
        model.optimizer.load_own_variables(kept)
        assert undeclared(sgd) == 0
    stepped(sgd, base, 1)
    assert undeclared(sgd) == 1
    assert "took 1 step " in said(fitted, model)[0]
