"""Lipschitz layers and models under test, and weights and records that attain their bounds."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.private_models import product
from tfdp_layers.certificates import lipschitz
from tfdp_layers.layers import GroupSort, LipschitzConv2D, LipschitzDense

kl = keras.layers
RADIUS, PULL = 2.0, 0.5
SIZE = 6


def chain(bias: bool = False, depth: int = 3, **options: Any) -> tfdp.PrivateSequential:
    """Dense layers with a GroupSort between them: bounded at the entry and at the logits alone."""
    layers: list[Any] = [keras.Input((SIZE,))]
    for index in range(depth):
        clips = {"input_clip": RADIUS} if index == 0 else {}
        clips |= {"upstream_clip": PULL} if index == depth - 1 else {}
        clips |= {"use_bias": True, "bias_clip": 0.5} if bias else {}
        layers += [LipschitzDense(SIZE, name=f"dense{index}", **(clips | options)), GroupSort(2)]
    model = tfdp.PrivateSequential(layers[:-1])
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 1.0), product)
    return model


def pictures() -> tfdp.PrivateSequential:
    """Two convolutions, pooling and a dense layer."""
    layers = [
        keras.Input((8, 8, 2)),
        LipschitzConv2D(4, 2, strides=2, name="patches", input_clip=RADIUS),
        GroupSort(4),
        LipschitzConv2D(2, 3, padding="same", use_bias=True, bias_clip=0.5, activation="relu", name="overlapping"),
        kl.MaxPooling2D(2, 1),
        kl.Flatten(),
        LipschitzDense(3, use_bias=True, upstream_clip=PULL, name="logits"),
    ]
    model = tfdp.PrivateSequential(layers)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 1.0), product)
    return model


def aligned(model: Any, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Gives each dense layer a kernel that keeps the first axis, and biases along it; the record and label along it.

    The kernel's norm is `scale`, beyond what the layer uses.
    """
    for layer in model.layers:
        if isinstance(layer, LipschitzDense):
            kernel = np.zeros(layer.kernel.shape)
            kernel[0, 0] = scale
            layer.kernel.assign(kernel)
            if layer.use_bias:
                layer.bias.assign(np.eye(1, layer.bias.shape[0])[0] * scale)
    first = np.eye(1, SIZE, dtype=np.float32)
    return 10 * RADIUS * first, -10 * PULL * first


def released(model: Any, x: Any, y: Any, weights: Any = None) -> dict[str, float]:
    """The norm of what these records add to each group's sum, over the group's bound."""
    found = model.bounded_gradient_sums(x, y) if weights is None else model.bounded_gradient_sums(x, y, weights)
    place = {id(v): np.asarray(g, np.float64) for v, g in zip(model.trainable_variables, found, strict=True)}
    norms = {}
    for group in model.sensitivities():
        total = float(np.sqrt(sum(np.sum(place[id(v)] ** 2) for v in group.variables)))
        norms[group.name] = total / group.bound if np.isfinite(total) else np.inf
    return norms


def used_norm(layer: Any, shape: tuple[int, ...]) -> float:
    """The largest singular value of the kernel that a layer uses, from float64 and the layer's own linear map."""
    kernel = np.asarray(layer.bounded_kernel((None, *shape)), np.float64)
    if isinstance(layer, LipschitzDense):
        return float(np.linalg.svd(kernel)[1][0])
    entries = int(np.prod(shape))
    options = {"strides": layer.strides, "padding": layer.padding, "dilation_rate": layer.dilation_rate}
    outputs = keras.ops.conv(np.eye(entries).reshape(entries, *shape), tf.constant(kernel), **options)
    return float(np.linalg.svd(np.asarray(outputs).reshape(entries, -1))[1][0])


def stated(model: keras.Model) -> dict[str, float]:
    """The bound of each Lipschitz layer of a model, by name."""
    followed = lipschitz.lipschitz_bounds(model)
    return {layer.name: followed[id(layer)].bound for layer in model._flatten_layers() if id(layer) in followed}


def sequence(*between: Any, first: Any = None, last: Any = None) -> keras.Model:
    """Layers between two Lipschitz ones, of which the first has a clip below and the last one above."""
    ends = ({"input_clip": RADIUS} if first is None else first, {"upstream_clip": PULL} if last is None else last)
    one, two = LipschitzDense(SIZE, name="one", **ends[0]), LipschitzDense(2, name="two", **ends[1])
    return keras.Sequential([keras.Input((SIZE,)), one, *between, two])
