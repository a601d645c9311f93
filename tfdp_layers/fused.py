"""Filtered sums of dense layers in one compiled kernel each: no record's gradient is ever written out whole.

A filter takes batch x weights evaluations; written out a chunk at a time, each of them also passes through memory
several times. XLA fuses outer product, filter and sum. (A scale that depends on the filtered gradient's norm can't be
had this way: the norm must be known before the sum.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import tensorflow as tf

from tfdp_layers.per_record.contributions import Contribution, Products, in_order

SMALLEST = 50_000
"""Weights below which a kernel of its own is not worth its compilation."""

_ROWS = 64
"""Records of one call of a kernel: XLA compiles anew for every size, so all calls have the same."""

EntryFunction = Callable[[Any, tf.Tensor, Any], tf.Tensor]
"""(variable, values, rows) -> values filtered, entry by entry, zero to zero. `values` is (batch, *variable.shape), or,
where `rows` (batch, positions) is not None, what a record adds to those rows of the variable."""


def is_outer_product(part: Contribution) -> TypeGuard[Products]:
    """Whether a record's gradient is x u^T, in the layout of the variable: (inputs, units)."""
    if type(part) is not Products or part.positions != 1:
        return False
    shape = tuple(part.variable.shape)
    return len(shape) == 2 and part.arrange == in_order(shape) and math.prod(shape) >= SMALLEST


def filtered_sum(part: Products, function: EntryFunction) -> tf.Tensor:
    """sum_i function(x_i u_i^T), of the variable's shape. Every row must be finite, and so must the products."""

    @tf.function(jit_compile=True, autograph=False)
    def kernel(x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(function(part.variable, x[:, :, tf.newaxis] * u[:, tf.newaxis, :], None), axis=0)

    return in_blocks(kernel, [part.x[:, 0], part.u[:, 0]], part.variable.shape)


def in_blocks(kernel: Any, factors: list[tf.Tensor], shape: Any) -> tf.Tensor:
    """The sum of kernel(*rows of the factors), of this shape, over blocks of `_ROWS` rows.

    The last block is filled up with zeros, whose gradients are zero and add nothing.
    """
    known = factors[0].shape[0]
    if known is not None and known <= _ROWS:
        return kernel(*factors)
    rows = tf.shape(factors[0])[0]
    padded = [tf.pad(values, [[0, -rows % _ROWS], [0, 0]]) for values in factors]

    def body(start: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        blocks = [tf.slice(values, [start, 0], [_ROWS, values.shape[1]]) for values in padded]
        return start + _ROWS, total + kernel(*blocks)

    start = (tf.constant(0), tf.zeros(shape, tf.float32))
    return tf.while_loop(lambda start, _: start < rows, body, start, parallel_iterations=1)[1]
