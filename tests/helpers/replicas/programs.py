"""Checks of one process with two devices: all run the one program that was proved, each on its own variables."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import mlp
from helpers.replicas.checking import weights
from helpers.replicas.mirrored import LOSS, STRATEGY


def signed(y: Any, p: Any) -> Any:
    return -y * p


class ByNumber(keras.layers.Layer):
    """Turns what it gets on the second device."""

    def call(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return x if context is None else x * (1.0 - 2.0 * tf.cast(context.replica_id_in_sync_group, tf.float32))


class Turns(keras.layers.Layer):
    """Turns what it gets in every second trace."""

    traces = 0

    def call(self, x: Any) -> Any:
        self.traces += 1
        return x if self.traces % 2 else -x


class TurnsLoss(keras.losses.Loss):
    traces = 0

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.traces += 1
        return signed(y_true, y_pred) * (1.0 if self.traces % 2 else -1.0)


class Counts(keras.layers.Layer):
    """Counts its calls in a variable of TensorFlow that Keras does not know of, and has a weight of one number."""

    def build(self, shape: Any) -> None:
        self.one = self.add_weight(shape=(), initializer="ones", trainable=False)
        self.behind = {"calls": tf.Variable([0.0], trainable=False)}

    def call(self, x: Any) -> Any:
        self.behind["calls"].assign_add([1.0])
        return x * self.one


def moved(layer: Any, loss: Any, steps: int = 1) -> float:
    """How far 40 equal records move the weight in a step without noise, in bounds: 40, if all move it alike."""
    with STRATEGY.scope():
        dense = keras.layers.Dense(1, use_bias=False)
        model = tfdp.make_private(keras.Sequential([keras.Input((1,)), layer, dense]))
        model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 0.0), loss)
    before, given = weights(model), {"sampling": tfdp.sampling.FixedSize(40), "verbose": 0}
    model.fit(np.full((40, 1), 5.0), np.ones((40, 1)), steps_per_epoch=steps, epochs=1, **given)
    assert model.ledger.releases[0].independence == "proved"
    return float(np.abs(weights(model) - before).sum()) * 40 / steps


def what_python_makes_anew_in_each_trace_is_the_same_on_all_devices() -> None:
    for layer, loss in ((ByNumber(), signed), (Turns(), signed), (keras.layers.Identity(), TurnsLoss())):
        np.testing.assert_allclose(moved(layer, loss), 40.0, rtol=0.01, err_msg=type(layer).__name__)


def each_device_writes_its_own_copies() -> None:
    layer = Counts()
    np.testing.assert_allclose(moved(layer, signed, steps=3), 40.0, rtol=0.01)
    first, second = (float(copy.numpy()[0]) for copy in STRATEGY.experimental_local_results(layer.behind["calls"]))
    assert first == second > 3.0  # of which the first alone was written as the function was tried before the steps


class AsksForMeans(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return x if context is None else context.all_reduce(tf.distribute.ReduceOp.MEAN, x)


class WritesMeans(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.mean = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)

    def call(self, x: Any) -> Any:
        self.mean.assign(1.0)
        return x


def a_layer_that_asks_in_other_ways_is_refused_before_anything_is_charged() -> None:
    _, x, y = mlp()
    for layer in AsksForMeans(), WritesMeans():
        with STRATEGY.scope():
            model = tfdp.make_private(keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)]))
            model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), LOSS)
        with pytest.raises(ValueError, match="depends on the records of other devices"):
            model.fit(x, y, batch_size=4, epochs=1, verbose=0)
        assert not model.ledger.releases


CHECKS = (
    what_python_makes_anew_in_each_trace_is_the_same_on_all_devices,
    each_device_writes_its_own_copies,
    a_layer_that_asks_in_other_ways_is_refused_before_anything_is_charged,
)
