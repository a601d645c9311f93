"""Checks of one process with two devices: all run the one program that was proved, each on its own variables."""

import random
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


class Moves(keras.optimizers.SGD):
    """Moves each weight by a number of its own, beside the gradient's step."""

    def __init__(self, way: str) -> None:
        super().__init__(0.1)
        self.seeds = keras.random.SeedGenerator(1)
        self._numbers = {
            "python": lambda shape: random.random(),
            "own": tf.random.normal,
            "keyed": lambda shape: keras.random.normal(shape, seed=self.seeds),
        }[way]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        variable.assign_add(0.0 * gradient + self._numbers(variable.shape))


def moving(way: str, together: int = 1) -> Any:
    """A model whose optimizer `Moves` its weights, and a function that trains it for three steps."""
    with STRATEGY.scope():
        model, x, y = mlp()
        model.compile(tfdp.optimizers.NoisyOptimizer(Moves(way), 1.0), LOSS, steps_per_execution=together)
    return model, lambda: model.fit(x, y, batch_size=4, epochs=1, verbose=0)


def copies_that_an_update_moves_apart_release_nothing_more() -> None:
    """Each device went on at weights of its own, and what a record added depended on the device that it was on."""
    for together in 1, 3:
        model, fit = moving("python", together)
        with pytest.raises(RuntimeError, match="different numbers in their copies of the weights"):
            fit()
        assert int(model.optimizer.releases.numpy()) == model.ledger.steps == 1
        with pytest.raises(RuntimeError, match="different numbers in their copies of the weights"):
            fit()  # which begins with equal copies
        assert int(model.optimizer.releases.numpy()) == model.ledger.steps == 2


def an_update_that_draws_for_each_copy_is_refused() -> None:
    model, fit = moving("own")
    with pytest.raises(ValueError, match=r"update_step draws random numbers.*SeedGenerator"):
        fit()
    assert int(model.optimizer.releases.numpy()) == 0


def an_update_that_draws_the_same_for_all_copies_trains() -> None:
    model, fit = moving("keyed", 3)
    fit()
    assert model.ledger.steps == 3
    for variable in model.trainable_variables:
        first, second = STRATEGY.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy())


CHECKS = (
    what_python_makes_anew_in_each_trace_is_the_same_on_all_devices,
    each_device_writes_its_own_copies,
    a_layer_that_asks_in_other_ways_is_refused_before_anything_is_charged,
    copies_that_an_update_moves_apart_release_nothing_more,
    an_update_that_draws_for_each_copy_is_refused,
    an_update_that_draws_the_same_for_all_copies_trains,
)
