"""What each record adds to the gradient of a table: of its rows in order, or read and multiplied with (tied)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.contributions import (
    SMALLEST,
    Contribution,
    Lookups,
    Products,
    Stored,
    records,
    zero_rows,
)
from tfdp_layers.rules.norms import number_of, squared_norm, sum_in_stages, terms_in_stages


class Rows(Contribution):
    """g_i of a table whose rows start ... start + n - 1 every record uses once each: u_i there, zero elsewhere.

    Args:
        u: (batch, n, units).
    """

    def __init__(self, variable: keras.Variable, u: tf.Tensor, start: int = 0) -> None:
        super().__init__(variable)
        self.u, self.start = tf.cast(u, tf.float32), start

    @property
    def factors(self) -> tuple[tf.Tensor, ...]:
        return (self.u,)

    def squared_norms(self) -> tf.Tensor:
        return squared_norm(self.u)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self._padded(tf.einsum("b,bnu->nu", weights, self.u))

    def gradients(self) -> tf.Tensor:
        return self._padded(self.u)

    def _padded(self, rows: tf.Tensor) -> tf.Tensor:
        """(..., n, units) -> (..., *variable.shape)."""
        after = self.variable.shape[0] - self.start - tf.shape(rows)[-2]
        before = [[0, 0]] * (len(rows.shape) - 2)
        padded = tf.pad(rows, [*before, [self.start, after], [0, 0]])
        return tf.ensure_shape(padded, [*rows.shape[:-2], *self.variable.shape])

    def keep(self, kept: tf.Tensor) -> Rows:
        return Rows(self.variable, zero_rows(self.u, kept), self.start)

    def rows(self, start: int | tf.Tensor, size: int | tf.Tensor) -> Rows:
        return Rows(self.variable, records(self.u, start, size), self.start)


class Tied(Contribution):
    """g_i = L_i + P_i of a table that is looked up and multiplied with: an embedding whose logits are tied to it.

    L_i has the sum of l_p in the row of token p; P_i = sum_t a_t b_t^T, with a_t over the vocabulary. Nothing has the
    size of batch times vocabulary times width:

        ||g||^2 = ||L||^2 + ||P||^2 + 2 <L, P>,    ||P||^2 = <A A^T, B B^T>,    <L, P> = sum_{p,t} a_t[id_p] <l_p, b_t>

    Rounding: with m_L = sum_p ||l_p|| and m_P = ||A|| ||B||, |<L, P>| and the sizes of all its terms are at most
    sum_p ||l_p|| sum_t |a_t[id_p]| ||b_t|| <= m_L m_P, by Cauchy-Schwarz over t. So the sizes of all terms of the
    squared norm add up to at most (m_L + m_P)^2, the squared magnitude, and a squared norm is off by that times the
    number of terms that meet in one times the unit roundoff.
    Underflow: a dot product <l_p, b_t> may lack 2^-126 for each of its terms, and meets a_t[id_p]: their sizes add up
    to at most (positions of L) sqrt(positions of P) ||A||.
    Source: Gram matrices as of `Products`; the cross term as in Li et al. 2022, arXiv:2110.05679, section 4, and
    "phantom clipping", Ding et al. 2023, arXiv:2305.18633, here for lookups of any ids.
    """

    def __init__(self, lookups: Lookups, products: Products) -> None:
        super().__init__(lookups.variable)
        self.lookups, self.products = lookups, products

    @property
    def factors(self) -> tuple[tf.Tensor, ...]:
        return (*self.lookups.factors, *self.products.factors)

    def cross(self) -> tf.Tensor:
        """<L_i, P_i> of each record: (batch,)."""
        dots = tf.matmul(self.products.u, self.lookups.u, transpose_b=True)  # (batch, t, p)
        there = (self.lookups.ids >= 0) & (self.lookups.ids < self.variable.shape[0])
        ids = tf.where(there, self.lookups.ids, tf.zeros_like(self.lookups.ids))
        columns = tf.gather(self.products.x, ids, axis=2, batch_dims=1)  # (batch, t, p)
        met = tf.where(there[:, tf.newaxis, :], columns * dots, tf.zeros_like(dots))
        return sum_in_stages(met)

    def squared_norms(self) -> tf.Tensor:
        return self.lookups.squared_norms() + self.products.gram_norms() + 2.0 * self.cross()

    def rounding(self) -> tuple[tf.Tensor, Any, Any]:
        looked_up, _, first_error = self.lookups.rounding()  # type: ignore[misc]
        multiplied, norm_error, second_error = self.products.gram_rounding()
        terms = terms_in_stages(number_of(self.products.u, [1]), number_of(self.lookups.u, [1]))
        error = norm_error + first_error + (self.products.u.shape[-1] + terms + 4.0) * 2.0**-24
        magnitudes = tf.square(tf.sqrt(looked_up) + tf.sqrt(multiplied))
        return magnitudes, error, first_error + second_error + 2.0**-24

    def underflow(self) -> Any:
        """Of both Gram matrices, and of the cross term."""
        looked_up, multiplied = number_of(self.lookups.u, [1]), number_of(self.products.u, [1])
        entries = looked_up * (multiplied**0.5) * self.products.u.shape[-1] * SMALLEST
        return self.products.gram_underflow() + 2.0 * entries * tf.sqrt(squared_norm(self.products.x))

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self.lookups.weighted_sum(weights) + self.products.weighted_sum(weights)

    def gradients(self) -> tf.Tensor:
        return self.lookups.gradients() + self.products.gradients()

    def keep(self, kept: tf.Tensor) -> Tied:
        return Tied(self.lookups.keep(kept), self.products.keep(kept))

    def rows(self, start: int | tf.Tensor, size: int | tf.Tensor) -> Tied:
        return Tied(self.lookups.rows(start, size), self.products.rows(start, size))


def merged(uses: Sequence[Contribution]) -> Contribution:
    """One contribution of several uses of one variable.

    The gradients of uses add up, their squared norms do not: products and lookups become further positions, a table
    that is looked up and multiplied with keeps both; anything else is written out and added.
    """
    if len(uses) == 1:
        return uses[0]
    variable = uses[0].variable
    products = [use for use in uses if type(use) is Products]
    lookups = [use for use in uses if type(use) is Lookups]
    if len(products) + len(lookups) == len(uses) and len({use.arrange for use in products}) < 2:
        multiplied = looked_up = None
        if products:
            x, u = (tf.concat([getattr(use, name) for use in products], axis=1) for name in ("x", "u"))
            multiplied = Products(variable, x, u, products[0].arrange)
        if lookups:
            ids, u = (tf.concat([getattr(use, name) for use in lookups], axis=1) for name in ("ids", "u"))
            looked_up = Lookups(variable, ids, u)
        if looked_up is None or multiplied is None:
            return multiplied or looked_up  # type: ignore[return-value]
        if multiplied.x.shape[-1] == variable.shape[0] and multiplied.arrange.plain:
            return Tied(looked_up, multiplied)
    return Stored(variable, tf.add_n([use.gradients() for use in uses]))
