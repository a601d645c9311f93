"""The arrays that declared batches are made of: looked at as those are that `fit` itself draws from."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.batches.chance import CUTS, KEEPING
from tfdp_layers.batches.overlaps import taken_places
from tfdp_layers.batches.readings import Held, readings_of
from tfdp_layers.batches.same import numbers_elements
from tfdp_layers.batches.several import warn_of_several
from tfdp_layers.batches.steps import below, graphs_of, is_count, kind, steps
from tfdp_layers.batches.stores import ArrayStore

__all__ = ["arrays_in", "beginning_of"]

_BATCHED = ("Batch", "ParallelBatch", "PaddedBatch")
_BY_RECORD = (*KEEPING, *CUTS, *_BATCHED, "Cache", "Shuffle", "Repeat", "ShuffleAndRepeat", "Snapshot", "Zip")
"""Steps behind which each element is still one record of the source's, or a batch of these."""
_FEWEST = 32  # rows of an array that is taken for the records'


def beginning_of(dataset: Any, examples: int) -> ArrayStore | None:
    """The arrays of records, and warnings as of arrays that are given to `fit`: see `warn_of_scaled` and
    `warn_of_several`.

    Of a tf.data pipeline they are what `from_tensor_slices` holds at the beginning of the one way that the records come
    (also a zip of such), as far as `.take`, `.skip` and `.shard` right behind it leave it; else what functions hold
    that has as many rows as there are records, and take rows of. Other steps that choose, group or part records are not
    followed, and what functions change of the rows is not seen. Of a list of batches they are what these hold together,
    of another object, a `PyDataset` say, its attributes that are arrays of as many rows as there are records.

    Returns: None where there are none, or such as `fit` takes not (with NaN, say).
    """
    if isinstance(dataset, tf.data.Dataset):
        found = _first(dataset) or _held(dataset, examples)
    else:
        found = _listed(dataset) if isinstance(dataset, list | tuple) else _kept(dataset, examples)
    if found is None:
        return None
    with contextlib.suppress(ValueError, TypeError):  # a function may fill in what is missing
        store = ArrayStore(*found)
        warn_of_several(store)
        return store
    return None


def arrays_in(node: tf.data.Dataset) -> tuple[Any, Any] | None:
    """The arrays (x, y) that a pipeline begins with; None where it begins with something else."""
    inner = below(node) if kind(node) == "Zip" else []
    tensors = [tensor for one in inner or [node] for tensor in getattr(one, "_tensors", None) or [None]]
    spec = node.element_spec
    if not all(isinstance(one, tf.TensorSpec) for one in tf.nest.flatten(spec)):
        return None
    if not all(tf.is_tensor(one) and one.shape.rank for one in tensors) or len({one.shape[0] for one in tensors}) != 1:
        return None
    packed = tf.nest.pack_sequence_as(spec, [np.asarray(one) for one in tensors])
    if isinstance(packed, tuple) and not 0 < len(packed) <= 3:
        return None
    x, y, _ = keras.utils.unpack_x_y_sample_weight(packed)
    return x, y


def _first(dataset: tf.data.Dataset) -> tuple[Any, Any] | None:
    step, way, batched = dataset, [], 0
    while kind(step) in _BY_RECORD and (inner := [one for one in below(step) if not numbers_elements(one)]):
        if kind(step) == "Zip" and len(inner) > 1:
            break
        batched += kind(step) in _BATCHED
        way.append(step)
        step = inner[0]
    if batched != 1 or {kind(one) for one in (below(step) or [step])} != {"TensorSlice"} or is_count(step):
        return None
    if (found := arrays_in(step)) is None:
        return None
    taken = taken_places(tuple(way))
    return keras.tree.map_structure(lambda leaf: leaf[taken.start : taken.stop : taken.step], found)


def _held(dataset: tf.data.Dataset, examples: int) -> tuple[Any, Any] | None:
    """Those that functions take rows of, the tables as x and the columns as y."""
    made = list(steps(dataset))
    sizes = {examples, *(int(one.cardinality()) for one in made if not below(one))}
    known: dict[Any, Held] = {}
    for step, graph in ((one, graph) for one in made for graph in graphs_of(one)):
        for reading in readings_of(step, graph)[0]:
            if reading.held.shape[0] in sizes and reading.held.shape[0] >= _FEWEST:
                known.setdefault(reading.held.key, reading.held)
    if len({one.shape[0] for one in known.values()}) != 1:
        return None
    return _by_width([one.rows() for one in known.values()])


def _listed(batches: Sequence[Any]) -> tuple[Any, Any] | None:
    with contextlib.suppress(Exception):  # said where they are read
        parts = [keras.tree.flatten(one[:2]) for one in batches]
        leaves = [np.concatenate([np.asarray(leaf) for leaf in leaves]) for leaves in zip(*parts, strict=True)]
        x, y = keras.tree.pack_sequence_as(tuple(batches[0][:2]), leaves)
        return x, y
    return None


def _kept(loader: Any, examples: int) -> tuple[Any, Any] | None:
    held = [one for one in getattr(loader, "__dict__", {}).values() if hasattr(one, "__array__")]
    held = [np.asarray(one) for one in held if len(getattr(one, "shape", ()))]
    return _by_width([one for one in held if len(one) == examples >= _FEWEST])


def _by_width(arrays: list[np.ndarray]) -> tuple[Any, Any] | None:
    """The tables as x, and the columns as y; None without tables."""
    tables = [one for one in arrays if one.size > len(one)]
    columns = [one for one in arrays if one.size == len(one)]
    return (tables, columns or None) if tables else None
