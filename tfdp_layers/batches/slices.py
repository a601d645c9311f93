"""Disjoint slices of a drawn batch, one for each replica."""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.batches.heights import in_pieces

__all__ = ["STAMPS", "Share", "cut_batches", "fill"]

STAMPS = 1 << 20
"""Checksums of draws are below this: sums of their squares over a thousand replicas stay exact in int64."""

_PADDED = 8
"""Axes of a tensor that TensorFlow's padding takes."""


@dataclass(frozen=True)
class Share:
    """Of the `of` slices of every draw, one for each replica, those numbered `first` to `first + count - 1`.

    Each is filled up to whole panels of rows, in pieces of so many: see `in_pieces`.
    """

    first: int
    count: int
    of: int
    panel: int = 1
    piece: int | None = None

    def numbers(self) -> tf.data.Dataset:
        """The slices' numbers, int64."""
        return tf.data.Dataset.range(self.first, self.first + self.count)

    def height(self, rows: int | tf.Tensor) -> Any:
        """The rows of one slice of a batch with `rows` rows: equal for all, so the last ones hold padding."""
        return in_pieces(-(-rows // self.of), self.panel, self.piece)


def cut_batches(dataset: tf.data.Dataset, share: Share) -> tf.data.Dataset:
    """Cuts every batch (rows, ...) of a dataset into `share.of` slices of equal height; yields those of the share.

    Slice i holds rows i h to (i + 1) h - 1, h = `share.height(rows)`, filled up by rows of zeros, whose weight is zero:
    so every row is in exactly one slice. Elements are (slice, stamp); stamp, int64 (2,), says which draw and which
    slice it is, for the replicas to compare.
    """

    @tf.autograph.experimental.do_not_convert
    def cut(number: tf.Tensor, batch: Any) -> tf.data.Dataset:
        rows = tf.shape(keras.tree.flatten(batch)[0], out_type=tf.int64)[0]
        height = share.height(rows)

        @tf.autograph.experimental.do_not_convert
        def one(index: tf.Tensor) -> Any:
            start, end = tf.minimum(index * height, rows), tf.minimum((index + 1) * height, rows)
            kept = keras.tree.map_structure(lambda leaf: fill(leaf[start:end], height, None), batch)
            return kept, tf.stack([number % STAMPS, index])

        return share.numbers().map(one)

    return dataset.enumerate().flat_map(cut).prefetch(2 * share.count)


def fill(leaf: tf.Tensor, rows: int | tf.Tensor, static: int | None) -> Any:
    """The tensor `leaf` with rows of zeros added up to `rows` (int64), and float64 made floatx."""
    if leaf.dtype == tf.float64:
        leaf = tf.cast(leaf, keras.backend.floatx())
    missing = rows - tf.shape(leaf, out_type=tf.int64)[0]
    if len(leaf.shape) > _PADDED:
        shape = tf.concat([[missing], tf.shape(leaf, out_type=tf.int64)[1:]], 0)
        filled = tf.concat([leaf, tf.zeros(shape, leaf.dtype)], 0)
    else:  # Costs nothing where none is missing: the kernel hands on what it got.
        last = tf.constant([[0, 1], *[[0, 0]] * (len(leaf.shape) - 1)], tf.int64)
        filled = tf.pad(leaf, missing * last)
    return tf.ensure_shape(filled, (static, *leaf.shape[1:]))
