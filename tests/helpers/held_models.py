"""Small models of layers that bound themselves, which tests change between building and step."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.lipschitz_cases import released
from helpers.private_models import product

GENTLE = {"kernel_initializer": "identity"}


def private(inputs: Any, outputs: Any, kind: Any = tfdp.PrivateModel, **options: Any) -> Any:
    model = kind(inputs, outputs)
    noisy = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0)
    model.compile(noisy, lambda y, p: 1e3 * product(y, p), **options)
    return model


def chain(shape: Any, *layers: Any, **options: Any) -> Any:
    x = outputs = keras.Input(shape)
    for layer in layers:
        outputs = layer(outputs)
    return private(x, outputs, **options)


def share(model: Any, size: float = 1.0) -> float:
    """What a record of ones adds, of the bound, at most."""
    x = np.full((1, *model.input_shape[1:]), size, np.float32)
    return max(released(model, x, np.ones((1, *model.output_shape[1:]), np.float32)).values())


def fit(model: Any) -> None:
    x, y = np.zeros((4, *model.input_shape[1:]), "float32"), np.zeros((4, *model.output_shape[1:]), "float32")
    model.fit(x, y, sampling=tfdp.sampling.Poisson(2), epochs=1, verbose=0, accept_measured=True)


class InTraining(keras.layers.Layer):
    """Does something to records in training alone, or nothing at all."""

    def __init__(self, function: Any, dynamic: bool = False):
        super().__init__()
        self.function, self.dynamic = function, dynamic

    def call(self, x: Any, training: bool | None = None) -> Any:
        outputs = self.function(x) if training and not isinstance(x, keras.KerasTensor) else x
        if not self.dynamic or tf.executing_eagerly():
            return outputs
        sizes = tf.map_fn(tf.identity, tf.shape(outputs))  # which no trace knows
        return tf.ensure_shape(tf.reshape(outputs, sizes), (x.shape[0], *[None] * (len(x.shape) - 2), x.shape[-1]))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape
