"""Code of one's own is found wherever a model has it, and that of libraries is not taken for it."""

import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.federated import KerasTraining
from tfdp_layers.federated.own_code import own_code, own_loop

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
layers, optimizers = keras.layers, keras.optimizers


class Keeps:
    """Keeps a number in Python, where its code runs in each step."""

    last = 0.0

    def __call__(self, x, *rest, **how):
        before = self.last
        if tf.executing_eagerly():
            self.last = float(tf.reduce_mean(x))
        return x * 0.0 + before

    def method(self, x):
        return self(x)


class Regularizer(Keeps, keras.regularizers.Regularizer):
    def __call__(self, x):
        return tf.reduce_sum(super().__call__(x))


class Schedule(optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1


def plain(x):
    return x


def model_of(layer=None, optimizer="sgd", **compiled):
    model = keras.Sequential([keras.Input((4,)), layer or layers.Dense(4), layers.Dense(1)])
    model.compile(**{"optimizer": optimizer, "loss": "mse", **compiled})
    return model


OWN = {
    "activation": lambda one: model_of(layers.Dense(4, activation=one)),
    "method": lambda one: model_of(layers.Dense(4, activation=one.method)),
    "partial": lambda one: model_of(layers.Dense(4, activation=functools.partial(one))),
    "compiled": lambda one: model_of(layers.Dense(4, activation=tf.function(one.method))),
    "regularizer": lambda one: model_of(layers.Dense(4, kernel_regularizer=Regularizer())),
    "constraint": lambda one: model_of(layers.Dense(4, bias_constraint=one)),
    "inside": lambda one: model_of(layers.SpectralNormalization(layers.Dense(4, bias_constraint=one))),
    "variable": lambda one: _with_variable(one),
    "schedule": lambda one: model_of(optimizer=optimizers.LossScaleOptimizer(optimizers.SGD(Schedule()))),
    "metric": lambda one: model_of(metrics=[keras.metrics.MeanMetricWrapper(plain)]),
    "loss": lambda one: model_of(loss=one.method),
}


def _with_variable(constraint):
    layer = layers.Dense(4)
    model = model_of(layer)
    layer.kernel.constraint = constraint
    return model


LIBRARIES = {
    "keras": lambda: model_of(
        layers.Dense(4, "gelu", kernel_regularizer="l2", kernel_constraint="max_norm"), "adam", metrics=["mae"]
    ),
    "tensorflow": lambda: model_of(layers.Dense(4, activation=tf.nn.relu)),
    "partial": lambda: model_of(layers.Activation(functools.partial(keras.ops.leaky_relu, negative_slope=0.1))),
    "schedule": lambda: model_of(optimizer=optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))),
    "normalized": lambda: model_of(layers.BatchNormalization(), loss=keras.losses.Huber()),
}


@pytest.mark.parametrize("place", OWN)
def test_own_code_is_found(place):
    assert [*own_code(OWN[place](Keeps()))]


@pytest.mark.parametrize("kind", LIBRARIES)
def test_the_code_of_libraries_is_not_ones_own(kind):
    model = LIBRARIES[kind]()
    model.run_eagerly = True
    model.fit(X, Y, verbose=0)
    assert not [*own_code(model)]
    for scale in (1.0, -1.0):
        KerasTraining(model, X * scale, Y)


class Slots:
    __slots__ = ()

    def __call__(self, x):
        return x


def test_an_activation_without_weak_references_is_noted_too():
    one = Slots()
    trainings = [KerasTraining(model_of(layers.Dense(4, activation=one)), X * scale, Y) for scale in (1.0, -1.0)]
    assert all(one in own_code(training.model) for training in trainings)
    eager = model_of(layers.Dense(4, activation=one), run_eagerly=True)
    with pytest.raises(ValueError, match="runs eagerly, so that the Python code of 'Slots'"):
        KerasTraining(eager, X, Y)


def test_an_activation_that_keeps_numbers_is_of_one_party():
    one = Keeps()
    first = model_of(layers.Dense(4, activation=one), run_eagerly=True)
    KerasTraining(first, X, Y)
    for model in (first, model_of(layers.Dense(4, activation=one.method), run_eagerly=True)):
        with pytest.raises(ValueError, match=r"runs eagerly, so that the Python code of '(Keeps|method)'"):
            KerasTraining(model, -X, Y)
    KerasTraining(model_of(layers.Dense(4, activation=Keeps()), run_eagerly=True), -X, Y)


class OwnFit(keras.Sequential):
    """Standardizes by what it saw before, in Python."""

    mean = 0.0

    def fit(self, x, *rest, **how):
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        return super().fit(x - self.mean, *rest, **how)


class OwnFunction(keras.Sequential):
    def make_train_function(self, force=False):
        super().make_train_function(force)


class OwnStep(keras.Sequential):
    """As Keras' guides have it."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.seen = keras.metrics.Mean(name="seen")

    @property
    def metrics(self):
        return [self.seen]

    def train_step(self, data):
        found = super().train_step(data)
        self.seen.update_state(found.get("loss", 0.0))
        return {"seen": self.seen.result()}

    def compute_loss(self, *parts, **named):
        return super().compute_loss(*parts, **named)


def made(kind):
    model = kind([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("named", ["fit", "make_train_function", "evaluate", "train_function"])
def test_a_fit_of_ones_own_is_of_one_party(named):
    """What it keeps in Python of one party's records was in the next one's upload."""
    model = made({"fit": OwnFit, "make_train_function": OwnFunction}.get(named, keras.Sequential))
    if named == "evaluate":
        model.evaluate = lambda *rest, **how: {}
    if named == "train_function":
        model.train_function = tf.function(lambda iterator: {})
    assert own_loop(model) == named
    KerasTraining(model, X, Y)
    with pytest.raises(ValueError, match=f"has a '{named}' of its own, whose Python code runs in each turn"):
        KerasTraining(model, -X, Y)


def test_a_train_step_of_ones_own_is_traced_and_shared():
    model = made(OwnStep)
    for scale in (1.0, -1.0):
        training = KerasTraining(model, scale * X, Y)
        assert training(np.zeros(5, np.float32)).shape == (5,)
        assert own_loop(model) is None, "nor is it once Keras made its functions"


def test_a_fit_that_is_set_later_is_refused():
    model = made(keras.Sequential)
    training = KerasTraining(model, X, Y)
    model.fit = lambda *rest, **how: None
    with pytest.raises(ValueError, match="it trains by other functions"):
        training(np.zeros(5, np.float32))


@pytest.mark.parametrize("kind", ["wraps", "method"])
def test_a_fit_that_wraps_keras_own_is_ones_own_whatever_module_it_names(kind):
    """As loggers do: functools.wraps copies the name of Keras' module. A record moved the next upload by 0.0007."""
    model = made(keras.Sequential)
    fit = model.fit

    @functools.wraps(fit)
    def wrapped(*rest, **how):
        return fit(*rest[-2:], **how)

    model.fit = wrapped if kind == "wraps" else types.MethodType(wrapped, model)
    assert own_loop(model) == "fit"
    model.fit = fit
    assert own_loop(model) is None
