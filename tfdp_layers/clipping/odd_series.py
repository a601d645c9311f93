"""An odd function of a dense layer's per-record gradients as a short series: norms and sums without their entries.

The p-th power of an outer product x u^T is the outer product of the p-th powers. So where a function is close to a
polynomial, a sum over records of the function of their gradients is one matrix product for each term, and the squared
norm of each of them a few sums of powers of x and of u: no entry is ever computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

_ASIDE = 32
"""Sums of powers are taken in so many lanes, so that rounding grows with their length over this."""


@dataclass(frozen=True)
class OddSeries:
    """f(z) = sum_p coefficients[p] z^(2 p + 1), in place of another odd function where |z| <= limit <= 1.

    Gradients are given as x u^T with largest |x| equal to 1 (or 0) in each record, so that no power overflows; x and u
    are float32, (batch, inputs) and (batch, units).
    """

    coefficients: tuple[float, ...]
    limit: float

    @property
    def sum_error(self) -> float:
        """The most that rounding can add to an entry of a weighted sum, relative to the sizes of the terms."""
        return (4 * len(self.coefficients) + 8) * 2.0**-24

    def norm_error(self, inputs: int, units: int) -> float:
        """The most that rounding can add to a squared norm, relative to it."""
        terms = sum(-(-count // _ASIDE) + _ASIDE for count in (inputs, units))
        return (terms + 8 * len(self.coefficients)) * 2.0**-24

    def squared_norms(self, x: tf.Tensor, u: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """||f(x u^T)||^2 of each record, and the same with all coefficients positive: (batch,) each.

        f^2 is a polynomial of z^2; the sum of z^(2 q) over all entries is that of x^(2 q) times that of u^(2 q).
        """
        exact, sizes = (np.convolve(c, c) for c in (self.coefficients, np.abs(self.coefficients)))
        squares = [tf.square(x), tf.square(u)]
        powers = list(squares)
        norms, magnitudes = tf.zeros_like(x[:, 0]), tf.zeros_like(x[:, 0])
        for coefficient, size in zip(exact, sizes, strict=True):
            moment = lanes_sum(powers[0]) * lanes_sum(powers[1])
            norms, magnitudes = norms + np.float32(coefficient) * moment, magnitudes + np.float32(size) * moment
            powers = [power * square for power, square in zip(powers, squares, strict=True)]
        return norms, magnitudes

    def weighted_sum(self, x: tf.Tensor, u: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """sum_i weights_i f(x_i u_i^T): (inputs, units). weights: (batch,)."""
        squares = [tf.square(x), tf.square(u)]
        powers, total = [x, u * weights[:, tf.newaxis]], []
        for coefficient in self.coefficients:
            total.append(tf.matmul(powers[0], np.float32(coefficient) * powers[1], transpose_a=True))
            powers = [power * square for power, square in zip(powers, squares, strict=True)]
        return tf.add_n(total)


def lanes_sum(values: tf.Tensor) -> tf.Tensor:
    """The sum of each row: (batch, entries) -> (batch,)."""
    padded = tf.pad(values, [[0, 0], [0, -values.shape[1] % _ASIDE]])
    return tf.reduce_sum(tf.reduce_sum(tf.reshape(padded, (-1, padded.shape[1] // _ASIDE, _ASIDE)), axis=1), axis=1)


@functools.lru_cache(maxsize=8)
def fitted(function: Callable[[np.ndarray], np.ndarray], terms: int, limit: float = 1.0) -> OddSeries:
    """The series nearest to an odd function in relative error, up to a small factor: by Chebyshev points in z^2."""
    points = np.cos(np.pi * (np.arange(400) + 0.5) / 400)
    ratio = lambda squared: function(np.sqrt(squared)) / np.sqrt(squared)  # noqa: E731
    wanted = ratio((points + 1.0) / 2.0 * limit**2)
    fit = np.polynomial.Chebyshev.fit(points, wanted, terms - 1, domain=[-1, 1], w=1.0 / wanted)
    mapped = fit.convert(kind=np.polynomial.Polynomial)(np.polynomial.Polynomial([-1.0, 2.0 / limit**2]))
    return OddSeries(tuple(float(np.float32(c)) for c in mapped.coef), limit)


TANH = fitted(np.tanh, 6)
"""Within 1e-6 of tanh, relatively, up to |z| = 1; test_series.py checks it."""


def largest(values: tf.Tensor) -> tf.Tensor:
    """The largest absolute value of each row: (batch, entries) -> (batch, 1)."""
    return tf.reduce_max(tf.abs(values), axis=1, keepdims=True)
