"""A small private network with a frozen layer, and what statements of it say."""

import warnings

import keras
import numpy as np

import tfdp_layers as tfdp

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 4)).astype("float32"), RNG.normal(size=(24, 1)).astype("float32")
MEAN = X.mean(0)
kl = keras.layers
BOOKS = "it took from records"


def network():
    frozen = kl.Dense(4, name="frozen", trainable=False)
    return keras.Sequential([keras.Input((4,)), frozen, kl.Dense(4, "tanh", name="hidden"), kl.Dense(1, name="head")])


def compiled(model, loss="mse", momentum=0.9, rate=0.1):
    sgd = keras.optimizers.SGD(rate, momentum=momentum)
    model.compile(tfdp.optimizers.ClippedOptimizer(sgd, noise_multiplier=3.0), loss)
    return model


def private():
    return compiled(tfdp.make_private(network()))


def fit(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y, **{"batch_size": 12, "verbose": 0} | options)
    return model


def poison(model):
    """What only records tell, in the bias of a frozen layer."""
    model.get_layer("frozen").bias.assign(MEAN)


def notes(model):
    return [one for one in model.privacy_statement(1e-2).notes if "other ledger" not in one]


def changed(model):
    return any(BOOKS in one for one in notes(model))


def file_of(model, path):
    model.save(path)
    return tfdp.load_model(path)


def momenta(model):
    return [one for one in model.optimizer.variables if "momentum" in one.path]
