"""Several rows of one record or unit, joined into one contribution before anything bounds it."""

from __future__ import annotations

import tensorflow as tf

from tfdp_layers.batches.rows import flat
from tfdp_layers.per_record.contributions import Contribution, Lookups, Products, Stored
from tfdp_layers.per_record.convolutions import KernelGradients
from tfdp_layers.per_record.groups import GroupBlocks
from tfdp_layers.per_record.patches import PatchBlocks, patch_products
from tfdp_layers.per_record.pixel_grams import PixelGrams
from tfdp_layers.per_record.tables import Rows, Tied


def joined(part: Contribution, each: int) -> Contribution:
    """The contributions of units whose rows lie one after the other, `each` of them: g_u = sum of g_i over its rows i.

    The rows' gradients add up, their squared norms do not: ||g_u||^2 = sum_ij <g_i, g_j>, up to `each` times the sum
    of the ||g_i||^2, where all rows pull one way. So rows become further positions of products and lookups, whose Gram
    matrices hold the terms between rows; of other kinds the sum itself is made, and measured.

    Guarantee: the contribution of unit u is made of rows u * each ... u * each + each - 1 alone. Whatever bounds
    contributions then bounds the unit, however many rows it has: data sets that differ in one unit differ in the rows
    of that unit, which enter its own contribution and no other. One row that is not finite makes it not finite.

    Args:
        part: of (units * each) rows.
        each: rows of a unit; 1 gives the part itself.
    """
    if each == 1:
        return part
    variable = part.variable
    if type(part) is Products:
        return joined_products(part, each)
    if type(part) is Lookups:
        return joined_lookups(part, each)
    if type(part) is Tied:
        return Tied(joined_lookups(part.lookups, each), joined_products(part.products, each))
    if type(part) is Rows:
        return Rows(variable, added(part.u, each), part.start)
    if type(part) is PixelGrams:  # few positions: their patches take little memory
        return joined_products(cut(part, part.x, part.u), each)
    if isinstance(part, KernelGradients):
        x, u = grouped(part.x, each), grouped(part.u, each)
        if isinstance(part, GroupBlocks):
            return JoinedGroups(variable, x, u, part.convolution, part.overlap, **part.options)
        if isinstance(part, PatchBlocks):
            options = {**part.geometry, "compiled": part.compiled}
            return JoinedBlocks(variable, x, u, part.convolution, part.overlap, **options)
        return JoinedKernels(variable, x, u, part.convolution, part.overlap)
    return Stored(variable, added(part.gradients(), each))


def joined_products(part: Products, each: int) -> Products:
    """Rows as further positions."""
    return Products(part.variable, further(part.x, each), further(part.u, each), part.arrange)


def joined_lookups(part: Lookups, each: int) -> Lookups:
    """Rows as further positions."""
    return Lookups(part.variable, further(part.ids, each), further(part.u, each))


class JoinedKernels(KernelGradients):
    """Kernel gradients of units of several rows: x, u (units, rows, ...).

    `one` adds up the rows of a unit as it adds up records. The magnitude of `rounding` holds as it is, by
    Cauchy-Schwarz over the rows: sum_r ||P_r|| ||U_r|| <= ||P|| ||U||.
    """

    def one(self, x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
        return super().one(flat(x, x.shape[1]), flat(u, x.shape[1]))

    def like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        return JoinedKernels(self.variable, x, u, self.convolution, self.overlap)


class JoinedBlocks(JoinedKernels, PatchBlocks):
    """The same from patches of a few units at once."""

    def _of_rows(self, x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
        each = x.shape[1]
        return joined_products(cut(self, flat(x, each), flat(u, each)), each).gradients()

    def like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        options = {**self.geometry, "compiled": self.compiled}
        return JoinedBlocks(self.variable, x, u, self.convolution, self.overlap, **options)


class JoinedGroups(JoinedKernels, GroupBlocks):
    """The same of a convolution in groups of channels."""

    def _of_rows(self, x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
        each = x.shape[1]
        return added(GroupBlocks._of_rows(self, flat(x, each), flat(u, each)), each)

    def like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        return GroupBlocks.like(self, x, u)


def cut(part: PatchBlocks | PixelGrams, x: tf.Tensor, u: tf.Tensor) -> Products:
    """The kernel gradients of rows as products of patches."""
    return patch_products(part.variable, x, u, part.geometry["strides"], [1, 1], part.geometry["padding"])


def grouped(rows: tf.Tensor, each: int) -> tf.Tensor:
    """(units * each, ...) -> (units, each, ...)."""
    if None not in rows.shape[1:]:
        return tf.reshape(rows, (-1, each, *rows.shape[1:]))
    found = tf.reshape(rows, tf.concat([[-1, each], tf.shape(rows)[1:]], 0))
    return tf.ensure_shape(found, (None, each, *rows.shape[1:]))


def further(rows: tf.Tensor, each: int) -> tf.Tensor:
    """(units * each, positions, ...) -> (units, each * positions, ...)."""
    positions = rows.shape[1]
    count = each * (tf.shape(rows)[1] if positions is None else positions)
    return tf.reshape(rows, (-1, count, *rows.shape[2:]))


def added(rows: tf.Tensor, each: int) -> tf.Tensor:
    """(units * each, ...) -> (units, ...), the sum over each unit's rows."""
    return tf.reduce_sum(grouped(rows, each), axis=1)
