"""Constants that are statistics of the very records bring a warning; others, and next to equal ones, don't."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models.statistics import warn_of_statistics

RNG = np.random.default_rng(0)
X = RNG.lognormal(2.0, 1.0, (300, 3)).astype("float32")
IMAGES = RNG.random((40, 6, 6, 3)).astype("float32")
Y = (RNG.random((300, 1)) < 0.2).astype("float32")
CLASSES = RNG.choice(4, 300, p=[0.4, 0.3, 0.2, 0.1])
SHARES = np.bincount(CLASSES) / 300
ODDS = np.log(Y.mean() / (1.0 - Y.mean()))
MANY = (RNG.random((300, 2)) < [0.1, 0.6]).astype("float32")


def normalised(mean, variance, shape=(3,)):
    layer = keras.layers.Normalization(mean=mean, variance=variance)
    return keras.Sequential([keras.Input(shape), layer, keras.layers.Flatten(), keras.layers.Dense(1)])


def biased(*bias):
    start = keras.initializers.Constant(np.array(bias))
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(len(bias), bias_initializer=start)])


def inside(bias):
    hidden, last = biased(bias).layers[0], keras.layers.Dense(1, activation="sigmoid")
    return keras.Sequential([keras.Input((3,)), hidden, keras.layers.ReLU(), last])


def before(*layers):
    """An output's bias before layers that have no weights, in a model in a model."""
    part = keras.Sequential([keras.Input((3,)), biased(ODDS).layers[0], *layers])
    return keras.Sequential([keras.Input((3,)), part, keras.layers.Activation("sigmoid")])


SPLIT = (RNG.random((300, 1)) < 0.37) * 1.0
ROUND = np.repeat([[-1.0], [0.0], [1.0], [2.0]], [75, 75, 75, 75], axis=0) + np.tile([[1e-7], [-1e-7]], (150, 1))
OWN = {
    "each column": lambda: (normalised(X.mean(0), X.var(0)), X, Y),
    "in double precision": lambda: (normalised(X.mean(0, np.float64), X.var(0, np.float64)), X, Y),
    "all entries": lambda: (normalised(IMAGES.mean(), IMAGES.var(), (6, 6, 3)), IMAGES, Y[:40]),
    "each channel": lambda: (normalised(IMAGES.mean((0, 1, 2)), IMAGES.var((0, 1, 2)), (6, 6, 3)), IMAGES, Y[:40]),
    "log odds": lambda: (biased(ODDS), X, Y),
    "log shares": lambda: (biased(*np.log(SHARES)), X, CLASSES),
    "log counts": lambda: (biased(*np.log(300 * SHARES)), X, keras.utils.to_categorical(CLASSES)),
    "before layers without weights": lambda: (before(keras.layers.Flatten()), X, Y),
    "odds of many": lambda: (biased(*np.log(MANY.mean(0) / (1.0 - MANY.mean(0)))), X, MANY),
}
OTHER = {
    "rounded": lambda: (normalised(X.mean(0).round(2), X.var(0).round(2)), X, Y),
    "of others": lambda: (normalised(X[:200].mean(0), X[:200].var(0)), X[200:], Y[200:]),
    "mean alone": lambda: (normalised(X.mean(0), np.ones(3)), X, Y),
    "a constant column": lambda: (normalised(np.zeros(3), np.zeros(3)), 0.0 * X, Y),
    "zero": lambda: (biased(0.0), X, np.arange(300)[:, None] % 2),
    "rounded odds": lambda: (biased(round(float(ODDS), 2)), X, Y),
    "equal odds": lambda: (biased(0.0, 0.0, 0.0, 0.0), X, np.arange(300) % 4),
    "a target": lambda: (biased(0.3), X, X[:, :1]),
    "equal entries": lambda: (biased(0.1, 0.1, 0.1), X, np.arange(300) % 3),
    "log of the number of classes": lambda: (biased(*[-np.log(3)] * 3), X, np.arange(300) % 3),
    "a rare class of 1%": lambda: (biased(-np.log(99)), X, np.arange(1000)[:, None] % 100 == 0),
    "nine controls a case": lambda: (biased(-np.log(9)), X, np.arange(1000)[:, None] % 10 == 0),
    "inside of the model": lambda: (inside(ODDS), X, Y),
    "treatment and control": lambda: (normalised(0.5, 0.25, (1,)), np.arange(300)[:, None] % 2 * 1.0, Y),
    "few values": lambda: (normalised(SPLIT.mean(), SPLIT.var(), (1,)), SPLIT, Y),
    "balanced codes": lambda: (normalised(2.0, 2.0, (1,)), np.arange(300)[:, None] % 5 * 1.0, Y),
    "round numbers": lambda: (normalised(0.5, 1.25, (1,)), ROUND, Y),
}


def said(model, x, y):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_statistics(model, [x], [y])
    return len(caught)


@pytest.mark.parametrize("name", OWN)
def test_statistics_of_the_records_are_told(name):
    assert said(*OWN[name]()) == 1


@pytest.mark.parametrize("name", OTHER)
def test_other_constants_are_left_in_peace(name):
    assert said(*OTHER[name]()) == 0


def test_fit_says_it():
    model = tfdp.make_private(normalised(X.mean(0), X.var(0)))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with pytest.warns(UserWarning, match="its mean and variance are those of these records"):
        model.fit(X, Y, batch_size=30, verbose=0)
