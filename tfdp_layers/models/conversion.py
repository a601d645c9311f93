"""From ordinary layers to their clipped twins, and back to an ordinary model for serving."""

from typing import Any

import keras

from tfdp_layers.certificates.constants import has_given_constants
from tfdp_layers.layers.adapted import AdaptedLayer
from tfdp_layers.layers.attention import ClippedMultiHeadAttention
from tfdp_layers.layers.base import BoundedLayer, UpstreamBoundedLayer
from tfdp_layers.layers.conv import (
    BoundedConvolution,
    ClippedConv1D,
    ClippedConv2D,
    ClippedConv3D,
    ClippedDepthwiseConv2D,
)
from tfdp_layers.layers.dense import ClippedDense
from tfdp_layers.layers.einsum import ClippedEinsumDense
from tfdp_layers.layers.embedding import ClippedEmbedding
from tfdp_layers.layers.feedback_base import FixedFeedback
from tfdp_layers.layers.gradient_filter import GradientFilter
from tfdp_layers.layers.lipschitz import GroupSort, LipschitzConv2D, LipschitzDense
from tfdp_layers.layers.lipschitz_base import LipschitzLayer
from tfdp_layers.layers.normalization import ClippedGroupNormalization, ClippedLayerNormalization
from tfdp_layers.models.accounts import remember_copied
from tfdp_layers.models.rebuilding import layers_of, made_like
from tfdp_layers.rules.rows import ROUNDING
from tfdp_layers.structure import inputs_of, outputs_of
from tfdp_layers.uses.counted import CountedLayer

_OURS = ("gradient_clip", "input_clip", "upstream_clip", "bias_clip", "bound")
TWINS: dict[type, Any] = {
    keras.layers.Dense: ClippedDense,
    keras.layers.Conv1D: ClippedConv1D,
    keras.layers.Conv2D: ClippedConv2D,
    keras.layers.Conv3D: ClippedConv3D,
    keras.layers.DepthwiseConv2D: ClippedDepthwiseConv2D,
    keras.layers.EinsumDense: ClippedEinsumDense,
    keras.layers.Embedding: ClippedEmbedding,
    keras.layers.LayerNormalization: ClippedLayerNormalization,
    keras.layers.GroupNormalization: ClippedGroupNormalization,
    keras.layers.MultiHeadAttention: ClippedMultiHeadAttention,
}
LIPSCHITZ: dict[type, Any] = {keras.layers.Dense: LipschitzDense, keras.layers.Conv2D: LipschitzConv2D}


def clipped_twin(layer: keras.layers.Layer, clips: dict[str, Any], bound: str | None) -> Any:
    """The clipped twin of a trainable layer with weights, or a copy of any other layer. Weights are not copied here."""
    twin = TWINS.get(type(layer))
    if twin is None or not layer.trainable:
        return same_layer(layer)
    options: dict[str, Any] = dict(clips)
    if issubclass(twin, BoundedConvolution):
        options["bound"] = bound
    if issubclass(twin, UpstreamBoundedLayer):
        options.pop("input_clip", None)
    return twin.from_config(layer.get_config() | options)


def same_layer(layer: Any) -> Any:
    """A copy of a layer, or of an operation of Keras, without its weights.

    Layers that no training changes and that a configuration does not hold are shared: Lambda, and preprocessing layers
    with constants that `adapt` or the caller set (see `tfdp.public`).
    """
    if isinstance(layer, keras.layers.Lambda) or not has_given_constants(layer):
        return layer
    copied = type(layer).from_config(layer.get_config())
    if isinstance(layer, AdaptedLayer):
        copied.ledger.merge(layer.ledger)  # its weights are copied, too
    return copied


def plain_model(model: keras.Model, copies: dict[int, Any] | None = None) -> keras.Model:
    """An ordinary Keras model that predicts what `model` predicts: clips of the inputs stay, as Keras operations.

    The copies of released weights are known for what they are, also where they are computed from these. A layer of a
    nested model that is also called outside stays one; of a model of a class of its own that has such (a language model
    of KerasHub) that class makes the copy, which Keras also saves and loads.

    Args:
        copies: of layers by their ids, for a model within another.
    """
    if not model.built or model.inputs is None:
        raise ValueError(f"Model {model.name!r} is not built: there is nothing to convert yet. Give it a keras.Input.")
    made = made_like(model)
    if made is not None and not any(type(one).__module__.startswith("tfdp_layers") for one in model.layers):
        return with_same_weights(made, model)
    copied = {} if copies is None else copies

    def copy_of(layer: keras.layers.Layer) -> Any:
        if id(layer) not in copied:
            copied[id(layer)] = plain_layer(layer, copied)
        return copied[id(layer)]

    functional = keras.Model(inputs_of(model), outputs_of(model), name=model.name)
    copy = keras.models.clone_model(functional, clone_function=copy_of)
    for source, target in zip(functional.layers, copy.layers, strict=True):
        # The weights of the first two were copied as their twins were made; feedback matrices have no place in them.
        if isinstance(source, keras.Model) and not isinstance(source, FixedFeedback):
            continue
        if isinstance(source, FixedFeedback):
            pass
        elif isinstance(source, AdaptedLayer):
            source.copy_to(target)
        elif isinstance(source, LipschitzLayer):
            target.set_weights(source.bounded_weights())
        else:
            enable_same_lora(source, target)
            target.set_weights(source.get_weights())
        remember_copied(model, source.weights, target.weights)
    return copy


def with_same_weights(made: keras.Model, model: keras.Model) -> keras.Model:
    """A model that its own class made anew, with copies of the weights and the LoRA factors of this one."""
    graphs = [keras.Model(inputs_of(one), outputs_of(one)) for one in (model, made)]
    for source, target in zip(*(graph.layers for graph in graphs), strict=True):
        enable_same_lora(source, target)
        target.set_weights(source.get_weights())
        remember_copied(model, source.weights, target.weights)
    return made


def enable_same_lora(source: keras.layers.Layer, target: keras.layers.Layer) -> None:
    """Gives each part of a copied layer the LoRA factors of its model: the layer's configuration does not tell of them.

    Without them the copy of an attention or of a block of a published model has fewer weights.
    """
    for one, copied in zip(layers_of(source), layers_of(target), strict=False):
        if getattr(one, "lora_enabled", False) and not getattr(copied, "lora_enabled", True):
            copied.enable_lora(one.lora_rank, lora_alpha=one.lora_alpha)


def plain_layer(layer: keras.layers.Layer, copies: dict[int, Any] | None = None) -> Any:
    """A copy of an ordinary layer; for one that clips its input a small model of the clip, in Keras operations, and
    the layer.
    """
    if isinstance(layer, keras.Model) and not isinstance(layer, CountedLayer):
        return plain_model(layer, copies)
    if isinstance(layer, AdaptedLayer):
        return layer.plain()
    if isinstance(layer, GradientFilter):
        return keras.layers.Identity(name=layer.name)
    if isinstance(layer, FixedFeedback | GroupSort):
        tensors = keras.tree.map_structure(lambda t: keras.Input(batch_shape=(None, *t.shape[1:])), layer.input)
        return keras.Model(tensors, layer.to_keras(tensors), name=layer.name)
    base: Any = next((plain for plain, twin in (*TWINS.items(), *LIPSCHITZ.items()) if type(layer) is twin), None)
    if base is None:
        return type(layer).from_config(layer.get_config())
    config = {k: v for k, v in layer.get_config().items() if k not in _OURS}
    if not clips_its_input(layer):
        return base.from_config(config)
    inputs = keras.Input(batch_shape=(None, *layer.input.shape[1:]), dtype="float32")
    return keras.Model(inputs, base.from_config(config)(clip_operations(layer, inputs)), name=layer.name)


def clips_its_input(layer: Any) -> bool:
    """Whether a layer scales what it takes, and not what it sends back alone."""
    if isinstance(layer, LipschitzLayer):
        return layer.input_clip is not None
    return isinstance(layer, BoundedLayer) and layer.gradient_clip is None


def clip_operations(layer: keras.layers.Layer, inputs: keras.KerasTensor) -> Any:
    """The layer's input clip on a Keras tensor: the same numbers as its rule, without a class of this library."""
    ops = keras.ops
    weights = 1.0
    if getattr(layer, "bound", None) == "patch":
        counts = layer.count_patches(tuple(inputs.shape[2:] if layer.channels_first else inputs.shape[1:-1]))
        weights = counts[(None, None) if layer.channels_first else (None, ..., None)]
    axes = tuple(range(1, len(inputs.shape)))
    norm = ops.sqrt(ops.sum(ops.square(inputs) * weights, axis=axes, keepdims=True))
    limit = layer.input_clip * (1.0 - ROUNDING)
    return ops.where(ops.isfinite(norm), inputs * (limit / ops.maximum(norm, limit)), ops.zeros_like(inputs))
