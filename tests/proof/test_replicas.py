"""Under a strategy of `tf.distribute` steps run the function that was proved, and trace no Python of the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.proof.replicas import copies_of, replica_numbers

ALONE = tf.distribute.MirroredStrategy(["CPU:0"])


class Traced(keras.layers.Layer):
    """Turns what it gets in every second trace."""

    traces = 0

    def call(self, x):
        self.traces += 1
        return x if self.traces % 2 else -x


@pytest.mark.parametrize("strategy", slow_but([ALONE], [ALONE, tf.distribute.OneDeviceStrategy("CPU:0")]))
def test_a_step_calls_no_python_of_the_model_after_its_proof(strategy):
    losses, proved = [], []

    def loss(y, p):
        losses.append(0)
        return -y * p

    def begins(logs):
        proved.append((layer.traces, len(losses)))

    with strategy.scope():
        layer = Traced()
        model = tfdp.make_private(keras.Sequential([keras.Input((1,)), layer, keras.layers.Dense(1)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss)
    begun = keras.callbacks.LambdaCallback(on_train_begin=begins)
    model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=4, epochs=1, verbose=0, callbacks=[begun])
    assert [(layer.traces, len(losses))] == proved
    assert model.ledger.releases[0].independence == "proved"


def test_copies_are_found_by_any_of_their_handles():
    with ALONE.scope():
        variable = tf.Variable(1.0)
    assert replica_numbers(ALONE) == [0]
    (copy,) = variable.values
    assert copies_of(copy.handle)[0] is copies_of(copy.handle, [variable])[0] is copy.handle
    plain = tf.Variable(2.0)
    assert copies_of(plain.handle, [variable])[0] is plain.handle
