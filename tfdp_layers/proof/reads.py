"""What a graph that is being traced, or was, reads from outside of itself: variables, and tensors that it caught."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.proof.proving import outermost, resource_key

__all__ = ["numbers_caught", "variables_of"]


def variables_of(graph: Any) -> Iterator[Any]:
    """TensorFlow's variables that were seen to be read or written while this graph, or one around it, was traced.

    How TensorFlow lists them before a graph is whole is not public; where it does otherwise, `numbers_caught` has what
    they hold.
    """
    while graph is not None:
        yield from getattr(graph, "_watched_variables", ())
        yield from getattr(graph, "variables", ())
        graph = getattr(graph, "outer_graph", None)


def numbers_caught(graph: Any) -> list[np.ndarray]:
    """The real numbers of eager tensors that a graph caught, and of variables of which it has the handle alone."""
    caught = [outermost(outer) for outer, _ in graph.captures]
    numbers = [np.asarray(one) for one in caught if hasattr(one, "numpy") and one.dtype.is_floating]
    known = {resource_key(variable.handle) for variable in variables_of(graph)}
    handles = (one for one in caught if one.dtype == tf.resource and resource_key(one) not in known)
    return [*numbers, *(number for handle in handles for number in _behind(handle))]


def _behind(handle: Any) -> list[np.ndarray]:
    """The real numbers of the variable with this handle; none of what is no such variable."""
    data = getattr(handle, "_handle_data", None)
    dtypes = [tf.dtypes.as_dtype(one.dtype) for one in data.shape_and_type] if data is not None and data.is_set else []
    if tf.is_symbolic_tensor(handle) or len(dtypes) != 1 or not dtypes[0].is_floating:
        return []
    with tf.init_scope(), contextlib.suppress(tf.errors.OpError):
        return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtypes[0]).numpy()]
    return []
