"""Records from anywhere: random-access sources, read record by record as they are drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.batches.alignment import refuse_other_rows
from tfdp_layers.batches.behind import data_sets_of, moved_in, overlap_in, repeated_in
from tfdp_layers.batches.captured import warn_of_captured
from tfdp_layers.batches.choices import warn_of_choice
from tfdp_layers.batches.encodings import is_numeric, refuse_sparse
from tfdp_layers.batches.frozen import warn_of_frozen
from tfdp_layers.batches.grain import look_at_grain
from tfdp_layers.batches.held import Held, Marks
from tfdp_layers.batches.items import (
    is_filtered,
    is_source,
    refuse_length,
    refuse_no_source,
    refuse_none,
    refuse_stream,
    refuse_unpacked,
)
from tfdp_layers.batches.leaves import leaves_of, stacked, triple
from tfdp_layers.batches.pieces import warn_of_batched
from tfdp_layers.batches.places import moved_by, refuse_moved
from tfdp_layers.batches.records import SOME_LABELS
from tfdp_layers.batches.scales import warn_of_scaled
from tfdp_layers.batches.stores import ArrayStore, Field, Store, drawn_dtype, refuse_no_numbers
from tfdp_layers.batches.texts import bytes_of, is_text, no_rows
from tfdp_layers.batches.units import one_a_record, one_id_each
from tfdp_layers.batches.written import of_pipeline

__all__ = ["SourceStore", "as_store", "records"]

_SAMPLED = 64  # records that a summary looks at


def records(
    source: Any,
    transform: Callable[[Any], Any] | None = None,
    *,
    unit_ids: Any = None,
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
) -> Store:
    """Records that can be drawn one by one, for `fit` and `tfdp.PrivateBatches`, from a source of single records.

    Poisson sampling needs records by index. A tf.data pipeline has none, so it is read once, into memory or into files
    of the folder `cache`; random-access sources (Grain's, a class of your own) are read as records are drawn.

    Args:
        source: a finite `tf.data.Dataset` of single records, or whatever has `__len__` and `__getitem__(index)` (or
            `__getitems__([index])`): records `(x, y)`, `(x, y, sample_weight)`, or x alone; x and y arrays or numbers,
            or dicts or tuples of them, each of the same shape and type in every record. A data set of Grain with a
            `.filter` is read once, at once, and its records are the items that are kept.
        transform: function of one item of a random-access source to a record, called in the worker threads: to decode,
            crop, or pick the fields. Random numbers in it (augmentation) are drawn afresh at each read.
        unit_ids: whose each record is, as `fit` takes it: one id a record, in their order, none for an item that a
            filter drops. Of a pipeline whose x is a
            dict, the name of the entry that holds it, "patient" say, which the model then does not get; of
            {"x": x, "patient": id} it gets x, without a dict. `fit`, and
            whatever else draws these records, protects persons then, and needs no `unit_ids` of its own.
        cache: folder for the records of a pipeline, as `tf.data.Dataset.cache` has it: read again if it is there
            already, and written with the same `unit_ids` if these are by place; of jobs that share it all read what
            the first one wrote. It holds the private records, unencrypted, readable by this user alone.
        workers: threads that read a random-access source; the number of cores if left out, 0 reads without threads,
            for a source that is not safe to read from several.

    Guarantee: none by itself. A record must be computed from its own item alone: a transform that keeps what it saw
    of other records mixes them, unseen by any check. Items are asked for one by one, never a drawn batch at once.
    What a random pipeline does (augmentation) is frozen by reading it once, which brings a warning.

    Returns: the records, with `len()`.

    Raises:
        ValueError: for ids by place beside a file of `.cache`, or a folder `cache` without these ids; for a
            source that is empty, endless, batched, or has no index; for records that hold no numbers;
            while records are drawn, for one of another shape or type than the first, that holds NaN, or that is not
            what its index held when it was first read.
    """
    refuse_sparse("source", source)
    if isinstance(source, tf.data.Dataset):
        if transform is not None:
            raise ValueError("transform is for sources with an index. Use dataset.map(...) before tfdp.records.")
        named = unit_ids if isinstance(unit_ids, str) else None
        moved = moved_by(source)
        if unit_ids is not None and named is None:
            refuse_moved(moved, "unit_ids")
        store: Store = of_pipeline(source, cache, named, None if named else unit_ids)
        store.moved = moved or store.moved
        warn_of_frozen(source, named)
        warn_of_captured(source, len(store), store.inputs(), whose=unit_ids is not None)
        warn_of_batched(source, whose=unit_ids is not None)
        warn_of_choice(source)
        return store if named is not None else owned(store, unit_ids)
    if cache is not None:
        raise ValueError(
            f"cache is for tf.data pipelines; {type(source).__name__} is read by index, as records are drawn. Leave it"
            " out."
        )
    if isinstance(unit_ids, str):
        raise ValueError(
            f"unit_ids={unit_ids!r} names an entry of a tf.data pipeline's x; {type(source).__name__} is read by index,"
            f" as records are drawn. {one_id_each(unit_ids)}"
        )
    store = SourceStore(source, transform, workers)
    if unit_ids is not None:
        refuse_moved(store.moved, "unit_ids")
    return owned(store, unit_ids)


def owned(store: Store, unit_ids: Any) -> Store:
    """The records, which say whose they are. Raises ValueError unless there is one id a record."""
    refuse_other_rows("source", store, unit_ids=unit_ids)
    store.unit_ids = None if unit_ids is None else one_a_record(unit_ids, len(store))
    return store


def as_store(
    x: Any, y: Any = None, sample_weight: Any = None, class_weight: Mapping[int, float] | None = None
) -> Store:
    """The records of arrays, or of a source that holds labels and weights itself."""
    refuse_sparse("x", x)
    if not isinstance(x, Store) and not is_source(x):
        refuse_stream(x)
        return ArrayStore(x, y, sample_weight, class_weight)
    named = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
    given = [name for name, value in named.items() if value is not None]
    if given:
        factors = _FACTORS if "class_weight" in given else ""
        raise ValueError(
            f"{type(x).__name__} gives records one by one, with their labels and weights; {given} cannot be matched to"
            f" them. Make it give (x, y) or (x, y, sample_weight), by tfdp.records(source, transform) say.{factors}"
        )
    return x if isinstance(x, Store) else SourceStore(x)


_FACTORS = (
    " In the place of class_weight={0: 1.0, 1: 5.0} a weight for each record: dataset.map(lambda x, y: (x, y,"
    " tf.gather([1.0, 5.0], tf.cast(y, tf.int32)))), or in the transform."
)


class SourceStore(Store):
    """Records read by index, in threads: see `records`."""

    def __init__(self, source: Any, transform: Callable[[Any], Any] | None = None, workers: int | None = None) -> None:
        refuse_no_source(source, workers)
        data_sets = data_sets_of(source, transform)
        for one in data_sets:
            look_at_grain(one)
        self._source, self._transform, self._length = source, transform, len(source)
        self.given = [lambda: source]
        refuse_length(self._length)
        self.repeated, self.repeated_by = repeated_in(data_sets, source)
        self.moved, self.overlap = moved_in(source, transform), overlap_in(data_sets)
        workers = (os.cpu_count() or 1) if workers is None else workers
        self._pool = ThreadPoolExecutor(workers, "tfdp-records") if workers > 1 else None
        self._workers = workers
        self._kept = self._found() if is_filtered(source) else None
        self._length = self._length if self._kept is None else len(self._kept)
        refuse_length(self._length)
        self.held = Held(self._length, random=True, transformed=transform is not None)
        x, y, weight = triple(self._item(0))
        self.weighted, self.redrawn = weight is not None, True
        self.structure, self._names = (shaped(x, True), shaped(y), np.zeros((), np.float32)), names_of((x, y))
        self.fields = [Field(leaf.shape, leaf.dtype) for leaf in leaves_of(self.structure)]
        refuse_no_numbers(self.fields)
        self._floating = [tf.as_dtype(field.dtype).is_floating for field in self.fields]
        self.listed = transform is None and isinstance(source, list | tuple)
        self._read_one(0)
        warn_of_scaled(x=self.inputs(), y=self.labels())
        for one in data_sets:
            warn_of_batched(one)
            warn_of_choice(one)

    def __len__(self) -> int:
        return self._length

    def _found(self) -> np.ndarray:
        """The indices of the items that a filter of the source keeps: all are read once."""
        there = np.zeros(self._length, bool)

        def look(start: int, step: int) -> None:
            for index in range(start, len(there), step):
                there[index] = self._source[index] is not None

        self._in_threads(look)
        return np.flatnonzero(there)

    def _in_threads(self, read: Callable[[int, int], None]) -> None:
        """Calls `read` with where to begin and how far to the next one, in each thread; 0 and 1 without threads."""
        if self._pool is None:
            read(0, 1)
            return
        for done in [self._pool.submit(read, worker, self._workers) for worker in range(self._workers)]:
            done.result()

    def _read(self, drawn: np.ndarray, rows: int) -> tuple[list[np.ndarray], Marks]:
        taken = [no_rows((rows, *field.shape), field.dtype) for field in self.fields]
        wanted, depth, items = drawn.tolist(), self.held.depth, np.zeros(len(drawn), np.uint64)

        def read(start: int, step: int) -> None:
            for row in range(start, len(wanted), step):
                item = self._untouched(wanted[row])
                if depth == 1:  # before a transform writes into it
                    items[row] = self.held.item(item)
                for array, leaf in zip(taken, self._checked(item, wanted[row]), strict=True):
                    array[row] = leaf[()]  # NumPy would keep an array of one string as an array

        self._in_threads(read)
        return taken, Marks(depth, items if depth else self.held.rows(taken, len(drawn)))

    def summary(self) -> Iterator[bytes]:
        """Of some records, evenly spaced; of none where one of them is random, and so differs between workers."""
        yield repr((self._length, self.fields)).encode()
        some = np.unique(np.linspace(0, self._length - 1, _SAMPLED).astype(int)).tolist()
        once, again = ([bytes_of(leaf) for index in some for leaf in self._read_one(index)] for _ in range(2))
        yield from (once if once == again else [])

    def rows(self) -> list[Callable[[int], Any]]:
        """The items, as the source has them; and the records, where items are numbers by which these are found."""
        by_number = self._transform is not None and isinstance(self._untouched(0), int | np.integer)
        return [self._untouched, *([self._item] if by_number else [])]

    def items(self) -> Any:
        return self._source if self._transform is not None else None

    def _stacked(self) -> list[np.ndarray]:
        return stacked(self._source, self.fields)

    def untouched(self, places: np.ndarray) -> list[Any]:
        return [self._untouched(index) for index in places.tolist()]

    def _untouched(self, index: int) -> Any:
        source, place = self._source, index if self._kept is None else int(self._kept[index])
        try:
            return source[place] if hasattr(source, "__getitem__") else source.__getitems__([place])[0]
        except IndexError:
            raise ValueError(
                f"The source had {self._length} records when training began, and has no record {index} now. Keep it as"
                " it is while fit runs."
            ) from None

    def _item(self, index: int) -> Any:
        return self._record(self._untouched(index), index)

    def _record(self, item: Any, index: int) -> Any:
        record = item if self._transform is None else self._transform(item)
        refuse_none(record, index)
        refuse_unpacked(record, index)
        return record

    def _read_one(self, index: int) -> list[np.ndarray]:
        return self._checked(self._untouched(index), index)

    def _checked(self, item: Any, index: int) -> list[np.ndarray]:
        """The leaves of the record that is made of this item."""
        x, y, weight = triple(self._record(item, index))
        if (weight is not None) != self.weighted:
            raise ValueError(f"Record {index} differs from record 0 in having a sample weight. Give all of them one.")
        weight = np.float32(1) if weight is None else weight
        if np.shape(weight):
            raise ValueError(
                f"Record {index} has a sample weight of shape {np.shape(weight)}: weights are one number a record."
                " Those of positions within a record belong into the loss."
            )
        if (found := names_of((x, y))) != self._names:
            raise ValueError(f"Record {index} is made of {found}, record 0 of {self._names}: make them alike.")
        leaves = [np.asarray(leaf) for leaf in leaves_of((x, y, weight))]
        with np.errstate(over="ignore"):  # what is too large is infinite then, and refused
            leaves = [alike(leaf, field, index) for leaf, field in zip(leaves, self.fields, strict=True)]
        for place, (leaf, floating) in enumerate(zip(leaves, self._floating, strict=True)):
            if floating and not np.isfinite(leaf).all():
                several = len(leaves_of(y)) > 1 or leaf.size > 1
                some = f" {SOME_LABELS}" if several and len(leaves_of(x)) <= place < len(leaves) - 1 else ""
                raise ValueError(
                    f"Record {index} holds NaN or infinite values: such a record contributes nothing, and hides"
                    f" mistakes. Replace them, or leave the record out.{some}"
                )
        if not leaves[-1] >= 0:
            raise ValueError(f"Record {index} has the sample weight {leaves[-1]}: weights are numbers of at least 0.")
        return leaves


def shaped(structure: Any, texts: bool = False) -> Any:
    """The record with an empty array of the type that is drawn in the place of each of its own.

    Args:
        texts: whether strings are let in.
    """
    if isinstance(structure, Mapping):
        return {key: shaped(structure[key], texts) for key in sorted(structure)}
    if isinstance(structure, tuple):
        return tuple(shaped(part, texts) for part in structure)
    if structure is None:
        return None
    array = np.asarray(structure)
    if texts and is_text(array):
        return no_rows(array.shape, np.dtype(object))  # of any length
    if not is_numeric(array.dtype):
        raise ValueError(
            f"A record holds {array.dtype} values, which layers cannot compute with. Turn it into numbers first:"
            " tfdp.records(source, transform), with a transform from an item to (x, y)."
        )
    return np.zeros(array.shape, drawn_dtype(array.dtype))


def names_of(structure: Any) -> Any:
    """How a record is put together: keys and places, without the arrays."""
    if isinstance(structure, Mapping):
        return {key: names_of(structure[key]) for key in sorted(structure)}
    if isinstance(structure, tuple):
        return tuple(names_of(part) for part in structure)
    return None if structure is None else "array"


def alike(leaf: np.ndarray, field: Field, index: int) -> np.ndarray:
    """The array as the type of record 0. Raises ValueError for another shape or a type that does not fit into it."""
    floats = leaf.dtype.kind == field.dtype.kind == "f" or (field.dtype.kind == "O" and is_text(leaf))
    if leaf.shape != field.shape or not (floats or np.can_cast(leaf.dtype, field.dtype, "safe")):
        raise ValueError(
            f"Record {index} has an array of shape {leaf.shape} and type {leaf.dtype}, where record 0 has shape"
            f" {field.shape} and type {field.dtype}. Pad, crop or convert in a transform: tfdp.records(source,"
            " transform)."
        )
    return leaf.astype(field.dtype, copy=False)
