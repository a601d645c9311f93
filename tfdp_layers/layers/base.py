"""What the clipped layers share: a bounded input on the way forward, a bounded upstream gradient on the way back."""

import abc
import math
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdp_layers.layers.carried import PaidLayer
from tfdp_layers.layers.gradient_clip import Clip, GradientClip, chosen_clip, with_bounded_gradient
from tfdp_layers.rules.rows import Rule, bound_upstream, check_bound, scale_rows, select_rows
from tfdp_layers.uses.counted import count_uses as count_uses
from tfdp_layers.uses.counted import inspect_uses as inspect_uses


class BoundedLayer(PaidLayer):
    """Mixin for a Keras layer whose weight gradient is bounded per record inside its own backward pass.

    Formal guarantee: for every record, whatever it holds and whatever the weights are, the gradient of that record's
    loss with respect to all trainable weights of the layer has L2 norm at most `sensitivity()` for each time the layer
    is used. With `gradient_clip` a record whose gradient is not finite, or overflows, adds zero. With the two other
    clips a record whose input is not finite, or overflows, counts as one of zeros (its kernel gradient is zero, its
    bias gradient bounded as ever); an upstream gradient that is not finite counts as zero.

    Args (keyword only, beside those of the Keras layer): `gradient_clip` alone, or the two others, or none of them,
        which is gradient_clip="automatic". The loss is the record's own: it is never divided by the batch size.
        gradient_clip: bound on each record's gradient of the layer's weights by its own norm, in units of per-record
            loss per unit of weight, or "automatic", which divides by that norm: see `GradientClip`. The forward pass
            and the gradient that flows on below are those of Keras.
        input_clip: bound on each record's input, in units of the input.
        upstream_clip: bound on each record's upstream gradient, in units of per-record loss per unit of linear output.

    Raises:
        ValueError: if a clip is not a positive finite number, or clips of both kinds are given; if the layer has
            weights of another type than float32, has LoRA enabled or is quantized.

    Under a policy of 16 bits ("mixed_bfloat16") products of `gradient_clip` are in these, but for those of which norms
    and sums over records are made; with the two other clips all but the output stays in float32.
    """

    mixed = True

    def __init__(
        self,
        *args: Any,
        input_clip: float | None = None,
        upstream_clip: float | None = None,
        gradient_clip: Clip | None = None,
        **kwargs: Any,
    ) -> None:
        gradient_clip = chosen_clip(gradient_clip, {"input_clip": input_clip, "upstream_clip": upstream_clip})
        super().__init__(*args, **kwargs)
        self.set_clips(gradient_clip, input_clip, upstream_clip)

    def set_clips(self, gradient_clip: Any, input_clip: Any, upstream_clip: Any) -> None:
        """Keeps the clips: the first alone, or the two others with None for the first."""
        if gradient_clip is None:
            check_bound(input_clip=input_clip, upstream_clip=upstream_clip)
            input_clip, upstream_clip = float(input_clip), float(upstream_clip)
        self.gradient_clip: Any = gradient_clip
        self.input_clip: Any = input_clip
        self.upstream_clip: Any = upstream_clip

    @property
    @abc.abstractmethod
    def input_rule(self) -> Rule:
        """Bounds each record's input on the way forward."""

    @property
    @abc.abstractmethod
    def upstream_rule(self) -> Rule:
        """Bounds each record's upstream gradient on the way back."""

    @abc.abstractmethod
    def affine(self, inputs: tf.Tensor) -> Any:
        """The layer without its activation."""

    def affine_of_clipped(self, inputs: tf.Tensor) -> Any:
        """`affine` of the inputs as `input_rule` bounds them."""
        return self.affine(self.input_rule(inputs))

    def sensitivity(self) -> float:
        """L2 bound on what one use of the layer adds, per record, to the summed gradient of its kernel and bias."""
        if self.gradient_clip is not None:
            return GradientClip(self.gradient_clip).bound
        return self.upstream_clip * math.hypot(self.input_clip, float(bool(self.use_bias)))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> Any:
        inputs = self.begin_use(inputs)
        if self.gradient_clip is not None:
            outputs = with_bounded_gradient(self, inputs, GradientClip(self.gradient_clip))
        else:
            outputs = bound_upstream(self.affine_of_clipped(inputs), self.upstream_rule)
        outputs = self.end_use(inputs, outputs)
        # Outside the bound: an activation may be anything that keeps records apart.
        return outputs if self.activation is None else self.activation(outputs)

    def get_config(self) -> dict[str, Any]:
        if self.gradient_clip is not None:
            return super().get_config() | {"gradient_clip": self.gradient_clip}
        return super().get_config() | {"input_clip": self.input_clip, "upstream_clip": self.upstream_clip}


class UpstreamBoundedLayer(PaidLayer):
    """Mixin for a Keras layer whose weight gradient is bounded by a clip on the way back alone: the forward pass is
    that of Keras.

    Formal guarantee: as `BoundedLayer`; the bound is that of the clip for each time the layer is used.

    Args (keyword only, beside those of the Keras layer): one of them; none is gradient_clip="automatic".
        gradient_clip: see `BoundedLayer`.
        upstream_clip: bound on what each record adds to the gradient of all trainable weights of the layer, in units
            of per-record loss per unit of weight. The loss is the record's own: never divided by the batch size.

    Raises:
        ValueError: if the clip is not a positive finite number; if the layer has weights of another type than float32,
            has LoRA enabled or is quantized.
    """

    mixed = True

    def __init__(
        self, *args: Any, upstream_clip: float | None = None, gradient_clip: Clip | None = None, **kwargs: Any
    ) -> None:
        gradient_clip = chosen_clip(gradient_clip, {"upstream_clip": upstream_clip})
        if upstream_clip is not None:
            check_bound(upstream_clip=upstream_clip)
            upstream_clip = float(upstream_clip)
        super().__init__(*args, **kwargs)
        self.gradient_clip: Any = gradient_clip
        self.upstream_clip: Any = upstream_clip

    def sensitivity(self) -> float:
        """L2 bound on what one use of the layer adds, per record, to the summed gradient of its weights."""
        if self.gradient_clip is not None:
            return GradientClip(self.gradient_clip).bound
        return self.upstream_clip

    def get_config(self) -> dict[str, Any]:
        if self.gradient_clip is not None:
            return super().get_config() | {"gradient_clip": self.gradient_clip}
        return super().get_config() | {"upstream_clip": self.upstream_clip}


class AffineLayer(BoundedLayer):
    """A bounded layer whose output, before the activation, is linear in its input, apart from a bias."""

    @abc.abstractmethod
    def linear(self, inputs: tf.Tensor) -> Any:
        """The layer without bias and activation."""

    @abc.abstractmethod
    def add_bias(self, outputs: tf.Tensor) -> Any:
        """The outputs with the bias, if there is one."""

    def affine(self, inputs: tf.Tensor) -> Any:
        return self.add_bias(self.linear(inputs))

    def affine_of_clipped(self, inputs: tf.Tensor) -> Any:
        """`affine` of the clipped inputs, each record's scale s put where there are fewer numbers to multiply.

        linear(s x) = s linear(x), and the gradient of the kernel, linear in x and in the upstream gradient v, is the
        same of (s x, v) as of (x, s v). Rounding errs alike: s is off as before, and each number that s multiplies is
        rounded once, relative to its size, whichever factor it is of; `SMALLEST_SCALE` keeps it from the denormals.
        The products that are summed have the same sizes as before, at most those of the clipped factors, so no record
        is rounded away by, or overflows into, another's.
        """
        scales = tf.stop_gradient(self.input_rule.scales(inputs))
        entries, results = (size(shape[1:]) for shape in (inputs.shape, self.compute_output_shape(inputs.shape)))
        if entries is None or results is None or 2 * results > entries:
            return self.affine(scale_rows(inputs, scales))
        return self.add_bias(scale_rows(self.linear(select_rows(inputs, scales)), scales))


def size(shape: Iterable[int | None]) -> int | None:
    """The number of entries, None if a dimension is not known."""
    sizes = tuple(shape)
    known = [n for n in sizes if n is not None]
    return None if len(known) < len(sizes) else math.prod(known)
