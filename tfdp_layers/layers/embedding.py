"""Embedding table with a bounded backward pass."""

from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.layers.base import UpstreamBoundedLayer
from tfdp_layers.layers.gradient_clip import GradientClip, with_bounded_gradient
from tfdp_layers.rules.rows import Rule, bound_upstream
from tfdp_layers.rules.sequences import TokenL1
from tfdp_layers.sensitivity import sensitivity_of


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedEmbedding(UpstreamBoundedLayer, keras.layers.Embedding):
    """`keras.layers.Embedding` with a bounded gradient: the arguments of Embedding, and `gradient_clip` or
    `upstream_clip`.

    Forward: that of Keras, except that a token outside of the vocabulary (also a NaN) reads zeros instead of raising
    an error, which would tell of a record.
    Backward: with gradient_clip each record's gradient of the table is scaled by its norm, in which the u[t] of equal
    tokens are added up first (`GradientClip`); with upstream_clip the upstream gradient is scaled so that
    sum_t ||u[t]||_2 <= upstream_clip.

    Shapes: (batch, ...) integers below `input_dim` -> (batch, ..., output_dim).
    Guarantee: one record moves the summed gradient of the table by at most the clip (1 if "automatic") each time the
        layer is used, also where all its tokens are the same. A token outside of the vocabulary moves nothing.
    Raises: see `UpstreamBoundedLayer`. Every row must be a record: for positions in a sequence look up a row of them
        for each record, for example `tokens * 0 + keras.ops.arange(length)`.
    """

    @property
    def upstream_rule(self) -> Rule:
        """Bounds each record's upstream gradient on the way back."""
        return TokenL1(self.upstream_clip, summed=True)

    def call(self, inputs: tf.Tensor) -> Any:
        values = self.begin_use(inputs)
        ids = tf.convert_to_tensor(inputs)
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(tf.where(tf.abs(values) < 2.0**31, values, -1.0), tf.int32)
        known = (ids >= 0) & (ids < self.input_dim)
        ids = tf.where(known, ids, 0)
        if self.gradient_clip is not None:
            rows = with_bounded_gradient(self, ids, GradientClip(self.gradient_clip))
            return self.end_use(values, tf.where(known[..., tf.newaxis], rows, 0.0))
        rows = tf.where(known[..., tf.newaxis], keras.ops.take(self.embeddings, ids, axis=0), 0.0)
        return self.end_use(values, bound_upstream(rows, self.upstream_rule))


sensitivity_of(ClippedEmbedding)(ClippedEmbedding.sensitivity)
