"""Whether a model that is called in a traced function, whose data nobody sees, is given what a generator makes."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.proof.outside import random_states
from tfdp_layers.proof.randomness import SEEDS
from tfdp_layers.structure import held_by

__all__ = ["are_generated"]

_OF_NO_RECORD = (*SEEDS, "algorithm", "delta", "resource", "shape")
"""What TensorFlow calls the inputs of random operations that say how many numbers are drawn, and from which state.

Any other one (a rate, a mean, a range, what is shuffled) may be of records, and what is drawn then tells of these.
"""
_PASSING = ("Identity", "Cast", "Reshape", "Transpose", "ReadVariableOp")
_HANDLES = (tf.resource, tf.variant)
_FEW = 9
"""More numbers than a shape has, mostly, or a mean of each colour."""


@tf.autograph.experimental.do_not_convert  # it runs while a function of the caller's is traced
def are_generated(
    tensors: Sequence[Any], model: keras.Model, generators: Sequence[keras.Model], records: Any = None
) -> bool:
    """Whether tensors of the graph that is being traced come through the weights of these models, and from no records.

    Each way from a tensor back must meet an operation that takes weights of a generator, a layer of it. Behind that it
    may come from random numbers, constants and arguments of the function that hold fewer numbers a row, together, than
    the model takes: codes, where a picture that a generator changes is as wide as a record. Past a generator it may
    come from random numbers, from arguments that are one number each (a temperature), and from constants of few numbers
    or of equal ones, which count with the others: whatever has rows, labels too, may be of records, and an optimizer's
    noise hides no answer to it. Random numbers are of what their parameters are of. Anything else (files, iterators,
    tables, other variables, Python, functions that are called) may hold records.

    Args:
        tensors: that the model is called with.
        model: takes records as its inputs.
        generators: whose weights come from what the model released.
        records: what describes the private ones, (rows, ...), for models that take several sizes.
    """
    record = _width(model.inputs) or _width(records)
    if not generators or not record:
        return False
    weights = {id(getattr(held_by(one), "handle", one)) for generator in generators for one in generator.weights}
    rows = next((one.shape[0] for one in tensors if one.shape.rank), None)
    width, left, seen = 0.0, [(one, False) for one in tensors], set[tuple[Any, bool]]()
    while left and width < record:
        tensor, behind = left.pop()
        known = hasattr(tensor, "graph")
        key = (id(tensor.graph), tensor.name) if known else id(tensor)
        if (key, behind) in seen:
            continue
        seen.add((key, behind))
        if not known or (tensor.op.type == "Placeholder" and _captured(tensor) is None):
            width += _from_outside(tensor, behind, rows)
        else:
            more, wide = _before(tensor, behind, weights, rows)
            left += more
            width += wide
    return width < record


def _width(rows: Any) -> int | None:
    """How many numbers one of such rows holds; None where that is not fixed."""
    shapes = [tf.TensorShape(one.shape[1:]) for one in keras.tree.flatten(rows or ())]
    defined = all(one.is_fully_defined() for one in shapes)
    return sum(int(one.num_elements()) for one in shapes) if defined else None


def _before(tensor: Any, behind: bool, weights: set[int], rows: int | None) -> tuple[list[tuple[Any, bool]], float]:
    """The tensors before this one, whether they lie behind a generator's layer, and how many numbers it brings."""
    operation = tensor.op
    if operation.type == "Placeholder":
        return [(_captured(tensor), behind)], 0
    if operation.type == "Const":
        return [], _from_outside(tensor, behind, rows)
    own = [one for one in operation.inputs if _is_weight(one, weights)]
    if own:
        rest = [one for one in operation.inputs if not any(one is other for other in own)]
        return [(one, True) for one in rest], 0
    calls = any(operation.get_attr(name.name) for name in operation.op_def.attr if name.type in ("func", "list(func)"))
    held = tensor.dtype in _HANDLES and not operation.type.startswith("TensorList")  # a loop's, of what it is given
    if calls or held or (operation.op_def.is_stateful and not any(random_states([operation]))):
        return [], math.inf
    return [(one, behind) for one in _of_records(operation)], 0


def _from_outside(given: Any, behind: bool, rows: int | None) -> float:
    """How many numbers an argument of the function or a constant brings; any number where it may not be there."""
    if not tf.is_tensor(given):
        return math.inf
    readable = isinstance(given, tf.Tensor) and given.dtype not in _HANDLES
    value, most = tf.get_static_value(given) if readable else None, 1
    if value is not None:
        value, most = np.ravel(value), _FEW - 1
        if (value == value[:1]).all() or (value.dtype.kind in "iub" and value.size <= most):  # a loop's zeros, a shape
            return 0
    if behind:
        return _numbers(given, rows)
    numbers = math.prod(given.shape) if given.shape.is_fully_defined() else math.inf
    return float(numbers) if numbers <= most and given.dtype not in (*_HANDLES, tf.string) else math.inf


def _of_records(operation: Any) -> list[Any]:
    """The inputs of an operation that may be of records: of a random one those alone that are parameters."""
    named = [one.name for one in operation.op_def.input_arg]
    if not (operation.op_def.is_stateful or set(named) & set(SEEDS)):
        return list(operation.inputs)
    return [one for name, one in zip(named, operation.inputs, strict=True) if name not in _OF_NO_RECORD]


def _captured(tensor: Any) -> Any:
    """The tensor outside of a graph that one of its inputs is; None of an argument of the traced function."""
    return next((one for one, inside in tensor.graph.captures if inside is tensor), None)


def _is_weight(tensor: Any, weights: set[int]) -> bool:
    """Whether it is a variable of these, or what one holds."""
    while tensor is not None and hasattr(tensor, "graph"):
        if tensor.op.type == "Placeholder":
            tensor = _captured(tensor)
        elif tensor.op.type in _PASSING:
            tensor = tensor.op.inputs[0]
        else:
            return False
    return id(tensor) in weights


def _numbers(tensor: Any, rows: int | None) -> float:
    """Of a row, where the first axis counts as many rows as the model gets; else of all. Any number where not fixed."""
    shape = tensor.shape
    if tensor.dtype in (*_HANDLES, tf.string) or shape.rank is None:
        return math.inf
    counted = shape[1:] if shape.rank > 1 and shape[0] == rows else shape
    return float(math.prod(counted)) if counted.is_fully_defined() else math.inf
