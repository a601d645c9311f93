"""How layers of KerasHub, and layers that Keras does not export, compute with their weights.

None of these packages is imported: a class is known by its module and name, and its formula is compared with what the
layer computes before it is used (`tfdp_layers.per_record.agreement`).
"""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.embeddings import reversible_embedding
from tfdp_layers.per_record.recording import Recorder
from tfdp_layers.per_record.registry import per_record_formulas

HUB = "keras_hub.src."
_NORMS = (
    "layers.modeling.rms_normalization.RMSNormalization",
    "models.gemma.rms_normalization.RMSNormalization",
    "models.gemma3.gemma3_layers.RMSNormalization",
    "models.gpt_oss.gpt_oss_layer_norm.GptOssLayerNormalization",
    "models.llama.llama_layernorm.LlamaLayerNorm",
    "models.mistral.mistral_layer_norm.MistralLayerNormalization",
    "models.mixtral.mixtral_layer_norm.MixtralLayerNormalization",
    "models.phi3.phi3_layernorm.Phi3LayerNorm",
    "models.qwen.qwen_layernorm.QwenLayerNorm",
    "models.qwen3.qwen3_layernorm.Qwen3LayerNorm",
    "models.qwen3_moe.qwen3_moe_layernorm.Qwen3MoeLayerNorm",
    "models.qwen_moe.qwen_moe_layernorm.QwenMoeLayerNorm",
    "models.t5.t5_layer_norm.T5LayerNorm",
)


per_record_formulas(HUB + "layers.modeling.reversible_embedding.ReversibleEmbedding")(reversible_embedding)


@per_record_formulas(*(HUB + name for name in _NORMS))
def rms_normalization(layer: Any, record: Recorder, inputs: tf.Tensor) -> Any:
    """x / sqrt(mean(x^2) + epsilon), in float32, times the scale; in Gemma times one more than the scale."""
    values = tf.cast(inputs, tf.float32)
    mean = tf.reduce_mean(tf.square(values), axis=-1, keepdims=True)
    values *= tf.math.rsqrt(mean + getattr(layer, "epsilon", 1e-6))
    scale = layer.weight if hasattr(layer, "weight") else layer.scale
    scaled = record.scale(scale, values)
    if ".gemma" in type(layer).__module__:
        scaled += values
    return tf.cast(scaled, layer.compute_dtype)


@per_record_formulas("keras.src.applications.convnext.LayerScale")
def layer_scale(layer: Any, record: Recorder, inputs: tf.Tensor) -> Any:
    return record.scale(layer.gamma, inputs)


@per_record_formulas(HUB + "layers.modeling.position_embedding.PositionEmbedding")
def position_embedding(
    layer: Any, record: Recorder, inputs: tf.Tensor, start_index: Any = 0, positions: tf.Tensor | None = None
) -> Any:
    """A row for each position of the inputs (batch, ..., positions, features)."""
    length = tf.shape(inputs)[-2] if inputs.shape[-2] is None else inputs.shape[-2]
    if positions is None and isinstance(start_index, int):
        outputs = record.rows(layer.position_embeddings, inputs, length, start_index)
    else:
        ids = start_index + tf.range(length) if positions is None else tf.convert_to_tensor(positions)
        ids = ids[tf.newaxis] if len(ids.shape) == 1 else ids
        outputs = record.lookup(layer.position_embeddings, ids, inputs.dtype)
    while len(outputs.shape) < len(inputs.shape):
        outputs = outputs[:, tf.newaxis]
    return tf.broadcast_to(outputs, tf.shape(inputs))


@per_record_formulas(HUB + "models.deberta_v3.relative_embedding.RelativeEmbedding", parts=True)
def relative_embedding(layer: Any, record: Recorder, inputs: tf.Tensor) -> Any:
    """The whole table, normalized, for each record."""
    like = tf.cast(inputs, layer.compute_dtype)
    return layer.layer_norm(record.rows(layer.rel_embeddings, like, layer.rel_embeddings.shape[0]))


@per_record_formulas(HUB + "models.t5.t5_multi_head_attention.T5MultiHeadAttention", parts=True)
def t5_attention(layer: Any, record: Recorder, hidden_states: tf.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The layer's own call, on a relative position bias that is looked up here for each record."""
    held, plain = vars(layer), type(layer).compute_bias
    # Of the hidden states' own length, which the reshaped keys no longer show; of other keys there is no bias.
    alone = len(args) < 2 and kwargs.get("cache") is None and kwargs.get("key_value_states") is None
    known = hidden_states.shape[1] if alone else None

    def compute_bias(query_length: Any, key_length: Any, query_start_index: Any = 0) -> Any:
        ids = relative_buckets(layer, known or query_length, known or key_length, query_start_index)
        values = record.lookup(layer.relative_attention_bias, ids[tf.newaxis], layer.compute_dtype)
        return tf.transpose(values, (0, 3, 1, 2))

    held["compute_bias"] = compute_bias if layer.use_relative_attention_bias else plain.__get__(layer)
    try:
        return type(layer).call(layer, hidden_states, *args, **kwargs)
    finally:
        del held["compute_bias"]


def relative_buckets(layer: Any, query_length: Any, key_length: Any, start: Any) -> tf.Tensor:
    """The bucket of each pair of positions: (queries, keys)."""
    queries, keys = keras.ops.arange(query_length)[:, None] + start, keras.ops.arange(key_length)[None, :]
    return type(layer)._relative_position_bucket(
        keys - queries,
        bidirectional=not layer.is_decoder,
        num_buckets=layer.relative_attention_buckets,
        max_distance=layer.relative_attention_max_distance,
    )


@per_record_formulas(HUB + "models.gpt_oss.gpt_oss_attention.GptOssAttention", parts=True)
def gpt_oss_attention(layer: Any, record: Recorder, hidden_states: tf.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The layer's own call, with scores and shares as they are computed here."""
    held = vars(layer)
    held["_compute_attention"] = functools.partial(attention_with_sinks, layer, record)
    try:
        return type(layer).call(layer, hidden_states, *args, **kwargs)
    finally:
        del held["_compute_attention"]


def attention_with_sinks(
    layer: Any, record: Recorder, query: Any, key: Any, value: Any, attention_mask: Any = None, start_index: Any = 0
) -> Any:
    """The values, by a softmax over the keys and one logit more for each head, whose share is left out."""
    ops, low = keras.ops, -1e9 if layer.compute_dtype == "float32" else -1e4
    scores = ops.einsum(layer._dot_product_equation, query, key)
    scores *= ops.cast(layer._inv_norm_factor, layer.compute_dtype)
    if layer.sliding_window:
        queries, keys = ops.arange(ops.shape(scores)[-2]) + start_index, ops.arange(ops.shape(scores)[-1])
        near = keys[None] >= queries[:, None] - layer.sliding_window
        scores = ops.where(near[None, None], scores, ops.cast(low, scores.dtype))
    if attention_mask is not None:
        scores = ops.where(attention_mask[:, None], scores, ops.cast(low, scores.dtype))
    sinks = record.offset(layer.sinks, tf.zeros_like(scores[..., :1]), (layer.num_query_heads, 1, 1))
    shares = ops.softmax(ops.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]
    return ops.einsum(layer._combine_equation, ops.cast(shares, layer.compute_dtype), value)


@per_record_formulas(HUB + "models.vit.vit_layers.ViTPatchingAndEmbedding", parts=True)
def vit_patching(layer: Any, record: Recorder, inputs: tf.Tensor) -> Any:
    """Embedded patches behind a class token, each with its position's row."""
    patches = layer.patch_embedding(inputs)
    if layer.data_format == "channels_first":
        patches = tf.transpose(patches, (0, 2, 3, 1))
    patches = tf.reshape(patches, (tf.shape(patches)[0], -1, layer.hidden_dim))
    if layer.use_class_token:
        zeros = tf.zeros_like(patches[:, :1])
        patches = tf.concat([record.offset(layer.class_token, zeros, (1, layer.hidden_dim)), patches], axis=1)
    return patches + layer.position_embedding(layer.position_ids)


@per_record_formulas(HUB + "layers.modeling.masked_lm_head.MaskedLMHead", parts=True)
def masked_lm_head(layer: Any, record: Recorder, inputs: tf.Tensor, mask_positions: tf.Tensor) -> Any:
    """Logits at the masked positions; by the embedding's table where the layer holds the embedding.

    Positions beyond the sequence give zeros, where the layer itself may read other records' rows. And by a product with
    ones and zeros, since the gradients of gathering count in places of records, which no proof follows.
    """
    gathered = tf.matmul(tf.one_hot(mask_positions, tf.shape(inputs)[1], dtype=inputs.dtype), inputs)
    gathered = layer._intermediate_layer_norm(layer._intermediate_dense(gathered))
    if layer.token_embedding:
        outputs = layer.token_embedding(gathered, reverse=True)
    else:
        outputs = record.product(layer._kernel, gathered)
    outputs = record.offset(layer._bias, tf.cast(outputs, layer.compute_dtype))
    return outputs if layer.activation is None else layer.activation(outputs)


@per_record_formulas(
    HUB + "models.swin_transformer.swin_transformer_layers.WindowAttention", parts=True, also_frozen=True
)
def window_attention(
    layer: Any, record: Recorder, x: tf.Tensor, mask: tf.Tensor | None = None, return_attns: bool = False
) -> Any:
    """Attention within windows (batch * windows, positions, channels); here each record's windows lie on axis 1."""
    ops, rows = keras.ops, keras.ops.shape(x)[0]
    _, length, channels = x.shape
    windows = 1 if record.records is None else rows // record.records
    pairs = layer.qkv(ops.reshape(x, (-1, windows, length, channels)))
    pairs = ops.reshape(pairs, (-1, windows, length, 3, layer.num_heads, layer.head_dim))
    q, k, v = ops.unstack(ops.transpose(pairs, (3, 0, 1, 4, 2, 5)), axis=0)
    scores = ops.matmul(q * ops.cast(layer.scale, q.dtype), ops.transpose(k, (0, 1, 2, 4, 3)))
    ids = tf.cast(layer.relative_position_index, tf.int32)[tf.newaxis]
    offsets = record.lookup(layer.relative_position_bias_table, ids, x.dtype)
    scores += ops.transpose(offsets, (0, 3, 1, 2))[:, None]
    if mask is not None:
        scores += ops.cast(mask, scores.dtype)[None, :, None]
    shares = layer.attention_dropout_layer(ops.softmax(scores, axis=-1))
    outputs = ops.transpose(ops.matmul(shares, v), (0, 1, 3, 2, 4))
    outputs = layer.proj_drop(layer.proj(ops.reshape(outputs, (-1, windows, length, channels))))
    outputs = ops.reshape(outputs, (-1, length, channels))
    shares = ops.reshape(shares, (-1, layer.num_heads, length, length))
    return (outputs, shares) if return_attns else outputs
