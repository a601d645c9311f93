"""One loss a record: what a compiled Keras loss says of each record alone."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

_REDUCTIONS = ("sum_over_batch_size", "mean", "sum")
_SEVERAL = (
    "An output takes one loss. Add several in a function: loss=lambda y, p: keras.losses.mean_squared_error(y, p) + 0.5"
    " * keras.losses.mean_absolute_error(y, p)."
)
MEANS = (
    *("mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_logarithmic_error"),
    *("binary_crossentropy", "binary_focal_crossentropy", "huber", "log_cosh", "poisson"),
)
"""Keras' losses that are means over the last axis of one number for each entry."""
_TOGETHER = (
    "A loss that compares records with each other (Cox's partial likelihood, pairs within a batch) has no such value"
)


class PerRecordLoss:
    """The weighted sum over a model's outputs of each record's own loss.

    Guarantee: entry i of the result depends on row i of the labels, predictions, weights and masks alone. Over further
    axes (positions of a sequence, pixels) a loss with reduction "sum_over_batch_size" is averaged, with "sum" added
    up; masked positions don't count, in a record's own average.

    Args:
        loss: what the user gave to `compile`: a name, a keras.losses.Loss, a function of (y_true, y_pred), or a list
            or dict of these, one for each output.
        loss_weights: None, or a list or dict of numbers, one for each output.
        output_names: the model's output names.

    Raises:
        ValueError: if a loss can't be taken apart into records, or the structures don't fit.
    """

    def __init__(self, loss: Any, loss_weights: Any, output_names: list[str]) -> None:
        self.names = list(output_names)
        self.losses = [as_loss(only(one, "loss")) for one in self.align(loss, "loss", allow_one=True)]
        weights = self.align(loss_weights, "loss_weights") if loss_weights is not None else [1.0] * len(self.names)
        weights = [only(one, "loss_weights") for one in weights]
        self.weights = [1.0 if weight is None else float(weight) for weight in weights]

    def align(self, value: Any, argument: str, allow_one: bool = False) -> list[Any]:
        """The entries of a list or dict in the order of the model's outputs."""
        if isinstance(value, dict):
            unknown = set(value) - set(self.names)
            if unknown:
                raise ValueError(
                    f"`{argument}` names outputs {sorted(unknown)} that the model lacks. Its outputs: {self.names}."
                )
            return [value.get(name) for name in self.names]
        if isinstance(value, list | tuple):
            if len(value) != len(self.names):
                several = f" {_SEVERAL}" if len(self.names) == 1 else ""
                raise ValueError(
                    f"`{argument}` has {len(value)} entries for {len(self.names)} outputs {self.names}.{several}"
                )
            return list(value)
        if not allow_one and len(self.names) > 1:
            raise ValueError(f"`{argument}` must be a list or dict with one entry for each output {self.names}.")
        return [value] * len(self.names)

    def labels(self, y: Any, outputs: Any) -> list[Any]:
        """The labels of each output, in the order of the outputs; None for an output without a loss.

        Args:
            y: the labels, or their specs: one array, a list or tuple in the order of the outputs, or a dict by name.
            outputs: predictions in the model's own structure; the keys of a dict name outputs, too.

        Raises: ValueError where labels and outputs with a loss do not belong together one to one. By order alone, a
            label with a misspelt name would train another output.
        """
        wanted = [name for name, loss in zip(self.names, self.losses, strict=True) if loss is not None]
        fix = f"Give a dict of labels by name, or a list with one entry for each output: {self.names}."
        keyed = isinstance(y, dict) and isinstance(outputs, dict) and set(y) == set(outputs)
        if isinstance(y, dict) and not keyed and len(self.names) > 1:
            unknown = sorted(map(str, set(y) - set(self.names)))
            if unknown:
                raise ValueError(f"y names {unknown}, which the model has no outputs for. {fix}")
            found = [y.get(name) for name in self.names]
        else:
            found = keras.tree.flatten(y)
            if not any(map(_given, found)):
                found = [None] * len(self.names)
            if len(found) == 1 and len(wanted) == 1:
                found = [found[0] if name in wanted else None for name in self.names]
        if len(found) != len(self.names):
            raise ValueError(f"y holds {len(found)} arrays, for {len(self.names)} outputs. {fix}")
        missing = [name for name, one in zip(self.names, found, strict=True) if name in wanted and not _given(one)]
        if missing:
            raise ValueError(
                f"There are no labels for the outputs {missing}, and the loss compares each prediction with one. Give"
                " them: model.fit(x, y), with one argument for each, or records of (x, y)."
            )
        return found

    def flatten(self, structure: Any) -> list[Any]:
        """The leaves of predictions or weights in the order of the outputs."""
        if isinstance(structure, dict) and set(structure) <= set(self.names):
            return [structure.get(name) for name in self.names]
        leaves = keras.tree.flatten(structure)
        return leaves * len(self.names) if len(leaves) == 1 else leaves

    def __call__(self, y: Any, y_pred: tf.Tensor, sample_weight: Any = None) -> tf.Tensor:
        """(batch, ...) structures -> (batch,) float32."""
        self.require()
        total: tf.Tensor | float = 0.0
        weights = [None] * len(self.names) if sample_weight is None else self.flatten(sample_weight)
        for loss, factor, y_true, prediction, weight in zip(
            self.losses, self.weights, self.labels(y, y_pred), self.flatten(y_pred), weights, strict=True
        ):
            if loss is not None:
                total += factor * one_output(loss, y_true, prediction, weight)
        return total

    def require(self) -> None:
        """Raises ValueError unless some output has a loss."""
        if all(loss is None for loss in self.losses):
            raise ValueError("The model is compiled without a loss: give model.compile one, for example loss='mse'.")


def refuse_weights_of_metrics(loss_weights: Any) -> None:
    """Raises ValueError for `loss_weights` of `compile` that are no numbers, as metrics in its third place are."""
    others = [one for one in keras.tree.flatten(loss_weights) if isinstance(one, str) or callable(one)]
    if others:
        raise ValueError(
            "loss_weights, the third argument of compile, are numbers, one for each output. Received:"
            f" {', '.join(map(repr, others))}. Metrics are given by name: compile(optimizer, loss, metrics=[...])."
        )


def only(value: Any, argument: str) -> Any:
    """What a list of one holds, and anything else as it is. Raises ValueError for a structure of several."""
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, list | tuple) or (isinstance(value, dict) and "class_name" not in value):
        kind = "dict" if isinstance(value, dict) else "list"  # Keras holds lists in a class of TensorFlow's own
        raise ValueError(f"`{argument}` gives a {kind} of {len(value)} for one output. {_SEVERAL}")
    return value


def _given(label: Any) -> bool:
    """Whether there is a label, or the spec of one; a pipeline of x alone has a spec of nothing."""
    return label is not None and not (isinstance(label, tf.TypeSpec) and not hasattr(label, "shape"))


def as_loss(loss: Any) -> keras.losses.Loss | Callable[..., Any] | None:
    """A loss that gives unreduced values, from a name, an object or a function.

    Raises: ValueError for a reduction that divides by something counted over the batch.
    """
    if loss is None:
        return None
    if isinstance(loss, str | dict):
        loss = keras.losses.get(loss)
    if isinstance(loss, keras.losses.Loss) and loss.reduction not in _REDUCTIONS:
        raise ValueError(
            f"Loss {loss.name!r} has reduction={loss.reduction!r}, which hides or mixes the losses of single records."
            f" Use one of {_REDUCTIONS}; the sum over records is then bounded and divided by the expected batch size."
        )
    return loss


def keras_name(loss: Any) -> str:
    """What Keras calls a loss of its own, as an object or a function.

    Empty for others, also for a class derived of one of Keras' that computes the loss in a `call` of its own.
    """
    if isinstance(loss, keras.losses.Loss):
        loss = getattr(loss, "fn", None) if _of_keras(loss.call) else None
    return str(getattr(loss, "__name__", "")) if _of_keras(loss) else ""


def _of_keras(function: Any) -> bool:
    return (getattr(function, "__module__", "") or "").split(".")[0] == "keras"


def is_mean(loss: Any) -> bool:
    """Whether a loss is one of Keras' own means over the last axis."""
    return keras_name(loss) in MEANS


def is_sparse(loss: str | keras.losses.Loss | Callable[..., tf.Tensor] | None) -> bool:
    """Whether the loss takes integer class labels, one axis fewer than the predictions."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    by_name = getattr(loss, "__name__", "") == "sparse_categorical_crossentropy"
    return by_name or isinstance(loss, keras.losses.SparseCategoricalCrossentropy)


def one_output(
    loss: keras.losses.Loss | Callable[..., tf.Tensor], y_true: tf.Tensor, y_pred: tf.Tensor, weight: tf.Tensor | None
) -> tf.Tensor:
    """Each record's loss at one output: (batch,) float32. Records of weight zero have loss and gradient zero.

    It is what Keras' own `Loss.__call__` gives for the record alone, a batch of one.
    """
    mask = getattr(y_pred, "_keras_mask", None)
    y_pred = keras.ops.cast(y_pred, "float32")
    values, name = unreduced(loss, y_true, y_pred, mask is not None)
    masks = [mask, getattr(values, "_keras_mask", None)]  # losses set one on what they give, such as of ignore_class
    values = keras.ops.cast(values, "float32")
    if values.shape.rank is None:
        raise ValueError(
            f"Loss {name!r} returns values of unknown rank for a batch, as keras.ops.squeeze(...) without an axis does:"
            " it drops axis 0, too, where a batch holds one record, and that hides what each record adds. Name the"
            " axis: keras.ops.squeeze(..., axis=-1). Where the values come from Python code (tf.numpy_function), say"
            " their shape: values.set_shape([None])."
        )
    if len(values.shape) == 0 or (values.shape[0] is not None and values.shape[0] != y_pred.shape[0]):
        raise ValueError(
            f"Loss {name!r} returns shape {tuple(values.shape)} for a batch: one number for the whole batch hides what"
            " each record adds, so no record's influence can be bounded. Return one value a record, shape (batch,) or"
            f" (batch, ...): {_over_each_record(loss, y_pred)}."
        )
    counts = tf.ones_like(values)
    for one in masks:
        if one is not None:
            counts *= tf.broadcast_to(counted(one, values), tf.shape(values))
    weights = counts if weight is None else counts * expand_to(keras.ops.cast(weight, "float32"), values)
    # Select, don't multiply: a refused position may hold NaN, and NaN * 0 is NaN.
    weighted = tf.where(weights == 0.0, tf.zeros_like(values), values * weights)
    axes = list(range(1, len(values.shape)))
    if not axes:
        return weighted
    total = tf.reduce_sum(weighted, axis=axes)
    summed = isinstance(loss, keras.losses.Loss) and loss.reduction == "sum"
    return total if summed else tf.math.divide_no_nan(total, tf.reduce_sum(counts, axis=axes))


def unreduced(loss: Any, y_true: Any, y_pred: tf.Tensor, masked: bool) -> tuple[tf.Tensor, str]:
    """What a loss gives of labels and predictions, of the type and rank in which Keras hands them to it; its name.

    Labels (batch,) beside predictions (batch, 1) would broadcast to (batch, batch), and every record's loss would hold
    every other's label. Where predictions are masked, labels get the axis, for the mask has those of the predictions.
    Predictions (batch,) get one where the loss is Keras' own mean over the last axis, which is the batch otherwise.
    """
    ours = isinstance(loss, keras.losses.Loss)
    y_true = keras.ops.convert_to_tensor(y_true, dtype=loss.dtype if ours else "float32")
    if is_mean(loss):
        y_true, y_pred = as_columns(y_true, y_pred)
    more = len(y_pred.shape) - len(y_true.shape)
    wrapped = hasattr(loss, "fn") if ours else True  # a subclass gets them as they are
    if wrapped and not is_sparse(loss):
        if more == 1 and y_pred.shape[-1] == 1:
            if masked or len(y_true.shape) == 1:
                y_true = y_true[..., tf.newaxis]
            else:
                y_pred = tf.squeeze(y_pred, -1)
        elif more == -1 and y_true.shape[-1] == 1:
            if len(y_pred.shape) == 1:
                y_pred = y_pred[..., tf.newaxis]
            else:
                y_true = tf.squeeze(y_true, -1)
    if ours:
        return loss.call(y_true, y_pred), loss.name
    return loss(y_true, y_pred), getattr(loss, "__name__", type(loss).__name__)


def as_columns(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Labels and predictions of one number a record, (batch,), as (batch, 1); all others as they are."""
    return as_column(y_true) if is_flat(y_pred) else y_true, as_column(y_pred)


def as_column(numbers: Any) -> Any:
    """One number a record, (batch,), as (batch, 1); all else as it is."""
    return numbers[..., tf.newaxis] if is_flat(numbers) else numbers


def is_flat(numbers: Any) -> bool:
    """Whether a tensor, or its spec, is of one number a record, (batch,)."""
    return bool(tf.TensorShape(getattr(numbers, "shape", None)).rank == 1)


def counted(mask: Any, values: tf.Tensor) -> tf.Tensor:
    """1.0 where a mask lets values count, else 0.0. Of positions within a value, any one lets it count."""
    found = expand_to(keras.ops.cast(keras.ops.cast(mask, "bool"), "float32"), values)
    within = list(range(len(values.shape), len(found.shape)))
    return tf.reduce_max(found, axis=within) if within else found


def expand_to(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Appends axes (or drops a last one of size 1) until `values` broadcasts against `like` from the left."""
    if len(values.shape) > len(like.shape) and values.shape[-1] == 1:
        values = tf.squeeze(values, -1)
    while len(values.shape) < len(like.shape):
        values = values[..., tf.newaxis]
    return values


def _over_each_record(loss: Any, y_pred: tf.Tensor) -> str:
    """What to write, for a loss of one number to give one for each record."""
    axes = tuple(range(1, len(y_pred.shape)))
    if not axes:
        return (
            "the output is one number a record and has no axis but that of the batch, so leave keras.ops.mean and sum"
            " out. Keras' own losses take such numbers with one more axis: keras.losses.mean_squared_error(y[:, None],"
            f" p[:, None]). {_TOGETHER}"
        )
    if hasattr(loss, "axis") and type(loss).__module__.partition(".")[0] == "keras":
        return f"keras.losses.{type(loss).__name__}(axis={axes})"
    if len(axes) > 1:  # of images and sequences, where what adds up is a ratio of sums, as of Dice
        return f"reduce over all axes but the first, by keras.ops.sum(..., axis={axes}), and mean alike"
    return f"reduce over all axes but the first, as keras.ops.mean(..., axis=-1) does of values (batch, n). {_TOGETHER}"
