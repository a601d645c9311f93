"""What a variable holds into which something was released is paid for, whatever wrote it since; nothing else is."""

import copy
import gc
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.accounting.left import tells_of_change

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)).astype("float32"), np.zeros((12, 2), "float32")


def net():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])


def private(model=None):
    model = tfdp.make_private(net() if model is None else model)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return model


def trained(model=None):
    model = model or private()
    model.fit(X, Y, batch_size=4, verbose=0)
    return model


def ordinary(model, public=False):
    """Trains the layers of a private model without privacy."""
    plain = keras.Sequential([keras.Input((6,)), *(layer for layer in model.layers if layer.weights)])
    plain.compile(keras.optimizers.Adam(0.05), "mse")
    plain.fit(X, Y + 1, verbose=0)
    return tfdp.public(plain) if public else plain


def steps_of(model):
    """What a model states, and whether it says that something else changed its weights."""
    statement = model.privacy_statement(1e-3)
    return statement.steps, tells_of_change(statement.notes)


# What something else made of released numbers -------------------------------------------------------------------------


def averaged(model):
    model.set_weights([0.5 * weight for weight in model.get_weights()])


def rounded(model):
    for variable in model.trainable_variables:
        variable.assign(np.asarray(variable, "float16").astype("float32"))


def trained_on(model):
    ordinary(model)


def trained_on_in_public(model):
    ordinary(model, public=True)


class Averages(keras.callbacks.Callback):
    """Looks at the books at every step, and keeps the moving averages of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.privacy_statement(1e-3)

    def on_epoch_end(self, epoch, logs=None):
        self.model.get_state_tree()
        self.kept = [one.numpy() for one in self.model.optimizer.variables if "average" in one.path]


@pytest.mark.slow
def test_averages_of_a_later_training_cost_what_both_did():
    """Optimizers' variables have no account of their own: a look while `fit` ran took what the first one cost."""
    model, averages = private(), Averages()
    sgd = keras.optimizers.SGD(0.1, use_ema=True)
    model.compile(tfdp.optimizers.ClippedOptimizer(sgd, noise_multiplier=1.0), "mse")
    trained(model)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[averages])
    other = private()
    other.set_weights(averages.kept[-4:])
    assert steps_of(other) == (model.ledger.updates, False)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("looked", ["at the source", "at the copy"])
def test_a_model_that_was_trained_takes_over_what_others_changed_weights_cost(looked):
    source, target, third = trained(trained()), trained(), private()
    rounded(source)
    for layer, one in zip(target.layers, source.layers, strict=True):
        layer.set_weights(one.get_weights())
    steps = steps_of(source)[0] if looked == "at the source" else 9
    assert steps_of(target) == (9, True)
    for layer, one in zip(third.layers, target.layers, strict=True):
        layer.set_weights(one.get_weights())
    assert steps_of(third)[0] == 9
    assert steps >= 6


@pytest.mark.slow
def test_weights_of_a_file_that_cost_nothing_stay_public_in_a_trained_model(tmp_path):
    """Put back to a file's initial weights, a model makes nobody pay for these."""
    private().save_weights(tmp_path / "initial.weights.h5")
    released_numbers._seen.clear()  # as in another process
    model, other = trained(), private()
    model.load_weights(tmp_path / "initial.weights.h5")
    assert steps_of(model)[0] == 3
    other.load_weights(tmp_path / "initial.weights.h5")
    assert steps_of(other) == (0, False)


def one_row(model):
    kernel = model.trainable_variables[0]
    kernel.assign(np.concatenate([np.asarray(kernel)[:1], np.asarray(kernel)[1:] * 2]))


CHANGES = [averaged, rounded, trained_on, trained_on_in_public, one_row]


def by_set_weights(source, target):
    target.set_weights(source.get_weights())


def by_layers(source, target):
    with_weights = ([layer for layer in model.layers if layer.weights] for model in (source, target))
    for one, other in zip(*with_weights, strict=True):
        other.set_weights(one.get_weights())


def by_variables(source, target):
    for one, other in zip(source.weights, target.weights, strict=True):
        other.assign(one)


def by_state_tree(source, target):
    (layers,) = source.get_state_tree()["trainable_variables"].values()
    target.set_weights([np.asarray(one[name]) for one in layers.values() for name in ("kernel", "bias")])


def by_checkpoint(source, target):
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(layers=list(source.layers)).save(f"{folder}/checkpoint")
        tf.train.Checkpoint(layers=list(target.layers)).restore(path)


WAYS = [by_set_weights, by_layers, by_variables, by_state_tree, by_checkpoint]


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_of_what_a_private_model_holds_costs_what_that_did(change, way):
    model, twin = trained(), private()
    change(model)
    way(model, twin)
    assert steps_of(model) == steps_of(twin) == (3, change is not trained_on_in_public)


@pytest.mark.slow
def test_a_budget_holds_for_what_a_copy_cost():
    model, twin = trained(), private()
    trained_on_in_public(model)
    by_layers(model, twin)
    spent = tfdp.accounting.epsilon(model.ledger, 1e-3)
    twin.ledger = tfdp.accounting.Ledger(dataset="these", budget=(0.9 * spent, 1e-3))
    with pytest.raises(tfdp.accounting.BudgetExhausted):
        trained(twin)


@pytest.mark.slow
def test_a_copy_outlives_the_model_that_was_asked_for_it():
    model, twin = trained(), private()
    trained_on_in_public(model)
    by_layers(model, twin)  # and tfdp.public looked
    averaged(late := trained())
    taken = late.get_weights()
    del model, late
    gc.collect()
    assert steps_of(twin) == (3, False)
    another = private()
    another.set_weights(taken)
    assert steps_of(another) == (3, True)


def test_a_copy_of_a_changed_copy_costs_what_the_first_did():
    model, twin, third, fourth = trained(), private(), private(), private()
    by_set_weights(model, twin)
    averaged(twin)
    by_layers(twin, third)
    assert third.ledger.steps == 3
    averaged(third)
    fourth.set_weights(copy.deepcopy(third).get_weights())
    assert steps_of(fourth) == (3, True)


@pytest.mark.slow
def test_a_served_model_that_is_trained_on_in_public_costs_what_it_did():
    served = trained().to_keras()
    served.compile("sgd", "mse")
    served.fit(X, Y, verbose=0)
    assert steps_of(private(tfdp.public(served)))[0] == 3


def test_a_copy_of_what_a_run_feeds_costs_what_the_run_does():
    model, fed, plain = private(), net(), net()
    with model.private_run(X, Y, batch_size=4, epochs=1, verbose=0) as run:
        run.feeds(fed)
        for batch in run:
            run.step(batch)
            fed.trainable_variables[0].assign_add(np.ones((6, 4)))  # from the weights, say
    by_layers(fed, plain)
    assert tfdp.make_private(plain).ledger.steps == 3


def test_features_by_what_a_private_model_holds_are_refused():
    model, plain = trained(), net()
    rounded(model)
    by_layers(model, plain)
    with pytest.raises(ValueError, match="a private training released"):
        tfdp.features(plain.layers[0], X)


@pytest.mark.slow
def test_what_nobody_looks_for_is_seen(monkeypatch):
    """The planted bug: no variable owes anything."""
    monkeypatch.setattr(released_numbers, "holders_of", lambda _: [])
    with pytest.raises(AssertionError):
        test_a_copy_of_what_a_private_model_holds_costs_what_that_did(rounded, by_layers)


# Public numbers stay public -------------------------------------------------------------------------------------------


def of_other_people():
    """A private model of the data set of other people, which refuses whatever these here paid for."""
    model = private()
    model.ledger = tfdp.accounting.Ledger(dataset="others")
    return model


def is_public(weights):
    model = of_other_people()
    model.set_weights(weights)
    return model.privacy_statement(1e-3).steps == 0


def these_people(model=None):
    model = model or private()
    model.ledger = tfdp.accounting.Ledger(dataset="these")
    return model


@pytest.mark.slow
def test_weights_that_a_training_began_with_are_public_also_after_a_reset():
    model, beginning = these_people(), net().get_weights()
    model.set_weights(beginning)
    for _ in range(2):
        trained(model)
        model.set_weights(beginning)
        model.privacy_statement(1e-3)
        assert is_public(model.get_weights())


@pytest.mark.slow
def test_models_of_one_ledger_that_were_not_trained_yet_hold_public_weights():
    first, beginning = these_people(), net().get_weights()
    trained(first)
    late = private()
    late.set_weights(beginning)
    late.ledger = first.ledger
    late.privacy_statement(1e-3)
    assert is_public(late.get_weights())
    trained(late)
    late.set_weights(beginning)
    assert is_public(late.get_weights())


def test_weights_that_are_declared_public_as_they_are_loaded_are(tmp_path):
    net().save_weights(path := tmp_path / "public.weights.h5")
    model = trained(these_people())
    model.load_weights(path, public=True)
    model.privacy_statement(1e-3)
    assert is_public(model.get_weights())


@pytest.mark.slow
def test_a_frozen_public_layer_and_the_constants_of_a_normalization_stay_public(tmp_path):
    layers = [keras.layers.Dense(4, name="base"), keras.layers.BatchNormalization(name="bn"), keras.layers.Dense(2)]
    layers[0].trainable = layers[1].trainable = False
    layers[1].build((None, 4))
    layers[1].set_weights([RNG.uniform(1, 2, 4) for _ in range(4)])
    model = trained(these_people(private(keras.Sequential([keras.Input((6,)), *layers]))))
    averaged_head = [0.5 * one for one in layers[2].get_weights()]
    layers[2].set_weights(averaged_head)
    model.save_weights(path := tmp_path / "m.weights.h5")
    model.load_weights(path)
    head = tfdp.make_private(keras.Sequential([keras.Input((6,)), *layers[:2], keras.layers.Dense(2)]))
    assert head.ledger.steps == 0
    assert tfdp.features(layers[:2], X).shape == (12, 4)
    with pytest.raises(ValueError, match="a private training released"):
        tfdp.features(layers, X)
