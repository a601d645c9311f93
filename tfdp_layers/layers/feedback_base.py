"""What the layers of direct feedback alignment share: fixed feedback matrices, and one custom gradient."""

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.activations import derivative_bound
from tfdp_layers.layers.carried import PaidLayer
from tfdp_layers.rules.rows import L2, check_bound, scale_rows, select_rows
from tfdp_layers.structure import KerasMixin
from tfdp_layers.uses.counted import weights_themselves

DISTRIBUTIONS = ("gaussian", "orthogonal")
ALIGNED = "aligned"


def feedback_matrix(shape: tuple[int, int], norm: float, distribution: str, seed: Sequence[int]) -> np.ndarray:
    """A random matrix of spectral norm `norm` (to float32 accuracy): `shape`, float32.

    Args:
        distribution: "gaussian" draws entries from N(0, 1), then scales; "orthogonal" makes the rows (or the columns,
            if they are fewer) orthogonal and of length `norm`, so that the feedback keeps the length of every error.
        seed: of the draw. It is public: the matrix depends on no data.
    """
    normal = np.random.default_rng(seed).normal(size=shape)
    if distribution == "orthogonal":
        tall = normal if shape[0] >= shape[1] else normal.T
        basis = np.linalg.qr(tall)[0]
        return (norm * (basis if shape[0] >= shape[1] else basis.T)).astype(np.float32)
    return (norm * normal / np.linalg.norm(normal, 2)).astype(np.float32)


def aligned_matrix(kernels: Sequence[Any], norm: float) -> tf.Tensor:
    """The transposed product of the kernels that lie between a layer and the error, scaled to spectral norm `norm`.

    Feedback through it starts as the error that backpropagation would bring, but for the derivatives of activations
    and for its length. A product of initial weights, it depends on no data.

    Args:
        kernels: from the layer above to the one that gives the error, (units, ...), ..., (..., width of the error).

    Returns: (width of the error, units), float32.
    Raises: ValueError if the product is zero.
    """
    product = functools.reduce(tf.linalg.matmul, [tf.convert_to_tensor(kernel) for kernel in kernels])
    length = tf.reduce_max(tf.linalg.svd(product, compute_uv=False))
    if tf.executing_eagerly() and not length > 0.0:
        raise ValueError(
            "feedback='aligned' takes the feedback from the initial kernels above a layer, whose product is zero:"
            " nothing would be learned. Use another kernel_initializer, or feedback='gaussian'."
        )
    return tf.transpose(product) * (norm / length)


@dataclass(frozen=True)
class FeedbackRules:
    """The three clips of a layer, each per record: of its input for the weight gradient, of the error, of delta.

    `error` is None where what arrives at the layer's sink was clipped already; no bound rests on it.
    """

    activation: L2
    error: L2 | None
    delta: L2


def feedback_affine(
    x: tf.Tensor,
    weights: Sequence[Any],
    sinks: Sequence[tf.Tensor],
    feedback: tf.Tensor | None,
    rules: FeedbackRules,
    activation: Callable[[tf.Tensor], tf.Tensor] | None = None,
    backpropagate: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """phi(x W + b), whose backward pass takes the output error instead of its own upstream gradient.

    Forward: z = x W + b, h = phi(z), with x as it is; beside h an error sink, which is zero.
    Backward, per record: delta = clip((clip(e) B) * phi'(z)), with e the gradient at the layer's sink; without B
        (the output layer) delta = clip(e) of the layer's own upstream gradient e. dW = clip(x)^T delta, db = delta. The
        sinks of other layers receive delta. Below flows delta W^T, or nothing.

    Guarantee: one record moves the summed gradient of (W, b) by at most rules.delta.bound * sqrt(rules.activation.bound
        ^2 + 1), without bias rules.delta.bound * rules.activation.bound, whatever B, phi and the weights are:
        ||[x d^T; d]||_F = ||d|| sqrt(||x||^2 + 1), both factors clipped. Row i of all results depends on row i of the
        inputs alone, if phi acts on single entries. A record whose input, error or delta is not finite contributes
        zero to W and b.

    Args:
        x: (batch, features), float32.
        weights: the kernel (features, units), and the bias (units,) if there is one.
        sinks: of the layers that this one sends its delta to, each (batch, units): zeros.
        feedback: B, (width of the error, units); None for an output layer.
        activation: of single entries; None is linear.
        backpropagate: whether delta W^T flows below.

    Returns: h, (batch, units), and the layer's own sink, zeros (batch, width of the error).
    """
    width = weights[0].shape[1] if feedback is None else feedback.shape[0]

    @tf.custom_gradient
    def affine(x: tf.Tensor, *others: tf.Tensor) -> tuple[Any, Any]:
        parameters = others[: len(weights)]
        with tf.GradientTape() as tape:
            z = tf.linalg.matmul(x, parameters[0])
            z = tf.nn.bias_add(z, parameters[1]) if len(weights) > 1 else z
            tape.watch(z)
            h = activated(z, activation)

        def gradient(upstream: tf.Tensor, error: tf.Tensor) -> tuple[Any, ...]:
            signal = upstream
            if feedback is not None:
                signal = tf.linalg.matmul(error if rules.error is None else rules.error(error), feedback)
            delta = tape.gradient(h, z, output_gradients=signal)
            scales = rules.activation.scales(x)
            # An input that its clip refuses takes the record out of the bias gradient as well.
            delta = scale_rows(delta, tf.where(scales > 0.0, rules.delta.scales(delta), 0.0))
            # clip(x)^T delta = x^T (s delta): fewer numbers to scale. See `AffineLayer` on rounding.
            scaled = delta * scales[:, tf.newaxis]
            gradients = [
                tf.linalg.matmul(select_rows(x, scales), scaled, transpose_a=True),
                tf.reduce_sum(delta, axis=0),
            ]
            below = tf.linalg.matmul(delta, parameters[0], transpose_b=True) if backpropagate else None
            return below, *gradients[: len(weights)], *[delta] * len(sinks)

        return (h, tf.zeros((tf.shape(x)[0], width), tf.float32)), gradient

    return affine(x, *[tf.convert_to_tensor(weight) for weight in weights], *sinks)


def activated(z: tf.Tensor, activation: Callable[[tf.Tensor], tf.Tensor] | None) -> tf.Tensor:
    """phi(z), a tensor of its own; phi may be any code, which gets no weights that gradients are taken of."""
    with weights_themselves():
        return tf.identity(z if activation is None else activation(z))


def delta_clips(
    count: int,
    activation: str | Callable[..., Any] | None,
    error_clip: float,
    feedback_norm: float,
    alignment: str = "direct",
) -> list[float]:
    """The norm that delta can't exceed, for each hidden layer from the first to the last.

    With g = sup|phi'| and ||clip(e)|| <= error_clip, ||(clip(e) B) * phi'(z)|| <= g ||B||_2 error_clip in the direct
    alignment; in the sequential one each layer below takes delta in the place of e.

    Raises: ValueError if the activation's derivative has no known bound.
    Source: Lee and Kifer 2020, arXiv:2010.03701, section 4.2.
    """
    factor = derivative_bound(activation) * feedback_norm
    powers = [1] * count if alignment == "direct" else range(count, 0, -1)
    return [error_clip * factor**power for power in powers]


def solve_activation_clip(sensitivity: float, delta_clip: float, use_bias: bool, name: str) -> float:
    """The activation clip t with delta_clip * sqrt(t^2 + 1) = sensitivity (without bias delta_clip * t).

    Raises: ValueError if there is none, with the numbers.
    """
    ratio = sensitivity / delta_clip
    if use_bias and ratio <= 1.0:
        raise ValueError(
            f"{name}: a record's sensitivity of {sensitivity:.4g} leaves nothing for the inputs, since the bias alone"
            f" takes {delta_clip:.4g} (the bound on delta). Use a larger total_sensitivity, an error_clip below"
            f" {ratio:.4g} times the present one, a smaller delta_clip, or use_bias=False."
        )
    return math.sqrt(ratio**2 - 1.0) if use_bias else ratio


class FixedFeedback(KerasMixin):
    """Mixin with the arguments and weights of fixed feedback.

    Args (keyword only, beside those of `keras.layers.Layer`):
        error_clip: bound on each record's error, the gradient of its loss at the logits; per-record loss per logit.
        feedback_norm: spectral norm of each feedback matrix.
        feedback_seed: of the feedback matrices; if left out, drawn by Python's `random` (which
            keras.utils.set_random_seed seeds), as Keras does. They are weights:
            saved, restored, never trained.
        feedback: "gaussian" or "orthogonal"; see `feedback_matrix`.

    Raises: ValueError for a bound that is not a positive finite number, or an unknown feedback.
    """

    feedbacks_known: tuple[str, ...] = DISTRIBUTIONS

    def __init__(
        self,
        *,
        error_clip: float = 0.1,
        feedback_norm: float = 0.9,
        feedback_seed: int | None = None,
        feedback: str = "gaussian",
        **kwargs: Any,
    ) -> None:
        check_bound(error_clip=error_clip, feedback_norm=feedback_norm)
        if feedback not in self.feedbacks_known:
            fix = " Only a FeedbackStack knows the kernels above a layer." if feedback == ALIGNED else ""
            raise ValueError(f"`feedback` must be one of {self.feedbacks_known}. Received: feedback={feedback!r}.{fix}")
        super().__init__(**kwargs)
        self.error_clip = float(error_clip)
        self.feedback_norm = float(feedback_norm)
        self.feedback_seed = random.randrange(2**31) if feedback_seed is None else int(feedback_seed)
        self.feedback = feedback

    def add_feedback(self, shape: tuple[int, int], index: int = 0) -> Any:
        """Adds a feedback matrix, not trainable."""
        matrix = feedback_matrix(shape, self.feedback_norm, self.feedback, (self.feedback_seed, index))
        return self.add_fixed(shape, keras.initializers.Constant(matrix), index)

    def add_fixed(self, shape: tuple[int, int], initializer: str | Callable[..., Any], index: int) -> Any:
        """Adds a weight that is saved and restored, and never trained."""
        return self.add_weight(shape=shape, initializer=initializer, trainable=False, name=f"feedback_{index}")

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "error_clip": self.error_clip,
            "feedback_norm": self.feedback_norm,
            "feedback_seed": self.feedback_seed,
            "feedback": self.feedback,
        }


class FeedbackLayer(FixedFeedback, PaidLayer):
    """Mixin with the arguments that dense layers of feedback alignment share.

    Args (keyword only, beside those of `FixedFeedback`):
        use_bias, kernel_initializer, bias_initializer, kernel_regularizer: as in `keras.layers.Dense`.

    Raises: see `FixedFeedback`.
    """

    def __init__(
        self,
        *,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def add_affine(self, features: int, units: int, suffix: str = "") -> list[Any]:
        """Adds a kernel, and a bias if there is one."""
        initializer = self.kernel_initializer
        if isinstance(initializer, keras.initializers.Initializer):
            initializer = initializer.clone()  # a seeded one would give every layer the same numbers
        weights = [
            self.add_weight(
                shape=(features, units),
                initializer=initializer,
                regularizer=self.kernel_regularizer,
                name=f"kernel{suffix}",
            )
        ]
        if self.use_bias:
            weights.append(self.add_weight(shape=(units,), initializer=self.bias_initializer, name=f"bias{suffix}"))
        return weights

    def has_bias(self, weights: Sequence[Any]) -> bool:
        """Whether these weights, of `add_affine`, have a bias; before they are made, whether they will."""
        return len(weights) > 1 if weights else self.use_bias

    def features_of(self, shape: Sequence[int | None]) -> int:
        """The number of features. Raises ValueError unless the inputs are (batch, features)."""
        if len(shape) != 2 or shape[1] is None:
            raise ValueError(
                f"Layer {self.name!r} takes one vector a record, (batch, features). Received shape {tuple(shape)}. Put"
                " keras.layers.Flatten() or a pooling layer before it."
            )
        return int(shape[1])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }


def dense_twin(
    layer: FeedbackLayer, weights: Sequence[Any], activation: str | Callable[..., Any] | None, inputs: keras.KerasTensor
) -> Any:
    """The tensor that a plain Keras Dense layer with copies of these weights gives; for `to_keras`."""
    dense = keras.layers.Dense(weights[0].shape[1], activation=activation, use_bias=layer.use_bias, dtype="float32")
    outputs = dense(inputs)
    dense.set_weights([np.asarray(weight) for weight in weights])
    return outputs
