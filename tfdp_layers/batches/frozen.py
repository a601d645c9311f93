"""Random operations in a pipeline that is read once: its records are those of one draw, in every epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp_layers.caller import warn

__all__ = ["draws_of", "warn_of_frozen"]

_RANDOM = ("Random", "Rng", "Multinomial", "TruncatedNormal", "SampleDistorted", "ParameterizedNormal")
"""In the types of operations that draw random numbers."""


def warn_of_frozen(dataset: tf.data.Dataset) -> None:
    """Warns where a map of this pipeline draws random numbers. What its Python code draws is not seen."""
    found = next(draws_of(dataset), None)
    if found is not None:
        warn(
            f"A map of this pipeline draws random numbers (operation {found!r}), and tfdp.records reads a pipeline"
            " once: every epoch sees the same draws. For augmentation that is drawn afresh put random layers into the"
            " model (keras.layers.RandomFlip, say), or give a source with an index: tfdp.records(source, transform)."
            " (That costs learning, not privacy.)"
        )


def draws_of(dataset: tf.data.Dataset) -> Iterator[str]:
    """The names of random operations in the maps on the way to this pipeline's elements."""
    if "Map" in type(dataset).__name__:
        graph = getattr(getattr(getattr(dataset, "_map_func", None), "function", None), "graph", None)
        if graph is not None:
            yield from (name for kind, name in _operations(graph) if any(part in kind for part in _RANDOM))
    for one in dataset._inputs():
        yield from draws_of(one)


def _operations(graph: Any) -> Iterator[tuple[str, str]]:
    """Type and name of each operation of a graph, and of the functions that it calls."""
    for one in graph.get_operations():
        yield one.type, one.name
    with contextlib.suppress(Exception):  # too large for a message, by a constant that it holds
        for function in graph.as_graph_def().library.function:
            yield from ((node.op, node.name) for node in function.node_def)
