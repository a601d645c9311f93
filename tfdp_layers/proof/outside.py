"""Operations that take or keep numbers outside of variables: Python code, clocks, files, queues without a handle.

What a step writes and reads is followed by the handles of its variables. Where records are seen without noise, and
where a release is made of what carries noise, numbers must go no other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.interpreter import graph_named

__all__ = ["PYTHON", "nodes_of", "outside"]

PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
"""Operations that run Python code in a graph."""

_READS = frozenset({"ReadFile", "MatchingFiles"})
"""Operations that TensorFlow takes for functions of their inputs, and that read files."""

_HARMLESS = frozenset({"Assert", "CheckNumericsV2", "Print", "PrintV2"})
"""Messages, which are assumed not to be observed, and checks of the values at hand."""

_RANDOM = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)
"""Random numbers of a state that belongs to the operation alone."""

_BETWEEN_DEVICES = ("Collective", "Nccl")


def outside(operations: Iterable[Any]) -> str | None:
    """The type of the first operation, also of functions that are called, that takes or keeps numbers elsewhere.

    None where all of them are functions of their inputs, read and write by handles, which are followed, draw random
    numbers, or sum over devices.
    """
    return next((one.type for one in _with_called(operations) if _is_outside(one)), None)


def _is_outside(operation: Any) -> bool:
    kind = operation.type
    if kind in PYTHON or kind in _READS:
        return True
    if not operation.op_def.is_stateful or kind in _HARMLESS or kind in _RANDOM or kind.startswith(_BETWEEN_DEVICES):
        return False
    return not (_functions(operation) or any(tensor.dtype == tf.resource for tensor in operation.inputs))


def _with_called(operations: Iterable[Any]) -> Iterator[Any]:
    for operation in operations:
        yield operation
        for name in _functions(operation):
            yield from _with_called(graph_named(operation.graph, name).get_operations())


def _functions(operation: Any) -> list[str]:
    """The names of the functions in an operation's attributes."""
    found = []
    for attribute in operation.node_def.attr.values():
        found += [attribute.func.name] if attribute.HasField("func") else [one.name for one in attribute.list.func]
    return found


def nodes_of(graph: Any) -> list[Any]:
    """All operations of a graph and of the functions that it calls, as TensorFlow writes them into files."""
    written = graph.as_graph_def()
    return [*written.node, *(node for function in written.library.function for node in function.node_def)]
