"""Under a strategy of `tf.distribute` steps run the function that was proved, and trace no Python of the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.proof.replicas import OnReplicas, copies_of, refuse_unlike_updates, replica_numbers

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


def test_a_replica_reads_all_variables_that_its_function_reads_or_writes_but_for_those_left_out():
    with ALONE.scope():
        read, written, left = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3, dtype=tf.int64)
    (first,) = left.values
    plain = tf.Variable([4.0])

    def function(x):
        written.values[0].assign(x)
        return x * read.values[0] * plain * tf.cast(first, tf.float32)

    traced = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec(()))
    calls = OnReplicas(traced, [read, written, left], [0])
    found = tf.function(lambda: ALONE.run(lambda: calls.read(but=[first.handle])), autograph=False)()
    assert sorted(float(tf.reshape(one, ())) for one in found) == [1.0, 2.0, 4.0]


def test_an_update_is_refused_where_it_draws_for_each_copy_by_a_state_of_its_own():
    def graph(draw, scope):
        with tf.Graph().as_default() as made, tf.name_scope("cond"), tf.name_scope(scope):
            draw()
        return made.get_operations()

    inside = tf.function(lambda: tf.random.uniform(()), autograph=False)
    for draw in lambda: tf.random.normal(()), inside:
        for scope in "update_1", "sgd/update_0_1":
            with pytest.raises(ValueError, match=r"update_step draws random numbers.*Or train on one device"):
                refuse_unlike_updates(graph(draw, scope), 2)
        refuse_unlike_updates(graph(draw, "update_1"), 1)
        refuse_unlike_updates(graph(draw, "schedule"), 2)  # once for all copies
    refuse_unlike_updates(graph(lambda: tf.random.stateless_normal((), [1, 2]), "update_1"), 2)
