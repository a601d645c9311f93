"""A measurement that no record reaches another's gradient, on synthetic records."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.certificates.additivity import Gap, gap_of, tolerance
from tfdp_layers.certificates.other_rows import cross_gradients, cross_upstreams
from tfdp_layers.certificates.starting import alike, exchanged, same_state, untouched_state
from tfdp_layers.certificates.switches import acts_in_training, without_randomness
from tfdp_layers.certificates.synthetic import (
    ROWS,
    drawn_from,
    inputs_like,
    specs,
    synthetic_inputs,
    synthetic_labels,
)
from tfdp_layers.certificates.uses import recorded
from tfdp_layers.layers.base import inspect_uses
from tfdp_layers.per_record.agreement import RANGES, Drawn
from tfdp_layers.sensitivity import SensitivityGroup
from tfdp_layers.structure import SEEDS

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

_SEED = 5
"""That random numbers start from in calls that are compared."""

MEANING = (
    "Then one record moves the contributions of others, and no bound holds. Keep every operation inside a record (axis"
    " 0 is the batch): keras.ops.sum(a * b, axis=-1, keepdims=True) in place of a sum, mean or tensordot over all rows,"
    " GroupNormalization in place of a batch norm."
)
"""What follows of records that are not independent, and the fix."""
NO_LAYER = "no layer's forward pass mixes them, so the loss or a layer's backward pass does"
"""What is said where no layer is at fault."""


@dataclass(frozen=True)
class Seen:
    """What was seen on one draw of records, on which nothing finite showed that they meet.

    Attributes:
        finite: whether all was finite that was compared.
        hidden: whether what is not finite may hide a gradient in another row, or a gap of sums.
    """

    finite: bool
    hidden: bool


def measure(
    model: "PrivateTraining",
    function: Any,
    x: Any,
    y: Any,
    groups: Sequence[SensitivityGroup],
    proved: bool = False,
) -> Drawn | None:
    """Measures that a record's contribution depends on that record alone.

    Two measurements on a few records: additivity (with dropout off, the released sum of the batch equals the sum of
    the released sums of its records alone, to float32 accuracy), and cross gradients (no row's loss has a gradient in
    another row of a floating-point input). Additivity also sees mixing in the backward pass, and models on tokens.

    It finds what it can measure: a layer that mixes records only on inputs unlike the synthetic ones is not seen. Of
    what is proved it is the second witness: it runs the kernels, of which a proof assumes that they keep rows apart.

    A logarithm of negative numbers is NaN, and so is zero times that, in rows which it never reaches: no evidence of
    either. So other records are drawn, of all `RANGES`, until all is finite; those that are then lie beside the first.

    Args:
        model: a compiled private model.
        function: its sums, of `traced_sums`.
        x, y: a batch or (trees of) tf.TensorSpec, whose shapes and types are then filled with synthetic records. If
            left out, the model's own inputs, and labels like its outputs.
        groups: of the model.
        proved: whether it is proved that records do not meet; then nothing is refused for what is not finite alone.

    Returns:
        The range of real numbers that it was measured on; None where no draw was finite.

    Raises:
        ValueError: naming the layer at fault where one can be found.
    """
    data = synthetic_inputs(model, inputs_like(model, x))
    compare = functools.partial(compared, model, function, groups=groups, proved=proved)
    first: Seen | tf.errors.InvalidArgumentError
    try:
        first = compare(data, y)
    except tf.errors.InvalidArgumentError as error:  # a layer asserts that numbers are positive, say
        if not any(t.dtype.is_floating for t in keras.tree.flatten(data)):
            raise  # there is no range of real numbers to draw others of
        first = error
    if isinstance(first, Seen) and first.finite:
        return RANGES[0]
    labels = y if y is None else specs(y)
    for seed, drawn in enumerate(RANGES[1:], 1):
        with drawn_from(drawn):
            other = synthetic_inputs(model, specs(inputs_like(model, x)), seed=seed)
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            if compare(other, labels).finite:
                if not proved and isinstance(first, Seen):
                    compare(alternately(other, data), labels)
                return drawn
    if not isinstance(first, Seen):
        raise first
    if first.hidden and not proved:
        raise ValueError(
            f"Records may not be independent in model {model.name!r}: it is not proved, and could not be measured, for"
            f" losses or gradients are NaN on all synthetic records; {culprit(model, data)}. Keep numbers inside of"
            " what functions take: keras.ops.maximum(x, 1e-6) before a logarithm."
        )
    return None


def compared(
    model: "PrivateTraining", function: Any, x: Any, y: Any, *, groups: Sequence[SensitivityGroup], proved: bool
) -> Seen:
    """Compares a batch with its records, each alone, as `measure` does. Raises: ValueError where they differ.

    Where it is proved that records do not meet, a layer may write what is no record's (how often it was called), if
    each call leaves the same behind. And one may draw what cannot be switched off: then a record gets other numbers in
    a batch than alone, and batches of one size are compared in place of it (`refuse_exchanged`).
    """
    left: list[Any] = []
    own = runner(model, function)

    def run(x: Any, y: Any, seed: int = _SEED) -> tuple[list[tf.Tensor], tf.Tensor]:
        with same_state(model, seed, left):
            return own(x, y)

    with without_randomness(model), untouched_state(model) as changed:
        y = synthetic_labels(model, x, y)
        together, losses = run(x, y)
        alone, losses_alone = zip(*[run(*row(i, (x, y))) for i in range(ROWS)], strict=True)
        found, finite = gap_from(model, groups, together, alone)
        one_by_one = tf.concat(losses_alone, 0)
        drawing = not (found.explained and close(model, losses, one_by_one, proved)) and draws_on(model, run, x, y)
        if proved and drawing:
            refuse_exchanged(model, run, (x, y), groups)
            (found, finite), one_by_one = gap_from(model, groups, together, [together]), losses
        reached = [*cross_gradients(model, x, y), *cross_upstreams(model, x, y)]
        refuse_mixed_losses(model, x, losses, one_by_one, proved, drawing)
        refuse_losses_of_weights(model, x, y)
    if changed() and not (proved and alike(left)):
        raise ValueError(
            f"A layer of model {model.name!r} writes state in its forward pass ({changed()}): computed from private"
            " data without noise, it would be saved with the weights. Freeze or remove that layer."
        )
    crossed = any(bool(np.any(~np.isnan(g) & (g != 0))) for g in reached)
    if not found.explained or crossed:
        raise ValueError(
            f"Records are not independent in model {model.name!r}: {culprit(model, x)}. {MEANING}"
            f" ({found}{', and a loss has a gradient in another row' if crossed else ''}.)"
            f"{found.doubt if not crossed else ''}"
        )
    hidden = any(np.isnan(g).any() for g in reached) or not finite
    return Seen(not hidden and bool(np.isfinite(one_by_one).all()), hidden)


def gap_from(
    model: "PrivateTraining", groups: Sequence[SensitivityGroup], together: Sequence[Any], alone: Sequence[Any]
) -> tuple[Gap, bool]:
    """The gap where the sums of each record alone are finite; whether they all are."""
    known = [np.all([np.isfinite(part) for part in parts], axis=0) for parts in zip(*alone, strict=True)]
    found = gap_of(model, groups, kept(together, known), [kept(parts, known) for parts in alone])
    return found, all(bool(one.all()) for one in known)


def draws_on(model: "PrivateTraining", run: Callable[..., Any], x: Any, y: Any) -> bool:
    """Whether losses are others for other seeds, though what draws was switched off where that is possible."""
    if not any(SEEDS in v.path for v in model.non_trainable_variables):
        return False
    first, *others = (np.asarray(run(x, y, seed)[1]) for seed in range(_SEED, _SEED + 3))
    return any(not np.array_equal(first, other, equal_nan=True) for other in others)


def refuse_exchanged(
    model: "PrivateTraining", run: Callable[..., Any], data: tuple[Any, Any], groups: Sequence[SensitivityGroup]
) -> None:
    """Compares two batches, with the same random numbers, before and after they exchange a record.

    Guarantee: where random numbers belong to rows, the sums of both batches together stay what they are, and the losses
    of the other rows. Raises: ValueError where they do not.
    """
    pair = [data, keras.tree.map_structure(lambda t: tf.roll(t, 1, 0), data)]
    (first, losses), (second, _) = (run(*one) for one in pair)
    together = [a + b for a, b in zip(first, second, strict=True)]
    for place in range(ROWS):
        parts = [run(*one) for one in exchanged(pair, place, ROWS)]
        others = [i for i in range(ROWS) if i != place]
        found = gap_of(model, groups, together, [sums for sums, _ in parts])
        same = close(model, tf.gather(parts[0][1], others), tf.gather(losses, others), True)
        if not same or not (found.explained or not np.isfinite(found.size)):
            raise ValueError(
                f"Records are not independent in model {model.name!r}: of batches with the same random numbers,"
                f" record {place} moves what others add. {MEANING} ({found}.)"
            )


def kept(sums: Sequence[tf.Tensor], known: Sequence[np.ndarray]) -> list[Any]:
    """Sums, with zeros where they are not finite for each record alone."""
    return [np.where(where, np.asarray(one, np.float64), 0.0) for one, where in zip(sums, known, strict=True)]


def alternately(x: Any, other: Any) -> Any:
    """Records of the one and of the other, in turn."""
    return keras.tree.map_structure(lambda a, b: tf.stack([(a, b)[i % 2][i] for i in range(ROWS)]), x, other)


def runs_otherwise(model: "PrivateTraining") -> bool:
    """Whether the traced sums are not to be called: random masks stay on in them, or XLA would compile each size."""
    draws = any(SEEDS in v.path for v in model.non_trainable_variables)
    draws |= any(acts_in_training(layer) for layer in model._flatten_layers())
    return draws or bool(model.jit_compile) or bool(model.run_eagerly)


def runner(model: "PrivateTraining", function: Any) -> Callable[[Any, Any], tuple[list[tf.Tensor], tf.Tensor]]:
    """What gives the sums of a batch and each record's loss, without random masks: the traced sums, where they do.

    Operation by operation some layers take a second a call (those that are differentiated record by record).
    """
    return functools.partial(eager, model) if runs_otherwise(model) else functools.partial(called, function)


def traced(function: Any, x: Any, y: Any) -> list[tf.Tensor]:
    """The sums of a batch by the function of `traced_sums`, whose kernels and optimized graph steps run."""
    return called(function, x, y)[0]


def eager(model: "PrivateTraining", x: Any, y: Any) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums of a batch and each record's loss, operation by operation."""
    return model.bounded_gradient_sums(x, y), model.per_record_losses(x, y)


def called(function: Any, x: Any, y: Any, weight: float = 1.0) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums of a batch and each record's loss, by the function of `traced_sums`.

    Where that takes several rows of each record, each is given as so many equal ones. The weight is of each record,
    where that takes weights.
    """
    rows = len(keras.tree.flatten(x)[0])
    specs, _, weights = function.structured_input_signature[0]
    given, taken = keras.tree.flatten(x)[0].shape, keras.tree.flatten(specs)[0].shape
    extra = [taken[1]] if len(taken) > len(given) else []
    if extra:
        x, y = keras.tree.map_structure(lambda t: tf.repeat(tf.expand_dims(t, 1), extra[0], axis=1), (x, y))
    ones = keras.tree.map_structure(
        lambda spec: tf.fill([rows, *extra], weight) if isinstance(spec, tf.TensorSpec) else None, weights
    )
    sums, losses, _ = function(x, y, ones)
    return list(sums), losses


def row(i: int, data: Any) -> Any:
    """Row i of every leaf, as a batch of one."""
    return keras.tree.map_structure(lambda t: t[i : i + 1], data)


def refuse_mixed_losses(
    model: "PrivateTraining", x: Any, together: tf.Tensor, alone: tf.Tensor, proved: bool = False, drawing: bool = False
) -> None:
    """Raises ValueError if a record's own loss depends on other records, by input or label.

    Additivity alone does not see it where every upstream gradient is clipped: of a scalar output only the sign is left.

    Args:
        together, alone: the losses of a batch, and of its records alone: (batch,).
        proved: whether those that are not finite alone say nothing.
        drawing: whether other seeds give other losses.
    """
    if together.shape == alone.shape and close(model, together, alone, proved):
        return
    if drawing and together.shape == alone.shape:
        raise ValueError(
            f"Records may not be independent in model {model.name!r}: it is not proved, and could not be measured, for"
            " a layer draws random numbers that are others for a record in a batch than for it alone, or mixes records."
            " Draw by keras.random.normal, uniform, truncated_normal, randint or dropout, with a"
            " generator of the layer's own: self.seeds = keras.random.SeedGenerator()."
        )
    raise ValueError(
        f"Records are not independent in model {model.name!r}: the loss of a record in a batch differs from its"
        f" loss alone; {culprit(model, x)}. Return one value a record from the loss, computed from that record's"
        " labels and predictions of the same shape."
    )


def close(model: "PrivateTraining", together: Any, alone: Any, proved: bool = False) -> bool:
    """Whether numbers are alike but for rounding, and NaN where the others are; where `alone` is finite, if proved."""
    a, b, error = np.asarray(together, np.float64), np.asarray(alone, np.float64), tolerance(model)
    return bool(np.all(np.isclose(a, b, error, error / 100, equal_nan=True) | (proved & ~np.isfinite(b))))


def refuse_losses_of_weights(model: "PrivateTraining", x: Any, y: Any) -> None:
    """Raises ValueError if a loss uses a trainable weight otherwise than through its bounded layer."""
    variables, bounding = model.trainable_variables, model.optimizer.bounding
    with inspect_uses(ROWS), tf.GradientTape() as tape, recorded(model, tape, bounding, records=ROWS):
        total = tf.reduce_sum(model.per_record_losses(x, y))
    for variable, gradient in zip(variables, tape.gradient(total, [v.value for v in variables]), strict=True):
        if gradient is not None:
            raise ValueError(
                f"The loss uses weight {variable.path!r} itself, where nothing bounds a record's influence on its"
                " gradient. Use a weight regularizer (kernel_regularizer), which is added after the noise."
            )


def culprit(model: "PrivateTraining", x: Any) -> str:
    """The first layer of a functional or Sequential model whose output rows depend on which other rows are present."""
    flat = keras.tree.flatten(x)
    for layer in model.layers:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        try:
            part = keras.Model(model.inputs, layer.output)
            found = []
            for rows in (flat, [t[:1] for t in flat]):
                with without_randomness(model), same_state(model, _SEED):
                    found.append(keras.tree.flatten(part(rows, training=True)))
        except (AttributeError, ValueError, tf.errors.InvalidArgumentError):  # of a layer that takes so many rows alone
            continue
        for a, b in zip(*found, strict=True):
            if not close(model, a[:1], b):
                return (
                    f"layer {layer.name!r} ({type(layer).__name__}) is the first whose output for a record depends on"
                    " other records"
                )
    return NO_LAYER
