"""A stack of dense layers trained by direct feedback alignment."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.layers.feedback_base import (
    ALIGNED,
    DISTRIBUTIONS,
    FeedbackLayer,
    FeedbackRules,
    aligned_matrix,
    delta_clips,
    dense_twin,
    feedback_affine,
    solve_activation_clip,
)
from tfdp_layers.rules.rows import L2, check_bound
from tfdp_layers.sensitivity import SensitivityGroup, sensitivity_of

ALIGNMENTS = ("direct", "sequential")


@keras.saving.register_keras_serializable(package="tfdp_layers")
class FeedbackStack(FeedbackLayer, keras.layers.Layer):
    """Dense layers whose hidden weights learn from the output error through fixed random matrices, without a backward
    pass through the stack.

    Forward: h_l = phi(h_{l-1} W_l + b_l), nothing clipped; the last layer gives logits, then `output_activation`.
    Backward, per record: e = clip(gradient of the loss at the logits, error_clip). Hidden layer l takes
        delta_l = clip((e B_l) * phi'(z_l), delta_clip_l) and the gradients clip(h_{l-1}, activation_clip_l)^T delta_l
        and delta_l; the last layer the same with delta = e. Layers below the stack receive delta_1 W_1^T, each
        record's from that record alone.

    Formal guarantee: for every record, whatever it holds and whatever the weights, the feedback matrices and the loss
    are, its contribution to the summed gradient of hidden layer l's kernel and bias has L2 norm at most
        delta_clip_l * sqrt(activation_clip_l^2 + 1)      (last layer: error_clip in the place of delta_clip;
    without bias, without the 1), each layer being a group of its own. Left out, delta_clip_l is sup|phi'| *
    feedback_norm * error_clip, which delta cannot exceed: the clip then never acts and only enforces the certificate,
    the one of Lee and Kifer. A smaller `delta_clip` gives a certificate that is tight whatever the activation. Records
    with NaN or infinite values contribute zero.

    No loss is refused: any per-record loss is bounded by the clip of e. The error is what the method has in mind
    (prediction minus label) for cross-entropy on logits, binary cross-entropy on logits and the mean squared error.

    Shapes: (batch, features) -> (batch, output_units).
    Args:
        units: of the hidden layers, at least one.
        activation: of the hidden layers, acting on single entries; see `tfdp.activations.derivative_bound`.
        output_units: number of logits.
        activation_clip: bound on each record's input to a layer in its weight gradient; a number, or one for each
            hidden layer and the output layer.
        delta_clip: bound on delta; None, a number, or one for each hidden layer.
        alignment: "direct"; or "sequential", where delta_{l+1} takes the place of e (plain feedback alignment).
        output_activation: of the logits, outside of every bound.
        feedback: also "aligned": each matrix is the transposed product of the initial kernels above the layer (in the
            sequential alignment of the one above), scaled to `feedback_norm`, and stays what it was at the start. With
            a random matrix a layer learns little until the weights above have turned towards it (Refinetti et al.
            2021, arXiv:2011.12428), which noise delays. It depends on no data.
        error_clip, feedback_norm, feedback_seed, use_bias, ...: see `FeedbackLayer`.

    Raises: ValueError for arguments out of range, and inputs that are not (batch, features); see `FeedbackLayer`.
    Source: Lee and Kifer 2020, arXiv:2010.03701, Algorithm 1. Noekland 2016, arXiv:1609.01596. Sequential: Lillicrap
        et al. 2016, Nature Communications 7:13276.
    """

    feedbacks_known = (*DISTRIBUTIONS, ALIGNED)

    def __init__(
        self,
        units: Sequence[int],
        activation: str | Callable[..., Any] | None,
        output_units: int,
        *,
        activation_clip: float | Sequence[float],
        delta_clip: float | Sequence[float] | None = None,
        alignment: str = "direct",
        output_activation: str | Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units, self.output_units = check_units(units, output_units)
        if alignment not in ALIGNMENTS:
            raise ValueError(f"`alignment` must be one of {ALIGNMENTS}. Received: alignment={alignment!r}.")
        self.alignment = alignment
        self.activation = keras.activations.get(activation)
        self.output_activation = keras.activations.get(output_activation)
        self.activation_clip = one_each("activation_clip", activation_clip, len(self.units) + 1)
        self._given_delta_clip = delta_clip is not None
        if delta_clip is None:
            delta_clip = delta_clips(
                len(self.units), self.activation, self.error_clip, self.feedback_norm, self.alignment
            )
        self.delta_clip = one_each("delta_clip", delta_clip, len(self.units))

    @classmethod
    def from_total_sensitivity(
        cls,
        total_sensitivity: float,
        units: Sequence[int],
        activation: str | Callable[..., Any] | None,
        output_units: int,
        *,
        layers: int | None = None,
        **options: Any,
    ) -> "FeedbackStack":
        """A stack whose activation clips give every layer the same share of a total sensitivity.

        Args:
            total_sensitivity: C, the REPLACE-ONE sensitivity of the summed gradient of the whole network: twice what
                one record contributes. Each of `layers` layers gets C / sqrt(layers), a record's bound being half.
            layers: trainable layers of the network; those of the stack if left out. Count what lies below it too.
            options: of the stack, but `activation_clip`.

        Raises: ValueError where a layer's share is at most what its bias alone takes, with the numbers.
        Source: Lee and Kifer 2020, arXiv:2010.03701, sections 4.2 and 5.
        """
        check_bound(total_sensitivity=total_sensitivity)
        count = len(units) + 1 if layers is None else layers
        if count < len(units) + 1:
            raise ValueError(f"`layers` counts the {len(units) + 1} layers of the stack. Received: layers={layers!r}.")
        share = total_sensitivity / (2.0 * math.sqrt(count))
        trial = cls(units, activation, output_units, activation_clip=1.0, **options)
        clips = [
            solve_activation_clip(share, delta, trial.use_bias, name)
            for name, delta in zip(trial.layer_names, (*trial.delta_clip, trial.error_clip), strict=True)
        ]
        options = options | {"feedback_seed": trial.feedback_seed}
        return cls(units, activation, output_units, activation_clip=clips, **options)

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers inside the stack, the last one the output's."""
        return [f"hidden_{i}" for i in range(len(self.units))] + ["output"]

    def sensitivities(self) -> list[float]:
        """L2 bounds on what one use adds, per record, to each layer's summed gradient; the last the output layer's."""
        deltas = (*self.delta_clip, self.error_clip)
        bias = float(self.has_bias(next(iter(getattr(self, "affines", ())), ())))
        return [delta * math.hypot(clip, bias) for delta, clip in zip(deltas, self.activation_clip, strict=True)]

    def weight_groups(self) -> list[SensitivityGroup]:
        """A group for each layer that has trainable variables: delta_clip * sqrt(activation_clip^2 + 1)."""
        trainable = {id(v) for v in self.trainable_variables}
        groups = [
            SensitivityGroup(name, tuple(v for v in weights if id(v) in trainable), bound)
            for name, weights, bound in zip(self.layer_names, self.affines, self.sensitivities(), strict=True)
        ]
        return [group for group in groups if group.variables]

    def build(self, input_shape: Sequence[int | None]) -> None:
        sizes = [self.features_of(input_shape), *self.units, self.output_units]
        self.affines = [self.add_affine(sizes[i], sizes[i + 1], f"_{i}") for i in range(len(self.units) + 1)]
        sources = [self.output_units] * len(self.units) if self.alignment == "direct" else sizes[2:]
        add = self.add_aligned_feedback if self.feedback == ALIGNED else self.add_feedback
        self.feedbacks = [add(shape, i) for i, shape in enumerate(zip(sources, self.units, strict=True))]

    def add_aligned_feedback(self, shape: tuple[int, int], index: int) -> Any:
        """Adds the feedback matrix of hidden layer `index` that its kernels above, as they are initialised, give."""
        above = self.affines[index + 1 :] if self.alignment == "direct" else self.affines[index + 1 : index + 2]

        def initial(shape: Sequence[int], dtype: Any = None) -> tf.Tensor:
            return aligned_matrix([weights[0] for weights in above], self.feedback_norm)

        return self.add_fixed(shape, initial, index)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> Any:
        x = self.begin_use(inputs)
        return self.output_activation(self.end_use(x, self.logits(x)))

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """(batch, features) -> (batch, output_units), with the backward pass of the class."""
        error = L2(self.error_clip)
        sinks: list[tf.Tensor] = []
        for i, weights in enumerate(self.affines[:-1]):
            # What arrives at a sink is the delta of a layer above, the output layer's being clip(e).
            rules = FeedbackRules(L2(self.activation_clip[i]), None, L2(self.delta_clip[i]))
            above = sinks[-1:] if self.alignment == "sequential" else []
            matrix = tf.convert_to_tensor(self.feedbacks[i])
            x, sink = feedback_affine(x, weights, above, matrix, rules, self.activation, backpropagate=i == 0)
            sinks.append(sink)
        above = sinks[-1:] if self.alignment == "sequential" else sinks
        rules = FeedbackRules(L2(self.activation_clip[-1]), error, error)
        return feedback_affine(x, self.affines[-1], above, None, rules)[0]

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[Any, int]:
        return (input_shape[0], self.output_units)

    def to_keras(self, inputs: keras.KerasTensor) -> Any:
        """What plain Dense layers with copies of the weights give on a Keras tensor."""
        for weights in self.affines[:-1]:
            inputs = dense_twin(self, weights, self.activation, inputs)
        return dense_twin(self, self.affines[-1], self.output_activation, inputs)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "units": list(self.units),
            "activation": keras.activations.serialize(self.activation),
            "output_units": self.output_units,
            "activation_clip": list(self.activation_clip),
            "delta_clip": list(self.delta_clip) if self._given_delta_clip else None,
            "alignment": self.alignment,
            "output_activation": keras.activations.serialize(self.output_activation),
        }


def check_units(units: Sequence[int], output_units: int) -> tuple[tuple[int, ...], int]:
    """Returns the sizes as ints. Raises ValueError unless there is a hidden layer and all are positive integers."""
    sizes = (*units, output_units) if isinstance(units, list | tuple) else ()
    if len(sizes) < 2 or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise ValueError(
            "`units` must be a list of at least one positive integer, and `output_units` a positive integer. Received:"
            f" units={units!r}, output_units={output_units!r}. For a single layer use tfdp.layers.ClippedDense."
        )
    return tuple(map(int, sizes[:-1])), int(sizes[-1])


def one_each(name: str, value: float | Sequence[float], count: int) -> tuple[float, ...]:
    """The value for each of `count` layers. Raises ValueError for another number of values, or invalid ones."""
    values: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else (value,) * count
    if len(values) != count:
        raise ValueError(f"`{name}` must be a number or {count} of them, one a layer. Received: {name}={value!r}.")
    for one in values:
        check_bound(**{name: one})
    return tuple(float(one) for one in values)


sensitivity_of(FeedbackStack)(FeedbackStack.weight_groups)
