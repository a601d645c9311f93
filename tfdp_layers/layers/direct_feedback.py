"""Direct feedback into layers of any kind."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.layers.feedback_base import FixedFeedback
from tfdp_layers.rules.rows import L2


@keras.saving.register_keras_serializable(package="tfdp_layers")
class DirectFeedback(FixedFeedback, keras.layers.Layer):
    """Passes its input through; on the way back the layers below get the output error through a fixed random matrix,
    instead of the gradient from above.

    It returns its input and an error sink: zeros of the logits' shape, to be passed to a `FeedbackOutput`, or added to
    the logits by keras.layers.Add. Put after each convolution, it makes a convolutional network learn by direct
    feedback alignment, and no gradient is carried from one convolution to the one below:

        h = tfdp.layers.ClippedConv2D(64, 5, activation="tanh", input_clip=30.0, upstream_clip=0.01)(inputs)
        h, s1 = tfdp.layers.DirectFeedback(10)(keras.layers.MaxPooling2D(2)(h))
        h = tfdp.layers.ClippedConv2D(64, 5, activation="tanh", input_clip=30.0, upstream_clip=0.01)(h)
        h, s2 = tfdp.layers.DirectFeedback(10)(keras.layers.MaxPooling2D(2)(h))
        h, s3 = tfdp.layers.FeedbackDense(384, "tanh", 10, activation_clip=5.0)(keras.layers.Flatten()(h))
        logits = tfdp.layers.FeedbackOutput(10, activation_clip=5.0)([h, s1, s2, s3])

    Forward: y = x, and zeros. Backward, per record: dL/dx = clip(e, error_clip) B in the shape of x, with e the
    gradient at the sink; dL/dy is not used. Without a use of the sink the layers below learn nothing.

    Guarantee: a record's dL/dx comes from that record's error alone, and has L2 norm at most error_clip *
    feedback_norm, zero if the error is not finite. That bounds no weight's gradient: the layers below are bounded as
    in any private model, by their own clips or the optimizer's.

    Shapes: (batch, ...), whose other dimensions are known -> the same, and (batch, output_units).
    Args:
        output_units: number of logits, the width of the error.
        error_clip, feedback_norm, feedback_seed, feedback: see `FixedFeedback`.

    Raises: ValueError for arguments out of range, or a dimension of the input that is not known.
    Source: Noekland 2016, arXiv:1609.01596. Lee and Kifer 2020, arXiv:2010.03701, advise against it for convolutions.
    """

    def __init__(self, output_units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.output_units = int(output_units)
        if self.output_units < 1:
            raise ValueError(f"`output_units` must be positive. Received: output_units={output_units!r}.")

    def build(self, input_shape: Sequence[int | None]) -> None:
        sizes = [size for size in input_shape[1:] if size is not None]
        if len(sizes) < len(input_shape) - 1:
            raise ValueError(
                f"Layer {self.name!r} brings the error to every entry of its input through a matrix of fixed size."
                f" Received shape {tuple(input_shape)}: fix its dimensions in keras.Input."
            )
        self.matrix = self.add_feedback((self.output_units, math.prod(sizes)))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tuple[Any, Any]:
        x = tf.convert_to_tensor(inputs)
        return direct_feedback(x, tf.cast(tf.convert_to_tensor(self.matrix), tf.float32), L2(self.error_clip))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[Any, tuple[Any, int]]:
        return tuple(input_shape), (input_shape[0], self.output_units)

    def to_keras(self, inputs: keras.KerasTensor) -> tuple[Any, Any]:
        """The input and the sink's zeros, from a Keras tensor."""
        flat = keras.ops.reshape(inputs, (-1, math.prod(inputs.shape[1:])))
        zeros = keras.ops.repeat(keras.ops.zeros_like(flat[:, :1]), self.output_units, axis=1)
        return keras.layers.Identity()(inputs), zeros

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"output_units": self.output_units}


def direct_feedback(x: tf.Tensor, feedback: tf.Tensor, error_rule: L2) -> tuple[tf.Tensor, tf.Tensor]:
    """The identity, whose gradient is the sink's, clipped, times `feedback`; and the sink. It closes over no variable.

    Args:
        x: (batch, ...).
        feedback: (width of the error, entries of a record of x), float32.
        error_rule: of the error at the sink, (batch, width).

    Returns: x, and zeros (batch, width), float32.
    """

    @tf.custom_gradient
    def identity(x: tf.Tensor) -> tuple[Any, Any]:
        def gradient(_: tf.Tensor, error: tf.Tensor) -> tf.Tensor:
            delta = tf.linalg.matmul(error_rule(error), feedback)
            return tf.cast(tf.reshape(delta, tf.shape(x)), x.dtype)

        return (tf.identity(x), tf.zeros((tf.shape(x)[0], feedback.shape[0]), tf.float32)), gradient

    return identity(x)
