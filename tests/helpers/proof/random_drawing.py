"""What random operations are drawn with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

FEATURES = 4
Tensors = list[Any]
Operation = Callable[[np.random.Generator, Tensors], Any]


def collected(operations: list[Operation]) -> Callable[[Operation], Operation]:
    """A decorator that adds operations to a list."""

    def add(function: Operation) -> Operation:
        operations.append(function)
        return function

    return add


def pick(rng: np.random.Generator, values: Any) -> Any:
    values = list(values)
    return values[int(rng.integers(len(values)))]


def real(rng: np.random.Generator, tensors: Tensors) -> Any:
    return pick(rng, [t for t in tensors if t.dtype == tf.float64])


def whole(rng: np.random.Generator, tensors: Tensors) -> Any:
    return pick(rng, [t for t in tensors if t.dtype == tf.int32])


def axis_of(rng: np.random.Generator, tensor: Any) -> int:
    return int(rng.integers(len(tensor.shape)))


def small(rng: np.random.Generator, tensor: Any) -> Any:
    """The tensor, bounded, so that sums stay comparable."""
    return tf.tanh(tensor) * 2.0


def rows(tensors: Tensors) -> Any:
    return tf.shape(tensors[0])[0]


def number(rng: np.random.Generator, tensors: Tensors) -> Any:
    """A size: of the batch or a multiple, of an axis of a tensor, or a small constant."""
    tensor = pick(rng, tensors)
    own = [lambda n: n, lambda n: n, lambda n: n * 2, lambda n: n * FEATURES, lambda n: n + 1, lambda n: n // 2]
    found = pick(rng, [*own, 1, 2, 3, FEATURES, -1, *[("axis", i) for i in range(len(tensor.shape))]])
    if isinstance(found, tuple):
        return tf.shape(tensor)[found[1]]
    return found(rows(tensors)) if callable(found) else found
