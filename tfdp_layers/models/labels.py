"""Whether labels are what the loss takes, said before anything is spent."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfdp_layers.caller import warn
from tfdp_layers.per_record.losses import MEANS, PerRecordLoss, is_sparse, keras_name

_ENTRY_BY_ENTRY = (*MEANS, "kl_divergence", "categorical_hinge", "cosine_similarity")
_HINGES = ("hinge", "squared_hinge")
_OF_TWO = ("binary_crossentropy", "binary_focal_crossentropy")
_ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy")
_OF_PROBABILITIES = (*_OF_TWO, *_ONE_HOT, "sparse_categorical_crossentropy")


def check_labels(model: keras.Model, loss: Any, y: Any) -> None:
    """Raises ValueError if labels lie outside what a single-output classifier can predict.

    Class numbers lie in 0 ... classes - 1, the labels of a binary cross-entropy in 0 to 1: others, such as -1 and 1,
    have a loss without a minimum. The message says how many classes there are, nothing of the records; that it is
    raised at all is not covered by the guarantee.

    Args:
        y: the labels; or a function that gives them, called where they are looked at.
    """
    if not model.built or len(model.outputs) != 1:
        return
    of_two = keras_name(keras.losses.get(loss) if isinstance(loss, str) else loss) in _OF_TWO
    if not (is_sparse(loss) or of_two):
        return
    y = y() if callable(y) else y
    if not hasattr(y, "shape"):
        return
    shape, values = model.outputs[0].shape, np.asarray(y)
    classes = shape[-1]
    if of_two:
        alike = classes == 1 or values.ndim == len(shape) or len(shape) == 1  # else `check_label_shapes` speaks up
        if alike and values.size and (values.min() < 0 or values.max() > 1):
            raise ValueError(
                "binary_crossentropy takes labels from 0 to 1, and some of y lie outside. Recode them, by"
                " (y == 2).astype('float32') where they are 1 and 2, by (y > 0).astype('float32') where -1 and 1; or,"
                " for more than two classes, keras.losses.SparseCategoricalCrossentropy and a unit for each class."
            )
        return
    if len(values.shape) == len(shape) and values.shape[-1] != 1:
        return  # no class numbers: see `check_label_shapes`
    ignored = getattr(loss, "ignore_class", None)  # of padding, and of positions that are not masked
    values = values if ignored is None else values[values != ignored]
    if values.dtype.kind == "f" and (values != np.floor(values)).any():
        raise ValueError(
            "The loss takes class numbers, and some of y are fractions, which Keras would cut off. Number the classes;"
            " or predict a number, by one unit and keras.losses.MeanSquaredError."
        )
    if classes and values.size and (values.min() < 0 or values.max() >= classes):
        if classes == 1:
            raise ValueError(
                "The last layer has one unit, and this loss takes one for each class. For two classes give it two"
                " units; or one unit, labels 0 and 1, and keras.losses.BinaryCrossentropy (with from_logits=True, or"
                " activation='sigmoid' in that layer)."
            )
        raise ValueError(
            f"The model has {classes} outputs, so sparse labels must lie in 0..{classes - 1}, and some of y do not."
            " Recode the labels (y - 1, where classes count from 1), or give the last layer one unit for each class."
        )


def public_classes(outputs: Any, losses: Sequence[Any]) -> int | None:
    """How many classes the labels of a single output can be, by the model and its loss, which are public; else None.

    Those of other losses, as of a regression, may be any numbers. `check_labels` holds labels to it.

    Args:
        outputs: the model's, in its own structure, with shapes (None, ...).
        losses: the compiled ones, one for each output.
    """
    found = keras.tree.flatten(outputs)
    if len(found) != 1 or len(losses) != 1:
        return None
    width = found[0].shape[-1]
    if keras_name(losses[0]) in _OF_TWO:
        return 2 if width == 1 or len(found[0].shape) == 1 else None
    return width if is_sparse(losses[0]) else None


def check_label_shapes(outputs: Any, loss: PerRecordLoss, y: Any) -> None:
    """Raises ValueError where labels are missing, belong to no output, or have a shape that a loss of Keras won't take.

    Args:
        outputs: the model's, in its own structure, with shapes (None, ...).
        loss: the compiled one, taken apart.
        y: structure of specs of the labels, with shapes (None, ...); None without labels.
    """
    for output, given, one, name in _paired(outputs, loss, y):
        _check(tuple(output.shape), given, one, name)


def warn_of_logits(outputs: Any, loss: PerRecordLoss, y: Any) -> None:
    """Warns where a loss takes probabilities and the output's last layer has no activation. Arguments as above."""
    for output, _, one, name in _paired(outputs, loss, y):
        _warn_of_logits(output, one, name)


def _paired(outputs: Any, loss: PerRecordLoss, y: Any) -> Iterator[tuple[Any, tuple[int | None, ...], Any, str]]:
    """Each output that has a loss and labels, the labels' shape, the loss and its name."""
    labels = loss.labels(y, outputs)
    for output, one, label, name in zip(keras.tree.flatten(outputs), loss.losses, labels, loss.names, strict=False):
        predicted, given = getattr(output, "shape", None), getattr(label, "shape", None)
        if one is not None and predicted and given is not None and getattr(given, "rank", 0) is not None:
            yield output, tuple(given), one, name


def _check(predicted: tuple[int | None, ...], given: tuple[int | None, ...], loss: Any, name: str) -> None:
    """Raises ValueError for labels of this shape at an output of this one."""
    kind = keras_name(loss)
    wide = predicted[-1] is not None and predicted[-1] > 1
    numbers = _agree(given, predicted[:-1]) or _agree(given, (*predicted[:-1], 1))
    if kind in _HINGES:
        value = "keras.ops.maximum(1 - y * p, 0)"
        value = value if len(predicted) == 1 else f"keras.ops.mean({value}, axis=-1)"
        raise ValueError(
            f"Keras' {kind} asks whether all labels of a batch are 0 or 1, so each record's loss depends on the others'"
            " labels and no bound holds. Write it for single records, with labels of -1 and 1: loss=lambda y, p:"
            f" {value}."
        )
    if kind and len(predicted) == 1:
        _check_flat(given, kind, name)
        return
    called = f"The labels of output {name!r} have shape {_shaped(given)}, and {kind or type(loss).__name__}"
    if is_sparse(loss) and not numbers:
        if wide and _agree(given, predicted):
            raise ValueError(
                f"{called} takes one class number a record, not a row of {predicted[-1]}, as one-hot labels have. Use"
                " keras.losses.CategoricalCrossentropy for these labels, or give numpy.argmax(y, axis=-1)."
            )
        raise ValueError(f"{called} takes {_shaped(predicted[:-1])}: one class number for each prediction.")
    if kind in _ONE_HOT and wide and not _agree(given, predicted):
        if numbers:
            raise ValueError(
                f"{called} takes a row of {predicted[-1]} numbers a record, one for each class. For class numbers use"
                " keras.losses.SparseCategoricalCrossentropy, or give keras.utils.to_categorical(y,"
                f" {predicted[-1]})."
            )
        raise ValueError(f"{called} takes {_shaped(predicted)}, as wide as the output. {_WIDTH}")
    flat = len(given) == len(predicted) - 1 and wide
    if kind in _ENTRY_BY_ENTRY and (flat or (len(given) == len(predicted) and not _broadcast(given, predicted))):
        raise ValueError(f"{called} takes {_shaped(predicted)}, as wide as the output. {_WIDTH}")


def _check_flat(given: tuple[int | None, ...], kind: str, name: str) -> None:
    """Raises ValueError for a loss of Keras, or labels of this shape, at an output of one number a record, (None,)."""
    if kind not in MEANS:
        raise ValueError(
            f"Output {name!r} is one number a record, shape (records,), and {kind} takes a row of numbers for each."
            " Leave such an axis at the end of the output; or use a loss of single numbers, such as"
            " keras.losses.MeanSquaredError or BinaryCrossentropy."
        )
    if not _agree(given, (None,)) and not _agree(given, (None, 1)):
        raise ValueError(
            f"The labels of output {name!r} have shape {_shaped(given)}, and the output is one number a record, shape"
            f" (records,). {_WIDTH}"
        )


def _warn_of_logits(output: Any, loss: Any, name: str) -> None:
    """A loss of probabilities clips what lies outside of 0 to 1: such a training spends the budget on very little."""
    layer = getattr(getattr(output, "_keras_history", None), "operation", None)
    bare, kind = getattr(layer, "activation", None) is keras.activations.linear, keras_name(loss)
    if bare and kind in _OF_PROBABILITIES and not getattr(loss, "from_logits", False):
        takes = "".join(word.capitalize() for word in kind.split("_"))
        activation = "sigmoid" if kind in _OF_TWO else "softmax"
        warn(
            f"{kind} takes probabilities from 0 to 1, and output {name!r} is a {type(layer).__name__} without an"
            f" activation: its numbers have any size. Use loss=keras.losses.{takes}(from_logits=True), or"
            f" activation={activation!r} in that layer."
        )


_WIDTH = "Recode the labels, or give the last layer as many units as a label has numbers."


def _shaped(shape: tuple[int | None, ...]) -> str:
    rest = ", ".join(str(one) for one in shape[1:])
    return f"(records, {rest})" if rest else "(records,)"


def _agree(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    """Whether two shapes are equal where both are known."""
    return len(a) == len(b) and all(m == n or m is None or n is None for m, n in zip(a, b, strict=True))


def _broadcast(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    """Whether a label of shape `a` is repeated to the prediction's shape `b`. One prediction for several labels is not:
    it would be trained towards all of them.
    """
    return all(m == n or m in (None, 1) or n is None for m, n in zip(a, b, strict=True))
