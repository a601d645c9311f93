"""Batches drawn as they are accounted for: arrays that the library draws from, pipelines that the caller declares."""

from __future__ import annotations

import abc
import itertools
import math
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.sampling import Sampling, entropy_generator
from tfdp_layers.units import Units

_CHUNK_BYTES = 8 << 20  # what a check reads at once, so that memory-mapped records are never in memory together
_COPY_BYTES = 1 << 30  # up to here dataset() keeps a tensor copy of the records and gathers from it: 3-5 times faster
_DRAWN_AHEAD = 1 << 16  # records: so many indices are drawn at once
_NO_BATCHES = "The dataset has no batches, so nothing can be trained on. Give one with at least one batch."


class Batches(abc.ABC):
    """What a private model trains on: batches `(x, y, sample_weight)` with the sampling that they are accounted by.

    Attributes: `sampling`; `examples`, the declared public number of records; `physical_batch_size`, rows computed at
    once (None: all); `seeded`, draws that a seed repeats (it voids the statement); `declared`, drawn by the caller's
    pipeline instead of by this library; `per_unit`, at most one record of each unit in a draw, numbers in units.
    """

    sampling: Sampling
    examples: int
    physical_batch_size: int | None = None
    seeded: bool = False
    declared: bool = False
    per_unit: bool = False

    def __len__(self) -> int:
        """Batches in an epoch: ceil(examples / batch_size)."""
        return self.sampling.steps_per_epoch(self.examples)

    @abc.abstractmethod
    def dataset(self, pad: bool = False) -> tf.data.Dataset:
        """Endless batches of the same structure, batch axis None or constant; `pad`: of a few sizes only."""

    def _padded(self, rows: Any, pad: bool) -> Any:
        """The rows, at least 1, of a batch with `rows` (int or integer tensor) drawn records."""
        constant = self.sampling.largest(self.examples)
        multiples = []
        if constant is not None:
            rows = constant
        elif pad:
            # sqrt: an eighth of a small batch is less than the draws' standard deviation, and would give many sizes.
            multiples.append(math.ceil(max(self.sampling.batch_size / 8, math.sqrt(self.sampling.batch_size))))
        if pad and self.physical_batch_size is not None:
            multiples.append(self.physical_batch_size)
        for multiple in multiples:
            rows = -(-rows // multiple) * multiple
        return rows

    def _static_rows(self, pad: bool) -> int | None:
        return None if self.sampling.largest(self.examples) is None else self._padded(1, pad)


class PrivateBatches(Batches, keras.utils.PyDataset):
    """Draws `(x, y, sample_weight)` from arrays exactly as `sampling` is accounted.

    Shapes: x, y: arrays, memory-mapped arrays, tensors, or dicts, lists and tuples of them (lists come out as
    tuples), all (records, ...). A batch holds (rows, ...) of each, dtypes kept (integer pixels too; float64 becomes
    `keras.backend.floatx()`), and float32 weights (rows,), structured like `sample_weight`. Rows of padding are zero,
    with weight exactly 0; an empty draw is one such row.
    Units: `sampling.batch_size` and `examples` (default: the number of rows) are public declared constants, in
    records. `Poisson` draws each row with probability batch_size / examples, also when there are more or fewer rows
    than that; the other samplings need exactly `examples` rows. `class_weight` multiplies the weights; classes it
    does not name keep 1. `unit_ids` (records,) says which records belong to one person: then batch size and
    `examples` count units, every drawn unit enters with one of its records, chosen afresh, and the guarantee is for
    all records of a unit together, at no more noise.
    Guarantee: every batch is a fresh draw, whatever index is asked for: a loader may fetch an item twice, prefetch or
    shuffle and nothing is replayed. The generator is keyed by the operating system unless `seed` is given (tests
    only: it voids the statement). Safe to use from several threads. Not covered: error messages about the records,
    which are computed from them without noise, and class or sample weights computed from private data.
    Raises: ValueError, before anything is drawn, for records, weights or sizes that cannot be used; TypeError on
    pickling or copying and RuntimeError in a forked process, because a copied generator would replay its draws.
    Source: Abadi et al. 2016, arXiv:1607.00133 (drawn, not shuffled); Chua et al. 2024, arXiv:2403.17673 (why it
    matters).
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sampling: Sampling | None = None,
        physical_batch_size: int | None = None,
        *,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        examples: int | None = None,
        unit_ids: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        x, y = _arrays("x", x), None if y is None else _arrays("y", y)
        self._length = _common_length(x=x, y=y)
        self.sampling = _checked_sampling(sampling)
        self.per_unit = unit_ids is not None
        self._units = Units(unit_ids, self._length) if self.per_unit else None
        self._drawable = self._length if self._units is None else len(self._units)
        self.examples = _checked_examples(self.sampling, self._drawable if examples is None else examples)
        self.physical_batch_size = _checked_physical(physical_batch_size)
        for name, leaf in (("x", x), ("y", y)):
            _check_finite(name, leaf)
        weights = _weights(sample_weight, y, self._length)
        if class_weight is not None:
            factors = _class_factors(y, class_weight)
            weights = keras.tree.map_structure(lambda leaf: _finite_weights(leaf * factors), weights)
        self._structure = (x, y, weights)
        self._leaves = [leaf for leaf in keras.tree.flatten(self._structure) if leaf is not None]
        self.seeded = seed is not None
        self._rng = entropy_generator(seed)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._draws = self._indices()
        self._tensors: list[Any] = []

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        """A fresh draw, whatever `index`."""
        return self._pack(self._rows(self._next(self._draws), pad=False))

    def stream(self, pad: bool | None = None) -> Iterator[tuple[Any, Any, Any]]:
        """Endless fresh draws, as NumPy batches; `Partition` starts a new permutation, and drops no record of it.

        Without `pad` a batch has the rows drawn, at least 1; with `pad` a multiple of about batch_size / 8. It always
        has `sampling.largest` rows if there is such a constant. With `pad`, also a multiple of `physical_batch_size`.
        """
        return (self._pack(leaves) for leaves in self._row_stream(bool(pad)))

    def dataset(self, pad: bool = False) -> tf.data.Dataset:
        """`stream(pad)` as a tf.data.Dataset with a signature fixed beforehand, two batches ahead.

        Records of up to 1 GiB in memory are copied once into tensors; larger or memory-mapped ones are read row by
        row.
        """
        mapped = any(_is_mapped(leaf) for leaf in self._leaves)
        if mapped or sum(leaf.nbytes for leaf in self._leaves) > _COPY_BYTES:
            return self._dataset_of_rows(pad).prefetch(2)
        return self._dataset_of_indices(pad).prefetch(2)

    def _dataset_of_rows(self, pad: bool) -> tf.data.Dataset:
        rows = self._static_rows(pad)
        signature = tuple(tf.TensorSpec((rows, *leaf.shape[1:]), _drawn_dtype(leaf.dtype)) for leaf in self._leaves)
        rows_of = tf.data.Dataset.from_generator(lambda: map(tuple, self._row_stream(pad)), output_signature=signature)
        return rows_of.map(lambda *leaves: self._pack(leaves))

    def _dataset_of_indices(self, pad: bool) -> tf.data.Dataset:
        with self._lock:
            if not self._tensors:
                with tf.device("CPU:0"):  # tf.data runs there
                    self._tensors = [tf.convert_to_tensor(leaf) for leaf in self._leaves]
        tensors = self._tensors

        # Several draws a call of the generator: each call costs as much as gathering a small batch.
        together = max(1, min(16, _DRAWN_AHEAD // self.sampling.batch_size))

        def draws() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
            stream = self._index_stream()
            while True:
                drawn = [next(stream) for _ in range(together)]
                counts = np.array([len(one) for one in drawn])
                # At least one column: taking apart a tensor of no columns crashes TensorFlow 2.21.
                indices = np.zeros((together, max(1, counts.max())), np.int64)
                for row, one in zip(indices, drawn, strict=True):
                    row[: len(one)] = one
                yield indices, counts, np.array([self._padded(max(count, 1), pad) for count in counts.tolist()])

        def batch(indices: Any, count: Any, rows: Any) -> Any:
            drawn = indices[:count]
            return self._pack([_fill(tf.gather(leaf, drawn), rows, self._static_rows(pad)) for leaf in tensors])

        signature = (tf.TensorSpec((together, None), tf.int64), *[tf.TensorSpec((together,), tf.int64)] * 2)
        return tf.data.Dataset.from_generator(draws, output_signature=signature).unbatch().map(batch)

    def _indices(self) -> Iterator[np.ndarray]:
        # Always from the one generator, which only goes forward: whoever starts a new iterator replays nothing.
        return self.sampling.draws(self.examples, self._rng, rows=self._drawable)

    def _next(self, draws: Iterator[np.ndarray]) -> np.ndarray:
        if os.getpid() != self._process:
            raise RuntimeError(
                "PrivateBatches was used in a forked process: every fork would replay the same draws, which are"
                " accounted as independent. Leave use_multiprocessing=False (threads are safe), or construct it in that"
                " process."
            )
        with self._lock:
            drawn = next(draws)
            return drawn if self._units is None else self._units.choose(drawn, self._rng)

    def _index_stream(self) -> Iterator[np.ndarray]:
        draws = self._indices()
        while True:
            yield self._next(draws)

    def _row_stream(self, pad: bool) -> Iterator[list[np.ndarray]]:
        return (self._rows(drawn, pad) for drawn in self._index_stream())

    def _rows(self, drawn: np.ndarray, pad: bool) -> list[np.ndarray]:
        rows = self._padded(max(len(drawn), 1), pad)
        return [_take(leaf, drawn, rows) for leaf in self._leaves]

    def _pack(self, leaves: Iterable[Any]) -> Any:
        rest = iter(leaves)
        return keras.tree.map_structure(lambda leaf: None if leaf is None else next(rest), self._structure)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "PrivateBatches cannot be pickled or copied: a copy of its generator would replay its draws, which are"
            " accounted as independent. Construct another one from the same arrays."
        )


class DeclaredBatches(Batches):
    """Batches of a pipeline that the caller declares to be drawn by `sampling`; made by `declare_sampling`."""

    declared = True

    def __init__(self, dataset: Any, sampling: Sampling, *, examples: int) -> None:
        if isinstance(dataset, Batches):
            raise ValueError(
                f"The dataset is {type(dataset).__name__}, which states its own sampling: a second statement could"
                " contradict it. Pass it to fit as it is."
            )
        self.sampling = _checked_sampling(sampling)
        self.examples = _checked_examples(self.sampling, examples)
        if self.sampling.kind == "partition":
            self._check_epoch(dataset)
        elif isinstance(dataset, list | tuple):
            raise ValueError(
                f"A {type(dataset).__name__} of batches was drawn once and would be replayed every epoch, but"
                f" {self.sampling} draws every step afresh. Give a generator or a tf.data.Dataset that draws anew, or"
                " the arrays themselves to tfdp.PrivateBatches."
            )
        if isinstance(dataset, tf.data.Dataset) and dataset.cardinality() == 0:
            raise ValueError(_NO_BATCHES)
        self._dataset = dataset.repeat() if isinstance(dataset, tf.data.Dataset) else _from_iterable(dataset)
        self._check_elements(self._dataset.element_spec)

    def _check_epoch(self, dataset: Any) -> None:
        if isinstance(dataset, tf.data.Dataset):
            batches = int(dataset.cardinality())
        else:
            restartable = hasattr(dataset, "__len__") and iter(dataset) is not dataset
            batches = len(dataset) if restartable else tf.data.UNKNOWN_CARDINALITY
        if batches != len(self):
            known = {-1: "is endless", -2: "has an unknown number of batches"}.get(batches, f"has {batches} batches")
            raise ValueError(
                f"Partition needs every record in exactly one of ceil(examples / batch_size) = {len(self)} batches an"
                f" epoch, but the dataset {known}. Leave out .repeat(), keep the last batch (drop_remainder=False), and"
                " state the number with tf.data.experimental.assert_cardinality."
            )

    def _check_elements(self, spec: Any) -> None:
        if not isinstance(spec, tuple) or len(spec) not in (2, 3):
            raise ValueError(f"Batches must be tuples (x, y) or (x, y, sample_weight). Received elements: {spec}.")
        # Poisson draws differ in size: a pipeline whose batches all have b rows does not draw so.
        constant = self.sampling.batch_size if self.sampling.kind == "partition" else None
        allowed = {None, constant, self.sampling.largest(self.examples)}
        for leaf in keras.tree.flatten(spec):
            if not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank is None:
                raise ValueError(
                    f"Batches must be dense tensors of known rank, so that rows can be padded. Received: {leaf}."
                    " Make ragged or sparse ones dense, and give unknown shapes by tf.ensure_shape, in dataset.map."
                )
            if leaf.shape.rank == 0 or leaf.shape[0] not in allowed:
                raise ValueError(
                    f"The dataset's elements are not batches as {self.sampling} draws them, whose first axis is one of"
                    f" {sorted(allowed, key=str)}. Received: {leaf}. Single records need .batch(); batches that all"
                    " have one size are not Poisson draws: declare how they are drawn."
                )
        for leaf in keras.tree.flatten(spec[2]) if len(spec) == 3 else ():
            if leaf.shape.rank != 1:
                raise ValueError(f"Sample weights must be one number a record, shape (rows,). Received: {leaf}.")

    def dataset(self, pad: bool = False) -> tf.data.Dataset:
        """The declared batches, endlessly, with weights (ones if there were none); padded as `PrivateBatches` pads.

        Raises: tf.errors.InvalidArgumentError, while iterating, for a batch larger than the sampling allows.
        """
        return self._dataset.map(lambda *batch: self._standard(batch, pad)).prefetch(2)

    def _standard(self, batch: tuple[Any, ...], pad: bool) -> Any:
        drawn = tf.shape(keras.tree.flatten(batch)[0], out_type=tf.int64)[0]
        rows = tf.cast(self._padded(tf.maximum(drawn, 1), pad), tf.int64)
        fits = tf.debugging.assert_less_equal(
            drawn, rows, f"A batch has more rows than {self.sampling} allows: declare the sampling that draws it."
        )
        with tf.control_dependencies([fits]):  # or a shape check that says less may fail first
            batch, drawn = keras.tree.map_structure(tf.identity, (batch, drawn))
        x, y, weights = batch if len(batch) == 3 else (*batch, tf.ones([drawn]))
        weights = keras.tree.map_structure(lambda leaf: tf.cast(leaf, tf.float32), weights)
        return keras.tree.map_structure(lambda leaf: _fill(leaf, rows, self._static_rows(pad)), (x, y, weights))


def declare_sampling(dataset: Any, sampling: Sampling, *, examples: int) -> DeclaredBatches:
    """Lets a pipeline in, on the caller's word that `sampling` draws each batch of it afresh from `examples` records.

    Shapes: `dataset` is a tf.data.Dataset, or another iterable, of batches (x, y) or (x, y, sample_weight), each
    (rows, ...), structures of them allowed; weights (rows,). A finite one is repeated.
    Units: records; `examples` is a public declared constant.
    Guarantee: the caller's. Nothing here can check it, and the privacy statement says that it was declared. Shuffling
    is not Poisson sampling: declare `dataset.shuffle(examples).batch(b)` as `Partition(b)`.
    Raises: ValueError if the elements are not batches, or, for `Partition`, are not known to be ceil(examples / b) an
    epoch.
    Source: Chua et al. 2024, arXiv:2403.17673 (shuffled batches accounted as Poisson).
    """
    return DeclaredBatches(dataset, sampling, examples=examples)


def _from_iterable(batches: Any) -> tf.data.Dataset:
    if not isinstance(batches, Iterable):
        raise ValueError(f"The dataset must be a tf.data.Dataset or an iterable of batches. Received: {type(batches)}.")
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise ValueError(_NO_BATCHES)
    if iterator is batches:  # it cannot be started again, so what was looked at goes back in front
        batches = itertools.chain([first], iterator)
    lock = threading.Lock()

    def endless() -> Iterator[Any]:
        while True:
            fetched, iterator = 0, iter(batches)
            while True:
                with lock:  # two datasets may share one generator
                    batch = next(iterator, None)
                if batch is None:
                    break
                fetched += 1
                yield keras.tree.map_structure(np.asarray, keras.tree.lists_to_tuples(batch))
            if not fetched:
                raise ValueError("The declared dataset ran out of batches. Give an endless or a repeatable iterable.")

    def spec(leaf: Any) -> tf.TensorSpec:
        array = np.asarray(leaf)
        return tf.TensorSpec((None, *array.shape[1:]) if array.ndim else (), array.dtype)

    signature = keras.tree.map_structure(spec, keras.tree.lists_to_tuples(first))
    return tf.data.Dataset.from_generator(endless, output_signature=signature)


def _fill(leaf: Any, rows: Any, static: int | None) -> Any:
    """The tensor `leaf` with rows of zeros added up to `rows` (int64), and float64 made floatx."""
    if leaf.dtype == tf.float64:
        leaf = tf.cast(leaf, keras.backend.floatx())
    shape = tf.shape(leaf, out_type=tf.int64)
    missing = rows - shape[0]

    def filled() -> Any:
        return tf.concat([leaf, tf.zeros(tf.concat([[missing], shape[1:]], 0), leaf.dtype)], 0)

    return tf.ensure_shape(tf.cond(missing > 0, filled, lambda: leaf), (static, *leaf.shape[1:]))


def _take(array: np.ndarray, drawn: np.ndarray, rows: int) -> np.ndarray:
    dtype = _drawn_dtype(array.dtype)
    # Indexing, not np.take: that one first copies an array whose memory is not contiguous, as a whole.
    if len(drawn) == rows:
        return array[drawn].astype(dtype, copy=False)
    taken = np.zeros((rows, *array.shape[1:]), dtype)
    taken[: len(drawn)] = array[drawn]
    return taken


def _drawn_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(tf.as_dtype(keras.backend.floatx()).as_numpy_dtype) if dtype == np.float64 else dtype


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
    return (array[start : start + rows] for start in range(0, len(array), rows))


def _checked_sampling(sampling: Any) -> Sampling:
    if not isinstance(sampling, Sampling):
        raise ValueError(
            "sampling says how batches are drawn, and what they cost; there is no default."
            f" Pass tfdp_layers.sampling.Poisson(batch_size), for example. Received: sampling={sampling!r}."
        )
    return sampling


def _checked_examples(sampling: Sampling, examples: Any) -> int:
    sampling.check(examples)
    return int(examples)


def _checked_physical(size: Any) -> int | None:
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise ValueError(
            "physical_batch_size is the number of rows computed at once: it must be an integer of at least 1, or None"
            f" for all of them. Received: {size!r}."
        )
    return int(size)


def _arrays(name: str, structure: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: _array(name, leaf), keras.tree.lists_to_tuples(structure))


def _array(name: str, leaf: Any) -> np.ndarray:
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor | np.ma.MaskedArray):
        raise ValueError(
            f"{name} holds a {type(leaf).__name__}: its rows have no common shape that padding could fill. Make it"
            " dense, with .to_tensor(), tf.sparse.to_dense or .filled()."
        )
    if not hasattr(leaf, "__array__"):
        raise ValueError(
            f"{name} must be an array, or a dict, list or tuple of arrays (one for each input or output). Received a"
            f" {type(leaf).__name__} in it. Convert lists of numbers by numpy.asarray."
        )
    array = np.asarray(leaf)  # a view without a copy, of a memory-mapped array too
    if not _is_numeric(array.dtype):
        raise ValueError(
            f"{name} has dtype {array.dtype}, which layers cannot compute with. Encode it as numbers first (for texts:"
            " keras.layers.TextVectorization; ragged rows: pad them to one length; other numbers: .astype('float32'))."
        )
    if array.ndim == 0:
        raise ValueError(
            f"{name} must have a first axis that counts the records. Received a scalar: put it into an array."
        )
    return array


def _is_numeric(dtype: np.dtype) -> bool:
    try:
        kind = tf.as_dtype(dtype)
    except TypeError:
        return False
    return dtype.isnative and (kind.is_floating or kind.is_integer or kind.is_bool)


def _common_length(**named: Any) -> int:
    lengths = {
        name: [len(leaf) for leaf in keras.tree.flatten(leaves)] for name, leaves in named.items() if leaves is not None
    }
    distinct = set(itertools.chain.from_iterable(lengths.values()))
    if len(distinct) > 1:
        raise ValueError(
            f"x and y must hold the same records, so their first axes must agree. Received lengths: {lengths}."
        )
    if distinct in (set(), {0}):
        raise ValueError("The data are empty, so nothing can be drawn from them. Pass at least one record.")
    return distinct.pop()


def _check_finite(name: str, leaves: Any) -> None:
    for leaf in keras.tree.flatten(leaves):
        if leaf is None or not tf.as_dtype(leaf.dtype).is_floating:
            continue
        if not all(np.isfinite(chunk).all() for chunk in _chunks(leaf)):
            raise ValueError(
                f"{name} holds NaN or infinite values: such a record contributes nothing, and hides mistakes. Replace"
                " them, or remove these records."
            )


def _weights(sample_weight: Any, y: Any, records: int) -> Any:
    if sample_weight is None:
        return np.broadcast_to(np.float32(1), (records,))  # ones, without their memory
    weights = _arrays("sample_weight", sample_weight)
    if keras.tree.is_nested(weights):
        try:
            keras.tree.assert_same_structure(weights, y)
        except (TypeError, ValueError):
            raise ValueError(
                "sample_weight must be one array, or have the structure of y: one array of weights for each output."
                f" Received: {keras.tree.map_structure(np.shape, weights)} (shapes)."
            ) from None
    return keras.tree.map_structure(lambda leaf: _record_weights(leaf, records), weights)


def _record_weights(leaf: np.ndarray, records: int) -> np.ndarray:
    if leaf.shape != (records,):
        raise ValueError(
            f"sample_weight must be one number a record, shape ({records},). Received shape: {leaf.shape}. Weights of"
            " positions within a record belong into the loss."
        )
    return _finite_weights(leaf)


def _finite_weights(leaf: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        weights = leaf.astype(np.float32)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(
            "Weights must be finite and at least 0 in float32: a record's weight scales its loss. Received weights"
            " that are negative, NaN or infinite. Clip or replace them."
        )
    return weights


def _class_factors(y: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """float64 (records,): each record's factor."""
    good = all(isinstance(label, int | np.integer) for label in class_weight)
    if not good or not all(math.isfinite(factor) and factor >= 0 for factor in class_weight.values()):
        raise ValueError(
            "class_weight must map integer classes to finite factors of at least 0, such as {0: 1.0, 1: 5.0}."
            f" Received: {class_weight!r}."
        )
    if not isinstance(y, np.ndarray):
        raise ValueError(
            f"class_weight needs y to be one array of labels. Received: {type(y).__name__}. Fold the factors into"
            " sample_weight, one array for each output."
        )
    values, inverse = np.unique(_classes(y), return_inverse=True)
    return np.array([float(class_weight.get(int(value), 1.0)) for value in values])[inverse.reshape(-1)]


def _classes(y: np.ndarray) -> np.ndarray:
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        if all((chunk == np.round(chunk)).all() for chunk in _chunks(y)):
            return np.asarray(y).reshape(-1)
    elif y.ndim == 2 and all(np.isin(chunk, (0, 1)).all() and (chunk.sum(axis=1) == 1).all() for chunk in _chunks(y)):
        return np.argmax(y, axis=1)
    raise ValueError(
        "class_weight needs integer labels of shape (records,) or (records, 1), or one-hot labels (records, classes)."
        f" Received y of shape {y.shape} and dtype {y.dtype} that are neither. Fold the factors into sample_weight."
    )
