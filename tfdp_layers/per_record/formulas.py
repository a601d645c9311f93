"""How Keras' layers compute with their weights, for `per_record_formulas`. Recurrent ones are in `recurrent`."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.convolution_choice import convolution_of
from tfdp_layers.per_record.groups import convolve
from tfdp_layers.per_record.recording import Recorder
from tfdp_layers.per_record.registry import per_record_formulas

kl = keras.layers


@per_record_formulas(kl.Dense)
def dense(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor, training: bool | None = None) -> Any:
    refuse_quantized(layer)
    inputs = as_floats(layer, inputs)
    outputs = record.product(layer._kernel, inputs)
    if layer.lora_enabled:
        low = record.product(layer.lora_kernel_a, inputs)
        outputs += lora_scale(layer) * record.product(layer.lora_kernel_b, low)
    return activated(layer, record, record.offset(layer.bias, outputs) if layer.use_bias else outputs)


@per_record_formulas(kl.EinsumDense)
def einsum_dense(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor, training: bool | None = None) -> Any:
    refuse_quantized(layer)
    inputs = as_floats(layer, inputs)
    outputs = record.einsum(layer.equation, layer._kernel, inputs)
    if layer.lora_enabled:
        first, second = low_rank_equations(layer.equation, layer.name)
        low = record.einsum(first, layer.lora_kernel_a, inputs)
        outputs += lora_scale(layer) * record.einsum(second, layer.lora_kernel_b, low)
    return activated(layer, record, outputs if layer.bias is None else record.offset(layer.bias, outputs))


@per_record_formulas(kl.Conv1D, kl.Conv2D, kl.Conv3D)
def convolution(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
    padding = layer.padding
    if padding == "causal":
        inputs, padding = keras.ops.pad(inputs, layer._compute_causal_padding()), "valid"
    apply = functools.partial(convolution_of(convolve, layer, padding), record)
    outputs = apply(layer._kernel, inputs)
    if layer.lora_enabled:
        low = apply(layer.lora_kernel_a, inputs)
        last = low if layer.data_format == "channels_last" else channels_to(low, last=True)
        update = record.product(layer.lora_kernel_b, last)
        outputs += lora_scale(layer) * (update if last is low else channels_to(update, last=False))
    return activated(layer, record, channel_offset(layer, record, outputs))


@per_record_formulas(kl.Conv1DTranspose, kl.Conv2DTranspose, kl.Conv3DTranspose)
def transposed_convolution(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
    apply = convolution_of(keras.ops.conv_transpose, layer, layer.padding, output_padding=layer.output_padding)
    return activated(layer, record, channel_offset(layer, record, apply(record, layer.kernel, inputs)))


@per_record_formulas(kl.DepthwiseConv1D, kl.DepthwiseConv2D)
def depthwise_convolution(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
    apply = convolution_of(keras.ops.depthwise_conv, layer, layer.padding)
    return activated(layer, record, channel_offset(layer, record, apply(record, layer.kernel, inputs)))


@per_record_formulas(kl.SeparableConv1D, kl.SeparableConv2D)
def separable_convolution(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
    padding = layer.padding
    if padding == "causal":
        inputs, padding = keras.ops.pad(inputs, layer._compute_causal_padding()), "valid"
    depthwise = convolution_of(keras.ops.depthwise_conv, layer, padding)
    pointwise = convolution_of(convolve, layer, "valid", strides=1, dilation_rate=1)
    outputs = pointwise(record, layer.pointwise_kernel, depthwise(record, layer.depthwise_kernel, inputs))
    return activated(layer, record, channel_offset(layer, record, outputs))


@per_record_formulas(kl.LayerNormalization)
def layer_normalization(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
    options: dict[str, Any] = {"rms_scaling": True} if getattr(layer, "rms_scaling", False) else {}
    options |= {"axis": layer.axis, "epsilon": layer.epsilon}
    return scaled_and_shifted(layer, record, inputs, kl.LayerNormalization, options)


@per_record_formulas(kl.GroupNormalization)
def group_normalization(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
    options = {"groups": layer.groups, "axis": layer.axis, "epsilon": layer.epsilon}
    return scaled_and_shifted(layer, record, inputs, kl.GroupNormalization, options)


def scaled_and_shifted(
    layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor, plain: Any, options: dict[str, Any]
) -> Any:
    """gamma * normalized + beta, where the layer has them; normalized by the `plain` type of layer without weights."""
    outputs = plain(center=False, scale=False, dtype=layer.dtype_policy, name=layer.name, **options)(inputs)
    shape = axes_shape(layer, inputs)
    if layer.scale:
        outputs = record.scale(layer.gamma, outputs, shape)
    return record.offset(layer.beta, outputs, shape) if layer.center else outputs


def axes_shape(layer: keras.layers.Layer, inputs: tf.Tensor) -> list[int]:
    """One record's shape with the axes that the layer does not normalize along set to 1."""
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    kept = {axis % len(inputs.shape) for axis in axes}
    return [inputs.shape[axis] if axis in kept else 1 for axis in range(1, len(inputs.shape))]


if hasattr(kl, "RMSNormalization"):

    @per_record_formulas(kl.RMSNormalization)
    def rms_normalization(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
        outputs = keras.ops.rms_normalization(inputs, None, layer.axis, layer.epsilon)
        return record.scale(layer.scale, keras.ops.cast(outputs, layer.compute_dtype), axes_shape(layer, inputs))


@per_record_formulas(kl.PReLU)
def prelu(layer: keras.layers.Layer, record: Recorder, inputs: tf.Tensor) -> Any:
    return keras.ops.relu(inputs) + record.scale(layer.alpha, -keras.ops.relu(-inputs))


def activated(layer: keras.layers.Layer, record: Recorder, outputs: tf.Tensor) -> Any:
    return layer.activation(outputs) if record.activate and layer.activation is not None else outputs


def channel_offset(layer: keras.layers.Layer, record: Recorder, outputs: tf.Tensor) -> Any:
    """The bias of a convolution, one number a channel."""
    if not layer.use_bias:
        return outputs
    shape = None if layer.data_format == "channels_last" else [layer.bias.shape[0], *[1] * layer.rank]
    return record.offset(layer.bias, outputs, shape)


def channels_to(values: tf.Tensor, last: bool) -> Any:
    """Moves the channels to the last axis, or to the first after the batch."""
    return keras.ops.moveaxis(values, 1, -1) if last else keras.ops.moveaxis(values, -1, 1)


def as_floats(layer: keras.layers.Layer, inputs: tf.Tensor) -> tf.Tensor:
    """Integers, as from a lookup in front of the layer, in the type in which Keras multiplies them by the kernel."""
    return inputs if inputs.dtype.is_floating else tf.cast(inputs, layer.compute_dtype)


def lora_scale(layer: keras.layers.Layer) -> float:
    return layer.lora_alpha / layer.lora_rank


def low_rank_equations(equation: str, name: str) -> tuple[str, str]:
    """The equations of the two factors of a kernel, whose rank takes the place of its last label.

    Raises: ValueError where the kernel's last label is not free: then the factors can't be applied one after the other.
    """
    inputs, kernel, outputs = equation.replace(" ", "").replace("->", ",").split(",")
    last = kernel[-1]
    if last in inputs or last not in outputs:
        raise ValueError(
            f"Layer {name!r} has LoRA on a kernel whose last axis is not an output of {equation!r}: its per-record"
            " gradients have no formula. Use an equation whose kernel ends in an output axis."
        )
    rank = next(label for label in "zyxwvutsrqponm" if label not in equation)
    low = outputs.replace(last, rank)
    return f"{inputs},{kernel[:-1]}{rank}->{low}", f"{low},{rank}{last}->{outputs}"


def refuse_quantized(layer: keras.layers.Layer) -> None:
    """Raises ValueError for a layer whose weights are integers, where another layer's formula computes with it."""
    if getattr(layer, "quantization_mode", None):
        raise ValueError(
            f"Layer {layer.name!r} is quantized, and the layer around it has a per-record formula that computes with"
            " plain weights. Freeze the layer around it, or quantize a plain copy of the trained model:"
            " model.to_keras()."
        )
