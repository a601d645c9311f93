"""Small models of ordinary layers, and what each of their records adds by Keras' own gradient of a batch of one."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp

kl = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RECORDS = 7


def mlp() -> tuple[Any, Any]:
    layers = [keras.Input((6,)), kl.Dense(5, activation="tanh"), kl.LayerNormalization(), kl.Dense(3)]
    return tfdp.PrivateSequential(layers), np.random.default_rng(0).normal(size=(RECORDS, 6))


def cnn() -> tuple[Any, Any]:
    layers = [
        *(keras.Input((8, 8, 2)), kl.Conv2D(3, 3, padding="same", activation="relu"), kl.Conv2D(4, 4, strides=2)),
        *(kl.DepthwiseConv2D(2), kl.Flatten(), kl.Dense(3)),
    ]
    return tfdp.PrivateSequential(layers), np.random.default_rng(1).normal(size=(RECORDS, 8, 8, 2))


def text() -> tuple[Any, Any]:
    layers = [keras.Input((9,), dtype="int32"), kl.Embedding(11, 4), kl.Dense(4, activation="tanh"), kl.LSTM(3)]
    return tfdp.PrivateSequential([*layers, kl.Dense(3)]), np.random.default_rng(2).integers(0, 5, (RECORDS, 9))


def shared() -> tuple[Any, Any]:
    inputs = keras.Input((4,))
    layer = kl.Dense(4, activation="tanh")
    outputs = kl.Dense(3)(layer(layer(inputs)))
    return tfdp.PrivateModel(inputs, outputs), np.random.default_rng(3).normal(size=(RECORDS, 4))


MODELS = [mlp, cnn, text, shared]


def compiled(made: Callable[[], tuple[Any, Any]], optimizer: Any, **options: Any) -> tuple[Any, Any, Any]:
    """A compiled model, with weights large enough for gradients of every size, and its records."""
    keras.utils.set_random_seed(4)
    model, x = made()
    model.compile(optimizer, LOSS, **options)
    model.set_weights([2.0 * w for w in model.get_weights()])
    x = x if x.dtype.kind == "i" else x.astype("float32")
    return model, x, np.random.default_rng(9).integers(0, 3, len(x))


def gradients_alone(model: Any, x: Any, y: Any) -> list[list[np.ndarray]]:
    """For each record the gradient of its own loss, one array for each trainable weight, in float64."""
    found = []
    for i in range(len(y)):
        with tf.GradientTape() as tape:
            loss = LOSS(y[i : i + 1], model(x[i : i + 1], training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        found.append([np.asarray(tf.convert_to_tensor(g), np.float64) for g in gradients])
    return found


def length(arrays: Any) -> float:
    """L2 norm of all arrays together."""
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(a, np.float64))) for a in arrays)))


def added(model: Any, x: Any, y: Any) -> float:
    """What the last record adds to the released sums, by its norm."""
    both = [model.bounded_gradient_sums(x, y), model.bounded_gradient_sums(x[:-1], y[:-1])]
    return length([np.asarray(a, np.float64) - np.asarray(b, np.float64) for a, b in zip(*both, strict=True)])
