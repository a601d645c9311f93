"""Batches drawn as they are accounted for, from arrays and other records by index."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.footprint import Footprint
from tfdp_layers.batches.agreement import Agreement, rows_of, with_told
from tfdp_layers.batches.balance import warn_of_balanced
from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.generators import generated
from tfdp_layers.batches.overlaps import warn_of_overlaps
from tfdp_layers.batches.records import checked_examples, checked_physical, checked_sampling
from tfdp_layers.batches.repeats import refuse_repeated
from tfdp_layers.batches.rows import lay_out, records_of, refuse_counts
from tfdp_layers.batches.several import warn_of_several
from tfdp_layers.batches.shares import share_of
from tfdp_layers.batches.slices import STAMPS, Share, fill
from tfdp_layers.batches.sources import as_store
from tfdp_layers.batches.stores import ArrayStore, Store, summary_of
from tfdp_layers.batches.whose import ids_of, unit_of, whose_of
from tfdp_layers.sampling import Sampling, entropy_generator
from tfdp_layers.sampling.forks import refuse_fork

_DRAWN_AHEAD = 1 << 16  # records: so many indices are drawn at once

_OTHER_PROCESS = "Leave use_multiprocessing=False (threads are safe), or construct it in that process."

Gather = Callable[[Any, Any, int | None], Any]
"""Indices (drawn,), rows, and the rows where they are known beforehand, to a batch filled up to so many rows."""


class PrivateBatches(Batches, keras.utils.PyDataset):
    """Draws `(x, y, sample_weight)` exactly as `sampling` is accounted, from arrays, or from records by index.

    Shapes: x, y: arrays, memory-mapped arrays, tensors, or dicts, lists and tuples of them (lists come out as
    tuples), all (records, ...); or x alone, a source of records or what `tfdp.records` gives. A batch holds (rows, ...)
    of each, dtypes kept (integer pixels too; float64 becomes `keras.backend.floatx()`), and float32 weights (rows,),
    structured like `sample_weight`. Rows of padding are zero, with weight exactly 0; draws of varying size have two
    rows at least, also an empty one.

    Units: `sampling.batch_size` and `examples` (default: the number of rows) are public declared constants, in
    records. `Poisson` draws each row with probability batch_size / examples, also when there are more or fewer rows
    than that; the other samplings need exactly `examples` rows. `class_weight` multiplies the weights; classes it
    does not name keep 1. `unit_ids` (records,) says which records belong to one person: then batch size and
    `examples` count units, every drawn unit enters with one of its records, chosen afresh, and the guarantee is for
    all records of a unit together, at no more noise. With `records_per_unit` it enters with up to so many of them,
    chosen afresh without replacement. With `views` each drawn record enters so often, for random layers of the model,
    or a random `transform` of `tfdp.records`, to change each time (De et al. 2022, arXiv:2204.13650, section 3.2).
    Where these give R > 1 rows for each drawn record or unit, a batch holds (drawn, R, ...) of x, y and weights; rows
    of a unit with fewer records are some of its own again, with weight 0. The gradient of the mean of the rows' losses
    is then bounded as one contribution, so neither number changes noise or cost.

    `owners` says which people each record belongs to, where it may be several (the sender and the receivers of a
    message): (records,), (records, most), or a list of lists. Records are drawn one by one, as without owners, and the
    guarantee is for what all records hold that one person owns, alone or with others: at most `records_per_owner` of
    them, which is checked. That a record is there, and whose it is, counts as public: see `Release`. 1 costs what a
    record costs, more of them more; `tfdp.preprocessing.limit_owners` chooses records that keep to it.

    Guarantee: every batch is a fresh draw (of `Cyclic`: the next batch of its one order), whatever index is asked for:
    a loader may fetch an item twice, prefetch or shuffle and nothing is replayed. The generator is keyed by the
    operating system unless `seed` is given (tests only: it voids the statement). Safe to use from several threads. Not
    covered: error messages and warnings about the records, which are computed from them without noise, and class or
    sample weights computed from private data.

    Raises: ValueError, before anything is drawn, for records, weights or sizes that cannot be used; TypeError on
    pickling or copying and RuntimeError in a forked process, because a copied generator would replay its draws.

    Source: Abadi et al. 2016, arXiv:1607.00133 (drawn, not shuffled); Chua et al. 2024, arXiv:2403.17673 (why it
    matters).
    """

    _agreement: Agreement | None = None

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
        records_per_unit: int = 1,
        views: int = 1,
        owners: Any = None,
        records_per_owner: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._store = as_store(x, y, sample_weight, class_weight)
        self.sampling = checked_sampling(sampling)
        unit_ids = ids_of(self._store.unit_ids, unit_ids, owners)
        refuse_counts(records_per_unit, views, unit_ids)
        self.records_per_unit, self.views = int(records_per_unit), int(views)
        self.unit = unit_of(unit_ids, owners, records_per_owner)
        refuse_repeated(self._store.repeated, self.unit, self._store.repeated_by)
        if self.unit == "owner":
            self.sampling.refuse_owners()
        beside = {"y": y, "sample_weight": sample_weight}
        whose = whose_of(len(self._store), unit_ids, owners, records_per_owner, ("x", x), **beside)
        self._whose, self._units, self.records_per_owner = whose, whose.units, whose.records_per_owner
        self.owners = whose.owned_by
        self._advise(y, examples)
        self._drawable = len(self._store if self._units is None else self._units)
        self.examples = checked_examples(self.sampling, self._drawable if examples is None else examples)
        self.physical_batch_size = checked_physical(physical_batch_size)
        self.seeded, self._rng = seed is not None, entropy_generator(seed)
        self._pass = self._first_pass()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._draws = self._indices()

    def _advise(self, y: Any, examples: int | None) -> None:
        """Warns of weights that were counted from the labels, and of records that may be several people's, or one's."""
        warn_of_overlaps(self._store.overlap, self.unit)
        self.share = share_of(
            y, unit=self.unit, records_per_owner=self.records_per_owner, examples=examples, sampling=self.sampling
        )
        if self._store.weighted:
            warn_of_balanced(*self._store.structure[1:], self.share)
        warn_of_several(self._store, self._whose.people)

    @property
    def weighted(self) -> bool:
        return self._store.weighted

    def largest_weight(self, classes: int | None = None) -> float | None:
        return self._store.largest_weight(classes)

    @property
    def redrawn(self) -> bool:
        return self._store.redrawn

    def begin(self) -> str:
        with self._lock:
            tensors = self._store.tensors()
        if tensors is None:  # what tensors hold nobody changes
            self._store.begin()
        return self._store.held.remark

    def grouping(self, secret: str) -> str:
        return self._whose.grouping(secret, self._store.sample()) if self._whose.grouped else ""

    @property
    def beginning(self) -> ArrayStore | None:
        return self._store if isinstance(self._store, ArrayStore) else None

    def arrays(self) -> tuple[list[Any], list[Any]]:
        return self._store.inputs(), self._store.labels()

    def footprint(self) -> Footprint:
        return self._store.footprint(self._whose.people)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        """A fresh draw, whatever `index`."""
        return self._batch(self._next(*self._draws), pad=False)

    def stream(self, pad: bool | int | None = None) -> Iterator[tuple[Any, Any, Any]]:
        """Endless fresh draws, as NumPy batches; `Partition` starts a new permutation, and drops no record of it.

        Without `pad` a batch has the rows drawn, at least 2; with `pad` a multiple of about batch_size / 8. It always
        has `sampling.largest` rows if there is such a constant. With `pad`, also a multiple of `physical_batch_size`.
        """
        return (self._batch(drawn, pad or False) for drawn in self._index_stream())

    def dataset(self, pad: bool | int = False, start: int = 0) -> tf.data.Dataset:
        """`stream(pad)` as a tf.data.Dataset with a signature fixed beforehand, two batches ahead.

        Records of up to 1 GiB in memory are copied once into tensors; larger or memory-mapped ones, and those of
        sources, are read row by row.
        """
        return self._dataset(pad, self._gather(), start).prefetch(2)

    def _dataset(self, pad: bool | int, gather: Gather, start: int = 0) -> tf.data.Dataset:
        @tf.autograph.experimental.do_not_convert  # plain TensorFlow, which takes a third of the time to trace
        def batch(indices: tf.Tensor, count: tf.Tensor, rows: tf.Tensor, _: tf.Tensor) -> Any:
            return gather(indices[:count], rows, self._static_rows(pad))

        return self._drawn(pad, start).map(batch)

    def slices(self, share: Share, pad: bool | int = False) -> tf.data.Dataset:
        compared = share.count < share.of and self._store.sampled
        self._agreement = Agreement(self._store, share.first) if compared else None
        share, pad = self._panels(share, pad), pad is True
        gather, constant = self._told() if compared else self._gather(), self._static_rows(pad)
        static = None if constant is None else share.height(constant)

        @tf.autograph.experimental.do_not_convert
        def cut(indices: tf.Tensor, count: tf.Tensor, rows: tf.Tensor, checksum: tf.Tensor) -> tf.data.Dataset:
            height = share.height(rows)

            @tf.autograph.experimental.do_not_convert
            def one(index: tf.Tensor) -> Any:
                rows_each = self.rows_each
                mine = indices[:count][index * height * rows_each : (index + 1) * height * rows_each]
                stamp = tf.stack([checksum, index])
                if not compared:
                    return gather(mine, height, static), stamp
                batch, told = gather(mine, height, static)
                return batch, tf.concat([stamp, told], 0)

            return share.numbers().map(one)

        return self._drawn(pad).flat_map(cut).prefetch(2 * share.count)

    def _drawn(self, pad: bool | int, start: int = 0) -> tf.data.Dataset:
        """Draws: indices (at least count,), how many of them count, the batch's rows, and a checksum, all int64."""
        # Several draws a call of the generator: each call costs as much as gathering a small batch.
        together = max(1, min(16, _DRAWN_AHEAD // (self.sampling.batch_size * self.rows_each)))
        signature = (tf.TensorSpec((together, None), tf.int64), *[tf.TensorSpec((together,), tf.int64)] * 3)
        draws = generated(self, lambda batches: batches._draws_of(together, pad, start), signature).unbatch()
        plain = tf.data.Options()  # what rewrites a pipeline copies the records that it gathers from, and keeps them
        plain.experimental_optimization.apply_default_optimizations = False
        return draws.with_options(plain)

    def _draws_of(self, together: int, pad: bool | int, start: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
        stream = self._index_stream(start)
        while True:
            drawn = [next(stream) for _ in range(together)]
            counts = np.array([len(one) for one in drawn])
            # At least one column: taking apart a tensor of no columns crashes TensorFlow 2.21.
            indices = np.zeros((together, max(1, counts.max())), np.int64)
            for row, one in zip(indices, drawn, strict=True):
                row[: len(one)] = one
            rows = [self._padded(max(count // self.rows_each, self._fewest), pad) for count in counts.tolist()]
            yield indices, counts, np.array(rows), np.array([zlib.crc32(one.tobytes()) % STAMPS for one in drawn])

    def _gather(self) -> Gather:
        with self._lock:
            tensors = self._store.tensors()
        if tensors is not None:
            return self._laid_out(
                lambda drawn, rows, static: [fill(tf.gather(t, drawn), rows, static) for t in tensors]
            )
        return self._read_by_rows()

    def _read_by_rows(self) -> Gather:
        read = rows_of(self)
        return self._laid_out(lambda drawn, rows, static: read(drawn, rows, static)[0])

    def _told(self) -> Gather:
        """Gives batches, and what other workers are told of their rows: see `Agreement.read`."""
        return with_told(rows_of(self), self._laid_out)

    def _laid_out(self, take: Callable[..., list[tf.Tensor]]) -> Gather:
        """The batches of what `take` gives as rows: (indices, rows, static rows) -> the leaves."""
        each = self.rows_each
        if each == 1:
            return lambda drawn, rows, static: self._pack(take(drawn, rows, static))

        def batch(drawn: tf.Tensor, units: Any, static: int | None) -> Any:
            rows, static = units * each, None if static is None else static * each
            present = fill(tf.cast(drawn >= 0, tf.float32), rows, static)
            return lay_out(self._pack(take(records_of(drawn), rows, static)), present, each)

        return batch

    def _first_pass(self) -> tuple[np.ndarray, ...]:
        """The draws that every pass repeats, of samplers with one order; of others none. Nobody writes into them."""
        self._order = object() if self.sampling.fixed else None
        draws = self.sampling.draws(self.examples, self._rng, rows=self._drawable)
        found = tuple(itertools.islice(draws, len(self))) if self.sampling.fixed else ()
        for one in found:
            one.flags.writeable = False
        return found

    @property
    def order(self) -> Any:
        return self._order

    def _indices(self, start: int = 0) -> tuple[Iterator[np.ndarray], np.random.Generator]:
        if self.sampling.fixed:
            return itertools.islice(itertools.cycle(self._pass), start % len(self), None), self._rng
        # Always from the one generator, which only goes forward: whoever starts a new iterator replays nothing.
        return self.sampling.draws(self.examples, self._rng, rows=self._drawable), self._rng

    def _next(self, draws: Iterator[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        refuse_fork(self._process, "PrivateBatches makes draws", _OTHER_PROCESS)
        with self._lock:
            drawn = next(draws)
            if self._units is not None and self.records_per_unit > 1:
                drawn = self._units.choose_several(drawn, self.records_per_unit, rng).reshape(-1)
            elif self._units is not None:
                drawn = self._units.choose(drawn, rng)
            return drawn if self.views == 1 else np.repeat(drawn, self.views)

    def _index_stream(self, start: int = 0) -> Iterator[np.ndarray]:
        draws = self._indices(start)
        while True:
            yield self._next(*draws)

    def _rekey(self, key: int) -> None:
        """Draws from here on by a key of 128 bits, that workers share; whoever knows it knows the draws."""
        with self._lock:
            self._rng = np.random.Generator(np.random.Philox(key=key))
            self._pass = self._first_pass()
            self._draws = self._indices()

    @property
    def store(self) -> Store:
        """Where its records lie."""
        return self._store

    @property
    def agreement(self) -> Agreement | None:
        """What the workers that draw slices compare of their records; None where `digest` is of all of them."""
        return self._agreement

    def digest(self) -> str:
        """A checksum of the records, for workers to compare: of all in arrays up to 1 GiB, else of a part of them."""
        found = hashlib.blake2b(repr((self.examples, self._drawable)).encode(), digest_size=16)
        grouped = [] if self._units is None else [self._units.positions]
        owners = self._whose.owners
        grouped += [] if owners is None else [owners.records, owners.indices]
        for part in itertools.chain(self._store.summary(), summary_of(grouped)):
            found.update(part)
        return found.hexdigest()

    def _batch(self, drawn: np.ndarray, pad: bool | int) -> Any:
        each = self.rows_each
        rows = self._padded(max(len(drawn) // each, self._fewest), pad) * each
        if each == 1:
            return self._pack(self._store.take(drawn, rows))
        batch = self._pack(self._store.take(records_of(drawn), rows))
        present = np.zeros(rows, np.float32)
        present[: len(drawn)] = drawn >= 0
        return lay_out(batch, present, each)

    def _pack(self, leaves: Iterable[Any]) -> Any:
        rest = iter(leaves)
        return keras.tree.map_structure(lambda leaf: None if leaf is None else next(rest), self._store.structure)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "PrivateBatches cannot be pickled or copied: a copy of its generator would replay its draws, which are"
            " accounted as independent. Construct another one from the same arrays."
        )
