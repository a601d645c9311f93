"""Parties that share a model in one process: nothing of one party's records goes into another one's upload."""

import copy
import itertools
import pickle

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.federated import CompiledEpochs, KerasTraining, LargestValues, Party, flat_weights

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 4)).astype("float32"), RNG.integers(0, 3, 32)
OTHERS = {"positive": np.abs(X) + 1.0, "negative": -np.abs(X) - 1.0}
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(0.01)),
    "averages": lambda: keras.optimizers.Adam(0.01, use_ema=True),
}
TRAIN = {
    "fit": lambda model, x, y: KerasTraining(model, x, y, batch_size=32, shuffle=False),
    "compiled": lambda model, x, y: CompiledEpochs(model, 32).on(x, y),
}
WAYS = [*itertools.product(OPTIMIZERS, TRAIN)]


def model_of(optimizer):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def turns(optimizer, kind, other):
    """What a party makes of the same weights in two turns, each after one of another party."""
    model = model_of(OPTIMIZERS[optimizer])
    weights = flat_weights(model)
    theirs = None if other is None else TRAIN[kind](model, OTHERS[other], Y)
    found = []
    mine = TRAIN[kind](model, X, Y) if other != "negative" else None
    for _ in range(2):
        if theirs is not None:
            theirs(weights)
        mine = mine or TRAIN[kind](model, X, Y)  # also where this party comes once the other one has trained
        found.append(mine(weights))
    return found, [np.array(one) for one in model.non_trainable_variables]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("optimizer", "kind"), slow_but([WAYS[0], WAYS[3]], WAYS, several=True))
def test_what_a_party_uploads_does_not_depend_on_another_ones_records(optimizer, kind):
    (alone, after), statistics = turns(optimizer, kind, None)
    for other in OTHERS:
        found, left = turns(optimizer, kind, other)
        np.testing.assert_array_equal(found, [alone, after])
        np.testing.assert_array_equal(left[0], statistics[0])
    assert (alone != after).any(), "its own state goes on"


def test_a_private_model_is_of_one_party():
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    for _ in range(2):
        KerasTraining(model, X, Y)
    with pytest.raises(ValueError, match="Give each party a model of its own"):
        KerasTraining(model, OTHERS["positive"], Y)


def test_layers_that_are_frozen_later_keep_nothing_of_another_party():
    def after(other):
        model = model_of(OPTIMIZERS["momentum"])
        theirs, mine = (TRAIN["fit"](model, x, Y) for x in (OTHERS[other], X))
        theirs(flat_weights(model))
        model.layers[0].trainable = False
        return mine(flat_weights(model) * 0.0), model.layers[0].get_weights()

    (one, kept), (again, also) = map(after, OTHERS)
    np.testing.assert_array_equal(one, again)
    for value, other in zip(kept, also, strict=True):
        np.testing.assert_array_equal(value, other)


def test_a_model_that_is_compiled_again_is_refused():
    model = model_of(OPTIMIZERS["momentum"])
    train = TRAIN["fit"](model, X, Y)
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match=r"compiled again.*make the training of each party"):
        train(flat_weights(model))


@pytest.mark.parametrize("made", ["training", "party"])
@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_a_copy_that_would_take_along_what_another_party_left_is_refused(how, made):
    """The momentum of the party that trained last was in the copy's upload."""
    model = model_of(OPTIMIZERS["momentum"])
    training = TRAIN["fit"](model, X, Y)
    one = training if made == "training" else Party("a", training, LargestValues(1.0, 1e3), flat_weights(model))
    with pytest.raises(TypeError, match=r"cannot be pickled or deep-copied.*Make the model, its training.*anew"):
        how(one)
    assert copy.copy(training).model is model
