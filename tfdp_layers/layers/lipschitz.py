"""Dense layers and convolutions that stretch nothing, and the activation between them."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.layers.conv import patches_on_axis
from tfdp_layers.layers.lipschitz_base import LipschitzLayer
from tfdp_layers.rules.spectral import convolution_bound, spectral_bound
from tfdp_layers.structure import KerasMixin


@keras.saving.register_keras_serializable(package="tfdp_layers")
class LipschitzDense(LipschitzLayer, keras.layers.Dense):
    """`keras.layers.Dense` whose kernel has spectral norm at most 1, and whose bound follows from its neighbours'.

    Guarantee: with inputs of norm at most r and upstream gradients of norm at most p, one record moves the summed
        gradient of the kernel by at most r p each time the layer is used, of kernel and bias by sqrt(r^2 + 1) p
        (T positions: sqrt(r^2 + T) p), but for a fraction for rounding (`LipschitzLayer.bound`). Attained.
    The certificate: `rules.spectral.spectral_bound`.
    Arguments, forward and backward pass: see `LipschitzLayer`; the others are those of Dense.

    Shapes: (batch, ..., features) -> (batch, ..., units).
    Raises: see `LipschitzLayer`.
    """

    def norm_bound(self, kernel: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
        return spectral_bound(kernel)

    def linear(self, inputs: tf.Tensor, kernel: tf.Tensor) -> Any:
        return keras.ops.matmul(inputs, kernel)

    def overlap(self, shape: Sequence[int | None]) -> float:
        return 1.0

    @property
    def matrix_shape(self) -> tuple[int, int]:
        return tuple(self.kernel.shape)


@keras.saving.register_keras_serializable(package="tfdp_layers")
class LipschitzConv2D(LipschitzLayer, keras.layers.Conv2D):
    """`keras.layers.Conv2D` that stretches no picture, and whose bound follows from its neighbours'.

    Guarantee: with inputs of norm at most r and upstream gradients of norm at most p, one record moves the summed
        gradient of the kernel by at most sqrt(m) r p each time the layer is used, of kernel and bias by
        sqrt(m r^2 + T) p at T positions; m is the number of positions that meet the same pixel: height * width of the
        kernel with stride 1, and 1 where the strides are the kernel's size. Attained where m = 1. Where kernels
        overlap, approached by pictures that are large beside the kernel: constant ones of n x n, "valid", attain
        (n - k + 1) / n.
    The certificate: `rules.spectral.convolution_bound`, for any stride, dilation and padding with zeros.
    Arguments, forward and backward pass: see `LipschitzLayer`; the others are those of Conv2D.

    Shapes: (batch, height, width, channels) as in Keras.
    Raises: ValueError for groups, channels_first; see `LipschitzLayer`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.refuse_geometry()

    def refuse_geometry(self) -> None:
        """Raises ValueError for settings that the certificate does not cover."""
        if self.groups != 1 or self.data_format != "channels_last":
            raise ValueError(
                "LipschitzConv2D certifies kernels without groups, of pictures (batch, height, width, channels)."
                f" Received: groups={self.groups}, data_format={self.data_format!r}. Leave both out."
            )
        for name in ("strides", "dilation_rate"):
            sizes = getattr(self, name)
            if not isinstance(sizes, tuple | list) or not all(isinstance(one, int | np.integer) for one in sizes):
                raise ValueError(
                    f"`{name}` of a LipschitzConv2D is a tuple of integers, by which its bound is counted. Received:"
                    f" {type(sizes).__name__}, whose numbers may change unseen. Write tuple(int(n) for n in ...)."
                )

    def refuse_unbounded(self) -> None:
        super().refuse_unbounded()
        self.refuse_geometry()

    def norm_bound(self, kernel: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
        positions = tuple(self.compute_output_shape(shape))[1:3]
        return convolution_bound(kernel, self.strides, self.dilation_rate, positions)

    def linear(self, inputs: tf.Tensor, kernel: tf.Tensor) -> Any:
        options = {"padding": self.padding, "dilation_rate": self.dilation_rate, "data_format": self.data_format}
        return keras.ops.conv(inputs, kernel, strides=list(self.strides), **options)

    def overlap(self, shape: Sequence[int | None]) -> float:
        geometry = zip(shape[1:3], self.kernel.shape[:2], self.strides, self.dilation_rate, strict=True)
        return float(math.prod(most_patches(*axis, self.padding) for axis in geometry))

    @property
    def matrix_shape(self) -> tuple[int, int]:
        *rows, columns = self.kernel.shape
        return math.prod(rows), columns


def most_patches(size: int | None, kernel: int, stride: int, dilation: int, padding: str) -> int:
    """How many positions of a 1D convolution meet the same entry at most.

    Where the size is not known, the number of taps that fall on one entry: they lie stride / gcd(stride, dilation)
    apart.
    """
    if size is None:
        return -(-kernel * math.gcd(stride, dilation) // stride)
    return int(patches_on_axis(size, kernel, stride, dilation, padding).max())


@keras.saving.register_keras_serializable(package="tfdp_layers")
class GroupSort(KerasMixin, keras.layers.Layer):
    """Sorts the channels in groups, the largest first: an activation that keeps every norm, in both directions.

    Forward: neighbouring channels, `group_size` of them, in falling order. Backward: each entry's gradient goes where
    the entry came from, also where entries are equal (the gradients of max and min would both go to the first of two).
    So between layers that stretch nothing, neither values nor gradients shrink as with ReLU and tanh.

    Shapes: (..., channels), unchanged.
    Args:
        group_size: how many channels are sorted together; 2 is "MaxMin".

    Raises: ValueError unless it is an integer of at least 2 that divides the number of channels.
    Source: Anil, Lucas and Grosse 2019, arXiv:1811.05381, section 4.2.
    """

    def __init__(self, group_size: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(group_size, int | np.integer) or isinstance(group_size, bool) or group_size < 2:
            raise ValueError(f"`group_size` must be an integer of at least 2. Received: group_size={group_size!r}.")
        self.group_size = int(group_size)

    def build(self, input_shape: Sequence[int | None]) -> None:
        channels = input_shape[-1]
        if channels is None or channels % self.group_size:
            raise ValueError(
                f"Layer {self.name!r} sorts channels in groups of {self.group_size}, and its input has {channels}."
                f" Give the layer below a multiple of {self.group_size} units."
            )
        self.built = True

    def call(self, inputs: tf.Tensor) -> Any:
        shape = [tf.shape(inputs)[axis] if n is None else n for axis, n in enumerate(inputs.shape)]
        flat = tf.reshape(inputs, [*shape[:-1], inputs.shape[-1] // self.group_size, self.group_size])
        columns = tf.unstack(flat, axis=-1)
        # Odd-even transposition sort: as many rounds as columns.
        for turn in range(self.group_size if self.group_size > 2 else 1):
            for first in range(turn % 2, self.group_size - 1, 2):
                columns[first : first + 2] = larger_first(*columns[first : first + 2])
        return tf.reshape(tf.stack(columns, axis=-1), shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def to_keras(self, inputs: keras.KerasTensor) -> Any:
        """The same of a Keras tensor, by Keras' operations."""
        shape = (-1, *inputs.shape[1:])
        groups = keras.ops.reshape(inputs, (*shape[:-1], shape[-1] // self.group_size, self.group_size))
        return keras.ops.reshape(-keras.ops.sort(-groups, axis=-1), shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"group_size": self.group_size}


def larger_first(a: tf.Tensor, b: tf.Tensor) -> list[Any]:
    """The larger and the smaller of each two entries; equal ones stay in their places."""
    turned = a < b
    return [tf.where(turned, b, a), tf.where(turned, a, b)]
