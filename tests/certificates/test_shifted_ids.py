"""Ids that do not begin at 0: other integers are made up than those that the model does not take, or it is said so."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

kl = keras.layers
IDS = np.random.default_rng(0).integers(0, 5, (20, 4))
FIELDS = IDS + np.array([1000, 1000, 0, 0])
Y = np.random.default_rng(1).normal(size=(20, 1))


class Asserts(kl.Layer):
    def call(self, x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_greater(x, 0)]):
            return tf.identity(x)


def table() -> Any:
    return kl.Embedding(5, 3)


def two_fields(x: Any) -> Any:
    return kl.Concatenate()([table()(x[:, :2] - 1000), table()(x[:, 2:])])


def fitted(hidden: Any, x: np.ndarray) -> Any:
    i = keras.Input((4,), dtype="int32")
    model = tfdp.make_private(keras.Model(i, kl.Dense(1)(kl.Flatten()(hidden(i)))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    model.fit(x, Y, batch_size=10, verbose=0)
    return model


SHIFTED = {
    "from 1": (lambda x: table()(x - 1), IDS + 1),
    "from -7": (lambda x: table()(x + 7), IDS - 7),
    "from 1, asserted": (lambda x: kl.Embedding(6, 3)(Asserts()(x)), IDS + 1),
    "each field from elsewhere": (two_fields, FIELDS),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SHIFTED)
def test_shifted_ids_train_proved(name: str) -> None:
    model = fitted(*SHIFTED[name])
    assert model.ledger.entries[-1].release.independence == "proved"


def test_where_nothing_is_proved_and_no_made_up_ids_are_valid_this_is_said() -> None:
    def unproved(x: Any) -> Any:
        found = two_fields(x)
        return kl.Lambda(lambda t: tf.math.bessel_i0(tf.tanh(t)))(found)

    with pytest.raises(ValueError, match=r"could not be measured .* is not in \[0, 5\)\. Shift ids"):
        fitted(unproved, FIELDS)


def test_eager_steps_that_no_made_up_ids_fit_are_not_said_to_be_measured() -> None:
    class Meets(kl.Layer):
        def call(self, x: Any) -> Any:
            return x + tf.reduce_mean(x, 0, keepdims=True) if tf.executing_eagerly() else x

    i = keras.Input((4,), dtype="int32")
    model = tfdp.make_private(keras.Model(i, kl.Dense(1)(Meets()(kl.Flatten()(two_fields(i))))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse", run_eagerly=True)
    with pytest.raises(ValueError, match=r"one trace was proved.* could not be measured"):
        model.fit(FIELDS, Y, batch_size=10, verbose=0)


def test_equal_made_up_records_measure_nothing() -> None:
    class OnlyOnes(kl.Layer):
        def call(self, x: Any) -> Any:
            checks = [tf.debugging.assert_greater(x, 0), tf.debugging.assert_less(x, 2)]
            with tf.control_dependencies(checks):
                return tf.math.bessel_i0(tf.cast(x, tf.float32))

    with pytest.raises(ValueError, match="no two different ones"):
        fitted(OnlyOnes(), np.ones_like(IDS))


def test_a_loss_of_a_weight_is_refused_where_no_made_up_ids_fit() -> None:
    i = keras.Input((4,), dtype="int32")
    model = tfdp.make_private(keras.Model(i, kl.Dense(1, name="d")(kl.Flatten()(two_fields(i)))))
    kernel = model.get_layer("d").kernel

    def loss(y: Any, outputs: Any) -> Any:
        return tf.reduce_mean((y - outputs) ** 2, -1) + tf.reduce_mean(y, -1) * tf.reduce_sum(kernel)

    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss)
    with pytest.raises(ValueError, match="The loss uses weight"):
        model.fit(FIELDS, Y, batch_size=10, verbose=0)
