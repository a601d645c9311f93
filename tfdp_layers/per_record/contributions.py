"""What each record of a batch adds to the gradient of one weight, in a form that need not be written out."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.precision import each_product
from tfdp_layers.rules.norms import CANCELLING, number_of, squared_norm, sum_in_stages, summation_error, terms_in_stages

SMALLEST = 2.0**-126
"""The smallest normal float32: what is smaller may be flushed to zero."""


class Contribution(abc.ABC):
    """The gradients g_i of every record's own loss with respect to one weight, i = 1 ... batch.

    Attributes:
        variable: the trainable Keras variable.

    All results are float32, whatever type the layer computes in.
    """

    def __init__(self, variable: keras.Variable) -> None:
        self.variable = variable

    @abc.abstractmethod
    def squared_norms(self) -> tf.Tensor:
        """||g_i||^2 of every record: (batch,). Not finite where a record's factors are not."""

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """sum_i weights_i g_i, of the variable's shape. weights: (batch,)."""

    @property
    @abc.abstractmethod
    def factors(self) -> tuple[tf.Tensor, ...]:
        """What `keep` goes over, each (batch, ...)."""

    @abc.abstractmethod
    def gradients(self) -> tf.Tensor:
        """g_i written out: (batch, *variable.shape)."""

    @abc.abstractmethod
    def keep(self, kept: tf.Tensor) -> Contribution:
        """These contributions, with the records where `kept` (batch,) is False replaced by zero, whatever they hold."""

    def rows(self, start: int | tf.Tensor, size: int | tf.Tensor) -> Contribution:
        """Records start ... start + size - 1 alone."""
        raise NotImplementedError

    def rounding(self) -> tuple[tf.Tensor, Any, Any] | None:
        """(squared magnitudes (batch,), relative error of the squared norms, of the sums), or None for no error.

        A squared norm from cancelling terms, and a sum of them, are off by rounding in proportion to the terms, not to
        the result. The magnitude bounds the norm of what the terms' sizes add up to.
        """
        return None

    def underflow(self) -> Any:
        """What the squared norms may lack because squares below 2^-126 count as zero: (batch,), or 0.0.

        It matters where they are multiplied with other numbers, which may be as large: 1e-19 squared is zero, but its
        product with 1e19 is not.
        """
        return 0.0

    def largest_squared_norms(self) -> tf.Tensor:
        """What `squared_norms` can at most be of the gradient that `weighted_sum` adds, rounding included: (batch,).

        With m the magnitude, e and s the errors of squared norms and sums: (sqrt(n^2 + e m^2) + s m)^2, and with what
        underflow hides in n^2. To e counts `CANCELLING`, or terms would round those of other records.
        """
        squared, rounding = self.squared_norms() + self.underflow(), self.rounding()
        if rounding is None:
            return squared
        magnitudes, norm_error, sum_error = rounding
        # Below zero a Gram sum is rounding alone; where something is not finite the result must not be either.
        positive = tf.where(squared < 0.0, tf.zeros_like(squared), squared)
        return tf.square(tf.sqrt(positive + (norm_error + CANCELLING) * magnitudes) + sum_error * tf.sqrt(magnitudes))


class Stored(Contribution):
    """Gradients that are small, or cheapest written out: (batch, *shape). What is added is what was measured."""

    def __init__(self, variable: keras.Variable, values: tf.Tensor) -> None:
        super().__init__(variable)
        self.values = tf.cast(values, tf.float32)

    @property
    def factors(self) -> tuple[tf.Tensor, ...]:
        return (self.values,)

    def squared_norms(self) -> tf.Tensor:
        return squared_norm(self.values)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        size = math.prod(self.variable.shape)
        flat = tf.reshape(self.values, (-1, size))
        return tf.reshape(tf.linalg.matvec(flat, weights, transpose_a=True), self.variable.shape)

    def gradients(self) -> tf.Tensor:
        return self.values

    def keep(self, kept: tf.Tensor) -> Stored:
        return Stored(self.variable, zero_rows(self.values, kept))

    def rows(self, start: int | tf.Tensor, size: int | tf.Tensor) -> Stored:
        return Stored(self.variable, records(self.values, start, size))


@dataclass(frozen=True)
class Arrangement:
    """How a matrix (inputs, units) becomes a kernel: rows and columns are split into `sizes`, then put in `order`.

    Reshaped to the kernel's shape, that is the kernel.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether the matrix only is reshaped."""
        return self.order == tuple(range(len(self.order)))

    def __call__(self, matrix: tf.Tensor) -> tf.Tensor:
        """(..., inputs, units) -> (..., *kernel shape), with at most one leading axis."""
        if len(matrix.shape) == 2:
            return tf.transpose(tf.reshape(matrix, self.sizes), self.order)
        return tf.transpose(tf.reshape(matrix, (-1, *self.sizes)), (0, *[axis + 1 for axis in self.order]))


def in_order(shape: Sequence[int]) -> Arrangement:
    """The arrangement that only reshapes."""
    return Arrangement(tuple(shape), tuple(range(len(shape))))


class Products(Contribution):
    """g_i = X_i^T U_i of a matrix, with X_i (positions, inputs) and U_i (positions, units).

    Norms: one position: ||x||^2 ||u||^2. Several: by Gram matrices, <X X^T, U U^T>, or by writing X^T U out, whichever
    takes fewer multiplications (Goodfellow 2015, arXiv:1510.01799; Li et al. 2022, arXiv:2110.05679, section 4).

    Args:
        x, u: (batch, positions, inputs) and (batch, positions, units).
        arrange: brings a matrix (inputs, units) to the variable's shape; a reshape if left out.

    Attributes:
        given: x and u as they came. What is written out for the norms is multiplied in bfloat16 where both came so, as
            Keras does: what is added is then what was measured, rounded or not.
    """

    def __init__(
        self, variable: keras.Variable, x: tf.Tensor, u: tf.Tensor, arrange: Arrangement | None = None
    ) -> None:
        super().__init__(variable)
        self.given = x, u
        self.x, self.u = tf.cast(x, tf.float32), tf.cast(u, tf.float32)
        self.arrange = arrange or in_order(variable.shape)
        self._written: tf.Tensor | None = None

    @property
    def factors(self) -> tuple[tf.Tensor, ...]:
        return (self.x, self.u) if self._written is None else (self.x, self.u, self._written)

    @property
    def positions(self) -> int | None:
        return self.x.shape[1]

    @property
    def by_gram(self) -> bool:
        inputs, units = self.x.shape[-1], self.u.shape[-1]
        return (self.positions or 64) * (inputs + units) <= inputs * units

    @property
    def measured_written(self) -> bool:
        """Whether norms are taken from the gradients written out: what is added is then what was measured."""
        return self.positions != 1 and (self._written is not None or not self.by_gram)

    def written(self) -> tf.Tensor:
        if self._written is None:
            exact = self.positions == 1 or self.by_gram  # norms and sums may come from x and u
            self._written = each_product(*((self.x, self.u) if exact else self.given))
        return self._written

    def squared_norms(self) -> tf.Tensor:
        if self.positions == 1:
            return squared_norm(self.x) * squared_norm(self.u)
        if self.measured_written:
            return squared_norm(self.written())
        return self.gram_norms()

    def gram_norms(self) -> tf.Tensor:
        """||g_i||^2 = <X X^T, U U^T>: (batch,)."""
        gram = tf.matmul(self.x, self.x, transpose_b=True) * tf.matmul(self.u, self.u, transpose_b=True)
        return sum_in_stages(gram)

    def rounding(self) -> tuple[tf.Tensor, Any, Any] | None:
        if self.positions == 1 or self.measured_written:
            return None
        return self.gram_rounding()

    def gram_rounding(self) -> tuple[tf.Tensor, Any, Any]:
        """`rounding` of norms by Gram matrices."""
        positions = number_of(self.x, [1])
        terms = self.x.shape[-1] + self.u.shape[-1] + terms_in_stages(positions, positions)
        magnitudes = squared_norm(self.x) * squared_norm(self.u)
        return magnitudes, terms * 2.0**-24, summation_error(self.x, [1])

    def underflow(self) -> Any:
        return 0.0 if self.measured_written else self.gram_underflow()

    def gram_underflow(self) -> Any:
        """Each entry of X X^T and U U^T may lack 2^-126 for each term, and meets all entries of the other.

        The absolute values of those add up to at most positions * ||U||^2, by Cauchy-Schwarz.
        """
        entries = [number_of(self.x, [1]) * values.shape[-1] * SMALLEST for values in (self.x, self.u)]
        return entries[0] * squared_norm(self.u) + entries[1] * squared_norm(self.x) + entries[0] * entries[1]

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        inputs, units = self.x.shape[-1], self.u.shape[-1]
        if self._written is not None and self.positions != 1:
            flat = tf.reshape(self._written, (-1, inputs * units))
            matrix = tf.reshape(tf.linalg.matvec(flat, weights, transpose_a=True), (inputs, units))
        else:
            scaled = self.u * weights[:, tf.newaxis, tf.newaxis]
            x = tf.reshape(self.x, (-1, inputs))
            matrix = tf.matmul(x, tf.reshape(scaled, (-1, units)), transpose_a=True)
        return tf.reshape(self.arrange(matrix), self.variable.shape)

    def gradients(self) -> tf.Tensor:
        return self.laid_out(self.written())

    def laid_out(self, matrices: tf.Tensor) -> tf.Tensor:
        """Matrices (batch, inputs, units) as gradients of the variable."""
        return tf.reshape(self.arrange(matrices), (-1, *self.variable.shape))

    def keep(self, kept: tf.Tensor) -> Products:
        clean = Products(self.variable, zero_rows(self.x, kept), zero_rows(self.u, kept), self.arrange)
        if self._written is not None:
            clean._written = zero_rows(self._written, kept)
        return clean

    def rows(self, start: int | tf.Tensor, size: int | tf.Tensor) -> Products:
        x, u = records(self.x, start, size), records(self.u, start, size)
        some = Products(self.variable, x, u, self.arrange)
        some._written = None if self._written is None else records(self._written, start, size)
        return some


class Lookups(Contribution):
    """g_i of an embedding: row `id` of the table gets the sum of u over the record's positions that hold `id`.

    Norms: a record's tokens are sorted, the u of equal ones added up; nothing has the size of batch times vocabulary.

    Args:
        ids, u: (batch, positions) integers, and (batch, positions, units).
    """

    def __init__(self, variable: keras.Variable, ids: tf.Tensor, u: tf.Tensor) -> None:
        super().__init__(variable)
        self.ids, self.u = tf.cast(ids, tf.int32), tf.cast(u, tf.float32)

    @property
    def factors(self) -> tuple[tf.Tensor, ...]:
        return (self.u,)

    def in_order(self) -> tuple[tf.Tensor, tf.Tensor]:
        """(order, ids) of each record's positions, sorted by id: (batch, positions) both."""
        order = tf.argsort(self.ids, axis=1)
        return order, tf.gather(self.ids, order, batch_dims=1)

    def distinct(self) -> tuple[tf.Tensor, tf.Tensor]:
        """(ids, sums) of each record's distinct tokens: (batch, positions), (batch, positions, units).

        What is unused of the positions has a negative id and a sum of zero.
        """
        batch, positions = tf.shape(self.ids)[0], tf.shape(self.ids)[1]
        order, ids = self.in_order()
        u = tf.gather(self.u, order, batch_dims=1)
        first = tf.concat([tf.zeros((batch, 1), tf.int32), tf.cast(ids[:, 1:] != ids[:, :-1], tf.int32)], 1)
        slots = tf.reshape(tf.cumsum(first, axis=1) + tf.range(batch)[:, tf.newaxis] * positions, (-1,))
        units = self.u.shape[-1]
        count = batch * positions
        rows = tf.math.unsorted_segment_sum(tf.reshape(u, (-1, units)), slots, num_segments=count)
        tokens = tf.math.unsorted_segment_max(tf.reshape(ids, (-1,)), slots, num_segments=count)
        shape = (batch, positions)
        return tf.reshape(tokens, shape), tf.reshape(rows, (*shape, units))

    def squared_norms(self) -> tf.Tensor:
        return squared_norm(self.distinct()[1])

    def rounding(self) -> tuple[tf.Tensor, Any, Any] | None:
        lengths = tf.sqrt(tf.reduce_sum(tf.square(self.u), axis=2))
        error = summation_error(self.u, [1])
        return tf.square(tf.reduce_sum(lengths, axis=1)), 0.0, 2.0 * error

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        scaled = tf.reshape(self.u * weights[:, tf.newaxis, tf.newaxis], (-1, self.u.shape[-1]))
        return tf.math.unsorted_segment_sum(scaled, tf.reshape(self.ids, (-1,)), self.variable.shape[0])

    def gradients(self) -> tf.Tensor:
        hot = tf.one_hot(self.ids, self.variable.shape[0], dtype=tf.float32)
        return tf.matmul(hot, self.u, transpose_a=True)

    def keep(self, kept: tf.Tensor) -> Lookups:
        return Lookups(self.variable, self.ids, zero_rows(self.u, kept))

    def rows(self, start: int | tf.Tensor, size: int | tf.Tensor) -> Lookups:
        return Lookups(self.variable, records(self.ids, start, size), records(self.u, start, size))


def records(rows: tf.Tensor, start: int | tf.Tensor, size: int | tf.Tensor) -> tf.Tensor:
    """Rows start ... start + size - 1. Of a known number `size`, all must be there, and the shape is known.

    XLA takes a slice rows[start : start + size] for one of any number of rows up to all, which no fixed number fits.
    """
    if not isinstance(size, int):
        return rows[start : start + size]
    others = [-1 if n is None else n for n in rows.shape[1:]]
    return tf.slice(rows, [start] + [0] * len(others), [size, *others])


def zero_rows(values: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    """`values` (batch, ...) with the rows where `kept` is False selected away: a product with zero would keep NaN."""
    return tf.where(tf.reshape(kept, [-1] + [1] * (len(values.shape) - 1)), values, tf.zeros_like(values))


def constant(variable: keras.Variable, dtype: str | tf.DType) -> tf.Tensor:
    """The variable's value, which no gradient reaches."""
    return tf.cast(tf.stop_gradient(tf.convert_to_tensor(variable)), dtype)


def positions(rows: tf.Tensor) -> tf.Tensor:
    """(batch, ..., features) -> (batch, positions, features)."""
    if len(rows.shape) == 3:
        return rows
    if None not in rows.shape[1:]:
        return tf.reshape(rows, (-1, math.prod(rows.shape[1:-1]), rows.shape[-1]))
    return tf.reshape(rows, (tf.shape(rows)[0], -1, rows.shape[-1]))
