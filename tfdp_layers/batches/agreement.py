"""What workers read at each index: a record may stand at no other index on one of them than on the others."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.batches.generators import alive
from tfdp_layers.batches.held import Marks, paths_in
from tfdp_layers.batches.stores import Store

__all__ = ["Agreement", "rows_of", "share_key", "with_told"]

_DEPTHS, _READERS = 2, 16
"""Bits of a code that say what was compared, and which worker read it; above them is the index."""
_SHOWN, _LOOKED_AT = 4, 64

_DIFFER = (
    "The workers do not hold the same records in the same order: {what}. Each worker sums its own part of the drawn"
    " indices, so that a record that stands at two of them would be summed twice in a step. That step released nothing."
    " Give every worker the same records in the same order: sort files by their names (sorted(paths)), not by their"
    " times or in the order of os.listdir or of a set, and copy the same files, decoded by the same versions, to every"
    " machine. Where a random transform makes the records, what it makes them of is compared: paths of files by what"
    " stands below the folder that they have in common, other items whole, so they must name no machine."
)

_UNREAD = (
    "This worker cannot read {which} once more, to compare it with what another worker read there:"
    " {error}. Until it is compared it may be another record here than there, and one may be summed twice: that step"
    " released nothing. Look at what the error says of the source on this machine, and call fit again."
)


class Agreement:
    """Of each index the digest of what was read there first, by whichever worker; every worker holds the same table.

    Guarantee: whatever is read and compared, as `Held.depth` says, is summed at as many indices as it has on one of the
    workers, but for a probability of 2^-32 for each record that differs. For an index whose digest is another one than
    whoever read it first had, and indices that different workers read first and that hold the same, are read by all
    workers, before the sum of that step is released; and where one of them finds something else, nothing is.
    Copies that one worker read first are copies in its own list, as in a training of one process. After a step that
    was refused none is released.

    Args:
        store: this worker's records, with the key of digests that all share.
        reader: a number of this worker, which no other one has.
    """

    def __init__(self, store: Store, reader: int) -> None:
        self._store, self._reader = store, reader
        self._tables = [_Table(len(store)), _Table(len(store))]
        self._asked, self._refused = np.zeros(0, np.int64), False
        self._why: ValueError | None = None
        self._reading = threading.Lock()

    def read(self, drawn: np.ndarray, rows: int) -> tuple[list[np.ndarray], np.ndarray]:
        """What `Store.take` gives, and what the others are told of it: a code and a digest for each row, int64."""
        with self._reading:
            taken, marks = self._store.taken(drawn, rows)
        told = np.zeros((rows, 2), np.int64)
        if marks.depth < len(self._tables):
            places = drawn.astype(np.int64) << _READERS + _DEPTHS | self._reader << _DEPTHS | marks.depth + 1
            told[: len(drawn), 0] = np.where(marks.digests > 0, places, 0)
            told[: len(drawn), 1] = marks.digests.view(np.int64)
        return taken, told.ravel()

    def compare(self, told: np.ndarray) -> np.ndarray:
        """Notes what all workers read for one step; returns the indices that all are to `verify`, the same on all."""
        if self._refused:
            return self._asked
        codes, digests = told.reshape(-1, 2).T
        depths, readers = codes & (1 << _DEPTHS) - 1, codes >> _DEPTHS & (1 << _READERS) - 1
        indices, digests = codes >> _READERS + _DEPTHS, np.ascontiguousarray(digests).view(np.uint64)
        self._store.held.deepen(int(depths.max(initial=1)) - 1)
        found = [
            table.add(indices[chosen], digests[chosen], readers[chosen])
            for depth, table in enumerate(self._tables, 1)
            if (chosen := depths == depth).any()
        ]
        self._asked = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
        return self._asked

    def verify(self, asked: np.ndarray) -> np.int64:
        """Reads these; returns int64 1 where this worker holds others than the table says, and they are not random."""
        if self._refused:
            return np.int64(1)
        try:
            with self._reading:
                return np.int64(self._differs(asked))
        except Exception as error:  # the others wait for the answer
            self._why = ValueError(_UNREAD.format(which=self._unread(asked), error=f"{type(error).__name__}: {error}"))
            self._why.__cause__ = error
            return np.int64(1)

    def _unread(self, asked: np.ndarray) -> str:
        """Which of these cannot be read; all of them where each one can by itself."""
        for index in asked.tolist():
            try:
                self._store.marks(np.array([index]))
            except Exception:
                return f"record {index}"
        return f"one of the records {_listed(asked)}"

    def _differs(self, asked: np.ndarray) -> bool:
        marks: Marks = self._store.marks(asked)
        if marks.depth >= len(self._tables):
            return False
        known = self._tables[marks.depth].first[asked]
        differing = asked[(known != marks.digests) & (known > 0) & (marks.digests > 0)]
        if not len(differing) or self._store.held.vary(differing, self._store.marks):
            return False
        what = f"this worker holds another record at index {int(differing[0])} than the worker that read it first"
        self._why = ValueError(_DIFFER.format(what=what))
        return True

    def conclude(self, differing: np.ndarray) -> np.bool_:
        """Whether all workers found the same, of how many did not, in this step and before; else `refusal` says so."""
        self._refused |= bool(differing)
        return np.bool_(not self._refused)

    def refusal(self) -> ValueError | None:
        """Why a step released nothing; None where it is not for the records."""
        if not self._refused:
            return None
        what = f"another worker holds another record at one of the indices {_listed(self._asked)}, or cannot read it"
        return self._why or ValueError(_DIFFER.format(what=what))


def _listed(asked: np.ndarray) -> str:
    return ", ".join(map(str, asked[:_SHOWN].tolist()))


def share_key(store: Store, key: int) -> None:
    """Lets a worker's records have the chief's digests: by its key, and of paths by what is below their own folder."""
    root = ""
    with contextlib.suppress(Exception):  # what cannot be read is said where it is drawn; or there are no paths
        if store.items() is not None:
            places = np.unique(np.linspace(0, len(store) - 1, _LOOKED_AT).astype(np.int64))
            folders = [os.path.dirname(path) for item in store.untouched(places) for path in paths_in(item)]
            root = os.path.join(os.path.commonpath(folders), "")
    store.held.take_key(key, root)


class _Table:
    """Digests by index, and indices by digest.

    Attributes:
        first: (records,) uint64, of each index the digest at its first read; 0 where it was not read.
    """

    def __init__(self, records: int) -> None:
        self.first = np.zeros(records, np.uint64)
        self._readers, self._verified = np.zeros(records, np.uint16), np.zeros(records, bool)
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []  # sorted digests, and their indices

    def add(self, indices: np.ndarray, digests: np.ndarray, readers: np.ndarray) -> np.ndarray:
        """Notes them; returns the indices that hold another thing than before, or the same as one of another reader."""
        new = self.first[indices] == 0
        self.first[indices[new]], self._readers[indices[new]] = digests[new], readers[new]
        differing = indices[self.first[indices] != digests]
        fresh = np.unique(indices[new])
        if not len(fresh):
            return differing
        same = self._same(fresh)
        apart = self._readers[fresh] != self._readers[same]
        asked = fresh[apart | self._verified[same]]
        turning = np.unique(self.first[fresh[apart & ~self._verified[same]]])
        if len(turning):  # whoever holds one of these so far was read by one worker alone
            asked = np.concatenate((asked, *self._holders(turning)))
        self._verified[asked] = True
        return np.concatenate((differing, asked))

    def _same(self, fresh: np.ndarray) -> np.ndarray:
        """Of each of these new indices one that holds the same, an older one if there is one; it may be itself."""
        digests, places = np.unique(self.first[fresh], return_inverse=True)
        same = np.full(len(digests), -1, np.int64)
        for held, indices in self._parts:
            near = np.minimum(np.searchsorted(held, digests), len(held) - 1)
            same = np.where(held[near] == digests, indices[near], same)
        firsts = np.zeros(len(digests), np.int64)
        firsts[places[::-1]] = fresh[::-1]
        same = np.where(same < 0, firsts, same)
        order = np.argsort(self.first[fresh], kind="stable")
        self._parts.append((self.first[fresh][order], fresh[order]))
        while len(self._parts) > 1 and len(self._parts[-2][0]) <= 2 * len(self._parts[-1][0]):
            (one, its), (other, others) = self._parts.pop(), self._parts.pop()
            held = np.concatenate((one, other))
            order = np.argsort(held, kind="stable")
            self._parts.append((held[order], np.concatenate((its, others))[order]))
        return same[places]

    def _holders(self, digests: np.ndarray) -> list[np.ndarray]:
        """All indices that hold one of these, in parts."""
        found = []
        for held, indices in self._parts:
            starts, ends = (np.searchsorted(held, digests, side) for side in ("left", "right"))
            some = starts < ends
            found += [indices[a:b] for a, b in zip(starts[some].tolist(), ends[some].tolist(), strict=True)]
        return found


Rows = Callable[[tf.Tensor, Any, int | None], tuple[list[tf.Tensor], tf.Tensor]]
"""Indices, rows, and the rows where they are known beforehand, to the leaves and what others are told of them."""


def rows_of(batches: Any) -> Rows:
    """Reads rows of `PrivateBatches` as they are drawn; what is told is empty where nobody compares."""
    fields, reference = batches.store.fields, weakref.ref(batches)  # TensorFlow never frees `read`: see `generated`

    def read(drawn: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        found = alive(reference)
        if found.agreement is None:
            return [*found.store.take(drawn, int(rows)), np.zeros(0, np.int64)]
        taken, told = found.agreement.read(drawn, int(rows))
        return [*taken, told]

    def take(drawn: tf.Tensor, rows: Any, static: int | None) -> tuple[list[tf.Tensor], tf.Tensor]:
        kinds = [tf.as_dtype(field.dtype) for field in fields]
        *taken, told = tf.numpy_function(read, [drawn, rows], [*kinds, tf.int64])
        shaped = [tf.ensure_shape(t, (static, *field.shape)) for t, field in zip(taken, fields, strict=True)]
        return shaped, tf.ensure_shape(told, (None,))

    return take


def with_told(read: Rows, laid_out: Callable[[Callable[..., list[tf.Tensor]]], Callable[..., Any]]) -> Any:
    """Batches, laid out of what is read, each with what other workers are told of it."""

    def batch(drawn: tf.Tensor, rows: Any, static: int | None) -> tuple[Any, tf.Tensor]:
        kept: list[tf.Tensor] = []

        def take(*asked: Any) -> list[tf.Tensor]:
            leaves, told = read(*asked)
            static = asked[-1]
            kept.append(tf.ensure_shape(told, (None if static is None else 2 * static,)))
            return leaves

        return laid_out(take)(drawn, rows, static), kept[0]

    return batch
