"""What functions of a pipeline keep of an element: variables, tables and queues that they write, and others read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from tfdp_layers.proof.outside import PYTHON, outside

__all__ = ["arguments", "arguments_of", "is_kept", "keeps_elsewhere", "keeps_records", "keeps_within"]

_KEPT = (
    *("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply"),
    *("TableInsert", "TableImport", "TableRemove", "Enqueue", "InsertMany", "StackPush", "Stage"),
    *("AccumulatorApplyGradient", "TensorArrayWrite", "TensorArrayScatter", "TensorArrayConcat", "TensorArraySplit"),
)
"""In the types of operations that write what they are given into what others may read."""
_LEFT = ("Dataset", "SeedGenerator", "MemoryCache", "StatelessRandom", "Timestamp")
"""In those of operations of data sets within functions, and of what takes nothing from an element."""


def is_kept(kind: str) -> bool:
    """Whether operations of this type write into a variable, a table, a queue or the like."""
    return any(part in kind for part in _KEPT)


def keeps_records(graph: Any) -> bool:
    """Whether a function writes what depends on its arguments; a generator's next seed does not."""
    return bool(arguments_of(graph, [one for one in graph.get_operations() if is_kept(one.type)]))


def arguments(graph: Any) -> list[Any]:
    """The inputs of a function that are its arguments; the other ones are tensors around it that it reads."""
    captured = {inner.name for _, inner in graph.captures}
    return [one for one in graph.inputs if one.name not in captured]


def arguments_of(graph: Any, operations: Iterable[Any]) -> set[str]:
    """The names of the arguments of a function on which any of these operations depends."""
    names = {one.op.name: one.name for one in arguments(graph)}
    seen: set[str] = set()
    left = [*operations]
    while left:
        operation = left.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            left += [one.op for one in operation.inputs]
    return {names[one] for one in seen & names.keys()}


def keeps_within(graph: Any) -> bool:
    """Whether a function that it calls writes anything."""
    with contextlib.suppress(Exception):  # too large for a message, by a constant that it holds
        return any(is_kept(node.op) for one in graph.as_graph_def().library.function for node in one.node_def)
    return False


def keeps_elsewhere(graph: Any) -> str | None:
    """The type of an operation that may keep, or take, numbers where others do, as the proof of a step has it.

    Not counted are Python code, which nobody sees into, data sets within the function, random numbers, and operations
    without a state, which a library may have added.
    """
    return outside(graph.get_operations(), _left_out)


def _left_out(operation: Any) -> bool:
    kind = operation.type
    if kind.startswith("Inplace"):
        return False
    drawn = any(one.name == "seed2" for one in operation.op_def.attr)
    left = kind in PYTHON or is_kept(kind) or any(part in kind for part in _LEFT)
    return left or drawn or not operation.op_def.is_stateful
