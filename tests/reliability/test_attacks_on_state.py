"""Numbers of records without noise go no way into released weights that no variable shows: Python, clocks, queues."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.proof import outside

X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
Y = np.linspace(1.0, 2.0, 20, dtype="float32")[:, None]
OUTSIDE = r"runs Python code .*, or takes or keeps numbers outside of variables, or may \(operation {}\)"


def model_with(metrics=(), optimizer=None, **options):
    inputs = keras.Input((3,))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(4)(inputs)))
    wrapped = tfdp.optimizers.ClippedOptimizer(optimizer or keras.optimizers.SGD(0.5), 1.0)
    model.compile(wrapped, "mse", metrics=list(metrics), **options)
    for part in (*metrics, optimizer):
        if part is not None:
            part.model = model
    return model


def fit(model, **options):
    model.fit(X, Y, batch_size=10, verbose=0, accept_measured=True, **options)


def rate(model):
    return float(model.optimizer.learning_rate)


class Seen(keras.metrics.Metric):
    """The largest label that it saw, and what it does with it by the way."""

    model = None

    def __init__(self):
        super().__init__(name="seen")
        self.largest = self.add_variable(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(tf.reduce_max(tf.cast(y_true, tf.float32)))

    def result(self):
        return tf.convert_to_tensor(self.largest)


def to_rate(model, value):
    model.optimizer.learning_rate = float(value)
    return np.float32(value)


class InUpdate(Seen):
    def update_state(self, y_true, y_pred, sample_weight=None):
        seen = tf.numpy_function(lambda y: to_rate(self.model, y.max()), [tf.cast(y_true, tf.float32)], tf.float32)
        self.largest.assign(tf.ensure_shape(seen, ()))


class InResult(Seen):
    def result(self):
        return tf.numpy_function(lambda value: to_rate(self.model, value), [super().result()], tf.float32)


class Staging(Seen):
    def update_state(self, y_true, y_pred, sample_weight=None):
        tf.raw_ops.Stage(values=[tf.reduce_max(y_true)], shared_name="seen")


HANDING_ON = [(InUpdate, "PyFunc"), (InResult, "PyFunc"), (Staging, "Stage")]


@pytest.mark.parametrize(("kind", "operation"), slow_but(HANDING_ON[:1], HANDING_ON, several=True))
def test_metrics_that_hand_on_what_they_see_are_refused_before_anything_is_spent(kind, operation):
    model = model_with([kind()])
    with pytest.raises(ValueError, match=OUTSIDE.format(operation)):
        fit(model)
    assert model.ledger.steps == 0
    assert rate(model) == 0.5


@pytest.mark.slow
def test_python_code_in_a_metric_would_be_seen_to_set_the_rate(monkeypatch):
    """The bug that the test above is there for."""
    monkeypatch.setattr(outside, "outside", lambda operations: None)
    model = model_with([InUpdate()])
    fit(model)
    assert 1.0 <= rate(model) <= 2.0


class BetweenSteps(Seen):
    """Plain Python, in what Keras calls at the end of an epoch."""

    def result(self):
        if tf.executing_eagerly() and self.model is not None and self.model.ledger.steps:
            to_rate(self.model, self.largest.numpy())
        return super().result()


class Stops(Seen):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_true, y_pred)
        if tf.executing_eagerly():
            self.model.stop_training = bool(self.largest > 1.0)


@pytest.mark.parametrize(
    ("metric", "eagerly", "match"),
    [
        (BetweenSteps, False, "changed variable '.*learning_rate'"),
        pytest.param(Stops, True, "ended the training", marks=pytest.mark.slow),
    ],
)
def test_plain_python_of_metrics_decides_nothing(metric, eagerly, match):
    model = model_with([metric()], run_eagerly=eagerly)
    with pytest.raises(ValueError, match=match):
        fit(model, epochs=2)


class Clock(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return tf.cast(tf.timestamp() % 1.0, tf.float32)


def test_a_learning_rate_by_the_clock_is_refused():
    """How long a step takes shows how many records it drew."""
    model = model_with(optimizer=keras.optimizers.SGD(Clock()))
    with pytest.raises(ValueError, match=OUTSIDE.format("Timestamp")):
        fit(model)
    assert model.ledger.steps == 0


class Peeking(keras.optimizers.SGD):
    """Steps as far as the loss of the records says, which it reads by Python code."""

    model, used = None, ()

    def update_step(self, gradient, variable, learning_rate):
        def read():
            found = np.float32(self.model.metrics[0].result())
            self.used = (*self.used, float(found))
            return found

        seen = read() if tf.executing_eagerly() else tf.ensure_shape(tf.numpy_function(read, [], tf.float32), ())
        super().update_step(gradient, variable, learning_rate * seen)


def test_python_code_in_the_wrapped_optimizer_is_refused():
    model = model_with(optimizer=Peeking(0.5))
    before = model.get_weights()
    with pytest.raises(ValueError, match="The update of the wrapped optimizer 'peeking' " + OUTSIDE.format("PyFunc")):
        fit(model)
    for value, was in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, was)


@pytest.mark.slow
def test_an_eager_optimizer_finds_nothing_in_the_metrics():
    optimizer = Peeking(0.5)
    model = model_with([Seen()], optimizer, run_eagerly=True)
    fit(model, epochs=2)
    assert len(optimizer.used) == 8
    assert set(optimizer.used) == {0.0}
    assert model.history.history["loss"][-1] > 0.0  # and the metrics lose nothing
    assert model.history.history["seen"][-1] >= 1.0
