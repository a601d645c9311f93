"""Normalizations within a record, with a bounded backward pass."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.layers.base import UpstreamBoundedLayer
from tfdp_layers.layers.gradient_clip import GradientClip, with_bounded_gradient
from tfdp_layers.rules.rows import L2, bound_upstream
from tfdp_layers.sensitivity import sensitivity_of


class BoundedNormalization(UpstreamBoundedLayer):
    """A bounded gradient for a layer that normalizes each record by itself, then scales and shifts it.

    Forward: gamma * normalized + beta, as in Keras.
    Backward: each record's own gradient of gamma and beta, sum_t normalized[t] * u[t] and sum_t u[t], is formed, and
    the two together are scaled to at most upstream_clip, or as `GradientClip` says, in the Euclidean norm. What flows
    on below is not clipped: the layers there bound what reaches their own weights.

    Guarantee: one record moves the summed gradient of gamma and beta, taken together, by at most the clip (1 if
        "automatic") each time the layer is used. Their exact norm is clipped, so every record with a large gradient
        attains it.
    Raises: ValueError if the axes include the batch, or for the deprecated rms_scaling; see `UpstreamBoundedLayer`.
    """

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.refuse_axes(len(input_shape))
        super().build(input_shape)

    def begin_use(self, inputs: tf.Tensor) -> tf.Tensor:
        """As in every layer; what is refused at first is refused in each use, too: settings may change between."""
        inputs = super().begin_use(inputs)
        self.refuse_axes(len(inputs.shape))
        return inputs

    def refuse_axes(self, rank: int) -> None:
        """Raises ValueError for settings that the bound does not cover."""
        if getattr(self, "rms_scaling", False):
            raise ValueError(
                f"Layer {self.name!r} has rms_scaling=True, deprecated in Keras, for which no bound is derived."
                " Leave it out."
            )
        if 0 in self.scaled_axes(rank):
            raise ValueError(
                f"Layer {self.name!r} normalizes over axis 0, the batch: one record would move every other record's"
                f" gradient. Received: axis={self.axis!r}. Use axes of the record, for example axis=-1."
            )

    def scaled_axes(self, rank: int) -> list[int]:
        """The axes along which gamma and beta vary."""
        axes = self.axis if isinstance(self.axis, Sequence) else [self.axis]
        return [axis % rank for axis in axes]

    def normalized(self, inputs: tf.Tensor) -> tf.Tensor:
        """The inputs, normalized by the same Keras layer without weights."""
        names = [name for name in ("groups", "axis", "epsilon") if hasattr(self, name)]
        base: Any = keras.layers.GroupNormalization if "groups" in names else keras.layers.LayerNormalization
        options = {name: getattr(self, name) for name in names}
        return base(center=False, scale=False, dtype="float32", name=self.name, **options)(inputs)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> Any:
        inputs = self.begin_use(inputs)
        if self.gradient_clip is not None:
            return self.end_use(inputs, with_bounded_gradient(self, inputs, GradientClip(self.gradient_clip)))
        outputs = self.normalized(inputs)
        weights = [weight for weight in (self.gamma, self.beta) if weight is not None]
        if weights:
            # A copy of the weights for each record: its upstream gradient is the record's own gradient of them.
            flat = tf.concat([tf.reshape(keras.ops.convert_to_tensor(weight), [-1]) for weight in weights], 0)
            copies = tf.broadcast_to(flat, [tf.shape(inputs)[0], flat.shape[0]])
            parts = tf.split(bound_upstream(copies, L2(self.upstream_clip)), len(weights), axis=1)
            kept = self.scaled_axes(len(inputs.shape))
            shape = [-1] + [inputs.shape[axis] if axis in kept else 1 for axis in range(1, len(inputs.shape))]
            parts = [tf.reshape(part, shape) for part in parts]
            outputs = outputs * parts[0] if self.gamma is not None else outputs
            outputs = outputs + parts[-1] if self.beta is not None else outputs
        return self.end_use(inputs, outputs)


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedLayerNormalization(BoundedNormalization, keras.layers.LayerNormalization):
    __doc__ = "`keras.layers.LayerNormalization`, bounded. Shapes: (batch, ...), unchanged.\n" + str(
        BoundedNormalization.__doc__
    )


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedGroupNormalization(BoundedNormalization, keras.layers.GroupNormalization):
    __doc__ = "`keras.layers.GroupNormalization`, bounded. Shapes: (batch, ..., channels), unchanged.\n" + str(
        BoundedNormalization.__doc__
    )


sensitivity_of(ClippedLayerNormalization, ClippedGroupNormalization)(BoundedNormalization.sensitivity)
