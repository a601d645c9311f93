"""Norms and sums of each record's rows in float32, and the most that rounding can change in a sum."""

import math
from typing import Any

import tensorflow as tf

_SHORT = 1024
"""Up to so many terms one running sum in float32 is accurate enough: equal ones are off by 3e-5, a norm by half."""

CANCELLING = 2.0**-20
"""What the sizes of a record's terms count for in its norm, squared, however they cancel: no term that is added to
those of other records is then larger than about 1,024 bounds. A float32 sum rounds to the size of what it holds: with
terms of 2 million bounds in it, another record moved it by 1.2 times its own bound, and more among several such."""


def euclidean_norm(rows: tf.Tensor) -> tf.Tensor:
    """Euclidean norm of each record: (batch, ...) -> (batch,). Infinite or NaN where a square is.

    Never of fewer bits than float32, in which all that a record may add is measured: a running sum of bfloat16 stays
    at 256 equal terms, however many there are.

    Taken axis after axis from the last, or over several where they are few entries: a kernel adds up what it is given
    in one running sum, whose float32 rounding grows with the number of terms. Over a million equal terms it was off by
    1%, axis by axis by 1e-5.
    """
    if tf.as_dtype(rows.dtype).size < 4:
        rows = tf.cast(rows, tf.float32)
    if len(rows.shape) == 1:
        return tf.abs(rows)
    while len(rows.shape) > 1:
        first = len(rows.shape) - 1
        while first > 1 and None not in rows.shape[first - 1 :] and math.prod(rows.shape[first - 1 :]) <= _SHORT:
            first -= 1
        rows = norm_over(rows, list(range(first, len(rows.shape))))
    return rows


def squared_norm(rows: tf.Tensor) -> tf.Tensor:
    """Squared Euclidean norm of each record: (batch, ...) -> (batch,)."""
    return tf.square(euclidean_norm(rows))


def norm_over(rows: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """Euclidean norm over the axes. Infinite or NaN where a square is."""
    if tf.__internal__.get_enclosing_xla_context() is not None:  # XLA lacks the operation, and fuses these three
        return tf.sqrt(tf.reduce_sum(tf.square(rows), axis=axes))
    return tf.math.reduce_euclidean_norm(rows, axis=axes)


def position_sums(rows: tf.Tensor, channels_first: bool) -> tf.Tensor:
    """The sum over positions: (batch, ...) -> (batch, channels).

    Where the channels are last, in two stages over up to 16 positions side by side: a third faster than in one.
    """
    if len(rows.shape) == 2:
        return rows
    if channels_first:
        return tf.reduce_sum(rows, axis=list(range(2, len(rows.shape))))
    positions, channels = number_of(rows, list(range(1, len(rows.shape) - 1))), rows.shape[-1]
    if isinstance(positions, int):
        aside = math.gcd(positions, 16)
        rows = tf.reshape(rows, [-1, positions // aside, aside * channels])
        rows = tf.reshape(tf.reduce_sum(rows, axis=1), [-1, aside, channels])
    return tf.reduce_sum(rows, axis=list(range(1, len(rows.shape) - 1)))


def sum_by_halves(rows: tf.Tensor) -> tf.Tensor:
    """The sum over the last axis, of known length n: (..., n) -> (...). Each entry meets log2(n) roundings, rounded up.

    Of two sums after one another XLA makes a single one, whose rounding grows with all entries; these it leaves alone.
    """
    while rows.shape[-1] > 1:
        if rows.shape[-1] % 2:
            rows = tf.pad(rows, [[0, 0]] * (len(rows.shape) - 1) + [[0, 1]])
        half = rows.shape[-1] // 2
        rows = rows[..., :half] + rows[..., half:]
    return rows[..., 0]


def sum_in_stages(rows: tf.Tensor) -> tf.Tensor:
    """The sum over the last two axes, one after the other, also under XLA: (batch, n, m) -> (batch,)."""
    sums = tf.reduce_sum(rows, axis=2)
    if rows.shape[1] is not None and tf.__internal__.get_enclosing_xla_context() is not None:
        return sum_by_halves(sums)
    return tf.reduce_sum(sums, axis=1)


def terms_in_stages(first: Any, last: Any) -> Any:
    """How many roundings an entry of `sum_in_stages` meets at most, by the lengths n and m as of `number_of`.

    n + m; where XLA may make one sum of both, as n is not known while the step is traced, n * m.
    """
    if isinstance(first, int) or tf.__internal__.get_enclosing_xla_context() is None:
        return first + last
    return first * last


def summation_error(rows: tf.Tensor, axes: list[int]) -> Any:
    """The most that rounding can add to a float32 sum over these axes, in any order, relative to the sum of sizes.

    At most 1/2. Source: Higham 1993, The accuracy of floating point summation, section 2: terms times the unit roundoff
    2^-24, of which scaling the terms takes one.
    """
    terms = number_of(rows, axes)
    return min(terms * 2.0**-24, 0.5) if isinstance(terms, int) else tf.minimum(terms * 2.0**-24, 0.5)


def number_of(rows: tf.Tensor, axes: list[int]) -> Any:
    """The number of entries over these axes: an int where it is known, else a float32 scalar."""
    sizes = [rows.shape[axis] for axis in axes]
    if None not in sizes:
        return math.prod(sizes)
    return tf.reduce_prod([tf.cast(tf.shape(rows)[axis], tf.float32) for axis in axes])
