"""How many records look up each row of a table, each record weighing one in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdp_layers.clipping.bounding import Bounding, Contributions, LayerVariables
from tfdp_layers.per_record.contributions import Lookups
from tfdp_layers.rules.rows import ROUNDING
from tfdp_layers.sensitivity import Role, SensitivityGroup


@dataclass(frozen=True, eq=False)
class RowCounts(Bounding):
    """Another bound, with a statistic for each large table: how many records look up each of its rows.

    Attributes:
        of_gradients: what bounds the gradients; it is as without the counts.
        smallest_table: the number of rows from which on a table is counted.

    Guarantee: a record adds to the counts of a table a vector of norm at most 1: with n the number of DISTINCT rows
        that it looks up, it adds 1 / sqrt(n) to each of them, and sqrt(n (1 / sqrt(n))^2) = 1. Every record that looks
        up anything attains it, but for a margin for rounding of 2^-16. A row that it looks up several times counts
        once; ids outside of the table, which no gradient reaches, do not count; padding adds exactly zero. The vector
        depends on the record's ids alone.
    Source: Ghazi et al. 2023, arXiv:2311.08357, algorithm 1: the indicator of the record's rows, clipped to C1 = 1.
    """

    of_gradients: Bounding
    smallest_table: int

    STATISTIC = "rows looked up in "

    @property
    def weighs(self) -> bool:
        return self.of_gradients.weighs

    @property
    def chunked(self) -> bool:
        return self.of_gradients.chunked

    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        return self.of_gradients.groups(layers)

    def statistics_of_rows(self, tables: Sequence[tuple[str, Any]]) -> list[SensitivityGroup]:
        large = [(path, table) for path, table in tables if table.shape[0] >= self.smallest_table]
        if not large:
            raise ValueError(
                f"`sparsity_preserving` is given, and no table of at least {self.smallest_table} rows is trained by a"
                f" keras.layers.Embedding (found: {[(path, table.shape[0]) for path, table in tables]}). Leave it out,"
                " or count smaller tables: tfdp.noise.SparsityPreserving(smallest_table=...)."
            )
        return [
            SensitivityGroup(self.STATISTIC + path, (), 1.0, Role.STATISTIC, (table.shape[0],), counts=table)
            for path, table in large
        ]

    def sums(self, groups: Sequence[SensitivityGroup], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        tables = [group.counts for group in groups if group.counts is not None]
        rest = [group for group in groups if group.counts is None]
        return [*self.of_gradients.sums(rest, parts, present), *[row_counts(t, parts, present) for t in tables]]


def row_counts(table: Any, parts: Contributions, present: tf.Tensor) -> tf.Tensor:
    """The sum over the records of what each adds to the counts of a table's rows: see `RowCounts`. (rows,) float32.

    Raises: ValueError for a table that is used otherwise than by lookups: there every row may have a gradient.
    """
    part = parts.get(id(table))
    if part is None:
        return tf.zeros(table.shape[:1], tf.float32)
    if type(part) is not Lookups:
        raise ValueError(
            f"Table {table.path!r} is not only looked up by each record: it also gives the logits (tied), or all"
            " records look up the same rows, or a layer without a formula uses it. So what the counts select would not"
            " be the rows that have gradients. Leave `sparsity_preserving` out; or leave tables of this size out of it:"
            f" tfdp.noise.SparsityPreserving(smallest_table={table.shape[0] + 1})."
        )
    _, ids = part.in_order()
    # Each row of the table that a record looks up, marked once.
    first = tf.concat([tf.ones_like(ids[:, :1], tf.bool), ids[:, 1:] != ids[:, :-1]], 1)
    first &= (ids >= 0) & (ids < table.shape[0])
    each = tf.cast(first, tf.float32)
    number = tf.reduce_sum(each, axis=1)
    unit = (1.0 - ROUNDING) / tf.sqrt(tf.maximum(number, 1.0))
    # Padding must not count: its amount tells how many records were drawn.
    weights = each * tf.where(present > 0.0, unit, tf.zeros_like(unit))[:, tf.newaxis]
    places = tf.where(first, ids, -tf.ones_like(ids))  # negative: added nowhere
    return tf.math.unsorted_segment_sum(tf.reshape(weights, (-1,)), tf.reshape(places, (-1,)), table.shape[0])
