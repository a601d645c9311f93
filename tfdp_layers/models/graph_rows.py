"""Whether a model that is called in a traced function, whose data nobody sees, is given what a generator makes."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.structure import held_by

__all__ = ["are_generated"]

_RANDOM = (
    "Random",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulUniform",
    "StatelessRandom",
)
"""Kernels of random numbers: what they are given is shapes, seeds and ranges, but for a shuffle."""
_PASSING = ("Identity", "Cast", "Reshape", "Transpose", "ReadVariableOp")
_HANDLES = (tf.resource, tf.variant)
_SHAPE = 9
"""More whole numbers than TensorFlow's tensors have axes, mostly."""


@tf.autograph.experimental.do_not_convert  # it runs while a function of the caller's is traced
def are_generated(tensors: Sequence[Any], model: keras.Model, generators: Sequence[keras.Model]) -> bool:
    """Whether tensors of the graph that is being traced come through the weights of these models, and from no records.

    Each way from a tensor back must meet an operation that takes weights of a generator, a layer of it. Behind that it
    may come from random numbers, constants and arguments of the function that hold fewer numbers a row, together, than
    the model takes: codes and labels, where a picture that a generator changes is as wide as a record. Anything else
    (files, iterators, tables, other variables, Python, functions that are called) may hold records.

    Args:
        tensors: that the model is called with.
        model: takes records as its inputs.
        generators: whose weights come from what the model released.
    """
    shapes = [tf.TensorShape(one.shape[1:]) for one in keras.tree.flatten(model.inputs or ())]
    if not generators or not all(one.is_fully_defined() for one in shapes):
        return False
    record = sum(int(one.num_elements()) for one in shapes)
    weights = {id(getattr(held_by(one), "handle", one)) for generator in generators for one in generator.weights}
    rows = next((one.shape[0] for one in tensors if one.shape.rank), None)
    width, left, seen = 0.0, [(one, False) for one in tensors], set[tuple[int, str, bool]]()
    while left and width < record:
        tensor, behind = left.pop()
        if not hasattr(tensor, "graph"):  # captured, or given as it is
            width += _numbers(tensor, rows) if behind and tf.is_tensor(tensor) else math.inf
        elif (key := (id(tensor.graph), tensor.name, behind)) not in seen:
            seen.add(key)
            more, wide = _before(tensor, behind, weights, rows)
            left += more
            width += wide
    return width < record


def _before(tensor: Any, behind: bool, weights: set[int], rows: int | None) -> tuple[list[tuple[Any, bool]], float]:
    """The tensors before this one, whether they lie behind a generator's layer, and how many numbers it brings."""
    operation = tensor.op
    if operation.type == "Placeholder":
        outside = _captured(tensor)
        return ([], _numbers(tensor, rows) if behind else math.inf) if outside is None else ([(outside, behind)], 0)
    if operation.type == "Const":
        value = np.ravel(tf.get_static_value(tensor))
        plain = value.dtype.kind in "iub" and value.size < _SHAPE  # a shape, an axis
        return [], 0 if plain or (value == value[:1]).all() else _numbers(tensor, rows)  # zeros that a loop begins with
    if operation.type.startswith(_RANDOM) and operation.type != "RandomShuffle":
        return [], 0
    own = [one for one in operation.inputs if _is_weight(one, weights)]
    if own:
        rest = [one for one in operation.inputs if not any(one is other for other in own)]
        return [(one, True) for one in rest], 0
    calls = any(operation.get_attr(name.name) for name in operation.op_def.attr if name.type in ("func", "list(func)"))
    held = tensor.dtype in _HANDLES and not operation.type.startswith("TensorList")  # a loop's, of what it is given
    if operation.op_def.is_stateful or calls or held:
        return [], math.inf
    return [(one, behind) for one in operation.inputs], 0


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
