"""How Keras' embeddings compute with their weights, also where the table gives the logits (tied)."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.formulas import lora_scale, refuse_quantized
from tfdp_layers.per_record.recording import Recorder
from tfdp_layers.per_record.registry import entry_of, per_record_formulas

kl = keras.layers


@per_record_formulas(kl.Embedding)
def embedding(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
    refuse_quantized(layer)
    ids = inputs if inputs.dtype in ("int32", "int64") else keras.ops.cast(inputs, "int32")
    outputs = record.lookup(layer._embeddings, ids, layer.compute_dtype)
    if layer.lora_enabled:
        low = record.lookup(layer.lora_embeddings_a, ids, layer.compute_dtype)
        outputs += lora_scale(layer) * record.product(layer.lora_embeddings_b, low)
    return outputs


def reversible_embedding(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor, reverse: bool = False) -> Any:
    """Rows of the table; with `reverse` the inputs times the table transposed, or times a table of its own."""
    if not reverse:
        outputs = embedding(layer, record, inputs)
        if layer.mask_zero:
            outputs._keras_mask = keras.ops.not_equal(inputs, 0)
        return outputs
    refuse_quantized(layer)
    if layer.reverse_dtype is not None:
        inputs = keras.ops.cast(inputs, layer.reverse_dtype)
    if not layer.tie_weights:
        logits = record.product(layer.reverse_embeddings, inputs)
    else:
        logits = record.product_transposed(layer._embeddings, inputs)
        if layer.lora_enabled:
            low = record.product_transposed(layer.lora_embeddings_b, inputs)
            logits += lora_scale(layer) * record.product_transposed(layer.lora_embeddings_a, low)
    cap = layer.logit_soft_cap
    return logits if cap is None else keras.ops.tanh(logits / cap) * cap


if hasattr(kl, "ReversibleEmbedding"):
    per_record_formulas(kl.ReversibleEmbedding)(reversible_embedding)


def tables_of(path: str, layer: Any) -> Iterator[tuple[str, Any]]:
    """(path, table) of each embedding in the layer, or that it is, which trains the table whose rows it looks up."""
    for part in layer._flatten_layers():
        entry = entry_of(part)
        if entry is None or entry.formula not in (embedding, reversible_embedding):
            continue
        name = path if part is layer else f"{path}/{part.name}"
        yield from ((name, v) for v in part.trainable_variables if v is part._embeddings)
