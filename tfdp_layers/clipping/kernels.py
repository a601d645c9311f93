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

from tfdp_layers.noise.cores import cores, on_gpus
from tfdp_layers.per_record.contributions import Contribution, Products, in_order

SMALLEST = 10_000
"""Weights below which a kernel of its own is not worth its compilation."""

_ROWS = 512
"""Records of one call of a kernel: XLA compiles anew for every size, so all calls have the same, filled up with zeros.
How many of them are there, the kernel is told, and goes no further."""

_TILE = 65_536
"""Entries of a sum that a kernel works on at a time: a quarter of a megabyte."""

_SHARED_TILE = 2_000
"""The same on several cores. XLA would share the work on a larger tile among them, at every record again, which costs
what it gains; so each core gets a kernel and a part of the matrix, in tiles that XLA leaves to one core."""

_UNROLLED = 4
"""Terms of a sum in one round of a loop: XLA keeps the sum in registers from one to the next."""

NARROW = 64
"""Rows of fewer entries leave a processor's vectors empty: the longer side of the matrix is laid along them."""

OuterFunction = Callable[[Sequence[tf.Tensor], tf.Tensor], tf.Tensor]
"""(what `of_inputs` made of x, u) -> the filtered x u^T: (rows,) each, (units,) -> (rows, units)."""


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

    def of_inputs(self, variable: keras.Variable, x: tf.Tensor) -> list[tf.Tensor]:
        """What `outer` asks of the inputs, computed once for all units: (batch, inputs) -> several of that shape."""
        return [x]

    def turned(self, variable: keras.Variable) -> EntryFunction:
        """The same function of the transposed matrix."""
        return self

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
    """sum_i function(x_i u_i^T) over the first `count` rows, of the variable's shape.

    x, u: (batch, ...), finite; up to `_UNROLLED` - 1 rows after the first `count` are added too, and must be zero.
    """
    return summed(variable, x, u, None, function, count)


def weighted_filtered_sum(
    variable: keras.Variable,
    x: tf.Tensor,
    u: tf.Tensor,
    weights: tf.Tensor,
    function: EntryFunction,
    count: int | tf.Tensor,
) -> tf.Tensor:
    """sum_i weights_i function(x_i u_i^T), as `filtered_sum`. weights: (batch,)."""
    return summed(variable, x, u, weights, function, count)


def filtered_squared_norms(
    variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, function: EntryFunction, count: int | tf.Tensor
) -> tf.Tensor:
    """||function(x_i u_i^T)||^2 of the first `count` rows, anything for the others: (batch,)."""
    x, u, function, _ = laid_along_units(variable, x, u, function)
    parts = math.gcd(parallel_parts(), _ROWS)

    @tf.function(jit_compile=True, autograph=False)
    def kernel(xs: tf.Tensor, us: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
        return norms_of_block(variable, xs, us, function, there)

    def dealt(values: tf.Tensor) -> list[tf.Tensor]:  # row by row to the parts, so that each has as many
        return tf.unstack(tf.reshape(values, (_ROWS // parts, parts, values.shape[1])), axis=1)

    rows = tf.shape(x)[0]
    padded = [whole_blocks(values) for values in (x, u)]

    def body(start: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        dealt_x, dealt_u = (dealt(rows_from(values, start)) for values in padded)
        there = [-(-(tf.minimum(count - start, _ROWS) - part) // parts) for part in range(parts)]
        norms = [kernel(*own) for own in zip(dealt_x, dealt_u, there, strict=True)]
        block = tf.reshape(tf.stack(norms, axis=1), [-1])
        places = (start + tf.range(_ROWS))[:, tf.newaxis]
        return start + _ROWS, tf.tensor_scatter_nd_update(found, places, block)

    found = (tf.constant(0), tf.zeros_like(padded[0][:, 0]))
    return tf.while_loop(lambda start, _: start < count, body, found, parallel_iterations=1)[1][:rows]


def summed(
    variable: keras.Variable,
    x: tf.Tensor,
    u: tf.Tensor,
    weights: tf.Tensor | None,
    function: EntryFunction,
    count: int | tf.Tensor,
) -> tf.Tensor:
    """`filtered_sum`, or with weights `weighted_filtered_sum`: a block of rows after another."""
    x, u, function, turned = laid_along_units(variable, x, u, function)
    shape = (x.shape[1], u.shape[1])
    parts = parallel_parts() if shape[1] <= _SHARED_TILE else 1
    each = -(-shape[0] // min(parts, shape[0]))
    firsts = [
        min(first, shape[0] - each) for first in range(0, shape[0], each)
    ]  # the last overlaps where they do not fit

    @tf.function(jit_compile=True, autograph=False)
    def kernel(
        first: tf.Tensor, there: tf.Tensor, xs: tf.Tensor, us: tf.Tensor, ws: tf.Tensor | None = None
    ) -> tf.Tensor:
        own = tf.slice(xs, [0, first], [_ROWS, each])
        return sum_of_block(variable, own, us, function, ws, there, first, _TILE if parts == 1 else _SHARED_TILE)

    padded = [whole_blocks(values) for values in (x, u, weights) if values is not None]

    def block(start: int | tf.Tensor) -> tf.Tensor:
        there, values = tf.minimum(count - start, _ROWS), [rows_from(values, start) for values in padded]
        found = [kernel(tf.constant(first), there, *values) for first in firsts]
        return joined(found, each * len(firsts) - shape[0])

    def body(start: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return start + _ROWS, total + block(start)

    # The first block starts the sum: most batches have no other.
    total = tf.cond(tf.convert_to_tensor(count) > 0, lambda: block(0), lambda: tf.zeros(shape))
    total = tf.while_loop(lambda start, _: start < count, body, (tf.constant(_ROWS), total), parallel_iterations=1)[1]
    return tf.transpose(total) if turned else total


def laid_along_units(
    variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, function: EntryFunction
) -> tuple[tf.Tensor, tf.Tensor, EntryFunction, bool]:
    """(x, u, function, whether it was turned) of a matrix whose rows are not too narrow, or of the transposed one."""
    inputs, units = variable.shape
    if units < min(NARROW, inputs):
        return u, x, function.turned(variable), True
    return x, u, function, False


def sum_of_block(
    variable: keras.Variable,
    x: tf.Tensor,
    u: tf.Tensor,
    function: EntryFunction,
    weights: tf.Tensor | None,
    count: tf.Tensor,
    first: tf.Tensor,
    most: int,
) -> tf.Tensor:
    """The sum over the first `count` rows of one block, a tile of at most so many entries at a time.

    Args:
        x: of the matrix's rows from `first` on.
    """
    inputs, units = x.shape[1], u.shape[1]
    size = tile_size(inputs, units, most)
    tiles, step = -(-inputs // size), math.gcd(_ROWS, _UNROLLED)
    factors = function.of_inputs(variable, x)

    def tile(index: tf.Tensor) -> tf.Tensor:
        start = tf.minimum(index * size, inputs - size)  # the last one overlaps where they do not fit
        entry = function.outer(variable, first + start, size)

        def body(row: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            for offset in range(step):
                own = [tf.slice(factor[row + offset], [start], [size]) for factor in factors]
                values = entry(own, u[row + offset])
                total += values if weights is None else weights[row + offset] * values
            return row + step, total

        start_of_sum = (tf.constant(0), tf.zeros((size, units), tf.float32))
        return tf.while_loop(lambda row, _: row < count, body, start_of_sum, parallel_iterations=1)[1]

    found = tf.map_fn(tile, tf.range(tiles), fn_output_signature=tf.float32)
    over = tiles * size - inputs
    if not over:
        return tf.reshape(found, (inputs, units))
    return tf.concat([tf.reshape(found[:-1], (-1, units)), found[-1, over:]], 0)


def joined(pieces: Sequence[tf.Tensor], over: int) -> tf.Tensor:
    """Rows of a matrix from pieces of it, of which the last begins with so many rows of the one before."""
    return tf.concat([*pieces[:-1], pieces[-1][over:]], 0)


def parallel_parts() -> int:
    """In how many parts work is shared: each is a kernel, and TensorFlow runs them beside each other."""
    return 1 if on_gpus() else cores()


def tile_size(inputs: int, units: int, most_entries: int) -> int:
    """How many rows of a matrix of sums are worked on at a time: if it can be, so that they divide it."""
    most = max(1, min(inputs, most_entries // units))
    return next((size for size in range(most, most // 2, -1) if inputs % size == 0), most)


def norms_of_block(
    variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, function: EntryFunction, count: tf.Tensor
) -> tf.Tensor:
    """The squared norms of the first `count` rows of one block, zero for the others: (rows,).

    Each is a sum over units of sums over inputs.
    """
    inputs = x.shape[1]
    factors, full = function.of_inputs(variable, x), inputs // _UNROLLED * _UNROLLED

    def squares(row: tf.Tensor, first: int | tf.Tensor, terms: int, total: tf.Tensor) -> tf.Tensor:
        for i in range(terms):
            own = [tf.slice(factor[row], [first + i], [1]) for factor in factors]
            total += tf.square(function.outer(variable, first + i, 1)(own, u[row])[0])
        return total

    def one(row: tf.Tensor) -> tf.Tensor:
        def body(first: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return first + _UNROLLED, squares(row, first, _UNROLLED, total)

        start = (tf.constant(0), tf.zeros_like(u[0]))
        total = tf.while_loop(lambda first, _: first < full, body, start, parallel_iterations=1)[1]
        return tf.reduce_sum(squares(row, full, inputs - full, total))

    def body(row: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return row + 1, tf.where(tf.range(x.shape[0]) == row, one(row), found)

    return tf.while_loop(lambda row, _: row < count, body, (tf.constant(0), tf.zeros_like(x[:, 0])))[1]


def whole_blocks(values: tf.Tensor) -> tf.Tensor:
    """The values with rows of zeros up to whole blocks."""
    return tf.pad(values, [[0, -tf.shape(values)[0] % _ROWS]] + [[0, 0]] * (len(values.shape) - 1))


def rows_from(values: tf.Tensor, start: int | tf.Tensor) -> tf.Tensor:
    """A block of rows, of a shape that is known."""
    return tf.slice(values, [start] + [0] * (len(values.shape) - 1), [_ROWS, *values.shape[1:]])
