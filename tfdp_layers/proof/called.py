"""The graphs of functions that operations call."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.values import UnknownError

_exchanged: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def graph_run(graph: Any, name: str) -> Any:
    """The graph that runs where a function is called by its name.

    Raises: UnknownError where it is not to be had, and where Grappler may run another one in its place, which suits a
        device.
    """
    inner, function = found_function(graph, name)
    if inner not in _exchanged:
        _exchanged[inner] = "api_implements" in function.definition.attr
    if _exchanged[inner]:
        raise UnknownError("a function that may be exchanged for another one (api_implements)")
    return inner


def graph_named(graph: Any, name: str) -> Any:
    """The graph of a function by its name. Raises UnknownError where it is not to be had."""
    return found_function(graph, name)[0]


def results_of(operation: Any, graph: Any) -> list[Any]:
    """Of the tensors that a function's graph ends with those that an operation gets which calls it.

    Where somebody asks for the function's gradient TensorFlow adds to the same graph, behind these, what that needs:
    calls that were made before, as those of a saved model's functions are, get none of it.
    """
    return list(graph.outputs[: len(operation.outputs)])


def found_function(graph: Any, name: str) -> tuple[Any, Any]:
    while graph is not None:
        try:
            found = graph._get_function(name)
        except KeyError:
            found = None
        if found is not None:
            inner = getattr(found, "graph", None)
            if isinstance(inner, tf.Graph):
                return inner, found
        graph = getattr(graph, "outer_graph", None)
    raise UnknownError(f"function {name} is not to be had")
