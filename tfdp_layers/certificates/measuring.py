"""A measurement that no record reaches another's gradient, on synthetic records."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.certificates.additivity import gap_of, tolerance
from tfdp_layers.certificates.standing import standing_numbers
from tfdp_layers.certificates.synthetic import ROWS, inputs_like, synthetic_inputs, synthetic_labels
from tfdp_layers.certificates.uses import recorded
from tfdp_layers.layers.base import inspect_uses
from tfdp_layers.sensitivity import SensitivityGroup
from tfdp_layers.structure import SEEDS

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

_RATES = {"rate": 0.0, "stddev": 0.0, "drop_prob": 0.0, "drop_rate": 0.0, "dropout_rate": 0.0, "survival_prob": 1.0}
"""Attributes by which layers that draw random numbers are switched off, and the values that do it."""

MEANING = (
    "Then one record moves the contributions of others, and no bound holds. Keep every operation inside a record (axis"
    " 0 is the batch), for example GroupNormalization in place of a batch norm."
)
"""What follows of records that are not independent, and the fix."""


def measure(model: "PrivateTraining", function: Any, x: Any, y: Any, groups: Sequence[SensitivityGroup]) -> None:
    """Measures that a record's contribution depends on that record alone.

    Two measurements on a few records: additivity (with dropout off, the released sum of the batch equals the sum of
    the released sums of its records alone, to float32 accuracy), and cross gradients (no row's loss has a gradient in
    another row of a floating-point input). Additivity also sees mixing in the backward pass, and models on tokens.

    It finds what it can measure: a layer that mixes records only on inputs unlike the synthetic ones is not seen. Of
    what is proved it is the second witness: it runs the kernels, of which a proof assumes that they keep rows apart.

    Args:
        model: a compiled private model.
        function: its sums, of `traced_sums`.
        x, y: a batch or (trees of) tf.TensorSpec, whose shapes and types are then filled with synthetic records. If
            left out, the model's own inputs, and labels like its outputs.
        groups: of the model.

    Raises:
        ValueError: naming the layer at fault where one can be found.
    """
    x = synthetic_inputs(model, inputs_like(model, x))
    with without_randomness(model), untouched_state(model) as changed:
        y = synthetic_labels(model, x, y)
        run = functools.partial(eager, model) if runs_otherwise(model) else functools.partial(called, function)
        together, losses = run(x, y)
        alone, losses_alone = zip(*[run(*row(i, (x, y))) for i in range(ROWS)], strict=True)
        crossed = cross_gradient(model, x, y) or cross_upstream(model, x, y)
        refuse_mixed_losses(model, x, losses, tf.concat(losses_alone, 0))
        refuse_losses_of_weights(model, x, y)
    if changed():
        raise ValueError(
            f"A layer of model {model.name!r} writes state in its forward pass ({changed()}): computed from private"
            " data without noise, it would be saved with the weights. Freeze or remove that layer."
        )
    found = gap_of(model, groups, together, alone)
    if not found.explained or crossed:
        raise ValueError(
            f"Records are not independent in model {model.name!r}: {culprit(model, x)}. {MEANING}"
            f" ({found}{', and a loss has a gradient in another row' if crossed else ''}.)"
            f"{found.doubt if not crossed else ''}"
        )


def runs_otherwise(model: "PrivateTraining") -> bool:
    """Whether the traced sums are not to be called: random masks stay on in them, or XLA would compile each size."""
    draws = any(SEEDS in v.path for v in model.non_trainable_variables)
    draws |= any(acts_in_training(layer) for layer in model._flatten_layers())
    return draws or bool(model.jit_compile) or bool(model.run_eagerly)


def traced(function: Any, x: Any, y: Any) -> list[tf.Tensor]:
    """The sums of a batch by the function of `traced_sums`, whose kernels and optimized graph steps run."""
    return called(function, x, y)[0]


def eager(model: "PrivateTraining", x: Any, y: Any) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums of a batch and each record's loss, operation by operation."""
    return model.bounded_gradient_sums(x, y), model.per_record_losses(x, y)


def called(function: Any, x: Any, y: Any) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums of a batch and each record's loss, by the function of `traced_sums`.

    Where that takes several rows of each record, each is given as so many equal ones.
    """
    rows = len(keras.tree.flatten(x)[0])
    specs, _, weights = function.structured_input_signature[0]
    given, taken = keras.tree.flatten(x)[0].shape, keras.tree.flatten(specs)[0].shape
    extra = [taken[1]] if len(taken) > len(given) else []
    if extra:
        x, y = keras.tree.map_structure(lambda t: tf.repeat(tf.expand_dims(t, 1), extra[0], axis=1), (x, y))
    ones = keras.tree.map_structure(
        lambda spec: tf.ones([rows, *extra]) if isinstance(spec, tf.TensorSpec) else None, weights
    )
    sums, losses, _ = function(x, y, ones)
    return list(sums), losses


def row(i: int, data: Any) -> Any:
    """Row i of every leaf, as a batch of one."""
    return keras.tree.map_structure(lambda t: t[i : i + 1], data)


@contextlib.contextmanager
def without_randomness(model: "PrivateTraining") -> Iterator[None]:
    """Switches dropout and noise layers off for the block, by their rates; what others draw is alike for all rows."""
    saved = []
    for layer in model._flatten_layers():
        for name, off in _RATES.items():
            if isinstance(getattr(layer, name, None), float) and draws_numbers(layer):
                saved.append((layer, name, getattr(layer, name)))
                setattr(layer, name, off)
    augmenting = [layer for layer in model._flatten_layers() if acts_in_training(layer)]
    calls = [vars(layer).get("call") for layer in augmenting]
    for layer in augmenting:
        spectral = isinstance(layer, keras.layers.SpectralNormalization)
        layer.call = functools.partial(unnormalized, layer) if spectral else functools.partial(switched_off, layer.call)
    try:
        with standing_numbers():
            yield
    finally:
        for layer, own in zip(augmenting, calls, strict=True):
            vars(layer).pop("call", None)
            if own is not None:
                layer.call = own
        for layer, name, value in saved:
            setattr(layer, name, value)


def draws_numbers(layer: keras.layers.Layer) -> bool:
    """Whether a layer holds a generator of random numbers."""
    return any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())


def acts_in_training(layer: keras.layers.Layer) -> bool:
    """Whether a layer is switched off out of training, and known to keep records apart.

    Keras' image augmentation, the identity then; its spectral normalization, which divides a kernel by a number that it
    computes of that kernel alone.
    """
    return hasattr(layer, "get_random_transformation") or type(layer) is keras.layers.SpectralNormalization


def unnormalized(layer: Any, inputs: tf.Tensor, training: bool | None = None) -> Any:
    """What spectral normalization wraps, in training as ever."""
    return keras.ops.cast(layer.layer(inputs), inputs.dtype)


def switched_off(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The layer's call as out of training."""
    return call(*args, **(kwargs | {"training": False}))


@contextlib.contextmanager
def untouched_state(model: "PrivateTraining") -> Iterator[Any]:
    """Yields a function that names the non-trainable weights changed inside the block; they are put back."""
    weights = [v for v in model.non_trainable_variables if SEEDS not in v.path]
    before = [np.array(v.numpy()) for v in weights]
    changed: list[str] = []
    yield lambda: changed
    for variable, value in zip(weights, before, strict=True):
        if not np.array_equal(variable.numpy(), value, equal_nan=value.dtype.kind == "f"):
            changed.append(variable.path)
            variable.assign(value)


def cross_gradient(model: "PrivateTraining", x: Any, y: Any) -> bool:
    """Whether the loss of row 0 has a gradient in another row of a floating-point input."""
    floats = [t for t in keras.tree.flatten(x) if t.dtype.is_floating]
    if not floats:
        return False
    with tf.GradientTape() as tape:
        tape.watch(floats)
        first = model.per_record_losses(x, y)[0]
    gradients = [g for g in tape.gradient(first, floats) if g is not None]
    return any(bool(tf.reduce_any(tf.convert_to_tensor(g)[1:] != 0)) for g in gradients)


def cross_upstream(model: "PrivateTraining", x: Any, y: Any) -> bool:
    """Whether a row's loss has an upstream gradient in another row, where the optimizer clips each row.

    Of what is the same in all rows (an embedding of positions) one row may stand for all, or their mean: additivity
    does not see that where nothing is clipped, and no input leads there.
    """
    if model.optimizer.bounding is None:
        return False
    for mine in (0, ROWS - 1):
        with tf.GradientTape() as tape, recorded(model, tape, model.optimizer.bounding, records=ROWS) as record:
            loss = model.per_record_losses(x, y)[mine]
        others = [i for i in range(ROWS) if i != mine]
        for gradient in tape.gradient(loss, record.watched):
            if gradient is not None and bool(tf.reduce_any(tf.gather(tf.convert_to_tensor(gradient), others) != 0)):
                return True
    return False


def refuse_mixed_losses(model: "PrivateTraining", x: Any, together: tf.Tensor, alone: tf.Tensor) -> None:
    """Raises ValueError if a record's own loss depends on other records, by input or label.

    Additivity alone does not see it where every upstream gradient is clipped: of a scalar output only the sign is left.

    Args:
        together, alone: the losses of a batch, and of its records alone: (batch,).
    """
    error = tolerance(model)
    if together.shape != alone.shape or not np.allclose(together, alone, error, error / 100, equal_nan=True):
        raise ValueError(
            f"Records are not independent in model {model.name!r}: the loss of a record in a batch differs from its"
            f" loss alone; {culprit(model, x)}. Return one value a record from the loss, computed from that record's"
            " labels and predictions of the same shape."
        )


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
            with without_randomness(model):
                whole = keras.tree.flatten(part(flat, training=True))
                single = keras.tree.flatten(part([t[:1] for t in flat], training=True))
        except (AttributeError, ValueError, tf.errors.InvalidArgumentError):  # of a layer that takes so many rows alone
            continue
        for a, b in zip(whole, single, strict=True):
            a, b, error = np.asarray(a[:1], np.float64), np.asarray(b, np.float64), tolerance(model)
            if not np.allclose(a, b, error, error / 100):
                return (
                    f"layer {layer.name!r} ({type(layer).__name__}) is the first whose output for a record depends on"
                    " other records"
                )
    return "no layer's forward pass mixes them, so the loss or a layer's backward pass does"
