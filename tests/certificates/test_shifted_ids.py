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

    with pytest.raises(ValueError, match=r"could not be measured, .* is not in \[0, 5\)\. Shift ids before fit"):
        fitted(unproved, FIELDS)
