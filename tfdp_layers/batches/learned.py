"""Keras layers with constants, such as vocabularies, that functions of a pipeline use: each record is made by these."""

from __future__ import annotations

import contextlib
import gc
import inspect
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers as kl

from tfdp_layers.batches.steps import graphs_of, steps
from tfdp_layers.proof.outside import with_called
from tfdp_layers.proof.values import UnknownError

__all__ = ["layers_of", "named", "note_layers"]

_KINDS = (kl.StringLookup, kl.IntegerLookup, kl.TextVectorization, kl.Normalization, kl.Discretization)
_AROUND = (kl.TextVectorization, keras.utils.FeatureSpace)
"""Those that hold others, which people know by the name of what is around."""
_used: weakref.WeakKeyDictionary[Any, list[tuple[Any, Any]]] = weakref.WeakKeyDictionary()


def note_layers(made: Any, dataset: tf.data.Dataset) -> None:
    """Notes of what was made of a pipeline which layers with constants its functions use."""
    if found := list(_layers_in(dataset)):
        _used[made] = found


def layers_of(batches: Any) -> list[tuple[Any, Any]]:
    """The layers with constants that made the records of batches, each behind the layer that holds it, or itself.

    Of a transform of items, those that its function names. Not found are those of other Python code that runs as
    records are read (generators, sources with an index, `tf.py_function`), and those whose constants were set anew
    after the pipeline was made.
    """
    store = getattr(batches, "_store", None)
    named = _named_by(getattr(store, "_transform", None), keras.layers.Layer)
    inside = [(one, layer) for one in named for layer in one._flatten_layers() if isinstance(layer, _KINDS)]
    return [*_used.get(batches, ()), *(() if store is None else _used.get(store, ())), *inside]


def _layers_in(dataset: tf.data.Dataset) -> Iterator[tuple[Any, Any]]:
    """Those whose table, mean or edges a function reads, whoever has them."""
    made = list(_everything(dataset))
    graphs = [graph for step in made for graph in graphs_of(step)]
    caught = [outer for graph in graphs for outer, _ in graph.captures]
    held = {id(one) for one in caught if one.dtype == tf.resource or one.dtype.is_floating}
    edges = [found for graph in graphs for found in _edges_in(graph)]
    if not held and not edges:
        return
    there = [*_alive(), *(layer for step in made for layer in named(step, keras.layers.Layer))]
    around = [one for one in there if isinstance(one, _AROUND)]
    layers = {id(layer): layer for one in there for layer in one._flatten_layers() if isinstance(layer, _KINDS)}
    for one in layers.values():
        if _is_read(one, held, edges):
            yield next((other for other in around if other is not one and one in other._flatten_layers()), one), one


def _is_read(layer: Any, held: set[int], edges: Iterable[Any]) -> bool:
    if isinstance(layer, kl.Discretization):
        own = np.asarray(layer.bin_boundaries or [], np.float32)
        return any(np.array_equal(own, one) for one in edges)
    table = getattr(getattr(layer, "lookup_table", None), "resource_handle", None)
    return any(id(one) in held for one in (table, getattr(layer, "mean", None)) if one is not None)


def _edges_in(graph: Any) -> Iterator[Any]:
    """The edges between which the operations of a function, and of those that it calls, tell where numbers lie."""
    with contextlib.suppress(UnknownError):
        for one in with_called(graph.get_operations()):
            if one.type == "Bucketize":
                yield np.asarray(one.get_attr("boundaries"), np.float32)


def _everything(dataset: Any) -> Iterator[Any]:
    """The steps of a pipeline, and of those that its functions name."""
    seen: set[int] = set()
    left = [dataset]
    while left:
        for step in steps(left.pop()):
            if id(step) not in seen:
                seen.add(id(step))
                yield step
                left += named(step, tf.data.Dataset)


def named(step: Any, kind: type) -> list[Any]:
    """What a step's Python functions name that is of a kind."""
    wrapped = vars(step).values() if isinstance(step, tf.data.Dataset) else ()
    return [found for one in wrapped for found in _named_by(getattr(one, "_func", None), kind)]


def _named_by(function: Any, kind: type) -> list[Any]:
    """What a function of Python names that is of a kind, or is so itself."""
    if isinstance(function, kind):
        return [function]
    with contextlib.suppress(TypeError, ValueError):  # of partials, say, and of names without a value
        names = inspect.getclosurevars(getattr(function, "python_function", function))
        return [one for one in (*names.nonlocals.values(), *names.globals.values()) if isinstance(one, kind)]
    return []


def _alive() -> list[Any]:
    """The layers of these kinds that anybody has: a table does not say whose it is."""
    kinds: dict[type, bool] = {}
    found = []
    for one in gc.get_objects():
        kind = type(one)
        if kind not in kinds:
            kinds[kind] = issubclass(kind, (*_KINDS, *_AROUND))
        if kinds[kind]:
            found.append(one)
    return found
