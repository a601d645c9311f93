"""An odd function of a dense layer's per-record gradients as a short series: norms and sums without their entries.

The p-th power of an outer product x u^T is the outer product of the p-th powers. So where a function is close to a
polynomial, a sum over records of the function of their gradients is one matrix product for each term, and the squared
norm of each of them a few sums of powers of x and of u: no entry is ever computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tfdp_layers.rules.norms import sum_by_halves

_ASIDE = (32, 64)
"""Sums of powers are taken in so many lanes, so that rounding grows with their length over this."""


@dataclass(frozen=True)
class OddSeries:
    """f(z) = sum_p coefficients[p] z^(2 p + 1), in place of another odd function where |z| <= limit <= 1."""

    coefficients: tuple[float, ...]
    limit: float


@dataclass(frozen=True)
class StepwiseSeries:
    """An odd function by the shortest of several series that holds for all entries of a record's gradient.

    Gradients are given as x u^T with largest |x| equal to 1 (or 0) in each record, so that no power overflows; x and u
    are float32, (batch, inputs) and (batch, units).

    Attributes:
        steps: series, limits and numbers of terms both rising. Largest |z| at most the last one's limit.

    Guarantee: which series stands for a record depends on that record alone. The terms that only some need are added up
        where there is one of them: for all others they are zero.
    """

    steps: tuple[OddSeries, ...]

    @property
    def limit(self) -> float:
        """Of the entries."""
        return self.steps[-1].limit

    @property
    def terms(self) -> int:
        """Of the longest series."""
        return len(self.steps[-1].coefficients)

    @property
    def sum_error(self) -> float:
        """The most that rounding can add to an entry of a weighted sum, relative to the sizes of the terms."""
        return (4 * self.terms + 8) * 2.0**-24

    def norm_error(self, inputs: int, units: int) -> float:
        """The most that rounding can add to a squared norm, relative to it."""
        terms = sum(-(-count // lanes(count)) + lanes(count) for count in (inputs, units))
        return (terms + 10 * self.terms) * 2.0**-24

    def step_of(self, u: tf.Tensor) -> tf.Tensor:
        """Which series stands for each record: (batch,) integers."""
        size = largest(u)[:, 0]
        beyond = [tf.cast(size > np.float32(step.limit), tf.int32) for step in self.steps[:-1]]
        return tf.add_n(beyond) if beyond else tf.zeros_like(size, tf.int32)

    def squared_norms(self, x: tf.Tensor, u: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """||f(x u^T)||^2 of each record, and the same with all coefficients positive: (batch,) each.

        f^2 is a polynomial of z^2; the sum of z^(2 q) over all entries is that of x^(2 q) times that of u^(2 q).
        """
        exact = filled([np.convolve(s.coefficients, s.coefficients) for s in self.steps])
        sizes = filled([np.convolve(np.abs(s.coefficients), np.abs(s.coefficients)) for s in self.steps])
        squares = (tf.square(x), tf.square(u))

        def some(first: int, end: int, steps: tf.Tensor) -> tf.Tensor:
            """What the terms first ... end - 1 add to both: (2, batch)."""
            powers, moments = [raised(square, first + 1) for square in squares], []
            for q in range(first, end):
                moments.append(lanes_of(powers[0]))
                moments.append(lanes_of(powers[1]))
                powers = [p * square for p, square in zip(powers, squares, strict=True)] if q + 1 < end else powers
            found = tf.reshape(sum_by_halves(tf.stack(moments)), (end - first, 2, -1))
            both = tf.gather(tf.constant(np.stack([exact, sizes])[:, :, first:end]), steps, axis=1)
            return tf.einsum("tbq,qb->tb", both, found[:, 0] * found[:, 1])

        norms, magnitudes = tf.unstack(self.added(some, x, u, [2 * len(s.coefficients) - 1 for s in self.steps]))
        return norms, magnitudes

    def weighted_sum(self, x: tf.Tensor, u: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """sum_i weights_i f(x_i u_i^T): (inputs, units). weights: (batch,)."""
        coefficients = filled([np.asarray(s.coefficients) for s in self.steps])
        squares = (tf.square(x), tf.square(u))

        def some(first: int, end: int, steps: tf.Tensor) -> tf.Tensor:
            powers, total = [x, u], []
            if first:
                powers = [power * raised(square, first) for power, square in zip(powers, squares, strict=True)]
            own = tf.gather(tf.constant(coefficients[:, first:end]), steps) * weights[:, tf.newaxis]
            for p in range(end - first):
                powers = powers if p == 0 else [a * square for a, square in zip(powers, squares, strict=True)]
                total.append(tf.matmul(powers[0], own[:, p : p + 1] * powers[1], transpose_a=True))
            return tf.add_n(total)

        return self.added(some, x, u, [len(s.coefficients) for s in self.steps])

    def added(
        self, some: Callable[[int, int, tf.Tensor], tf.Tensor], x: tf.Tensor, u: tf.Tensor, ends: Sequence[int]
    ) -> tf.Tensor:
        """The sum of some(first, end, steps of the records) over the terms of each step and no earlier one."""
        steps = self.step_of(u)
        total = some(0, ends[0], steps)
        for step in range(1, len(ends)):
            more = functools.partial(some, ends[step - 1], ends[step], steps)
            total = added_if(tf.reduce_any(steps >= step), total, more)
        return total


def added_if(needed: tf.Tensor, total: tf.Tensor, more: Callable[[], tf.Tensor]) -> tf.Tensor:
    """`total`, and where it is needed what `more` adds."""
    return tf.cond(needed, lambda: total + more(), lambda: total)


def filled(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The rows, each filled up with zeros to the length of the last: float32."""
    return np.stack([np.pad(row, (0, len(rows[-1]) - len(row))) for row in rows]).astype(np.float32)


def raised(values: tf.Tensor, power: int) -> tf.Tensor:
    """values ** power, at least 1, by products alone: it is off by as many roundings as that has factors, at most."""
    if power == 1:
        return values
    half = raised(values, power // 2)
    return half * half * values if power % 2 else half * half


def lanes(count: int) -> int:
    """In how many lanes so many entries are added up: eights that divide them where there are such."""
    least, most = _ASIDE
    return next((size for size in range(least, most + 1, 8) if count % size == 0), least)


def lanes_of(values: tf.Tensor) -> tf.Tensor:
    """Sums of the entries of each row, in lanes; unused ones are zero: (batch, entries) -> (batch, 64)."""
    aside = lanes(values.shape[1])
    missing = -values.shape[1] % aside
    rows = tf.pad(values, [[0, 0], [0, missing]]) if missing else values
    sums = tf.reduce_sum(tf.reshape(rows, (-1, rows.shape[1] // aside, aside)), axis=1)
    return tf.pad(sums, [[0, 0], [0, _ASIDE[1] - aside]])


@functools.lru_cache(maxsize=8)
def fitted(function: Callable[[np.ndarray], np.ndarray], terms: int, limit: float = 1.0) -> OddSeries:
    """The series nearest to an odd function in relative error, up to a small factor: by Chebyshev points in z^2."""
    points = np.cos(np.pi * (np.arange(400) + 0.5) / 400)
    ratio = lambda squared: function(np.sqrt(squared)) / np.sqrt(squared)  # noqa: E731
    wanted = ratio((points + 1.0) / 2.0 * limit**2)
    fit = np.polynomial.Chebyshev.fit(points, wanted, terms - 1, domain=[-1, 1], w=1.0 / wanted)
    mapped = fit.convert(kind=np.polynomial.Polynomial)(np.polynomial.Polynomial([-1.0, 2.0 / limit**2]))
    return OddSeries(tuple(float(np.float32(c)) for c in mapped.coef), limit)


TANH = StepwiseSeries(tuple(fitted(np.tanh, *step) for step in ((2, 1 / 16), (3, 1 / 4), (4, 1 / 2), (6, 1.0))))
"""Within 1e-6 of tanh, relatively, up to |z| = 1; test_series.py checks it."""


def largest(values: tf.Tensor) -> tf.Tensor:
    """The largest absolute value of each row: (batch, entries) -> (batch, 1)."""
    return tf.reduce_max(tf.abs(values), axis=1, keepdims=True)
