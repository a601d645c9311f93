"""Where records lie, and how those of a draw are taken from there."""

from __future__ import annotations

import abc
import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.footprint import Footprint, footprint_of
from tfdp_layers.accounting.grouping import sample_of
from tfdp_layers.accounting.people import People
from tfdp_layers.batches.copies import copies_in
from tfdp_layers.batches.held import Held, Marks
from tfdp_layers.batches.records import (
    arrays,
    as_mapping,
    check_finite,
    class_factors,
    common_length,
    differing,
    finite_weights,
    is_mapped,
    largest_factor,
    weights_of,
)
from tfdp_layers.batches.scales import warn_of_scaled
from tfdp_layers.batches.texts import bytes_of, no_rows

COPY_BYTES = 1 << 30
"""Up to here records in memory are copied once into tensors, and gathered from them: 3-5 times faster."""
_PART_BYTES = 16 << 20
_LISTED = 1 << 16
"""Records of a list up to which arrays are made of them, to look at."""
_NEAR, _FAR, _LOOKED_AT_BYTES = 96, 64, 64 << 20
"""Neighbours, and records from everywhere, that are looked at where reading all is too slow; and bytes of these."""


class Field(NamedTuple):
    """One array of a record: its shape without the axis of records, and its type."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Store(abc.ABC):
    """Records `(x, y, sample_weight)` by index.

    Attributes:
        structure: of a record; the leaves of the trees are `Field` or an array, None where there is nothing.
        fields: the leaves in their order, without None.
        weighted: whether records with weights above 0 may weigh differently.
        class_weight: the factors of classes, where they alone, which are public, make a record's weight.
        classes: how many one-hot labels tell apart; None of other labels, whose values, which are private, may be any.
        redrawn: whether a record may hold other numbers at each read.
        repeated: whether what they come from is seen to give records more than once.
        repeated_by: the class of a data set that a source's code reads, which repeats its records; empty for none.
        overlap: whether parts of one source that are put together may have records in common.
        moved: which operation of the pipeline moved them to other places, so that no ids by place fit; empty for none.
        pipeline: gives the tf.data pipeline that they were read from, as long as the caller has it; or None.
        given: each gives what x was made an array from, as long as the caller has it.
        unit_ids: one id a record, where `tfdp.records` was told whose they are; None where it was not.
        held: what each index held at its first read.
        listed: whether they lie in a list, as they are drawn.
        in_rounds: whether it was said that they come in rounds.
        sampled: whether `summary` tells of some of them alone.
    """

    held: Held
    structure: tuple[Any, Any, Any]
    fields: list[Field]
    weighted: bool = False
    class_weight: Mapping[int, float] | None = None
    classes: int | None = None
    redrawn: bool = False
    repeated: bool = False
    repeated_by: str = ""
    overlap: bool = False
    moved: str = ""
    pipeline: Callable[[], Any] | None = None
    given: Sequence[Callable[[], Any]] = ()
    unit_ids: Any = None
    in_rounds: bool = False
    listed: bool = False
    sampled: bool = True
    _kept_list: tuple[list[np.ndarray], list[np.ndarray]] | None = None

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    def take(self, drawn: np.ndarray, rows: int) -> list[np.ndarray]:
        """These records, each field as an array of so many rows, filled up by `no_rows`; float64 made floatx.

        Args:
            drawn: (at most rows,) indices of records.

        Raises: ValueError for records that cannot be used, and for one that changed since its first read: see `Held`.
        """
        return self.taken(drawn, rows)[0]

    def taken(self, drawn: np.ndarray, rows: int) -> tuple[list[np.ndarray], Marks]:
        """What `take` gives, and the marks of what was read."""
        self.begin()
        self._kept_list = None  # all looks are behind: the list may be large
        taken, marks = self._read(drawn, rows)
        self.held.check(drawn, marks, self.marks)
        return taken, marks

    def begin(self) -> None:
        """Looks at what the records hold before the first is drawn: see `Held.begin`."""
        self.held.begin(self.marks)

    def marks(self, drawn: np.ndarray) -> Marks:
        """Of these records, read afresh."""
        return self._read(drawn, len(drawn))[1]

    @abc.abstractmethod
    def _read(self, drawn: np.ndarray, rows: int) -> tuple[list[np.ndarray], Marks]:
        """What `take` gives, and the marks of what was read."""

    @abc.abstractmethod
    def summary(self) -> Iterator[bytes]:
        """What tells these records from others, in parts."""

    def sample(self) -> list[bytes] | None:
        """What tells their x from that of others, quickly; None where that takes reading records."""
        return None

    def rows(self) -> list[Callable[[int], Any]]:
        """What give a record by its index, as it lies; none where all of them are looked at, by `footprint`."""
        return []

    def inputs(self) -> list[np.ndarray]:
        """The arrays of x, (records, ...), that lie in memory; of a list of records made of these."""
        return self._of_list()[0]

    def labels(self) -> list[np.ndarray]:
        """Those of y."""
        return self._of_list()[1]

    def _of_list(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        if not self.listed or len(self) > _LISTED:
            return [], []
        if self._kept_list is None:
            made: list[np.ndarray] = []
            if sum(math.prod(one.shape) * one.dtype.itemsize for one in self.fields) * len(self) <= _LOOKED_AT_BYTES:
                with contextlib.suppress(Exception):  # said where they are drawn
                    made = self._stacked()
            inputs = len(_flat(self.structure[0]))
            self._kept_list = made[:inputs], made[inputs:]
        return self._kept_list

    def _stacked(self) -> list[np.ndarray]:
        """The arrays of x and y, of records in a list."""
        return []

    def near(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The arrays of x and y, of the first records at least: as they stand beside each other."""
        return self.looked_at(np.arange(min(len(self), _NEAR)))

    def items(self) -> Any:
        """What the records are made of, where that is a list or tuple."""
        return None

    def untouched(self, places: np.ndarray) -> list[Any]:
        """What a source has at these places."""
        return []

    def looked_at(self, places: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """x and y at these places; nothing where they cannot be read, which is said where they are drawn."""
        each = sum(math.prod(field.shape) * field.dtype.itemsize for field in self.fields)
        places = places[: _LOOKED_AT_BYTES // max(1, each)]
        inputs, both = (len(_flat(self.structure[:parts])) for parts in (1, 2))
        with contextlib.suppress(Exception):
            found, _ = self._read(places, len(places))
            return found[:inputs], found[inputs:both]
        return [], []

    def largest_weight(self, classes: int | None) -> float | None:
        """The largest weight of a record, by public constants alone; None where they do not say it, or nothing counts.

        Args:
            classes: how many classes labels that are no one-hot rows can be, where that is public.
        """
        if self.class_weight is None:
            return None
        return largest_factor(self.class_weight, self.classes or classes) or None

    def footprint(self, people: People | None = None) -> Footprint:
        """What tells these records again. Reading records one by one is too slow for it: then where they come from.

        Args:
            people: whose the records are, if that is known.
        """
        found = footprint_of([self, self.pipeline and self.pipeline(), *(one() for one in self.given)])
        return replace(found, copies=copies_in(self, self.items(), people)) if self._unseen() else found

    def _unseen(self) -> bool:
        """Whether copies among the records were not seen elsewhere: they lie in memory, or come in rounds."""
        return bool(self.rows()) and not self.in_rounds

    def tensors(self) -> list[tf.Tensor] | None:
        """All records as tensors, one for each field; None where that would take too much memory."""
        return None


def refuse_no_numbers(fields: Sequence[Field]) -> None:
    """Raises ValueError for records of which an array has no entries: TensorFlow's kernels may end the process."""
    empty = [tuple(field.shape) for field in fields if 0 in field.shape]
    if empty:
        raise ValueError(
            f"An array of each record has the shape {empty[0]}, with no entry in it: there is nothing to compute with."
            " Leave it out, or give a table with one column at least."
        )


class ArrayStore(Store):
    """Records in arrays, in memory or mapped into it.

    Raises: ValueError for records and weights that cannot be used.
    """

    def __init__(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Mapping[int, float] | None = None
    ) -> None:
        self.given = [weakref.ref(leaf) for leaf in keras.tree.flatten(x) if hasattr(leaf, "__weakref__")]
        x, y = arrays("x", x), None if y is None else arrays("y", y)
        self._length = common_length(x=x, y=y)
        for name, leaf in (("x", x), ("y", y)):
            check_finite(name, leaf)
        warn_of_scaled(x=x, y=y)
        weights = weights_of(sample_weight, y, self._length)
        if class_weight is not None:
            factors = class_factors(y, class_weight)
            if sample_weight is None:
                self.class_weight = dict(as_mapping(class_weight))
                self.classes = y.shape[1] if y.ndim == 2 and y.shape[1] > 1 else None
            weights = keras.tree.map_structure(lambda leaf: finite_weights(leaf * factors), weights)
        if sample_weight is not None or class_weight is not None:
            self.weighted = any(map(differing, keras.tree.flatten(weights)))
        self.structure = (x, y, weights)
        self._leaves = _flat(self.structure)
        self.fields = [Field(leaf.shape[1:], drawn_dtype(leaf.dtype)) for leaf in self._leaves]
        refuse_no_numbers(self.fields)
        self._tensors: list[tf.Tensor] = []
        self.sampled = self._bytes() > COPY_BYTES
        self.held = Held(self._length, whole=not self.sampled)

    def __len__(self) -> int:
        return self._length

    def _read(self, drawn: np.ndarray, rows: int) -> tuple[list[np.ndarray], Marks]:
        taken = [_take(leaf, drawn, rows) for leaf in self._leaves]
        return taken, Marks(0, self.held.rows(taken, len(drawn)))

    def summary(self) -> Iterator[bytes]:
        return summary_of(self._leaves, sampled=self.sampled)

    def footprint(self, people: People | None = None) -> Footprint:
        found = super().footprint(people)
        x, y = map(_flat, self.structure[:2])
        looked_at = footprint_of([], x, y, people)
        return replace(looked_at, places=found.places | looked_at.places, copies=found.copies)

    def rows(self) -> list[Callable[[int], Any]]:
        mapped = any(map(is_mapped, _flat(self.structure[0])))
        return [lambda index: [leaf[index] for leaf in self._leaves[:-1]]] if mapped else []

    def inputs(self) -> list[np.ndarray]:
        return self._in_memory(0)

    def labels(self) -> list[np.ndarray]:
        return self._in_memory(1)

    def near(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return _flat(self.structure[0]), _flat(self.structure[1])

    def _bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self._leaves)

    def _in_memory(self, part: int) -> list[np.ndarray]:
        return [leaf for leaf in _flat(self.structure[part]) if not is_mapped(leaf)]

    def sample(self) -> list[bytes]:
        return sample_of(keras.tree.flatten(self.structure[0]))

    def tensors(self) -> list[tf.Tensor] | None:
        mapped = any(is_mapped(leaf) for leaf in self._leaves)
        if mapped or self._bytes() > COPY_BYTES:
            return None
        if not self._tensors:
            with tf.device("CPU:0"):  # tf.data runs there
                self._tensors = [copied(leaf) for leaf in self._leaves]
        return self._tensors


def _flat(tree: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(tree) if leaf is not None]


def copied(array: np.ndarray) -> tf.Tensor:
    """A tensor of an array's numbers, which is its own: whoever writes into the array changes nothing in it.

    Large ones part by part: at once TensorFlow makes two copies, and gives one of them back much later.
    """
    rows = max(1, _PART_BYTES // max(1, array[:1].nbytes))
    if rows >= len(array) or array.dtype.kind not in "biuf":
        return tf.convert_to_tensor(array)
    made = tf.raw_ops.Empty(shape=array.shape, dtype=tf.as_dtype(array.dtype))
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        tf.raw_ops.InplaceUpdate(x=made, i=np.arange(start, start + len(part), dtype=np.int32), v=part)
    return made


def summary_of(leaves: Sequence[np.ndarray], sampled: bool = False) -> Iterator[bytes]:
    """What tells these arrays from others, in parts: of all rows, or of evenly spaced ones, up to 1 GiB an array."""
    for leaf in leaves:
        yield repr((leaf.shape, leaf.dtype.str)).encode()
        step = (-(-leaf.nbytes // COPY_BYTES) or 1) if sampled else 1
        rows = max(1, _PART_BYTES // max(1, leaf[:1].nbytes)) * step
        yield from (bytes_of(leaf[start : start + rows : step]) for start in range(0, len(leaf), rows))


def drawn_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which numbers of this one are drawn."""
    return np.dtype(tf.as_dtype(keras.backend.floatx()).as_numpy_dtype) if dtype == np.float64 else dtype


def _take(array: np.ndarray, drawn: np.ndarray, rows: int) -> np.ndarray:
    dtype = drawn_dtype(array.dtype)
    # Indexing, not np.take: that one first copies an array whose memory is not contiguous, as a whole.
    if len(drawn) == rows:
        return array[drawn].astype(dtype, copy=False)
    taken = no_rows((rows, *array.shape[1:]), dtype)
    taken[: len(drawn)] = array[drawn]
    return taken
