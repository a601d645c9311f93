"""How Keras' attention layers with a scale of their own compute with it."""

from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.contributions import Stored, constant
from tfdp_layers.per_record.recording import Recorder
from tfdp_layers.per_record.registry import per_record_formulas

kl = keras.layers


@per_record_formulas(kl.Attention, kl.AdditiveAttention)
def attention(layer: keras.layers.Layer, record: Recorder, *args: Any, **kwargs: Any) -> Any:
    """The layer's own call, on scores that are computed here."""
    scores = additive_scores if type(layer) is kl.AdditiveAttention else dot_or_concat_scores
    held = vars(layer)
    held["_calculate_scores"] = lambda query, key: scores(layer, record, query, key)
    try:
        return type(layer).call(layer, *args, **kwargs)
    finally:
        del held["_calculate_scores"]


def dot_or_concat_scores(layer: Any, record: Recorder, query: tf.Tensor, key: tf.Tensor) -> Any:
    """Query times key, or the sum of tanh(query + key): (batch, queries, keys)."""
    scaled = (lambda t: t) if layer.scale is None else (lambda t: record.scale(layer.scale, t))
    if layer.score_mode == "dot":
        return scaled(tf.matmul(query, key, transpose_b=True))
    sums = tf.reduce_sum(tf.tanh(scaled(pairs(query, key))), axis=-1)
    return record.scale(layer.concat_score_weight, sums)


def additive_scores(layer: Any, record: Recorder, query: tf.Tensor, key: tf.Tensor) -> Any:
    """The sum of scale * tanh(query + key): (batch, queries, keys)."""
    values = tf.tanh(pairs(query, key))
    if layer.scale is None:
        return tf.reduce_sum(values, axis=-1)
    scores = tf.reduce_sum(constant(layer.scale, values.dtype) * values, axis=-1)

    def of_scale(u: tf.Tensor) -> Stored:
        return Stored(layer.scale, tf.einsum("bqk,bqkd->bd", tf.cast(u, tf.float32), tf.cast(values, tf.float32)))

    return record.note(layer.scale, scores, of_scale)


def pairs(query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """The sum of each query and key: (batch, queries, keys, features)."""
    return query[:, :, tf.newaxis, :] + key[:, tf.newaxis, :, :]
