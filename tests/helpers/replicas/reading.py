"""A check of one process with two devices: what follows the noise reads another private model."""

from typing import Any

import keras
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import mlp
from helpers.replicas.mirrored import LOSS, STRATEGY


def model_that(constraint: Any) -> Any:
    layers = [keras.Input((6,)), keras.layers.Dense(3, kernel_constraint=constraint)]
    model = tfdp.make_private(keras.Sequential(layers))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), LOSS)
    return model


def weights_that_a_constraint_reads_bring_what_they_cost() -> None:
    _, x, y = mlp()
    with STRATEGY.scope():
        first = model_that(None)
        second = model_that(lambda weights: weights + 0.0 * tf.reduce_sum(first.layers[-1].kernel.value))
    for model in (first, second, first):
        model.fit(x, y, batch_size=4, steps_per_epoch=2, epochs=1, verbose=0)
    assert first.ledger is second.ledger
    assert second.ledger.steps == 6


def python_code_in_a_constraint_is_refused() -> None:
    _, x, y = mlp()
    with STRATEGY.scope():
        model = model_that(lambda weights: weights + tf.reshape(tf.numpy_function(lambda: 0.0, [], tf.float32), []))
    with pytest.raises(ValueError, match="runs Python code"):
        model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    assert model.ledger.steps == 0


CHECKS = (weights_that_a_constraint_reads_bring_what_they_cost, python_code_in_a_constraint_is_refused)
