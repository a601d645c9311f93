"""How much layers without weights stretch a record, and its gradient on the way back."""

import functools
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.activations import known_slope, rounded_at_zero, steeper_values
from tfdp_layers.layers.base import size
from tfdp_layers.layers.lipschitz import GroupSort, most_patches
from tfdp_layers.rules.rows import ROUNDING

kl = keras.layers
Shape = Sequence[int | None]


@dataclass(frozen=True)
class Stretch:
    """What a layer does to the norm of a record's tensor.

    Guarantee: ||f(x)|| <= steeper slope ||x|| + offset for each record, and the gradient that flows below has at most
        `slope` times the norm of the one from above: the one that TensorFlow computes, also where entries are equal,
        or a function has a kink, for norms up to `LARGEST_NORM`. Where `offset` is infinite, that of f(x) is lost.
    """

    slope: float
    offset: float = 0.0
    steeper: float = 1.0

    @classmethod
    def rounded(cls, slope: float, offset: float = 0.0, steeper: float = 1.0) -> "Stretch":
        """Of a layer that computes in float32, some roundings for each entry."""
        return cls(slope * (1.0 + ROUNDING), offset * (1.0 + ROUNDING), steeper)


LARGEST_NORM = 1e18
"""Norms above it count as lost: kernels square entries for values and gradients, and float32 overflows."""

KEPT = (kl.Flatten, kl.Reshape, kl.Permute, kl.Identity, kl.ZeroPadding2D, kl.Cropping2D, GroupSort)
"""Layers that move, pad or drop entries."""


def stretch(layer: Any, shapes: Sequence[Shape]) -> Stretch | None:
    """How much a layer stretches records of these input shapes; None where it is not known.

    Of several inputs the sum of their norms counts, and each gets a gradient of at most `slope` times the one above:
    so it is with a concatenation, and with a sum where no input is repeated to the shape of another. Known are exactly
    these types: a subclass may do anything.
    """
    shape = tuple(shapes[0]) if shapes else ()
    if type(layer) is kl.Concatenate or (type(layer) is kl.Add and None not in shape[1:] and len({*shapes}) == 1):
        return Stretch.rounded(1.0)
    if len(shapes) != 1:
        return None
    if type(layer) in KEPT:
        return Stretch(1.0)
    rule = _RULES.get(type(layer))
    return None if rule is None else rule(layer, shape)


def of_activation(activation: Any, shape: Shape) -> Stretch | None:
    """How much an activation stretches: |f(x)| <= slope |x| + |f(0)|, and what float32 adds to that, entry by entry;
    of records of unknown size |f(x)| <= steeper slope |x| where f(0) is 0; None where it is not known.

    It is known of Keras' functions and of tempered sigmoids: nothing enforces the slope that another one states.
    """
    if activation is None:  # as Keras writes that there is none
        return Stretch(1.0)
    slope = known_slope(activation)
    if slope is None:
        return None
    at_zero, entries = value_at_zero(activation), size(shape[1:])
    if entries is None:
        steeper = math.inf if at_zero else steeper_values(activation)
        return Stretch.rounded(slope, math.inf) if steeper == math.inf else Stretch.rounded(slope, steeper=steeper)
    return Stretch.rounded(slope, (at_zero + rounded_at_zero(activation)) * math.sqrt(entries))


@functools.lru_cache(maxsize=128)
def value_at_zero(function: Callable[[Any], Any]) -> float:
    """|f(0)| of an activation."""
    with tf.init_scope():
        return abs(float(np.asarray(function(tf.zeros((1, 1))))[0, 0]))


def plain_numbers(*settings: Any) -> bool:
    """Whether these are numbers: a variable may hold another one in the step."""
    return all(isinstance(one, numbers.Real) for one in settings)


def plain_sizes(*settings: Any) -> bool:
    """Whether these are tuples or lists of integers: whatever else keeps numbers may change them in the step."""
    return all(isinstance(one, tuple | list) and all(isinstance(n, numbers.Integral) for n in one) for one in settings)


def of_relu(layer: Any, shape: Shape) -> Stretch | None:
    """max(x, 0), with a slope below zero of at most 1, and perhaps a largest value."""
    largest = 0.0 if layer.max_value is None else layer.max_value
    if not plain_numbers(layer.threshold, layer.negative_slope, largest):
        return None
    if layer.threshold or largest < 0.0 or not 0.0 <= layer.negative_slope <= 1.0:
        return None
    return Stretch.rounded(1.0)


def of_dropout(layer: Any, shape: Shape) -> Stretch | None:
    """What is kept is divided by the fraction that is."""
    known = plain_numbers(layer.rate) and 0.0 <= layer.rate < 1.0
    return Stretch.rounded(1.0 / (1.0 - layer.rate)) if known else None


def of_pooling(layer: Any, shape: Shape) -> Stretch | None:
    """The largest of each window, or their mean.

    Of a maximum, one entry is passed on, and one gets the gradient; an entry is in m windows at most, so both stretch
    by sqrt(m). A mean over n is 1/n times a sum of n entries, of norm at most sqrt(n) times theirs: sqrt(m / n).
    """
    if layer.data_format != "channels_last" or not plain_sizes(layer.pool_size, layer.strides):
        return None
    axes = list(zip(shape[1:3], layer.pool_size, layer.strides, strict=True))
    overlap = math.prod(most_patches(size, window, step, 1, layer.padding) for size, window, step in axes)
    if type(layer) is kl.MaxPooling2D:
        return Stretch.rounded(math.sqrt(overlap))
    # With "same", windows at the border are means of fewer.
    entries = math.prod(layer.pool_size) if layer.padding == "valid" else 1
    return Stretch.rounded(math.sqrt(overlap / entries) * (1.0 + entries * 2.0**-24))


_RULES: dict[type, Callable[[Any, Shape], Stretch | None]] = {
    kl.Activation: lambda layer, shape: of_activation(layer.activation, shape),
    kl.ReLU: of_relu,
    kl.Dropout: of_dropout,
    kl.MaxPooling2D: of_pooling,
    kl.AveragePooling2D: of_pooling,
}
