"""Steps of small models whose layers go another way in the step than in an inspection."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import tfdp_layers as tfdp

X, Y = np.full((1, 5, 6), 10.0, "float32"), np.full((1, 3), 1e4, "float32")
BOUNDED: dict[str, Callable[..., Any]] = {
    "gradient": lambda **options: tfdp.layers.ClippedDense(3, gradient_clip=1.0, **options),
    "two clips": lambda **options: tfdp.layers.ClippedDense(3, input_clip=0.8, upstream_clip=0.78, **options),
    "lipschitz": lambda **options: tfdp.layers.LipschitzDense(3, input_clip=1.0, upstream_clip=1.0, **options),
}
"""Layers of a bound of about 1."""


def is_step(x: Any) -> bool:
    """Whether the number of records is unknown, as where a step is traced."""
    return x.shape[0] is None


def model_of(outputs: Callable[..., Any], shape: Any = (5, 6), clipped: bool = False, **options: Any) -> Any:
    """A model whose steps subtract the bounded sums, without noise; `clipped`: its layers bound themselves."""
    x = keras.Input(shape)
    model = tfdp.make_private(keras.Model(x, outputs(x)))
    inner = keras.optimizers.SGD(1.0)
    kinds = tfdp.optimizers.ClippedOptimizer(inner, 0.0, 1.0), tfdp.optimizers.NoisyOptimizer(inner, 0.0)
    model.compile(kinds[clipped], "mse", **options)
    return model


def fit(model: Any, x: Any = X, y: Any = Y) -> None:
    """One step on one record."""
    model.fit(x, y, sampling=tfdp.sampling.Poisson(1), examples=1, steps_per_epoch=1, verbose=0, accept_measured=True)


def moved_by(model: Any, x: Any, y: Any = Y) -> Any:
    """The norm of what one step on one record changes."""
    before = [np.array(v) for v in model.trainable_variables]
    fit(model, x, y)
    changes = [np.array(v) - old for v, old in zip(model.trainable_variables, before, strict=True)]
    return np.sqrt(sum(np.sum(np.square(change)) for change in changes))
