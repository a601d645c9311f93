"""Convolutions through a recorder: which formula of their kernel's gradients is the fastest for given shapes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfdp_layers.noise.cores import on_gpus
from tfdp_layers.per_record.contributions import Contribution, Products, constant, positions
from tfdp_layers.per_record.convolutions import Convolution, KernelGradients, paddings
from tfdp_layers.per_record.groups import GroupBlocks, convolve
from tfdp_layers.per_record.patches import PatchBlocks, patch_products, regular
from tfdp_layers.per_record.pixel_grams import PixelGrams, in_steps
from tfdp_layers.per_record.precision import are_bfloat16

_STARTED, _FASTER = 1e5, 50.0
"""On a GPU: nanoseconds until the operations of one record by itself have started, and how much faster it computes."""

if TYPE_CHECKING:
    from tfdp_layers.per_record.recording import Recorder


def convolution_of(
    operation: Callable[..., tf.Tensor], layer: keras.layers.Layer, padding: str, **options: Any
) -> Callable[[Any, Any, Any], Any]:
    """(record, kernel, inputs) -> the layer's convolution, through a recorder.

    Args:
        operation: `convolve`, `keras.ops.conv_transpose` or `depthwise_conv`.
        padding: "valid" or "same".
        options: arguments of the operation that differ from the layer's.
    """
    arguments = {"strides": tuple(layer.strides), "dilation_rate": layer.dilation_rate, "padding": padding} | options
    native = functools.partial(operation, data_format=layer.data_format, **arguments)
    last = functools.partial(operation, data_format="channels_last", **arguments)
    transpose = layer.data_format == "channels_first"

    def apply(record: Recorder, kernel: keras.Variable, inputs: tf.Tensor) -> Any:
        outputs = native(inputs, constant(kernel, inputs.dtype))

        def contribution(u: tf.Tensor) -> Contribution:
            x = keras.ops.moveaxis(inputs, 1, -1) if transpose else inputs
            u = keras.ops.moveaxis(u, 1, -1) if transpose else u
            return kernel_contribution(kernel, x, u, operation, last, arguments)

        return record.note(kernel, outputs, contribution)

    return apply


def kernel_contribution(
    kernel: keras.Variable,
    x: tf.Tensor,
    u: tf.Tensor,
    operation: Callable[..., tf.Tensor],
    convolution: Convolution,
    arguments: dict[str, Any],
) -> Contribution:
    """The kernel's gradients by the formula that measured fastest for these shapes; channels last."""
    rank = len(x.shape) - 2
    size, strides = kernel.shape[:rank], as_list(arguments["strides"], rank)
    ordinary = operation is convolve
    plain = ordinary and x.shape[-1] == kernel.shape[-2]
    if plain and set(size) == {1} and set(strides) == {1}:
        return Products(kernel, positions(x), positions(u))
    # A transposed convolution strides over its output: all taps of the kernel meet each entry of the input.
    steps = [1] * rank if operation is keras.ops.conv_transpose else strides
    overlap = math.prod(-(-k // s) for k, s in zip(size, steps, strict=True))
    general = KernelGradients(kernel, x, u, convolution, overlap)
    rates, padding = as_list(arguments["dilation_rate"], rank), arguments["padding"]
    geometry: Any = {"size": size, "strides": strides, "padding": padding}
    if ordinary and not plain and general.stored and None not in u.shape[1:]:
        return GroupBlocks(kernel, x, u, convolution, overlap, rates=rates, **geometry)
    if not plain or rank > 2 or None in u.shape[1:]:
        return general
    count, inputs, entries = math.prod(u.shape[1:-1]), math.prod(kernel.shape[:-1]), math.prod(kernel.shape)
    costs = {"rows": 5e4 + 1.5 * entries + 0.032 * count * entries, "patches": patch_cost(count, inputs, u.shape[-1])}
    if rank == 2 and set(rates) == {1}:
        if general.stored and regular(size, strides, rates):
            costs["blocks"] = 0.5 * count * inputs + (0.05 * count + 3.4) * entries
        costs["pixels"] = pixel_cost(kernel, x, u, strides, paddings(x.shape[1:-1], size, strides, padding))
    best = fastest(costs)
    if best in ("rows", "patches") and "blocks" in costs and are_bfloat16(x, u):
        return PatchBlocks(kernel, x, u, convolution, overlap, **geometry)  # processors multiply these for little
    if best == "patches":
        return patch_products(kernel, x, u, strides, rates, padding)
    if best == "pixels":
        return PixelGrams(kernel, x, u, convolution, overlap, **geometry)
    if best == "blocks":
        return PatchBlocks(kernel, x, u, convolution, overlap, **geometry, compiled=True)
    return general


def fastest(costs: dict[str, float]) -> str:
    """Which of these nanoseconds, on one core, are the least where this process computes."""
    if on_gpus():
        costs = {name: _STARTED if name == "rows" else cost / _FASTER for name, cost in costs.items()}
    return min(costs, key=lambda name: costs[name])


def patch_cost(count: int, inputs: int, units: int) -> float:
    """Nanoseconds a record of `Products` of patches, as measured on one core: writing them out, norm, weighted sum."""
    entries = inputs * units
    written, gram = 0.3 * entries + 0.03 * count * entries, count * (0.02 * count * (inputs + units) + 0.03 * entries)
    return 2 * count * inputs + (gram if count * (inputs + units) <= entries else written)


def pixel_cost(
    kernel: keras.Variable, x: tf.Tensor, u: tf.Tensor, strides: Sequence[int], padding: list[tuple[int, int]]
) -> float:
    """Nanoseconds a record of `PixelGrams`: Gram matrices, their shifted sums (slow by steps), the weighted sum."""
    (height, width), (rows, columns) = (n + sum(p) for n, p in zip(x.shape[1:-1], padding, strict=True)), u.shape[1:-1]
    channels, (along, across) = x.shape[-1], in_steps(kernel.shape[:2], strides)
    if along[1] == across[1] == 1:  # of whole blocks
        height, width = rows - 1 + along[0], columns - 1 + across[0]
        channels *= math.prod(strides)
    grams = (height * width) ** 2 * channels + (rows * columns) ** 2 * kernel.shape[-1]
    sums = along[0] * (rows * width) ** 2 + across[0] * (rows * columns) ** 2
    slow = 1.2 if along[1] == across[1] == 1 else 12.0
    return 0.03 * grams + slow * sums + 0.025 * rows * columns * math.prod(kernel.shape)


def as_list(value: int | Sequence[int], rank: int) -> list[int]:
    """One number for each axis."""
    return [value] * rank if isinstance(value, int) else list(value)
