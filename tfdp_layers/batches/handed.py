"""Data sets that flat maps of numbers hold and hand on as they are: in each epoch the same one, shards of one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.batches.apart import gives_parts
from tfdp_layers.batches.learned import named
from tfdp_layers.batches.steps import below, kind
from tfdp_layers.batches.zips import holds_records

__all__ = ["handed_on"]

_BATCHES = ("Batch", "ParallelBatch")
_WHOLE = ("Identity", "Shuffle", "Repeat", "Take", "Skip", "Shard", "Prefetch", "Cache", "Options", "AssertCardinality")
"""Steps that hand on whole elements, or leave some out, whatever these hold."""


def handed_on(step: Any) -> tuple[Any, int] | None:
    """The data set that a flat map hands on, whatever the number is that it gets, as if it lay in the pipeline itself.

    `range(epochs).flat_map(lambda _: records.shuffle(64).batch(16))`: nothing of the flat map's source meets what it
    hands on. Found are data sets that the function, or a function around it, names.

    Returns: the data set, and how many batches the function puts around its elements; None where the function does
        anything else, its source may hold records, or the data set is not found.
    """
    if not gives_parts(step) or holds_records(below(step)[0]):
        return None
    graph, batches = step._map_func.function.graph, 0
    tensor = graph.outputs[0]
    while tensor.op.type != "Placeholder":
        what, inputs = kind(tensor.op), [one for one in tensor.op.inputs if one.dtype == tf.variant]
        if what not in (*_WHOLE, *_BATCHES) or len(inputs) != 1:
            return None
        batches += what in _BATCHES
        tensor = inputs[0]
    held = [outer for outer, inner in graph.captures if inner is tensor]
    found = [one for one in named(step, tf.data.Dataset) if any(one._variant_tensor is each for each in held)]
    return (found[0], batches) if found else None
