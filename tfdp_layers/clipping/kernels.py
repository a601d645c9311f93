"""Filtered gradients of dense layers in compiled kernels: no record's gradient is ever written out.

A filter takes batch x weights evaluations; written out a chunk at a time, each of them also passes through memory
several times. XLA fuses outer product, filter and sum, over tiles of the weights that stay in a processor's cache.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import keras
import tensorflow as tf

from tfdp_layers.per_record.contributions import Contribution, Products, in_order

SMALLEST = 10_000
"""Weights below which a kernel of its own is not worth its compilation."""

_ROWS = 64
"""Records of one call of a kernel: XLA compiles anew for every size, so all calls have the same."""

_TILE = 65_536
"""Entries of a sum that a kernel works on at a time: a quarter of a megabyte."""

_UNROLLED = 4
"""Terms of a sum in one round of a loop: XLA keeps the sum in registers from one to the next."""

OuterFunction = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""(x, u) -> the filtered x u^T: (rows,), (units,) -> (rows, units)."""


class EntryFunction(abc.ABC):
    """A function of each entry of a gradient, zero to zero."""

    @abc.abstractmethod
    def __call__(self, variable: keras.Variable, values: tf.Tensor, rows: tf.Tensor | None) -> tf.Tensor:
        """The filtered values.

        `values` is (batch, *variable.shape), or, where `rows` (batch, positions) is not None, what a record adds to
        those rows of the variable.
        """

    @abc.abstractmethod
    def outer(self, variable: keras.Variable, start: int | tf.Tensor, size: int) -> OuterFunction:
        """The function of the entries of outer products, for rows start ... start + size - 1 of a matrix."""

    @abc.abstractmethod
    def products(self, part: Products, refused: tf.Tensor) -> Any:
        """The filtered gradients of a part whose gradients are outer products: a `FilteredProducts`."""


def is_outer_product(part: Contribution) -> TypeGuard[Products]:
    """Whether a record's gradient is x u^T, in the layout of the variable: (inputs, units)."""
    if type(part) is not Products or part.positions != 1:
        return False
    shape = tuple(part.variable.shape)
    return len(shape) == 2 and part.arrange == in_order(shape) and math.prod(shape) >= SMALLEST


def filtered_sum(
    variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, function: EntryFunction, count: int | tf.Tensor
) -> tf.Tensor:
    """sum_i function(x_i u_i^T) over the first `count` rows, of the variable's shape. x, u: (batch, ...), finite."""

    @tf.function(jit_compile=True, autograph=False)
    def kernel(xs: tf.Tensor, us: tf.Tensor) -> tf.Tensor:
        return sum_of_block(variable, xs, us, function, None)

    return added_blocks(kernel, [x, u], count, variable.shape)


def weighted_filtered_sum(
    variable: keras.Variable,
    x: tf.Tensor,
    u: tf.Tensor,
    weights: tf.Tensor,
    function: EntryFunction,
    count: int | tf.Tensor,
) -> tf.Tensor:
    """sum_i weights_i function(x_i u_i^T), as `filtered_sum`. weights: (batch,)."""

    @tf.function(jit_compile=True, autograph=False)
    def kernel(xs: tf.Tensor, us: tf.Tensor, ws: tf.Tensor) -> tf.Tensor:
        return sum_of_block(variable, xs, us, function, ws)

    return added_blocks(kernel, [x, u, weights], count, variable.shape)


def filtered_squared_norms(
    variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, function: EntryFunction, count: int | tf.Tensor
) -> tf.Tensor:
    """||function(x_i u_i^T)||^2 of the first `count` rows, anything for the others: (batch,)."""

    @tf.function(jit_compile=True, autograph=False)
    def kernel(xs: tf.Tensor, us: tf.Tensor) -> tf.Tensor:
        return norms_of_block(variable, xs, us, function)

    rows = tf.shape(x)[0]
    padded = [whole_blocks(values) for values in (x, u)]

    def body(start: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        block = kernel(*[rows_from(values, start) for values in padded])
        places = (start + tf.range(_ROWS))[:, tf.newaxis]
        return start + _ROWS, tf.tensor_scatter_nd_update(found, places, block)

    found = (tf.constant(0), tf.zeros_like(padded[0][:, 0]))
    return tf.while_loop(lambda start, _: start < count, body, found, parallel_iterations=1)[1][:rows]


def sum_of_block(
    variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, function: EntryFunction, weights: tf.Tensor | None
) -> tf.Tensor:
    """The sum over the rows of one block, a tile of the variable's rows at a time."""
    inputs, units = variable.shape
    size = max(1, min(inputs, _TILE // units))
    tiles, rest = divmod(inputs, size)
    step = math.gcd(_ROWS, _UNROLLED)

    def tile(start: int | tf.Tensor, size: int) -> tf.Tensor:
        entry, columns = function.outer(variable, start, size), tf.slice(x, [0, start], [_ROWS, size])

        def body(row: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            for offset in range(step):
                values = entry(columns[row + offset], u[row + offset])
                total += values if weights is None else weights[row + offset] * values
            return row + step, total

        start_of_sum = (tf.constant(0), tf.zeros((size, units), tf.float32))
        return tf.while_loop(lambda row, _: row < _ROWS, body, start_of_sum, parallel_iterations=1)[1]

    found = tf.map_fn(lambda i: tile(i * size, size), tf.range(tiles), fn_output_signature=tf.float32)
    whole = tf.reshape(found, (tiles * size, units))
    return tf.concat([whole, tile(tiles * size, rest)], 0) if rest else whole


def norms_of_block(variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, function: EntryFunction) -> tf.Tensor:
    """The squared norm of each row of one block: (rows,). Each is a sum over units of sums over inputs."""
    inputs = variable.shape[0]

    def squares(xs: tf.Tensor, us: tf.Tensor, first: int | tf.Tensor, terms: int, total: tf.Tensor) -> tf.Tensor:
        for i in range(terms):
            total += tf.square(function.outer(variable, first + i, 1)(tf.slice(xs, [first + i], [1]), us)[0])
        return total

    def one(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        def body(first: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return first + _UNROLLED, squares(*row, first, _UNROLLED, total)

        full = inputs // _UNROLLED * _UNROLLED
        start = (tf.constant(0), tf.zeros_like(row[1]))
        total = tf.while_loop(lambda first, _: first < full, body, start, parallel_iterations=1)[1]
        return tf.reduce_sum(squares(*row, full, inputs - full, total))

    return tf.map_fn(one, (x, u), fn_output_signature=tf.float32)


def added_blocks(
    kernel: Callable[..., tf.Tensor], factors: list[tf.Tensor], count: int | tf.Tensor, shape: Sequence[int]
) -> tf.Tensor:
    """The sum of kernel(*rows of the factors), of this shape, over blocks of `_ROWS` rows.

    The last block is filled up with zeros, whose gradients are zero and add nothing.
    """
    padded = [whole_blocks(values) for values in factors]

    def body(start: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return start + _ROWS, total + kernel(*[rows_from(values, start) for values in padded])

    start = (tf.constant(0), tf.zeros(shape, tf.float32))
    return tf.while_loop(lambda start, _: start < count, body, start, parallel_iterations=1)[1]


def whole_blocks(values: tf.Tensor) -> tf.Tensor:
    """The values with rows of zeros up to whole blocks."""
    return tf.pad(values, [[0, -tf.shape(values)[0] % _ROWS]] + [[0, 0]] * (len(values.shape) - 1))


def rows_from(values: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """A block of rows, of a shape that is known."""
    return tf.slice(values, [start] + [0] * (len(values.shape) - 1), [_ROWS, *values.shape[1:]])
