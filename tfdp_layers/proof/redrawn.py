"""Random numbers with a row for each place of a batch, whose number of rows a function writes as a plain number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client.pywrap_tf_session import TF_TryEvaluateConstant_wrapper as evaluated

from tfdp_layers.proof.randomness import SEEDS

__all__ = ["with_drawn_rows"]


def with_drawn_rows(graph: Any, rows: Any, records: int) -> Any:
    """The graph again, where as many random rows as there are records are drawn as the batch's own number of rows.

    Guarantee: of so many records both graphs compute the same, operation by operation: a size that is written as the
    number `records` becomes the number of rows of an argument that has so many. A proof takes numbers of a plain size
    for one constant, with an entry for each place. Rows that are drawn afresh, each by itself, are alike at all places.

    Args:
        graph: a `FuncGraph` that was traced for this number of records.
        rows: its argument that holds the records, one in each row.
        records: how many.

    Returns: a `FuncGraph` of the same arguments and outputs; None where nothing is drawn so.

    Raises: what TensorFlow raises for a graph that it cannot copy.
    """
    shapes = dict(_shapes(graph, records))
    if not shapes:
        return None
    captured = {inner.name: outer for outer, inner in graph.captures}
    with graph.as_default():  # its functions are found through it
        made = tf.__internal__.FuncGraph("redrawn")
    with made.as_default():
        given = {one.name: tf.compat.v1.placeholder(one.dtype, one.shape) for one in graph.inputs}
        given = {name: made.capture(captured[name]) if name in captured else one for name, one in given.items()}
        made.inputs = [*(one for name, one in given.items() if name not in captured), *made.internal_captures]
        count = tf.raw_ops.Shape(input=given[rows.name])[0]
        sizes = {name: tf.stack([count, *shape[1:]]) for name, shape in shapes.items()}
        sizes = {name: tf.cast(one, shapes[name].dtype) for name, one in sizes.items()}
        names = [one.name for one in graph.outputs]
        definition = graph.as_graph_def()
        made.outputs = tf.graph_util.import_graph_def(
            definition, {**_used(definition, given), **sizes}, return_elements=names, name=""
        )
    return made


def _shapes(graph: Any, records: int) -> Iterator[tuple[str, Any]]:
    """The shapes of random numbers that begin with this number: the names of the tensors, and what these are."""
    for operation in graph.get_operations():
        arguments = [one.name for one in operation.op_def.input_arg]
        drawn = not {*SEEDS}.isdisjoint(arguments) or any(one.name == "seed2" for one in operation.op_def.attr)
        if drawn and "shape" in arguments:
            tensor = operation.inputs[arguments.index("shape")]
            found = evaluated(graph._c_graph, tensor._as_tf_output())  # also of what was counted from a known size
            shape = None if found is None else np.asarray(found)
            if shape is not None and shape.ndim == 1 and shape.size and shape[0] == records:
                yield tensor.name, shape


def _used(definition: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """Those of the tensors that operations take: TensorFlow refuses to replace others."""
    taken = {name if ":" in name else f"{name}:0" for node in definition.node for name in node.input}
    return {name: one for name, one in tensors.items() if name in taken}
