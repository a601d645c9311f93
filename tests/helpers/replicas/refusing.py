"""Checks of one process with two devices: what is refused there."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import compiled, mlp
from helpers.replicas.checking import weights
from helpers.replicas.mirrored import LOSS, NOISY, STRATEGY


class Steers(keras.metrics.Metric):
    """Writes a number of the records into the learning rate."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(name="steers")
        self._found = lambda: optimizer.learning_rate

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        variable = self._found()
        variable.assign(tf.zeros(variable.shape) + tf.reduce_mean(tf.cast(y_true, tf.float32)))

    def result(self) -> Any:
        return tf.constant(0.0)


def a_metric_that_writes_the_learning_rate_is_refused() -> None:
    with STRATEGY.scope():
        model, x, y = mlp()
        optimizer = NOISY(keras.optimizers.SGD(0.1), 1.0)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=[Steers(optimizer)])
    before = weights(model)
    with pytest.raises(ValueError, match="without noise"):
        model.fit(x, y, batch_size=5, verbose=0)
    np.testing.assert_array_equal(weights(model), before)


def a_metric_that_writes_a_frozen_weight_is_refused() -> None:
    with STRATEGY.scope():
        model, x, y = mlp()
        frozen = keras.layers.Dense(6, trainable=False)
        model = tfdp.PrivateSequential([keras.Input((6,)), frozen, tfdp.layers.ClippedDense(3)])
        metric = Steers(None)
        metric._found = lambda: frozen.bias
        model.compile(NOISY(keras.optimizers.SGD(0.1), 1.0), LOSS, metrics=[metric])
    with pytest.raises(ValueError, match="not its own"):
        model.fit(x, y, batch_size=5, verbose=0)


def what_is_unsound_is_refused() -> None:
    def refuses(match: str, **options: Any) -> None:
        with STRATEGY.scope():
            model, x, y = compiled(mlp(), **options)
        with pytest.raises(ValueError, match=match):
            model.fit(x, y, batch_size=4, verbose=0)

    refuses("jit_compile=True compiles for one device", jit_compile=True)
    refuses("SGD was made outside of the model's strategy", optimizer=keras.optimizers.SGD())
    with STRATEGY.scope():
        model, x, y = compiled(mlp())
        with pytest.raises(ValueError, match=r"inside of `with strategy.scope"):
            model.fit(x, y, batch_size=4, verbose=0)
    with pytest.raises(RuntimeError, match="train_step adds noise"):
        STRATEGY.run(tf.function(model.train_step), args=((x, y, np.ones(12, "float32")),))
    other = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    with other.scope():
        model, x, y = compiled(mlp())
    with pytest.raises(ValueError, match="made under CentralStorageStrategy"):
        model.fit(x, y, batch_size=4, verbose=0)


def weights_made_outside_of_the_strategy_are_refused() -> None:
    with STRATEGY.scope():
        model = tfdp.PrivateSequential([tfdp.layers.ClippedDense(2, input_clip=1.0, upstream_clip=1.0)])
        model.compile(NOISY("sgd", 1.0), "mse")
    model.build((None, 3))
    with pytest.raises(ValueError, match=r"kernel.* made outside of the model's strategy"):
        model.fit(np.zeros((8, 3)), np.zeros((8, 2)), batch_size=4, verbose=0)
    assert model.ledger.steps == 0


class Asks(keras.layers.Layer):
    """Adds what the other replica holds in the same row; alone, it changes nothing but the scale."""

    def call(self, x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def a_layer_that_asks_the_other_replica_is_refused() -> None:
    devices = ["CPU:0", "CPU:1"]
    by_copies = tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
    for together, strategy in ((1, STRATEGY), (2, by_copies)):
        with strategy.scope():
            model = tfdp.make_private(keras.Sequential([keras.Input((6,)), Asks(), keras.layers.Dense(3)]))
            model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), LOSS, steps_per_execution=together)
        _, x, y = mlp()
        with pytest.raises(ValueError, match="depends on the records of other devices"):
            model.fit(x, y, batch_size=4, epochs=1, verbose=0)
        assert int(model.optimizer.releases.numpy()) == 0


class CountsOutside(keras.layers.Layer):
    """Turns what it gets in every second call after many, by a variable that was made before."""

    def __init__(self, calls: Any) -> None:
        super().__init__()
        self._calls = lambda: calls

    def call(self, x: Any) -> Any:
        calls = self._calls().assign_add(1.0)
        return tf.where((calls > 1000.0) & (calls % 2.0 == 0.0), -x, x)


def refuses_layer(layer: Any, match: str) -> None:
    """With this layer, `fit` refuses before anything is charged."""
    with STRATEGY.scope():
        model = tfdp.make_private(keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), LOSS)
    _, x, y = mlp()
    with pytest.raises(ValueError, match=match):
        model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    assert not model.ledger.releases


def a_written_variable_that_replicas_share_is_refused() -> None:
    refuses_layer(CountsOutside(tf.Variable(0.0, name="calls_of_all")), r"calls_of_all.*inside of `with strategy.scope")


def a_random_number_for_all_rows_is_refused() -> None:
    refuses_layer(keras.layers.Dropout(0.5, noise_shape=(1, 6)), "Layer 'dropout.*once for several.*several devices")


CHECKS = (
    a_metric_that_writes_the_learning_rate_is_refused,
    a_metric_that_writes_a_frozen_weight_is_refused,
    what_is_unsound_is_refused,
    weights_made_outside_of_the_strategy_are_refused,
    a_layer_that_asks_the_other_replica_is_refused,
    a_written_variable_that_replicas_share_is_refused,
    a_random_number_for_all_rows_is_refused,
)
