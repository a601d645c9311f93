"""What a traced step reads that stands in this process alone, so that processes can compare it: tables, constants.

Were it another one on another worker, what a record adds would depend on the worker that its slice is on. So each thing
that a graph takes from outside is compared by what it holds, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import LOOKUPS, with_called
from tfdp_layers.proof.state import functions_of, source
from tfdp_layers.proof.texts import never_written
from tfdp_layers.proof.values import UnknownError

__all__ = ["contents_of", "refuse_made_inside"]


def contents_of(outside: Any, graph: Any, inside: Any) -> bytes:
    """What a thing holds that a graph takes from outside; nothing for a variable, or for what it is called with.

    Args:
        outside: what is taken; None for an argument.
        inside: the tensor of the graph that stands for it.

    Raises: ValueError for what may be another thing in another process, and cannot be compared: a table that may be
        written to, a pipeline, a queue.
    """
    if outside is None:
        return b""
    if outside.dtype == tf.variant:
        raise _incomparable(f"what {inside.name!r} holds (of type variant)")
    if outside.dtype == tf.resource:
        data = getattr(outside, "_handle_data", None)
        return b"" if data is not None and data.is_set else b"table " + _table(outside, graph, inside)
    if not hasattr(outside, "numpy"):
        raise _incomparable(f"a tensor of another graph ({inside.name!r})")
    return b"constant " + bytes(tf.io.serialize_tensor(outside).numpy())


def refuse_made_inside(graph: Any) -> None:
    """Raises ValueError where a graph opens by itself, by a name, what holds numbers: tables, variables, queues."""
    try:
        for operation in with_called(graph.get_operations()):
            held = [one for one in operation.outputs if one.dtype == tf.resource]
            given = operation.type == "Placeholder" or any(one.dtype == tf.resource for one in operation.inputs)
            if held and not given:
                raise _incomparable(f"what operation {operation.name!r} of type {operation.type} opens")
    except UnknownError as error:
        raise _incomparable(str(error)) from None


def _table(handle: Any, graph: Any, inside: Any) -> bytes:
    """The pairs of a table in the order of their keys, as text: in which order they were put in is not told."""
    kinds = set()
    for operation in _takers(graph, inside):
        if operation.type not in LOOKUPS:
            raise _incomparable(f"what operation {operation.name!r} of type {operation.type} reads")
        if operation.type == "LookupTableFindV2":
            kinds.add((operation.get_attr("Tin"), operation.get_attr("Tout")))
    if not kinds:
        raise _incomparable(f"a table that is not looked up ({inside.name!r})")
    keys, values = kinds.pop()
    if not never_written(handle, keys, values):
        raise _incomparable(f"a table that may be written to ({inside.name!r})")
    with tf.init_scope():
        held = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=keys, Tvalues=values)
    order = np.argsort(held.keys.numpy(), kind="stable")
    return b" ".join(bytes(tf.io.serialize_tensor(tf.gather(one, order)).numpy()) for one in held)


def _takers(graph: Any, inside: Any) -> Iterator[Any]:
    """The operations that take a handle, also in functions that are called."""
    for operation in graph.get_operations():
        places = [
            i for i, one in enumerate(operation.inputs) if one.dtype == tf.resource and source(one).name == inside.name
        ]
        called = functions_of(operation)
        if places and not called and operation.type != "Identity":
            yield operation
        for name in called if places else ():
            try:
                inner = graph_named(operation.graph, name)
            except UnknownError as error:
                raise _incomparable(str(error)) from None
            for place in places:
                yield from _takers(inner, inner.inputs[place - len(operation.inputs) + len(inner.inputs)])


def _incomparable(what: str) -> ValueError:
    return ValueError(
        f"The sums read {what}, and whether that holds the same on all workers cannot be compared: what a record adds"
        " would depend on the worker that it is on. Use weights of layers (add_weight), constants, and tables that are"
        " filled as they are made (tf.lookup.StaticHashTable, StringLookup(vocabulary=...)), or train in one process."
    )
