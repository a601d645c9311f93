"""Several rows of each record or unit of a batch: how they lie, and what each of them weighs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["absent", "flat", "lay_out", "records_of", "refuse_counts", "shares"]

MOST_ROWS = 2**16
"""Of each drawn record or unit: beyond it no memory holds a batch."""


def refuse_counts(records_per_unit: Any, views: Any, unit_ids: Any) -> None:
    """Raises ValueError unless both are integers of at least 1, and units are known that may have several records."""
    for name, count in (("records_per_unit", records_per_unit), ("views", views)):
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(
                f"`{name}` is how many rows of each drawn one enter a step together: an integer of at least 1."
                f" Received: {name}={count!r}. Leave it out for one."
            )
    if int(records_per_unit) * int(views) > MOST_ROWS:
        raise ValueError(
            f"records_per_unit={records_per_unit} and views={views} make {int(records_per_unit) * int(views):,} rows of"
            f" each drawn one, which a step computes at once: at most {MOST_ROWS:,}. A few are usual, 4 to 16."
        )
    if records_per_unit > 1 and unit_ids is None:
        raise ValueError(
            f"records_per_unit={records_per_unit} needs to know which records belong to one unit. Give unit_ids, one id"
            " a record; or views, for several random views of one record."
        )


def absent(records: np.ndarray) -> np.ndarray:
    """Indices that stand for rows without a record: they hold these records and weigh nothing."""
    return ~records


def records_of(drawn: Any) -> Any:
    """The records that rows hold, for indices of which some may be `absent`: integers of the same shape."""
    where = tf.where if tf.is_tensor(drawn) else np.where
    return where(drawn < 0, -1 - drawn, drawn)


def lay_out(batch: Any, present: Any, each: int) -> Any:
    """A batch of rows (units * each, ...) as one of units, (units, each, ...).

    Args:
        batch: (x, y, weights).
        present: (units * each,) float32, 0.0 for rows that are to weigh nothing.
    """
    x, y, weights = batch
    weights = keras.tree.map_structure(lambda one: one * present, weights)

    def laid(leaf: Any) -> Any:
        reshape = tf.reshape if tf.is_tensor(leaf) else np.reshape
        return reshape(leaf, (-1, each, *leaf.shape[1:]))

    return keras.tree.map_structure(lambda leaf: None if leaf is None else laid(leaf), (x, y, weights))


def flat(batch: Any, each: int) -> Any:
    """The rows of a batch of units, (units, each, ...) -> (units * each, ...); with `each` 1 the batch as it is."""
    if each == 1:
        return batch

    def rows(leaf: Any) -> Any:
        leaf = tf.convert_to_tensor(leaf)
        return tf.reshape(leaf, (-1, *leaf.shape[2:]))

    return keras.tree.map_structure(lambda leaf: None if leaf is None else rows(leaf), batch)


def shares(weights: Any, like: tf.Tensor, each: int) -> Any:
    """What each row's loss is multiplied by so that a unit's rows add up to their mean: (units * each,) each.

    A row of weight w, one of the n of its unit whose weight is not zero, gets w / n. It depends on the weights of the
    unit's own rows alone.

    Args:
        weights: (units, each), one for each output of the model or one for all; None for ones.
        like: (units, ...), counts the units.
    """
    if weights is None:
        weights = tf.ones((tf.shape(like)[0], each), tf.float32)
    weights = keras.tree.map_structure(lambda one: tf.cast(one, tf.float32), weights)
    held = tf.reduce_max([tf.cast(one != 0.0, tf.float32) for one in keras.tree.flatten(weights)], axis=0)
    counts = tf.maximum(tf.reduce_sum(held, axis=1, keepdims=True), 1.0)
    return flat(keras.tree.map_structure(lambda one: one / counts, weights), each)
