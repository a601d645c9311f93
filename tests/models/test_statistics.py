"""Constants that are statistics of the very records bring a warning; others, and next to equal ones, don't."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models import statistics
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
LONG = RNG.normal([55.0, 27.0, 130.0, 1e4], [18.0, 4.0, 20.0, 30.0], (100_000, 4)).astype("float32")


def cut(boundaries, shape=(1,)):
    layer = keras.layers.Discretization([float(one) for one in boundaries])
    return keras.Sequential([keras.Input(shape), layer, keras.layers.Dense(1)])


ODD_GRID = np.append(np.arange(300) / 7.3, 43.21)[:, None]  # and one of somebody else
DECILES = np.arange(1, 10) / 10
OWN = {
    "deciles between infinite ends": lambda: (
        cut([-np.inf, *np.quantile(X[:, 1], DECILES), np.inf]),
        X[:, 1:2],
        Y,
    ),
    "quartiles of almost a grid": lambda: (cut(np.quantile(ODD_GRID, [0.25, 0.5, 0.75])), ODD_GRID, Y),
    "deciles": lambda: (cut(np.quantile(X[:, 1], DECILES)), X[:, 1:2], Y),
    "quartiles of one column of several": lambda: (cut(np.quantile(X[:, 2], [0.25, 0.5, 0.75]), (3,)), X, Y),
    "single precision over many rows": lambda: (normalised(LONG.mean(0), LONG.var(0), (4,)), LONG, Y),
    "as pandas divides": lambda: (normalised(X.mean(0), X.var(0, ddof=1)), X, Y),
    "four digits": lambda: (normalised(X.mean(0).round(4), X.std(0, ddof=1).round(4) ** 2), X, Y),
    "a little more": lambda: (normalised(X.mean(0), X.var(0) + 1e-6), X, Y),
    "each channel as pandas divides": lambda: (
        normalised(IMAGES.mean((0, 1, 2)), IMAGES.reshape(-1, 3).var(0, ddof=1), (6, 6, 3)),
        IMAGES,
        Y[:40],
    ),
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
HOURS, GRID = np.repeat(np.arange(24), 50)[:, None] / 24, np.linspace(0.0, 1.0, 601, dtype="float32")[::-1, None]
OTHER = {
    "sixths of the hours of a design": lambda: (cut(np.arange(1, 6) / 6), HOURS, Y),
    "sixths of a grid": lambda: (cut(np.linspace(0.0, 1.0, 7)[1:-1]), GRID, Y),
    "grid that is centred": lambda: (normalised(GRID.mean() + 1e-7, GRID.var(), (1,)), GRID, Y),
    "infinite ends alone": lambda: (cut([-np.inf, np.inf]), X[:, 1:2], Y),
    "public boundaries": lambda: (cut([18.5, 25.0, 30.0]), LONG[:, 1:2], Y),
    "round deciles": lambda: (cut(np.quantile(X[:, 1], DECILES).round(1)), X[:, 1:2], Y),
    "whole numbers": lambda: (cut([25.0, 50.0, 75.0]), np.arange(101.0)[:, None], Y),
    "deciles of others": lambda: (cut(np.quantile(X[:150, 1], DECILES)), X[150:, 1:2], Y),
    "rounded": lambda: (normalised(X.mean(0).round(2), X.var(0).round(2)), X, Y),
    "of others": lambda: (normalised(X[:200].mean(0), X[:200].var(0)), X[200:], Y[200:]),
    "of one third of these": lambda: (normalised(X[:100].mean(0), X[:100].var(0)), X, Y),
    "of all others beside": lambda: (normalised(LONG.mean(0), LONG.var(0), (4,)), LONG[:30_000], Y),
    "two digits": lambda: (normalised(LONG.mean(0).round(2), LONG.std(0).round(2) ** 2, (4,)), LONG, Y),
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


@pytest.mark.parametrize("one", [RNG.normal, RNG.lognormal, RNG.uniform], ids=["normal", "lognormal", "uniform"])
def test_of_other_samples_of_the_same_people_one_in_a_thousand_is_told_of_at_most(one):
    """Of one column, where chance is likeliest: of several all have to come as close."""
    layer, tries = normalised(0.5, 1.0, (1,)).layers[0], 2000
    found = 0
    for _ in range(tries):
        own, other = one(1.0, 2.0, (100, 1)), one(1.0, 2.0, 100)
        layer.input_mean, layer.input_variance = other.mean(), other.var(ddof=1)
        found += statistics._normalises(layer, [own])
    assert found <= 5  # 0.5 expected; more than 5 of 2 a thousand once in fifty thousand


def test_fit_says_it():
    model = tfdp.make_private(normalised(X.mean(0), X.var(0)))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with pytest.warns(UserWarning, match="its mean and variance are those of these records"):
        model.fit(X, Y, batch_size=30, verbose=0)
