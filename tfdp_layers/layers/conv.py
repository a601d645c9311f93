"""Convolutions with a bounded backward pass."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.layers.base import AffineLayer
from tfdp_layers.per_record.groups import convolve
from tfdp_layers.rules.rows import L2, AffineL2, PatchL2, Rule, SpatialL1
from tfdp_layers.sensitivity import sensitivity_of

_BOUNDS = {True: ("exact",), False: ("spatial_l1", "patch")}
"""By whether the gradient itself is clipped."""


class BoundedConvolution(AffineLayer):
    """A bounded gradient for convolutions of any stride, padding, dilation, groups, data format and bias.

    Args (keyword only, beside those of the Keras layer):
        gradient_clip, input_clip, upstream_clip: see `BoundedLayer`.
        bound: which norms are clipped.
            With `gradient_clip` "exact": that of the record's own gradient of kernel and bias (`GradientClip`), P^T U
            and sum_p U[p] with P the record's patches, by the formula of `per_record` that is fastest for the shapes.
            With the two other clips "spatial_l1" (left out) or "patch". "spatial_l1": the input in the Euclidean norm,
            the upstream gradient in `SpatialL1`. Attained whatever the geometry. "patch": the input in `PatchL2`, the
            upstream gradient in the Euclidean norm (with a bias `AffineL2`). For kernels that overlap little, or many
            positions, the looser clip for the same guarantee; needs fixed spatial dimensions.

    Guarantee: one record moves the summed gradient of kernel and bias by at most gradient_clip (1 if "automatic"), or
        by upstream_clip * sqrt(input_clip^2 + 1), without bias upstream_clip * input_clip, each time the layer is used
        (proofs at `GradientClip` and at the rules).
    Raises: ValueError for an unknown bound, or a spatial dimension that is not fixed under "patch"; see `BoundedLayer`.
    Source: Stevens et al. 2022, arXiv:2202.05089, section 5, extended, for the two clips.
    """

    def __init__(self, *args: Any, bound: str | None = None, **kwargs: Any) -> None:
        factors = kwargs.get("input_clip") is not None or kwargs.get("upstream_clip") is not None
        allowed = _BOUNDS[not factors]
        if bound not in (None, *allowed):
            raise ValueError(
                "`bound` says which norms are clipped: with `gradient_clip`, or without a clip, one of"
                f" {_BOUNDS[True]}, with `input_clip` and `upstream_clip` one of {_BOUNDS[False]}. Received:"
                f" bound={bound!r}."
            )
        super().__init__(*args, **kwargs)
        self.bound = bound or allowed[0]

    @property
    def channels_first(self) -> bool:
        return self.data_format == "channels_first"

    @property
    def taps(self) -> tuple[int, ...]:
        """The spatial size of the kernel that is used, whatever `kernel_size` was set to since it was made."""
        return tuple(self.kernel.shape[: self.rank]) if self.built else tuple(self.kernel_size)

    def build(self, input_shape: Sequence[int | None]) -> None:
        super().build(input_shape)
        if self.bound == "patch":
            self.count_patches(tuple(input_shape[2:] if self.channels_first else input_shape[1:-1]))

    def count_patches(self, space: tuple[int | None, ...]) -> np.ndarray:
        """How many patches hold each pixel: (*space,); a product over the axes. Of the settings that the call uses.

        Raises: ValueError for a dimension that is not fixed.
        """
        fixed = [size for size in space if size is not None]
        if len(fixed) < len(space):
            raise ValueError(
                f"Layer {self.name!r} uses bound='patch', which counts the patches that hold each pixel, and its"
                f" input has a spatial dimension that is not fixed: {tuple(space)}. Fix it in keras.Input, or"
                " use bound='spatial_l1'."
            )
        geometry = zip(fixed, self.taps, self.strides, self.dilation_rate, strict=True)
        axes = [patches_on_axis(*axis, self.padding) for axis in geometry]
        return functools.reduce(np.multiply.outer, axes).astype(np.float32)

    @property
    def input_rule(self) -> Rule:
        if self.bound == "patch":
            return PatchL2(self.input_clip, self.count_patches, channels_first=self.channels_first)
        return L2(self.input_clip)

    @property
    def upstream_rule(self) -> Rule:
        if self.bound == "spatial_l1":
            return SpatialL1(self.upstream_clip, channels_first=self.channels_first, summed=True)
        if self.use_bias:
            return AffineL2(self.upstream_clip, self.input_clip, channels_first=self.channels_first, summed=True)
        return L2(self.upstream_clip, channels_first=self.channels_first, summed=True)

    def add_bias(self, outputs: tf.Tensor) -> Any:
        if not self.use_bias:
            return outputs
        bias = tf.convert_to_tensor(self.bias)
        # Not keras.ops.add: it takes the last axis for the channels where that is as long, and the bound does not hold.
        if self.channels_first:
            return tf.add(outputs, tf.reshape(bias, (1, -1) + (1,) * self.rank))
        return tf.nn.bias_add(outputs, bias)  # TensorFlow makes one operation of it and the convolution

    def linear(self, inputs: tf.Tensor) -> Any:
        """The convolution, by Keras' own operation (see `convolve`)."""
        padding = self.padding
        if padding == "causal":  # 1D only: zeros before the first step, then no padding
            before = [[self.dilation_rate[0] * (self.taps[0] - 1), 0]]
            inputs = keras.ops.pad(inputs, [[0, 0], *([[0, 0], *before] if self.channels_first else [*before, [0, 0]])])
            padding = "valid"
        options = {"dilation_rate": self.dilation_rate, "data_format": self.data_format}
        return convolve(inputs, self.kernel, strides=list(self.strides), padding=padding, **options)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"bound": self.bound}


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedConv1D(BoundedConvolution, keras.layers.Conv1D):
    __doc__ = "`keras.layers.Conv1D`, bounded. Shapes: (batch, steps, channels) as in Keras.\n" + str(
        BoundedConvolution.__doc__
    )


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedConv2D(BoundedConvolution, keras.layers.Conv2D):
    __doc__ = "`keras.layers.Conv2D`, bounded. Shapes: (batch, height, width, channels).\n" + str(
        BoundedConvolution.__doc__
    )


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedConv3D(BoundedConvolution, keras.layers.Conv3D):
    __doc__ = "`keras.layers.Conv3D`, bounded. Shapes: (batch, d1, d2, d3, channels).\n" + str(
        BoundedConvolution.__doc__
    )


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedDepthwiseConv2D(BoundedConvolution, keras.layers.DepthwiseConv2D):
    __doc__ = (
        "`keras.layers.DepthwiseConv2D`, bounded. Shapes: (batch, height, width, channels). Its kernel gradient is a"
        " restriction of the full convolution's.\n" + str(BoundedConvolution.__doc__)
    )

    def linear(self, inputs: tf.Tensor) -> Any:
        options = {"padding": self.padding, "dilation_rate": self.dilation_rate, "data_format": self.data_format}
        return keras.ops.depthwise_conv(inputs, self.kernel, strides=self.strides, **options)


def patches_on_axis(size: int, kernel: int, stride: int, dilation: int, padding: str) -> np.ndarray:
    """How many positions of a 1D convolution have each input index under one of their kernel taps: (size,)."""
    reach = (kernel - 1) * dilation + 1
    before = reach - 1 if padding == "causal" else 0
    positions = (size + before - reach) // stride + 1
    if padding == "same":
        positions = -(-size // stride)
        before = max((positions - 1) * stride + reach - size, 0) // 2
    taps = np.arange(positions)[:, None] * stride + np.arange(kernel) * dilation - before
    return np.bincount(taps[(taps >= 0) & (taps < size)], minlength=size)


sensitivity_of(ClippedConv1D, ClippedConv2D, ClippedConv3D, ClippedDepthwiseConv2D)(BoundedConvolution.sensitivity)
