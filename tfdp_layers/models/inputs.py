"""Whether records have what the model takes, input by input, said before anything is spent."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.batches.records import leaves_by_name
from tfdp_layers.structure import functional_class, inputs_of

__all__ = ["check_inputs", "matched", "stated_shapes"]


def check_inputs(model: Any, x: Any) -> None:
    """Raises ValueError where an input of the model gets nothing, or records of another shape than it takes.

    What Keras brings to the input's rank by itself, a last axis of 1 put on or taken off, is let in.

    Args:
        x: `tf.TensorSpec` of the records, in the structure that `fit` got, with shapes (None, ...).
    """
    if not _known(model):
        return
    structure, ends = inputs_of(model), list(model.inputs)
    if isinstance(x, Mapping):
        _refuse_missing([*structure] if isinstance(structure, Mapping) else [one.name for one in ends], ends, x)
    elif len(given := list(leaves_by_name("x", x))) != len(ends):
        raise ValueError(
            f"x holds {len(given)} arrays, and the model takes {len(ends)}: {[one.name for one in ends]}. Give one for"
            " each input: a list in their order, or a dict by name; of a data frame's columns make one, dict(frame)."
        )
    for name, spec, taken in matched(model, x):
        if spec.shape.rank is None or taken.shape is None:
            continue
        rows, wanted = tuple(spec.shape)[1:], tuple(taken.shape)[1:]
        if not (spec.shape.rank and _fits(rows, wanted)):
            batches = ""
            if spec.shape.rank and len(rows) > 1 and _fits(rows[1:], wanted):
                batches = (
                    f" Where a pipeline's .batch({rows[0] or ''}) made it so, this looks like batches: leave .batch out"
                    " (fit takes batch_size)."
                )
            raise ValueError(
                f"{name} has shape {_shaped(rows)}, and the model takes {_shaped(wanted)} there.{batches} Give records"
                f" of that shape, or begin the model with keras.Input({rows})."
            )


def matched(model: Any, x: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each leaf's name and spec, and the model's input that takes it, as far as that is known."""
    if not _known(model):
        return
    structure, ends = inputs_of(model), getattr(model, "inputs", None)
    if isinstance(x, Mapping):
        inputs = structure if isinstance(structure, Mapping) else {one.name: one for one in ends or []}
        given, taken = (
            [(f"x[{key!r}]", x[key]) for key in x if key in inputs],
            [inputs[key] for key in x if key in inputs],
        )
        if any(keras.tree.is_nested(one) for one in taken):
            return
    else:
        given, taken = list(leaves_by_name("x", x)), keras.tree.flatten(structure)
    if len(taken) == len(given):
        for (name, spec), one in zip(given, taken, strict=True):
            yield name, spec, one


def stated_shapes(model: Any, x: Any) -> Any:
    """Shapes of the records, in the structure of `x`; sizes that it leaves open as the model's inputs state them.

    Args:
        x: `tf.TensorSpec` of the records, as in `check_inputs`.
    """
    x = keras.tree.map_structure(copy.copy, x)  # one object may stand in several places
    stated = {id(spec): taken.shape for _, spec, taken in matched(model, x) if taken.shape is not None}

    def shape_of(spec: Any) -> tf.TensorShape:
        wanted = tuple(stated.get(id(spec), ()))
        if spec.shape.rank is None or len(wanted) != spec.shape.rank:
            return spec.shape
        sizes = [one if own is None else own for own, one in zip(spec.shape[1:], wanted[1:], strict=True)]
        return tf.TensorShape([spec.shape[0], *sizes])

    return keras.tree.map_structure(shape_of, x)


def _known(model: Any) -> bool:
    """Whether Keras knows the model's inputs before it is called."""
    return bool(model.built and isinstance(model, keras.Sequential | functional_class()))


def _refuse_missing(names: list[str], ends: list[Any], x: Mapping[str, Any]) -> None:
    optional = {one.name for one in ends if getattr(one._keras_history.operation, "optional", False)}
    missing = [name for name in names if name not in x and name not in optional]
    if not missing:
        return
    alone = " Or give the array alone, without a dict." if len(names) == 1 else ""
    raise ValueError(
        f"x is a dict of {[*x]}, and the model's inputs are called {names}: nothing is given for {missing}. Name the"
        f" inputs as the records do, keras.Input(shape, name={next(iter(x), names[0])!r}) say, or rename the"
        f" columns.{alone} A column that says whose record it is is no input: it goes to fit as unit_ids=."
    )


def _fits(rows: tuple[int | None, ...], wanted: tuple[int | None, ...]) -> bool:
    if len(rows) == len(wanted) + 1 and rows[-1] == 1:
        rows = rows[:-1]
    elif len(rows) == len(wanted) - 1 and wanted[-1] == 1:
        rows = (*rows, 1)
    return len(rows) == len(wanted) and all(a == b or a is None or b is None for a, b in zip(rows, wanted, strict=True))


def _shaped(rows: tuple[int | None, ...]) -> str:
    return f"({', '.join(['records', *map(str, rows)])}{',' if not rows else ''})"
