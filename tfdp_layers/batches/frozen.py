"""Random operations in a pipeline that is read once: its records are those of one draw, in every epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp_layers.batches.counted import counted_in
from tfdp_layers.caller import warn
from tfdp_layers.proof.functional import CALLS

__all__ = ["draws_of", "warn_of_frozen"]

_RANDOM = ("Random", "Rng", "Multinomial", "TruncatedNormal", "SampleDistorted", "ParameterizedNormal")
"""In the types of operations that draw random numbers."""


_KNOWN = (
    " And what records hold depends on the others{}: these draws follow one another, so that with one person less"
    " all behind them get other ones. No epsilon covers that where the seed is known, as one that is given, or after"
    " keras.utils.set_random_seed; the model's own random layers draw from seeds that nobody knows, whatever was set."
)


def warn_of_frozen(dataset: tf.data.Dataset, ids: str | None = None) -> None:
    """Warns where a map of this pipeline draws random numbers, or makes records by their places.

    What its Python code draws is not seen.

    Args:
        ids: the entry of x that says whose a record is.
    """
    found, by_place = next(draws_of(dataset), None), counted_in(dataset, ids)
    if by_place.counted:
        warn(
            f"What records of this pipeline hold depends on the others: their numbers are made of {by_place.counted},"
            " and with one person less all behind them get other ones; no epsilon covers that. Make each record of its"
            " own item alone, and draw by random layers of the model (keras.layers.RandomFlip, say), or from seeds that"
            " come with the items."
        )
    if found is not None or by_place.drawn:
        by = f", by {by_place.drawn}" if by_place.drawn else " if their seed is known"
        warn(
            f"A map of this pipeline draws random numbers{f' (operation {found!r})' if found else ''}, and tfdp.records"
            " reads a pipeline once: every epoch sees the same draws. For augmentation that is drawn afresh put random"
            " layers into the model (keras.layers.RandomFlip, say), or give a source with an index:"
            f" tfdp.records(source, transform).{_KNOWN.format(by)}"
        )


def draws_of(dataset: tf.data.Dataset) -> Iterator[str]:
    """The names of random operations in the maps on the way to this pipeline's elements.

    Left out are maps of TensorFlow's own, which choose among data sets, and what is drawn from constant seeds: those
    are constants.
    """
    wrapped = getattr(dataset, "_map_func", None)
    own = str(getattr(getattr(wrapped, "_func", None), "__module__", "")).startswith("tensorflow.python.data.")
    graph = getattr(getattr(wrapped, "function", None), "graph", None)
    if "Map" in type(dataset).__name__ and graph is not None and not own:
        yield from (name for kind, name in _operations(graph) if any(part in kind for part in _RANDOM))
    for one in dataset._inputs():
        yield from draws_of(one)


def _operations(graph: Any) -> Iterator[tuple[str, str]]:
    """Type and name of each operation of a graph, but for draws of constant seeds, and of the functions it calls."""
    constant = {inner.name for outer, inner in graph.captures if outer.dtype != tf.resource}
    for one in graph.get_operations():
        drawn = one.type.startswith("Stateless") and one.type not in CALLS
        free = one.type != "Placeholder" and not one.op_def.is_stateful
        if free and all(tensor.name in constant for tensor in one.inputs):
            constant.update(tensor.name for tensor in one.outputs)
        if not (drawn and free and all(tensor.name in constant for tensor in _seeds(one))):
            yield one.type, one.name
    with contextlib.suppress(Exception):  # too large for a message, by a constant that it holds
        for function in graph.as_graph_def().library.function:
            yield from ((node.op, node.name) for node in function.node_def)


def _seeds(operation: Any) -> list[Any]:
    """What a stateless random operation draws from: others of its inputs say of which numbers, and how many."""
    names = [one.name for one in operation.op_def.input_arg]
    return [one for name, one in zip(names, operation.inputs, strict=True) if name in ("seed", "key", "counter")]
