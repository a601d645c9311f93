"""EinsumDense with a bounded backward pass."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.layers.base import BoundedLayer
from tfdp_layers.rules.einsum import explicit
from tfdp_layers.rules.rows import L2, Rule, bound_upstream, per_record
from tfdp_layers.rules.sequences import EinsumL2
from tfdp_layers.sensitivity import sensitivity_of


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedEinsumDense(BoundedLayer, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` with a bounded gradient: the arguments of EinsumDense, and `gradient_clip`, or two
    clips.

    gradient_clip=C (or "automatic", where no clip is given; then C is 1):
    Forward and what flows on below: those of EinsumDense.
    Guarantee: one record moves the summed gradient of kernel and bias by at most C each time the layer is used
        (`GradientClip`).

    input_clip and upstream_clip:
    Forward: activation(einsum(equation, clip(x), kernel) + bias), the clip scaling each record to ||x||_F <=
    input_clip.
    Backward: each record's upstream gradient is scaled to at most upstream_clip in the norm of `EinsumL2`.

    Shapes: as the equation says; its first label is the batch.
    Guarantee: one record moves the summed gradient of kernel and bias by at most
        upstream_clip * sqrt(input_clip^2 + 1), without bias upstream_clip * input_clip, each time the layer is used,
        for every equation that is not refused and all `bias_axes` (proof at `EinsumL2`).
    Raises: ValueError if the equation uses the batch in the kernel, moves it, repeats a label, or sums the input over
        an axis of its own; if `bias_axes` has the batch; see `BoundedLayer`.
    """

    _rank = 0
    _held: tuple[Any, ...] = ()

    def build(self, input_shape: Sequence[int | None]) -> None:
        self._rank = len(input_shape)
        self.refuse_equation()
        super().build(input_shape)

    def begin_use(self, inputs: tf.Tensor) -> tf.Tensor:
        """As in every layer. Raises ValueError where the equation is not that which was checked, with its rank."""
        inputs, now = super().begin_use(inputs), (self.equation, self.bias_axes)
        if now != self._held or ("..." in self.equation and len(inputs.shape) != self._rank):
            raise ValueError(
                f"Layer {self.name!r} was built for (equation, bias_axes) = {self._held} and inputs of {self._rank}"
                " axes, which its weights and its bound are made for, and is called with"
                f" {now} on {len(inputs.shape)} axes. Make a new layer with what you want."
            )
        return inputs

    def labels(self) -> tuple[str, str, str]:
        """The labels of inputs, kernel and outputs, the ellipsis written out."""
        inputs, kernel, outputs = explicit(self.equation, self._rank).replace("->", ",").split(",")
        return inputs, kernel, outputs

    def refuse_equation(self) -> None:
        """Raises ValueError for an equation that the bound does not cover."""
        inputs, kernel, outputs = self.labels()
        alone = sorted(set(inputs[1:]) - set(kernel) - set(outputs))
        reason = None
        if any(len(set(part)) < len(part) for part in (inputs, kernel, outputs)):
            reason = "repeats a label (takes a diagonal). Write each label once an operand"
        elif alone:
            reason = f"sums the input over {alone}, which its clip does not bound. Sum over it before the layer"
        elif outputs[0] in (self.bias_axes or ""):
            reason = f"has the batch in bias_axes={self.bias_axes!r}: a record's weight is its own. Leave it out"
        if reason:
            raise ValueError(f"Layer {self.name!r} with equation {self.equation!r} {reason}.")
        self._held = (self.equation, self.bias_axes)  # both, with the weights made for them, are settled here

    @property
    def use_bias(self) -> bool:
        return self.bias_axes is not None

    @property
    def input_rule(self) -> Rule:
        return L2(self.input_clip)

    @property
    def upstream_rule(self) -> Rule:
        _, kernel, outputs = self.labels()
        axes = dict(enumerate(outputs))
        del axes[0]
        positions = tuple(axis for axis, label in axes.items() if label not in kernel)
        lacking = tuple(axis for axis, label in axes.items() if label not in (self.bias_axes or ""))
        bias_positions = lacking if self.use_bias else None
        return EinsumL2(self.upstream_clip, self.input_clip, positions, bias_positions, summed=True)

    def affine(self, inputs: tf.Tensor) -> Any:
        outputs = keras.ops.einsum(self.equation, inputs, self.kernel)
        # Not keras.ops.add: it takes the last axis for the bias' where that is as long, and the bound does not hold.
        return tf.add(outputs, tf.convert_to_tensor(self.bias)) if self.use_bias else outputs


@keras.saving.register_keras_serializable(package="tfdp_layers")
class FaithfulEinsumDense(ClippedEinsumDense):
    """`ClippedEinsumDense` whose forward pass is that of Keras: the clip of the input is undone behind the bound.

    With `gradient_clip` that of `ClippedEinsumDense`. With the two clips:

    Forward: with s the scale in [0, 1] that brings x to ||s x||_F <= input_clip, (einsum(s x, kernel) + s bias) / s.
    Backward: the upstream gradient u / s of the product is scaled to at most upstream_clip in the norm of `EinsumL2`.
    So a record is scaled down where ||u|| max(1, ||x|| / input_clip) exceeds upstream_clip, and is otherwise exact.

    Guarantee: that of `ClippedEinsumDense`: the kernel meets s x and an upstream gradient within its clip, the bias s
        times that gradient, and s <= 1. A record whose input is not finite has s = 0: it puts out zeros, and adds zero.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> Any:
        if self.gradient_clip is not None:
            return super().call(inputs, training=training)
        inputs = self.begin_use(inputs)
        rule = self.input_rule
        scales = tf.stop_gradient(rule.scales(inputs))
        outputs = keras.ops.einsum(self.equation, rule(inputs), self.kernel)
        if self.use_bias:
            outputs += per_record(scales, outputs) * self.bias
        outputs = bound_upstream(outputs, self.upstream_rule)
        outputs = self.end_use(inputs, outputs / per_record(tf.where(scales > 0.0, scales, 1.0), outputs))
        return outputs if self.activation is None else self.activation(outputs)


sensitivity_of(ClippedEinsumDense, FaithfulEinsumDense)(ClippedEinsumDense.sensitivity)
