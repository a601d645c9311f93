"""Single layers of direct feedback alignment, for functional models."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.layers.feedback_base import FeedbackLayer, FeedbackRules, delta_clips, dense_twin, feedback_affine
from tfdp_layers.layers.feedback_stack import one_each
from tfdp_layers.rules.rows import L2, check_bound
from tfdp_layers.sensitivity import sensitivity_of


@keras.saving.register_keras_serializable(package="tfdp_layers")
class FeedbackDense(FeedbackLayer, keras.layers.Layer):
    """A hidden dense layer that learns from the output error through a fixed random matrix.

    It returns its activation and an error sink: zeros of the logits' shape. Pass every sink to the `FeedbackOutput` (or
    add it to the logits by keras.layers.Add): what it receives in the backward pass is the error at the logits.

        h1, s1 = tfdp.layers.FeedbackDense(64, "sigmoid", 10, activation_clip=5.0, backpropagate=True)(x)
        h2, s2 = tfdp.layers.FeedbackDense(64, "sigmoid", 10, activation_clip=5.0)(h1)
        both = keras.layers.Concatenate()([h1, h2])
        logits = tfdp.layers.FeedbackOutput(10, activation_clip=5.0)([both, s1, s2])

    Forward: phi(x W + b). Backward, per record: delta = clip((clip(e) B) * phi'(z), delta_clip), dW = clip(x)^T delta,
    db = delta; the gradient that arrives at the activation is not used. A layer whose sink goes nowhere learns nothing.

    Formal guarantee: one record moves the summed gradient of kernel and bias by at most
        delta_clip * sqrt(activation_clip^2 + 1), without bias without the 1, for each use; as in `FeedbackStack`.

    Shapes: (batch, features) -> (batch, units) and (batch, output_units).
    Args:
        units, activation, delta_clip: see `FeedbackStack`.
        output_units: number of logits, the width of the error.
        activation_clip: bound on each record's input in the weight gradient.
        backpropagate: whether delta W^T flows to the layers below; right for the first dense layer over others.
        error_clip, feedback_norm, feedback_seed, feedback, use_bias, ...: see `FeedbackLayer`.

    Raises: see `FeedbackStack`.
    Source: Lee and Kifer 2020, arXiv:2010.03701.
    """

    def __init__(
        self,
        units: int,
        activation: str | Callable[..., Any] | None,
        output_units: int,
        *,
        activation_clip: float,
        delta_clip: float | None = None,
        backpropagate: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units, self.output_units = int(units), int(output_units)
        if self.units < 1 or self.output_units < 1:
            raise ValueError(f"Sizes must be positive. Received: units={units!r}, output_units={output_units!r}.")
        self.activation = keras.activations.get(activation)
        self.activation_clip = one_each("activation_clip", activation_clip, 1)[0]
        self._given_delta_clip = delta_clip is not None
        if delta_clip is None:
            delta_clip = delta_clips(1, self.activation, self.error_clip, self.feedback_norm)[0]
        check_bound(delta_clip=delta_clip)
        self.delta_clip = float(delta_clip)
        self.backpropagate = bool(backpropagate)

    def sensitivity(self) -> float:
        """L2 bound on what one use adds, per record, to the summed gradient of kernel and bias."""
        return self.delta_clip * math.hypot(self.activation_clip, float(self.has_bias(getattr(self, "affine", ()))))

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.affine = self.add_affine(self.features_of(input_shape), self.units)
        self.matrix = self.add_feedback((self.output_units, self.units))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tuple[Any, Any]:
        x = self.begin_use(inputs)
        rules = FeedbackRules(L2(self.activation_clip), L2(self.error_clip), L2(self.delta_clip))
        matrix = tf.convert_to_tensor(self.matrix)
        h, sink = feedback_affine(x, self.affine, [], matrix, rules, self.activation, self.backpropagate)
        return self.end_use(x, h), self.end_use(x, sink)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[tuple[Any, int], tuple[Any, int]]:
        return (input_shape[0], self.units), (input_shape[0], self.output_units)

    def to_keras(self, inputs: keras.KerasTensor) -> tuple[Any, Any]:
        """What a plain Dense layer with copies of the weights gives on a Keras tensor, and the sink's zeros."""
        zeros = keras.ops.repeat(keras.ops.zeros_like(inputs[:, :1]), self.output_units, axis=1)
        return dense_twin(self, self.affine, self.activation, inputs), zeros

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "output_units": self.output_units,
            "activation_clip": self.activation_clip,
            "delta_clip": self.delta_clip if self._given_delta_clip else None,
            "backpropagate": self.backpropagate,
        }


@keras.saving.register_keras_serializable(package="tfdp_layers")
class FeedbackOutput(FeedbackLayer, keras.layers.Layer):
    """The dense output layer that sends each record's clipped error to the sinks of `FeedbackDense` layers.

    Called on [activation, sink, ...]. Forward: x W + b, then `activation`. Backward, per record: e = clip(gradient at
    the logits, error_clip), dW = clip(x)^T e, db = e; every sink receives e, and nothing flows to x.

    Formal guarantee: one record moves the summed gradient of kernel and bias by at most
        error_clip * sqrt(activation_clip^2 + 1), without bias without the 1, for each use.

    Shapes: (batch, features) and sinks (batch, units) -> (batch, units).
    Raises: ValueError for arguments out of range, no sink, or sinks of another width.
    Source: Lee and Kifer 2020, arXiv:2010.03701.
    """

    def __init__(
        self, units: int, *, activation_clip: float, activation: str | Callable[..., Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.units = int(units)
        if self.units < 1:
            raise ValueError(f"`units` must be positive. Received: units={units!r}.")
        self.activation = keras.activations.get(activation)
        self.activation_clip = one_each("activation_clip", activation_clip, 1)[0]

    def sensitivity(self) -> float:
        """L2 bound on what one use adds, per record, to the summed gradient of kernel and bias."""
        return self.error_clip * math.hypot(self.activation_clip, float(self.has_bias(getattr(self, "affine", ()))))

    def build(self, input_shape: Sequence[Sequence[int | None]]) -> None:
        shapes = list(input_shape) if isinstance(input_shape[0], list | tuple) else []
        if len(shapes) < 2 or any(shape[-1] != self.units for shape in shapes[1:]):
            raise ValueError(
                f"Layer {self.name!r} is called on [activation, sink, ...] with at least one sink of width"
                f" {self.units}, its own. Received shapes: {input_shape!r}."
            )
        self.affine = self.add_affine(self.features_of(shapes[0]), self.units)

    def call(self, inputs: Sequence[tf.Tensor], training: bool | None = None) -> Any:
        x, sinks = self.begin_use(inputs[0]), [tf.convert_to_tensor(sink) for sink in inputs[1:]]
        rules = FeedbackRules(L2(self.activation_clip), L2(self.error_clip), L2(self.error_clip))
        logits = feedback_affine(x, self.affine, sinks, None, rules)[0]
        return self.activation(self.end_use([x, *sinks], logits))

    def compute_output_shape(self, input_shape: Sequence[Sequence[int | None]]) -> tuple[Any, int]:
        return (input_shape[0][0], self.units)

    def to_keras(self, inputs: Sequence[keras.KerasTensor]) -> Any:
        """What a plain Dense layer with copies of the weights gives on Keras tensors; the sinks' zeros are added,

        since Keras 3.12 refuses a model that leaves an input unused.
        """
        return keras.layers.Add()([dense_twin(self, self.affine, self.activation, inputs[0]), *inputs[1:]])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "units": self.units,
            "activation_clip": self.activation_clip,
            "activation": keras.activations.serialize(self.activation),
        }


sensitivity_of(FeedbackDense)(FeedbackDense.sensitivity)
sensitivity_of(FeedbackOutput)(FeedbackOutput.sensitivity)
