"""Static shapes that an operation is told, and that no kernel checks.

What functions take and give (`raw_ops.StatelessWhile(output_shapes=...)`), elements of lists
(`TensorListGetItem(element_shape=...)`) and variables that are assigned have the shape that TensorFlow was told when
the graph was made; kernels hand on what there is. Python already makes constants of such shapes (`tf.size`), so one
that is not true leaves no trace in the graph. Each size of one must be shown: by the shape of what comes in, as
TensorFlow knows it, or by what the rules say of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdp_layers.proof.called import results_of
from tfdp_layers.proof.rules import Node
from tfdp_layers.proof.settling import concrete
from tfdp_layers.proof.values import Batch, ListOf, Refused, Value

__all__ = ["TOLD", "not_shown"]

LISTS = frozenset({"TensorListGetItem", "TensorListPopBack"})
TOLD = LISTS | {"AssignVariableOp", "PlaceholderWithDefault"}
"""Operations, besides calls, that hand on what they are given, whatever shape they are told."""

Sizes: TypeAlias = "tuple[Any, ...] | None"


def not_shown(node: Node, inputs: Sequence[Value], results: Sequence[Value], functions: Sequence[Any]) -> Any:
    """The first tensor whose static shape is not shown to be true, None if there is none.

    Args:
        functions: the graphs of the functions that a call runs; of a loop its body first.
    """
    for tensor, told, ways in claims(node, inputs, results, functions):
        if any(not shown(told, known, node.prover.batches) for known in ways):
            return tensor
    return None


def claims(
    node: Node, inputs: Sequence[Value], results: Sequence[Value], functions: Sequence[Any]
) -> Iterator[tuple[Any, Sizes, list[list[Sizes]]]]:
    """Tensors, the shapes that they are told, and what is known of these on each of the ways that values come."""
    operation = node.operation
    if operation.type in LISTS:
        found = inputs[0]
        declared = getattr(found, "declared", None) if isinstance(found, ListOf) else None
        entries = getattr(declared, "entries", None) if declared is not None and declared.shape != () else None
        yield told_of(operation.outputs[-1], [[of_value(results[-1]), entries]])
    elif operation.type == "PlaceholderWithDefault":
        yield told_of(operation.outputs[0], [[sizes_of(operation.inputs[0])]])
    elif operation.type == "AssignVariableOp" and not node.attribute("validate_shape", False):
        told = of_variable(node.prover.captured.get(getattr(inputs[0], "key", None)))
        yield operation.inputs[0], told, [[sizes_of(operation.inputs[1]), of_value(inputs[1])]]
    loops = operation.type in ("While", "StatelessWhile")
    for i, graph in enumerate(functions):
        first = len(operation.inputs) - len(graph.inputs)
        begins = known_of(list(operation.inputs)[first:], inputs[first:])
        # The condition of a loop takes what its body gives, whose shapes are shown first.
        ends = known_of(operation.outputs if loops and i > 0 else results_of(operation, graph), results)
        for k, tensor in enumerate(graph.inputs):
            yield told_of(tensor, [begins[k], ends[k]] if loops else [begins[k]])
        for k, tensor in enumerate(operation.outputs):
            yield told_of(tensor, [begins[k], ends[k]] if loops else [ends[k]])


def told_of(tensor: Any, ways: list[list[Sizes]]) -> tuple[Any, Sizes, list[list[Sizes]]]:
    return tensor, sizes_of(tensor), ways


def known_of(tensors: Sequence[Any], values: Sequence[Value]) -> list[list[Sizes]]:
    """What is known of each tensor's shape."""
    return [[sizes_of(tensor), of_value(value)] for tensor, value in zip(tensors, values, strict=True)]


def shown(told: Sizes, known: Iterable[Sizes], batches: Sequence[Batch]) -> bool:
    """Whether each size that is told is known; pieces and batches of a fixed number have as many records."""
    if told is None or all(n is None for n in told):
        return True
    sources = [sizes for sizes in known if sizes is not None and len(sizes) == len(told)]
    return all(n is None or any(concrete(sizes[i], batches) == n for sizes in sources) for i, n in enumerate(told))


def sizes_of(tensor: Any) -> Sizes:
    """The sizes that TensorFlow knows of a tensor."""
    if tensor.dtype in (tf.resource, tf.variant) or tensor.shape.rank is None:
        return None
    return tuple(tensor.shape.as_list())


def of_variable(handle: Any) -> Sizes:
    """The sizes that a variable is said to have, by its handle from outside of all functions."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or not data.shape_and_type or data.shape_and_type[0].shape.unknown_rank:
        return None
    return tuple(None if axis.size < 0 else axis.size for axis in data.shape_and_type[0].shape.dim)


def of_value(value: Value) -> Sizes:
    return None if isinstance(value, Refused) else value.shape
