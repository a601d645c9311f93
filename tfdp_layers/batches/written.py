"""The records of a tf.data pipeline, read once into memory or into files."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.plain_files import refuse_no_path
from tfdp_layers.batches.kept_records import in_files
from tfdp_layers.batches.learned import note_layers
from tfdp_layers.batches.mixing import refuse_mixing
from tfdp_layers.batches.overlaps import may_overlap
from tfdp_layers.batches.places import kept_before
from tfdp_layers.batches.records import leaves_by_name
from tfdp_layers.batches.repeats import repeats
from tfdp_layers.batches.stores import ArrayStore

_TOGETHER = 256  # records that are read at once


def of_pipeline(
    dataset: tf.data.Dataset,
    cache: str | os.PathLike[str] | None = None,
    ids: str | None = None,
    beside: Any = None,
) -> ArrayStore:
    """The records of a finite pipeline of single records.

    Args:
        cache: folder in which they are kept, as raw arrays; None keeps them in memory.
        ids: the entry of x, a dict, that says whose a record is: it becomes the store's `unit_ids`, and no input. What
            is left of x is the entry alone, where it is one.
        beside: ids, one a record, that the caller has beside the pipeline. A folder that is there already has to be
            one that was written with the same ids, in the same order: which order its records have, only that says.

    Raises: ValueError for a folder without these ids; for a pipeline that is endless, batched, or whose records differ
        in shape or hold no numbers, or have no such entry.
    """
    if ids is not None:
        refuse_nameless(dataset.element_spec, ids)
    check_pipeline(dataset)
    refuse_mixing(dataset, beside is not None or ids is not None)
    if cache is not None:
        refuse_no_path(cache, "cache, a folder,", "records")
    leaves, kept = (in_memory(dataset), False) if cache is None else in_folder(dataset, Path(cache), beside)
    store = records_of(leaves, dataset.element_spec, ids)
    if kept and beside is None and ids is None:
        store.moved = kept_before(f"the folder {cache}, by cache=,")
    store.pipeline, store.repeated = weakref.ref(dataset), repeats(dataset)
    store.overlap = may_overlap(dataset)
    note_layers(store, dataset)
    _parts[store] = [weakref.ref(one) for one in nodes_of(dataset)]
    return store


_parts: weakref.WeakKeyDictionary[ArrayStore, list[weakref.ref[tf.data.Dataset]]] = weakref.WeakKeyDictionary()


def nodes_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """A pipeline and all that it is made of, as far as that stands beside each other and not in functions."""
    yield dataset
    for one in dataset._inputs():
        yield from nodes_of(one)


def parts_of(batches: Any) -> list[tf.data.Dataset]:
    """What the pipeline is made of that batches were read from, or draw from: as long as anybody has it."""
    store = getattr(batches, "_store", None)
    found = [one() for one in _parts.get(store, ())] if isinstance(store, ArrayStore) else []
    whole = batches.pipeline() if getattr(batches, "pipeline", None) else None
    found += nodes_of(whole) if isinstance(whole, tf.data.Dataset) else ()
    return [one for one in found if one is not None]


def refuse_nameless(spec: Any, ids: str) -> None:
    """Raises ValueError unless x is a dict with an entry of this name, and one beside it."""
    x = spec[0] if isinstance(spec, tuple) else spec
    if not isinstance(x, Mapping) or ids not in x or len(x) < 2:
        if isinstance(x, Mapping) and len(x) > 1:
            raise ValueError(
                f"unit_ids={ids!r} names an entry of x, a dict, and it has {[*x]}: name the one that holds the ids, or"
                " give one id a record, in the order of the dataset."
            )
        found = f"a dict of {[*x]} alone" if isinstance(x, Mapping) else "no dict"
        given = ", ".join(f"{one.dtype.name} {one.shape}" for one in spec) if _plain_parts(spec) else ""
        raise ValueError(
            f"unit_ids={ids!r} names an entry of x, beside what the model takes, and x is {found}. Make it one, with"
            f" the parts in the order in which your dataset gives them{given and f' (here {given})'}, or labels pass"
            f" for people: dataset.map(lambda x, y, patient: ({{'x': x, {ids!r}: patient}}, y)) where ids come last. Or"
            " give one id a record, in the order of the dataset."
        )


def _plain_parts(spec: Any) -> bool:
    return isinstance(spec, tuple) and all(isinstance(one, tf.TensorSpec) for one in spec)


def check_pipeline(dataset: tf.data.Dataset) -> None:
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "The dataset is endless. Leave out .repeat(), and give num_epochs=1 to make_csv_dataset and its like, which"
            " repeat by themselves: each record is read once, then drawn by index."
        )
    leaves = keras.tree.flatten(dataset.element_spec)
    for path, leaf in named_specs(dataset.element_spec):
        if not isinstance(leaf, tf.TensorSpec) or not (
            leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool or _is_text(path, leaf)
        ):
            raise ValueError(
                f"Records must be dense numbers, or strings that the model takes. {path} is {leaf}. Make ragged"
                " tensors dense (.to_tensor(shape=(None, N)), N known beforehand), sparse ones too, labels numbers"
                " (tf.cast(y == 'yes', tf.float32)), and leave out what the model does not take, in dataset.map"
                " (docs/data.md). Ids that say whose a record is go into x, a dict:"
                " tfdp.records(dataset, unit_ids='patient')."
            )
        if path.startswith("sample_weight") and leaf.dtype.is_integer:
            raise ValueError(
                f"The third part of a record is its weight, and here it is {leaf}: numbers like these may be ids, and a"
                " weight of 7,000 would pass for one record's. Of weights make floats, tf.cast(weight, tf.float32); ids"
                " that say whose a record is go into x, a dict: tfdp.records(dataset, unit_ids='patient')."
            )
    if all(leaf.shape.rank and leaf.shape[0] is None for leaf in leaves):
        raise ValueError(
            f"The dataset gives batches, or records of unknown shape: {dataset.element_spec}. Give single records"
            " (dataset.unbatch(), or leave out .batch), of a fixed shape (tf.ensure_shape in dataset.map)."
        )


def _is_text(path: str, leaf: tf.TensorSpec) -> bool:
    return bool(leaf.dtype == tf.string and path[0] == "x")


def named_specs(spec: Any) -> Iterator[tuple[str, Any]]:
    """Each part of a record by name: x['age'], y, sample_weight."""
    if isinstance(spec, tuple) and len(spec) in (2, 3):
        for name, part in zip(("x", "y", "sample_weight"), spec, strict=False):
            yield from leaves_by_name(name, part)
    else:
        yield from leaves_by_name("x", spec)


def batches_of(dataset: tf.data.Dataset) -> Iterator[list[np.ndarray]]:
    """The leaves of the records, many at a time."""
    try:
        for batch in dataset.batch(_TOGETHER).as_numpy_iterator():
            yield keras.tree.flatten(batch)
    except tf.errors.InvalidArgumentError as error:
        if "shape" not in str(error):
            raise
        raise ValueError(
            f"The records differ in shape: {error.message.splitlines()[0]}. Pad or crop them in dataset.map, to a"
            " shape that you know beforehand: how long the longest record is, the model would tell."
        ) from None


def in_memory(dataset: tf.data.Dataset) -> list[np.ndarray]:
    parts = list(batches_of(dataset))
    if not parts:
        raise ValueError("The dataset has no records, so nothing can be drawn from it. Give at least one.")
    return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]


def _digest_of(ids: Any) -> str | None:
    return None if ids is None else hashlib.blake2b(repr(np.ravel(ids).tolist()).encode(), digest_size=16).hexdigest()


def in_folder(dataset: tf.data.Dataset, folder: Path, beside: Any) -> tuple[list[np.ndarray], bool]:
    """As `in_files`. Raises ValueError for strings, too."""
    if any(leaf.dtype == tf.string for leaf in keras.tree.flatten(dataset.element_spec)):
        raise ValueError(
            "cache keeps numbers in files, and these records hold strings. Leave cache out, which keeps them in memory;"
            " or turn them into numbers in dataset.map (keras.layers.TextVectorization, StringLookup; docs/data.md)."
        )
    return in_files(batches_of(dataset), repr(dataset.element_spec), folder, _digest_of(beside))


def records_of(leaves: list[np.ndarray], spec: Any, ids: str | None = None) -> ArrayStore:
    """`(x, y)`, `(x, y, sample_weight)` or x, of arrays, with the entry of x that holds ids as `unit_ids`."""
    packed = keras.tree.pack_sequence_as(spec, leaves)
    if ids is not None:
        x = dict(packed[0] if isinstance(packed, tuple) else packed)
        found, rest = x.pop(ids), packed[1:] if isinstance(packed, tuple) else ()
        x = x if len(x) > 1 else next(iter(x.values()))  # of one input, which needs no name
        store = arrays_of((x, *rest) if rest else x)
        store.unit_ids = found
        return store
    return arrays_of(packed)


def arrays_of(packed: Any) -> ArrayStore:
    if not isinstance(packed, tuple):
        return ArrayStore(packed)
    if len(packed) not in (2, 3):
        raise ValueError(
            f"A record must be (x, y), (x, y, sample_weight), or x alone. Received a tuple of {len(packed)}: put the"
            " inputs into one dict or tuple, in dataset.map."
        )
    return ArrayStore(*packed)
