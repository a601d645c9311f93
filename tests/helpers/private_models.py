"""Private models of a few layers, whose loss lets a label set the upstream gradient: sum(prediction * label)."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.layer_cases import CASES

kl = keras.layers
CLIP = 0.5


def product(y_true: Any, y_pred: Any) -> tf.Tensor:
    """Whose gradient at the prediction is the label."""
    return tf.reduce_sum(y_true * y_pred, axis=list(range(1, len(y_pred.shape))))


def optimizer(clipping: str = "flat", clip: Any = CLIP, noise: float = 1.0, **options: Any) -> Any:
    return tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), noise, clip, clipping, **options)


def private(model: Any, clipping: str = "flat", clip: Any = CLIP, **options: Any) -> Any:
    """The model, private and compiled with the loss `product`."""
    made = tfdp.make_private(model)
    names = ("jit_compile", "run_eagerly", "steps_per_execution")
    kept = {name: options.pop(name) for name in names if name in options}
    made.compile(optimizer(clipping, clip, **options), product, **kept)
    return made


def case(name: str, *args: Any, **options: Any) -> Any:
    return private(CASES[name]()[0], *args, **options)


def mixed() -> Any:
    """Two layers that bound themselves among three ordinary ones."""
    clips = {"input_clip": 1.0, "upstream_clip": 0.5}
    return keras.Sequential(
        [
            keras.Input((6, 5, 2)),
            kl.Conv2D(3, 2, activation="tanh"),
            tfdp.layers.ClippedConv2D(3, 2, activation="tanh", **clips),
            kl.Flatten(),
            tfdp.layers.ClippedDense(5, activation="tanh", **clips),
            kl.Dense(4, activation="tanh"),
            kl.Dense(3),
        ]
    )


def classifier() -> Any:
    layers = [kl.Dense(5, activation="tanh"), kl.LayerNormalization(), kl.Dense(3)]
    return keras.Sequential([keras.Input((6,)), *layers])


Sums = Callable[..., list[np.ndarray]]


def sums_of(model: Any, mode: str = "graph") -> Sums:
    """(x, y[, weights]) -> the bounded sums of trainable weights and statistics, in float64."""

    def sums(x: Any, y: Any, weights: Any) -> Any:
        return model._sums_and_losses(x, y, weights)[0]

    compiled = (
        sums
        if mode == "eager"
        else tf.function(sums, autograph=False, jit_compile=mode == "xla", reduce_retracing=True)
    )

    def call(x: Any, y: Any, weights: Any = None) -> list[np.ndarray]:
        if weights is None:
            weights = np.ones(len(keras.tree.flatten(x)[0]), np.float32)
        return [np.asarray(g, np.float64) for g in compiled(*keras.tree.map_structure(tf.constant, (x, y, weights)))]

    return call


def sizes(groups: list[Any], variables: list[Any], sums: list[np.ndarray]) -> dict[str, float]:
    """The norm of each group's sums, over the group's bound; infinite where not finite."""
    place = {id(v): i for i, v in enumerate(variables)}
    statistics = iter(range(len(variables), len(sums)))
    found = {}
    for group in groups:
        indices = [place[id(v)] for v in group.variables] or [next(statistics)]
        norm = float(np.sqrt(sum(np.sum(sums[i] ** 2) for i in indices)))
        found[group.name] = norm / group.bound if np.isfinite(norm) else np.inf
    return found
