"""The arrays that declared batches are made of: looked at as those are that `fit` itself draws from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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
from tfdp_layers.batches.texts import is_text

__all__ = ["Beginning", "arrays_in", "beginning_of"]

_BATCHED = ("Batch", "ParallelBatch", "PaddedBatch")
_BY_RECORD = (*KEEPING, *CUTS, *_BATCHED, "Cache", "Shuffle", "Repeat", "ShuffleAndRepeat", "Snapshot", "Zip")
"""Steps behind which each element is still one record of the source's, or a batch of these."""
_FEWEST = 32  # rows of an array that is taken for the records'
_MOST_LISTED = 256 << 20  # bytes of batches in a list, which are put together for the look


class Beginning(NamedTuple):
    """What declared batches are made of.

    Attributes:
        store: the arrays, as far as these can be looked at.
        whole: whether they are the records: as many as there are, and x and y as they are given. Else they only tell
            whether a record comes several times.
    """

    store: ArrayStore
    whole: bool


class _Found(NamedTuple):
    x: list[np.ndarray]
    y: Sequence[np.ndarray] = ()
    known: bool = True


def beginning_of(dataset: Any, examples: int) -> Beginning | None:
    """The arrays of records, and warnings as of arrays that are given to `fit`: see `warn_of_scaled` and
    `warn_of_several`.

    Of a tf.data pipeline they are what `from_tensor_slices` holds at the beginning of the one way that the records come
    (also a zip of such), as far as `.take`, `.skip` and `.shard` right behind it leave it; else what functions hold
    that has as many rows as there are records, and take rows of. Other steps that choose, group or part records are not
    followed, and what functions change of the rows is not seen. Of a list of batches they are what these hold together,
    of another object, a `PyDataset` say, its attributes that lie in memory and have as many rows as there are records.

    A part that cannot be looked at is left out alone; nothing is read that is not in memory; and a look ends no
    program, but for a warning that the caller made an error.

    Returns: None where there are none.
    """
    try:
        if isinstance(dataset, tf.data.Dataset):
            found = _first(dataset) or _held(dataset, examples)
        else:
            found = _listed(dataset) if isinstance(dataset, list | tuple) else _kept(dataset, examples)
        if found is None or len({len(one) for one in (*found.x, *found.y)}) != 1:
            return None
        store = ArrayStore(found.x, found.y or None)
        warn_of_several(store)
        return Beginning(store, found.known and len(store) == examples)
    except Warning:
        raise
    except Exception:  # of whatever kind: what cannot be read is said where it is drawn
        return None


def arrays_in(node: tf.data.Dataset) -> tuple[Any, Any] | None:
    """The arrays (x, y) that a pipeline begins with; None where it begins with something else."""
    tensors, spec = getattr(node, "_tensors", None) or [], node.element_spec
    if not all(isinstance(one, tf.TensorSpec) for one in tf.nest.flatten(spec)):
        return None
    if not all(one.shape.rank for one in tensors) or len({one.shape[0] for one in tensors}) != 1:
        return None
    packed = tf.nest.pack_sequence_as(spec, [np.asarray(one) for one in tensors])
    if isinstance(packed, tuple) and not 0 < len(packed) <= 3:
        return None
    x, y, _ = keras.utils.unpack_x_y_sample_weight(packed)
    return x, y


# Of pipelines ---------------------------------------------------------------------------------------------------------


def _first(dataset: tf.data.Dataset) -> _Found | None:
    parts, batched = _made_of(dataset)
    return _roles(parts) if batched == 1 else None


def _made_of(step: Any) -> tuple[list[list[np.ndarray]], int]:
    """The arrays at the beginning of the ways to an element, for each part of it, and how often they are batched."""
    way, batched = [], 0
    inner = _ways(step)
    while kind(step) in _BY_RECORD and len(inner) == 1:
        batched += kind(step) in _BATCHED
        way.append(step)
        step = inner[0]
        inner = _ways(step)
    parts: list[list[np.ndarray]] = []
    if kind(step) == "Zip":
        found = [_made_of(one) for one in inner]
        if len({times for _, times in found}) != 1:
            return [], 0
        batched += found[0][1]
        parts = [[leaf for part in own for leaf in part] for own, _ in found]
    elif kind(step) == "TensorSlice" and not is_count(step):
        packed = tf.nest.pack_sequence_as(step.element_spec, list(map(_looked_at, step._tensors)))
        whole = packed if isinstance(packed, tuple) else (packed,)
        parts = [[leaf for leaf in tf.nest.flatten(part) if leaf is not None] for part in whole]
    taken = taken_places(tuple(way))
    return [[leaf[taken.start : taken.stop : taken.step] for leaf in part] for part in parts], batched


def _ways(step: Any) -> list[Any]:
    return [one for one in below(step) if not numbers_elements(one)]


def _held(dataset: tf.data.Dataset, examples: int) -> _Found | None:
    """Those that functions take rows of."""
    made = list(steps(dataset))
    sizes = {examples, *(int(one.cardinality()) for one in made if not below(one))}
    known: dict[Any, Held] = {}
    for step, graph in ((one, graph) for one in made for graph in graphs_of(one)):
        for reading in readings_of(step, graph)[0]:
            if reading.held.shape[0] in sizes and reading.held.shape[0] >= _FEWEST:
                known.setdefault(reading.held.key, reading.held)
    return _tables([one for one in (_looked_at(each.rows()) for each in known.values()) if one is not None])


# Of other things ------------------------------------------------------------------------------------------------------


def _listed(batches: Sequence[Any]) -> _Found | None:
    parts = [[keras.tree.flatten(part) for part in batch[:2]] for batch in batches]
    arrays = [[[np.asarray(leaf) for leaf in part] for part in batch] for batch in parts]
    if sum(leaf.nbytes for batch in arrays for part in batch for leaf in part) > _MOST_LISTED:
        return None
    joined = [[np.concatenate(one) for one in zip(*part, strict=True)] for part in zip(*arrays, strict=True)]
    return _roles([[leaf for leaf in map(_looked_at, part) if leaf is not None] for part in joined])


def _kept(loader: Any, examples: int) -> _Found | None:
    """What of it batches give, and as what, is not known: none of it is a label."""
    in_memory = {id(one): one for one in _attributes(loader) if len(one.shape) and one.shape[0] == examples >= _FEWEST}
    arrays = [one for one in map(_looked_at, in_memory.values()) if one is not None]
    found = _tables(arrays)
    return None if found is None else found._replace(known=False)


def _attributes(loader: Any) -> Iterator[Any]:
    for held in getattr(loader, "__dict__", {}).values():
        for one in keras.tree.flatten(held) if isinstance(held, dict | tuple) else [held]:
            if hasattr(one, "select_dtypes"):
                yield one.select_dtypes("number")
            elif isinstance(one, np.ndarray | tf.Tensor | tf.Variable):
                yield one


def _looked_at(array: Any) -> np.ndarray | None:
    """Numbers, with 0 where one is missing, or texts; None of what is neither."""
    if getattr(array, "dtype", None) in (tf.variant, tf.resource) or not len(array.shape):
        return None
    found = np.asarray(array)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        found = np.nan_to_num(found, posinf=0.0, neginf=0.0)
    return found if found.dtype.kind in "biuf" or is_text(found) else None


# What is x ------------------------------------------------------------------------------------------------------------


def _roles(parts: list[list[np.ndarray]]) -> _Found | None:
    """The first part as x and the second as y, where x has several numbers; else they are told by their width alone."""
    if 2 <= len(parts) <= 3 and _numbers(parts[0]) > 1:
        return _Found(parts[0], [one for one in parts[1] if one.dtype.kind in "biuf"])
    return _tables([leaf for part in parts for leaf in part])


def _tables(arrays: list[np.ndarray]) -> _Found | None:
    """As x what has several numbers a row, or all columns, or texts: a column alone may be numbers of rows."""
    plain = [one for one in arrays if one.dtype.kind in "biuf"]
    tables = [one for one in plain if _numbers([one]) > 1]
    if tables or _numbers(plain) > 1:
        return _Found(tables or plain)
    texts = [one for one in arrays if one.dtype.kind not in "biuf"]
    return _Found(texts) if texts else None


def _numbers(arrays: Sequence[np.ndarray]) -> int:
    """How many numbers a row has."""
    return sum(int(np.prod(one.shape[1:])) for one in arrays if one.dtype.kind in "biuf")
