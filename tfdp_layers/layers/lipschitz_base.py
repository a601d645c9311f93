"""What Lipschitz layers share: kernels that stretch nothing, and bounds that follow from those of their neighbours."""

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.layers.base import size
from tfdp_layers.layers.carried import PaidLayer
from tfdp_layers.rules.rows import L2, bound_upstream, check_bound

_UNIT = 2.0**-24
"""The unit roundoff of float32."""


class LipschitzLayer(PaidLayer):
    """Mixin for a Keras layer whose kernel stretches no vector, so that norms known at the ends of a model are known at
    every layer, and no record's gradient is looked at.

    With ||x|| <= r for every record's input and ||u|| <= p for every record's upstream gradient, where positions share
    the kernel m times for each pixel at most (dense layers: m = 1), a record's gradient of the kernel is at most
    sqrt(m) r p; r and p come from the neighbours:

        model = tfdp.PrivateSequential([
            keras.Input((28, 28, 1)),
            tfdp.layers.LipschitzConv2D(16, 4, strides=4, input_clip=8.0),     # every picture onto a ball of radius 8
            tfdp.layers.GroupSort(2),
            keras.layers.Flatten(),
            tfdp.layers.LipschitzDense(10, upstream_clip=0.5),                 # the gradient at the logits: at most 0.5
        ])

    Forward: activation(clip(x) * W' + b'). W' = W / max(1, s), s being a certified upper bound on how much W stretches
        (`rules.spectral`), computed in every call from the weights used there: so the bound holds whatever the weights
        are. b' is b, scaled to norm bias_clip at most.
    Backward: W gets the gradient of W' and b that of b': to project weights which were released is post-processing,
        and nothing flows through it. Where upstream_clip is given, the upstream gradient of the linear output is
        scaled to it, which bounds all layers below.

    Args (keyword only, beside those of the Keras layer, of which `use_bias` is False and `kernel_initializer`
        "orthogonal" unless given; a `kernel_constraint` keeps the kernel where the layer uses it, see `Orthogonal`):
        input_clip: bound on each record's input, which is scaled to it; needed where no layer below bounds it. One at
            the model's entry serves all layers. In units of the input.
        upstream_clip: bound on each record's upstream gradient; needed where no layer above bounds it. One at the
            logits serves all layers. In units of per-record loss per unit of linear output.
        bias_clip: bound on the norm of the bias; needed where Lipschitz layers come above, whose inputs it moves.

    Formal guarantee: in a certified model (`fit` certifies), for every record, whatever it holds and whatever the
        weights are, the gradient of that record's loss with respect to kernel and bias has L2 norm at most
        `bound(r, p)` for each use. A record whose input is not finite counts as zeros where `input_clip` is, an
        upstream gradient that is not finite as zero where `upstream_clip` is.
    Raises: ValueError if a clip is not a positive finite number; if the layer computes in another type than float32,
        has LoRA enabled or is quantized.
    Source: Bethune et al. 2024, arXiv:2305.16202. There the norm of a kernel comes from power iteration, a lower bound.
    """

    def __init__(
        self,
        *args: Any,
        input_clip: float | None = None,
        upstream_clip: float | None = None,
        bias_clip: float | None = None,
        **kwargs: Any,
    ) -> None:
        clips = {"input_clip": input_clip, "upstream_clip": upstream_clip, "bias_clip": bias_clip}
        check_bound(**{name: clip for name, clip in clips.items() if clip is not None})
        super().__init__(*args, **({"use_bias": False, "kernel_initializer": "orthogonal"} | kwargs))
        self.input_clip: Any = input_clip
        self.upstream_clip: Any = upstream_clip
        self.bias_clip: Any = bias_clip

    # What the layer is ------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def norm_bound(self, kernel: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
        """A certified upper bound on how much the layer with this kernel stretches inputs of this shape: a scalar.

        Kernel and bound are float64.
        """

    @abc.abstractmethod
    def linear(self, inputs: tf.Tensor, kernel: tf.Tensor) -> Any:
        """The layer without bias and activation."""

    @abc.abstractmethod
    def overlap(self, shape: Sequence[int | None]) -> float:
        """How many positions meet the same entry of an input of this shape at most."""

    @property
    @abc.abstractmethod
    def matrix_shape(self) -> tuple[int, int]:
        """Of the kernel as one position meets it: (entries of its input, units)."""

    def positions(self, shape: Sequence[int | None]) -> float:
        """How many positions share the kernel, for inputs of this shape; infinite where that is not known."""
        found = size(tuple(self.compute_output_shape(tuple(shape)))[1:-1])
        return math.inf if found is None else found

    # What it does -----------------------------------------------------------------------------------------------------

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> Any:
        inputs = self.begin_use(inputs)
        clipped = inputs if self.input_clip is None else L2(self.input_clip)(inputs)
        outputs = self.linear(clipped, self.bounded_kernel(inputs.shape))
        self.refuse_other_outputs(inputs.shape, outputs.shape)
        if self.use_bias:
            outputs = tf.add(outputs, self.bounded_bias())
        if self.upstream_clip is not None:
            outputs = bound_upstream(outputs, L2(self.upstream_clip, summed=True))
        outputs = self.end_use(inputs, outputs)
        return outputs if self.activation is None else self.activation(outputs)

    def refuse_other_outputs(self, shape: Any, computed: Any) -> None:
        """Raises ValueError where the layer computes another shape than its settings say, which bounds are made of."""
        stated = tf.TensorShape(self.compute_output_shape(tuple(shape)))
        if not stated[1:].is_compatible_with(computed[1:]):
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}) gives records of shape {tuple(computed[1:])}, and its"
                f" settings say {tuple(stated[1:])}: its bound does not hold. One was changed since the layer was built"
                " (units, filters, kernel_size). Make a new layer with the settings that you want."
            )

    def bounded_kernel(self, shape: Sequence[int | None]) -> Any:
        """The kernel as the layer uses it on inputs of this shape: it stretches nothing. Zeros where a weight is not
        finite."""
        kernel = tf.convert_to_tensor(self.kernel)
        bound = self.norm_bound(tf.cast(tf.stop_gradient(kernel), tf.float64), tuple(shape))
        scale = tf.where(tf.math.is_finite(bound), 1.0 / tf.maximum(bound, 1.0), 0.0)
        return projected(kernel, tf.cast(scale, tf.float32))

    def bounded_bias(self) -> Any:
        """The bias as the layer uses it."""
        bias = tf.convert_to_tensor(self.bias)
        if self.bias_clip is None:
            return bias
        return projected(bias, L2(self.bias_clip).scales(tf.stop_gradient(bias)[tf.newaxis])[0])

    def bounded_weights(self) -> list[np.ndarray]:
        """Kernel and bias as the layer uses them on the inputs that it was built for."""
        kernel = self.bounded_kernel(self.input.shape)
        return [np.asarray(one) for one in ([kernel, self.bounded_bias()] if self.use_bias else [kernel])]

    # What it states ---------------------------------------------------------------------------------------------------

    def rounding(self, shape: Sequence[int | None]) -> float:
        """The most that float32 adds to the norm of what the layer passes on, in either direction, relative to it.

        A product of k terms is off by at most (k + 2) units relative to the product of the absolute values, the kernel
        having been rounded too. With K the (rows, columns) kernel at one position, ||K||_2 <= 1, that of absolute
        values stretches by sqrt(m) ||K||_F <= sqrt(m min(rows, columns)) at most.
        """
        rows, columns = self.matrix_shape
        overlap = self.overlap(shape)
        terms = max(rows, math.ceil(overlap) * columns) + 4
        return terms * _UNIT * math.sqrt(overlap * min(rows, columns))

    def reach(self, below: float, shape: Sequence[int | None]) -> float:
        """A bound on the norm of a record's output, before the activation, where its input's is at most `below`."""
        reach = below * (1.0 + self.rounding(shape))
        if not self.use_bias:
            return reach
        if self.bias_clip is None:
            return math.inf
        return reach + self.bias_clip * math.sqrt(self.positions(shape))

    def pull(self, above: float, shape: Sequence[int | None]) -> float:
        """A bound on the norm of the gradient that flows on below, where the linear output's is at most `above`."""
        return above * (1.0 + self.rounding(shape))

    def bound(self, reach: float, pull: float, shape: Sequence[int | None]) -> float:
        """L2 bound on what one use of the layer adds, per record, to the summed gradient of its weights.

        With X the matrix of what each of T positions meets, and U their upstream gradients, the gradient of kernel and
        bias is [X 1]^T U, at most ||[X 1]||_F ||U||_F <= (m r^2 + T)^(1/2) p: each entry of the input is in m rows of
        X at most, and a bias adds a column of ones. Summing T terms in float32 adds a fraction of T 2^-24 of the same
        product of norms.

        Args:
            reach, pull: r, on the input's norm, and p, on the linear output's upstream gradient's.
            shape: of the input, (batch, ...).
        """
        squared = self.overlap(shape) * reach**2
        positions = self.positions(shape)
        if self.use_bias:
            squared += positions
        return pull * math.sqrt(squared) * (1.0 + min(positions * _UNIT, 0.5))

    def get_config(self) -> dict[str, Any]:
        clips = ("input_clip", "upstream_clip", "bias_clip")
        return super().get_config() | {name: getattr(self, name) for name in clips}


@tf.custom_gradient
def projected(weight: tf.Tensor, scale: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """weight * scale, zeros where the scale is 0; the weight gets the gradient of the result as it is."""
    return tf.math.multiply_no_nan(weight, scale), lambda upstream: (upstream, None)
