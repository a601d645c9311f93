"""What each record adds to the gradient of a convolution's kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.contributions import Contribution, Products, constant, positions, zero_rows
from tfdp_layers.rules import number_of, squared_norm, summation_error

Convolution = Callable[[Any, Any], Any]
_PATCH_ENTRIES = 100_000
"""Patches of up to so many entries a record are written out: more, and their memory costs more than they save."""


class KernelGradients(Contribution):
    """g_i of a kernel W, where z_i = convolution(x_i, W) is linear in W, and u_i is the gradient at z_i.

    The weighted sum is the framework's own kernel gradient of the whole batch. The norms: where the patches of an input
    are known (`patches`), by the formulas of `Products`; otherwise record by record.

    Args:
        x, u: (batch, ...), the convolution's input and the gradient at its output.
        convolution: (x, kernel) -> z, without bias.
        overlap: the most patches that hold one entry of the input: ||P||^2 <= overlap ||x||^2.
        patches: None, or x -> (batch, positions, inputs), where the kernel, flattened, is a matrix (inputs, units).
    """

    def __init__(
        self,
        variable: Any,
        x: tf.Tensor,
        u: tf.Tensor,
        convolution: Convolution,
        overlap: int,
        patches: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        super().__init__(variable)
        self.x, self.u = tf.cast(x, tf.float32), tf.cast(u, tf.float32)
        self.convolution, self.overlap, self.patches = convolution, overlap, patches
        self._products: Products | None = None

    def _like(self, x: tf.Tensor, u: tf.Tensor) -> KernelGradients:
        return KernelGradients(self.variable, x, u, self.convolution, self.overlap, self.patches)

    def products(self) -> Products | None:
        """The same as products of patches with upstream gradients, where that is cheaper than record by record."""
        if self._products is None and self.patches is not None:
            self._products = Products(self.variable, self.patches(self.x), positions(self.u))
        return self._products

    def one(self, x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
        """sum_i g_i of some records."""
        kernel = tf.zeros(self.variable.shape, tf.float32)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernel)
            outputs = self.convolution(x, kernel)
        return tape.gradient(outputs, kernel, output_gradients=u)

    def squared_norms(self) -> tf.Tensor:
        products = self.products()
        if products is not None:
            return products.squared_norms()

        def norm(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            return tf.reduce_sum(squared_norm(self.one(row[0][tf.newaxis], row[1][tf.newaxis])[tf.newaxis]))

        return tf.map_fn(norm, (self.x, self.u), fn_output_signature=tf.float32)

    def rounding(self) -> tuple[tf.Tensor, Any, Any]:
        space = list(range(1, len(self.u.shape) - 1))
        magnitudes = self.overlap * squared_norm(self.x) * squared_norm(self.u)
        terms = math.prod(self.variable.shape[:-1]) + self.u.shape[-1] + 2.0 * number_of(self.u, space)
        by_gram = self.patches is not None
        return magnitudes, terms * 2.0**-24 if by_gram else 0.0, 2.0 * summation_error(self.u, space)

    def underflow(self) -> Any:
        products = self.products()
        return 0.0 if products is None else products.underflow()

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self.one(self.x, self.u * tf.reshape(weights, [-1] + [1] * (len(self.u.shape) - 1)))

    def gradients(self) -> tf.Tensor:
        products = self.products()
        if products is not None:
            return products.gradients()
        each = tf.map_fn(
            lambda row: self.one(row[0][tf.newaxis], row[1][tf.newaxis]),
            (self.x, self.u),
            fn_output_signature=tf.float32,
        )
        return tf.reshape(each, (-1, *self.variable.shape))

    def keep(self, kept: tf.Tensor) -> KernelGradients:
        return self._like(zero_rows(self.x, kept), zero_rows(self.u, kept))

    def rows(self, start: Any, size: Any) -> KernelGradients:
        return self._like(self.x[start : start + size], self.u[start : start + size])


def convolution_of(operation: Any, layer: Any, padding: str, **options: Any) -> Callable[[Any, Any, Any], Any]:
    """(record, kernel, inputs) -> the layer's convolution, through a recorder.

    Args:
        operation: `keras.ops.conv`, `conv_transpose` or `depthwise_conv`.
        padding: "valid" or "same".
        options: arguments of the operation that differ from the layer's.
    """
    arguments = {"strides": tuple(layer.strides), "dilation_rate": layer.dilation_rate, "padding": padding} | options
    native = functools.partial(operation, data_format=layer.data_format, **arguments)
    last = functools.partial(operation, data_format="channels_last", **arguments)
    transpose = layer.data_format == "channels_first"

    def apply(record: Any, kernel: Any, inputs: Any) -> Any:
        outputs = native(inputs, constant(kernel, inputs.dtype))

        def contribution(u: tf.Tensor) -> Contribution:
            x = keras.ops.moveaxis(inputs, 1, -1) if transpose else inputs
            u = keras.ops.moveaxis(u, 1, -1) if transpose else u
            return kernel_contribution(kernel, x, u, operation, last, arguments)

        return record.note(kernel, outputs, contribution)

    return apply


def kernel_contribution(
    kernel: Any, x: tf.Tensor, u: tf.Tensor, operation: Any, convolution: Convolution, arguments: dict[str, Any]
) -> Contribution:
    """The kernel's gradients by the formula that measured fastest for these shapes; channels last."""
    rank = len(x.shape) - 2
    size, strides = kernel.shape[:rank], as_list(arguments["strides"], rank)
    plain = operation is keras.ops.conv and x.shape[-1] == kernel.shape[-2]
    if plain and set(size) == {1} and set(strides) == {1}:
        return Products(kernel, positions(x), positions(u))
    # A transposed convolution strides over its output: all taps of the kernel meet each entry of the input.
    steps = [1] * rank if operation is keras.ops.conv_transpose else strides
    overlap = math.prod(-(-k // s) for k, s in zip(size, steps, strict=True))
    entries = math.inf if None in u.shape[1:] else math.prod(u.shape[1:-1]) * math.prod(kernel.shape[:-1])
    patches = None
    if plain and rank <= 2 and entries <= _PATCH_ENTRIES:
        patches = patches_of(size, strides, as_list(arguments["dilation_rate"], rank), arguments["padding"])
    return KernelGradients(kernel, x, u, convolution, overlap, patches)


def patches_of(kernel: Sequence[int], strides: Sequence[int], rates: Sequence[int], padding: str) -> Any:
    """A function of x (batch, *space, channels), one or two space axes, to the patches that a convolution meets.

    Shapes: (batch, positions, inputs), the inputs in the order of the flattened kernel.
    """
    lift = len(kernel) == 1
    sizes, steps, dilations = ([1, *([1] if lift else []), *values, 1] for values in (kernel, strides, rates))

    def patches(x: tf.Tensor) -> tf.Tensor:
        found = tf.image.extract_patches(x[:, tf.newaxis] if lift else x, sizes, steps, dilations, padding.upper())
        return positions(found)

    return patches


def as_list(value: Any, rank: int) -> list[int]:
    """One number for each axis."""
    return [value] * rank if isinstance(value, int) else list(value)
