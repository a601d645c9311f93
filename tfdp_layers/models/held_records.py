"""Private records among the numbers that a model is made of: memories, centres, tables, a graph's features."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.batches.texts import is_text
from tfdp_layers.caller import warn
from tfdp_layers.models.equal_rows import KnownRows, as_table
from tfdp_layers.proof.models import layer_names
from tfdp_layers.structure import held_by

__all__ = ["warn_of_held_records"]

_LEAST, _MOST_ROWS, _FEWEST_RECORDS = 3, 4096, 20
_DRAWN = tuple(
    getattr(keras.initializers, name)
    for name in ("RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling", "Orthogonal", "Zeros", "Ones")
)
_WIDER = 16
"""Times the number of records: a table of more rows is of something else."""


class _Held(NamedTuple):
    """Numbers of a model.

    Attributes:
        name: what the user knows them by.
        trained: whether the optimizer changes them.
        shape: of them.
        numbers: gives them.
    """

    name: str
    trained: bool
    shape: tuple[int, ...]
    numbers: Callable[[], np.ndarray]


def warn_of_held_records(model: Any, graph: Any, inputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> bool:
    """Warns where a model holds private records, or a table with a row for each of them. Returns whether it did.

    Looked at are weights, variables and constants of two axes and more; along the first axes or the last ones each row
    is compared with x, number by number: one array of it, all of them, and y beside them. Found are copies, whole or in
    part; not records that were scaled, rounded or averaged.

    Args:
        graph: of the traced sums; None where they are not traced: then the weights alone are looked at.
        inputs, labels: the arrays of x and y, (records, ...); none where they do not lie in memory.
    """
    held = sorted(_held(model, graph), key=lambda one: one.trained)
    tables = _tables(inputs, labels)
    for one in held:
        if any(_holds(one, table) for table in tables):
            warn(_of_weights(one) if one.trained else _of_constants(one))
            return True
    drawn_by = _initializers(model)
    for one in held:
        if one.trained and one.name not in drawn_by:
            continue
        if _looked_up(one.shape, inputs, one.trained) and not (one.trained and _draws(drawn_by[one.name], one.shape)):
            warn(
                f"{one.name} has a row for each record, and whole numbers of the records say which one: so it seems to"
                " be made of the private records, such as the features of all nodes of a graph. It is in the model"
                " without noise, and what it tells of one record reaches the gradients of others past every bound: no"
                " epsilon covers that. Let each record bring its own features, as x. Where these numbers are of public"
                " data, nothing is lost."
            )
            return True
    return False


def _of_constants(one: _Held) -> str:
    return (
        f"{one.name} holds rows that are private records, number by number. They are in the model without noise, go"
        " wherever it goes, and reach the gradients of other records past every bound: no epsilon covers that. Take"
        " public rows instead, or weights that are trained from random numbers (add_weight), or leave it out. Where"
        " these rows are public, nothing is lost."
    )


def _of_weights(one: _Held) -> str:
    return (
        f"{one.name} begins at rows that are private records, number by number. A trained weight keeps much of what it"
        " began at, and no epsilon covers that: begin at random numbers (a Keras initializer), or at public rows. Where"
        " these rows are public, nothing is lost."
    )


# What a model holds ---------------------------------------------------------------------------------------------------


def _held(model: Any, graph: Any) -> Iterator[_Held]:
    """The weights, what the sums read beside them, and what they hold by themselves."""
    known = {id(held_by(v)) for v in model.variables}
    for weight in model.weights:
        name = f"Weight {weight.path!r}"
        yield _Held(name, bool(weight.trainable), tuple(weight.shape), functools.partial(np.asarray, weight))
    if graph is None:
        return
    names = list(layer_names(model))
    for variable in graph.variables:
        if id(variable) not in known and variable.shape.is_fully_defined():
            name = f"Variable {variable.name.split(':')[0]!r}"
            yield _Held(name, False, tuple(variable.shape), functools.partial(np.asarray, variable))
    for outer, inner in graph.captures:
        if hasattr(outer, "numpy") and _has_numbers(outer):
            yield _constant(inner, names, outer.numpy)
    for one in graph.get_operations():
        if one.type == "Const" and _has_numbers(one.outputs[0]):
            yield _constant(one.outputs[0], names, functools.partial(_made, one))


def _initializers(model: Any) -> dict[str, Any]:
    """What trained tables of `Embedding` layers began by, by their names."""
    return {
        f"Weight {weight.path!r}": layer.embeddings_initializer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Embedding)
        for weight in layer.trainable_weights
        if tuple(weight.shape) == (layer.input_dim, layer.output_dim)
    }


def _draws(initializer: Any, shape: tuple[int, ...]) -> bool:
    """Whether a table of one row more would begin so, too: rows that were given are as many as there are."""
    if isinstance(initializer, _DRAWN):
        return True
    more = (shape[0] + 1, *shape[1:])
    try:
        return tuple(np.shape(initializer(more, dtype="float32"))) == more
    except Exception:  # the user's own code, or an array of another shape
        return False


def _has_numbers(tensor: Any) -> bool:
    return bool((tensor.dtype.is_floating or tensor.dtype.is_integer) and tensor.shape.is_fully_defined())


def _made(operation: Any) -> np.ndarray:
    return np.asarray(tf.make_ndarray(operation.get_attr("value")))


def _constant(tensor: Any, names: Iterable[str], numbers: Callable[[], np.ndarray]) -> _Held:
    used = [tensor.op.name, *(one.name for one in tensor.consumers())]
    parts = {re.sub(r"_\d+$", "", part) for name in used for part in name.split("/")[:-1]}
    parts |= {part for name in used for part in name.split("/")[:-1]}
    found = next((name for name in names if name in parts), None)
    shape = tuple(tensor.shape)
    where = "the loss or the model" if found is None else f"layer {found!r}"
    return _Held(f"A constant of shape {shape} in {where}", False, shape, numbers)


# What it is compared with ---------------------------------------------------------------------------------------------


def _tables(inputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> list[KnownRows]:
    """The records as rows: of each array of x, of all of them, and with their labels."""
    x, y = ([one for one in arrays if not is_text(one)] for arrays in (inputs, labels))
    choices = [[one] for one in x]
    if len(x) > 1:
        choices.append(x)
    if x and y:
        choices.append([*x, *y])
    made = [KnownRows(one) for one in choices]
    return [one for one in made if one.bounded]


def _holds(one: _Held, table: KnownRows) -> bool:
    """Whether the rows of what is held, along its first axes or its last ones, are records."""
    width = sum(table.widths)
    for at in range(1, len(one.shape)):
        first, last = (int(np.prod(part)) for part in (one.shape[:at], one.shape[at:]))
        for rows, columns, turned in ((first, last, False), (last, first, True)):
            if columns == width and rows >= _LEAST:
                flat = one.numbers().reshape(first, last)
                if _are_records(flat.T if turned else flat, table):
                    return True
    return False


def _are_records(rows: np.ndarray, table: KnownRows) -> bool:
    if rows.dtype.kind not in "biufV":
        return False
    rows = np.ascontiguousarray(rows, np.float32)
    with np.errstate(all="ignore"):
        rows = rows[np.isfinite(rows).all(1) & (rows != rows[:1]).any(1) | (np.arange(len(rows)) == 0)]
    cuts = np.cumsum(table.widths)[:-1]
    if len(rows) < _LEAST:
        return False
    near = table.near(np.split(rows, cuts, axis=1))
    if near.sum() < _LEAST:
        return False
    if table.telling:
        rows = rows[near]
    rows = rows[:: -(-len(rows) // _MOST_ROWS)]
    return table.holds(np.split(rows, cuts, axis=1), _LEAST)


def _looked_up(shape: tuple[int, ...], inputs: Sequence[np.ndarray], trained: bool) -> bool:
    """Whether whole numbers of the records are numbers of rows: one row a record.

    So it is where each record has a number of its own, or, if the table is not trained, where there are as many rows as
    records: tables of words, which texts look up, are most often trained.
    """
    if len(shape) < 2:
        return False
    for array in inputs:
        if array.dtype.kind not in "iu" or len(array) < _FEWEST_RECORDS or shape[0] < len(array):
            continue
        numbers = as_table(array)
        if numbers.min() < 0 or numbers.max() >= shape[0]:
            continue
        if shape[0] == len(array) and not trained:
            return True
        own = numbers.shape[1] == 1 and len(np.unique(numbers)) == len(array)
        if own and shape[0] <= _WIDER * len(array):
            return True
    return False
