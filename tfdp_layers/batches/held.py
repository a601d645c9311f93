"""What each record held when it was first read: what is drawn by its index must stay there."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdp_layers.accounting.columns import words_of
from tfdp_layers.accounting.remarks import AFRESH
from tfdp_layers.batches.texts import bytes_of, is_text

__all__ = ["Held", "Marks", "paths_in"]

_FEW, _QUICK, _SECONDS = 8, 5e-3, 1.0
"""Records that are read twice as a training begins; parts that are read so quickly double; seconds for all of them."""
_ROUNDS, _APART = 128, 0.1
"""Of reading some records again where one changed, for a second at most; twice, with so many seconds between them."""
_CHUNK_BYTES = 1 << 18  # stays in a core's cache
_WORDS = 1 << 16  # of a row that have factors of their own

_CHANGED = (
    "Record {index} is not what it was when it was first read: the source changed while it was trained on, or what its"
    " transform reads did. Records are drawn, and accounted for, by their index. Whoever moves from one index to"
    " another, or comes to stand at several, is drawn more often than the statement says. Keep all records as they are,"
    " in one order, until the training ends. What changes on purpose (harder examples, another order) needs a fit of"
    " its own, with another tfdp.records(...). Random changes belong into layers of the model (keras.layers.RandomFlip)"
    " or into a transform of tfdp.records that draws anew at each read: not by the number of the epoch, nor one that is"
    " kept for some reads (a cache)."
)


class Marks(NamedTuple):
    """Digests of records that were read together.

    Attributes:
        depth: of what: see `Held.depth`.
        digests: one for each, uint64; 0 of what cannot be told.
    """

    depth: int
    digests: np.ndarray


Read = Callable[[np.ndarray], Marks]
"""Reads the records at these indices, and gives their marks."""


class Held:
    """Digests of what each index held at its first read, by which each later read is compared.

    Guarantee: where `depth` is 0, a record that is drawn is what its index held at the first read, but for a
    probability of 2^-32 for each one that changed. As a training begins, records are read once, in their order: all
    where `whole` says so, else those that can be read within a second. A change before an index is first read shows
    nowhere.

    Records that differ from one read to the next are random: then the items are compared that a transform makes them
    of, and of a source that is random by itself nothing is. Items that are mere numbers tell of no record: which one a
    transform reads by them is not known, and `remark` says so. The key leaves this object
    and its copies for other workers alone, through the collective.

    Args:
        records: how many there are.
        random: whether they may differ from read to read, which those of arrays do not.
        whole: whether all are read as a training begins, however long that takes.
        transformed: whether there are items that records are made of.

    Attributes:
        depth: what is compared: the records, 0; the items that they are made of, 1; nothing, 2.
    """

    def __init__(self, records: int, *, random: bool = False, transformed: bool = False, whole: bool = False) -> None:
        self._records, self._random, self._transformed = records, random, transformed
        self._seconds, self.depth = math.inf if whole else _SECONDS, 0
        self._first = np.zeros(records, np.uint64)
        self._key, self._factors = secrets.randbits(64), dict[tuple[int, int], np.ndarray]()
        self._begun, self._numbers, self._lock = False, False, threading.RLock()
        self._shared, self._hashed, self._root = False, False, ""

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        """The same digests, by the same key, with a lock of its own."""
        made = memo[id(self)] = type(self).__new__(type(self))
        with self._lock:
            vars(made).update({name: copy.deepcopy(one, memo) for name, one in vars(self).items() if name != "_lock"})
        made._lock = threading.RLock()
        return made

    @property
    def remark(self) -> str:
        """What statements say of it: that nothing is compared, or numbers alone, which are no records; else nothing."""
        return AFRESH if self.depth > 1 or self.of_numbers else ""

    def known(self) -> np.ndarray:
        """(records,) uint64: of each index what it held at its first read, equal for equal things; 0 where not read."""
        with self._lock:
            return self._first.copy() if len(self._first) else np.zeros(self._records, np.uint64)

    @property
    def of_numbers(self) -> bool:
        """Whether items that records are made of are compared, and are mere numbers."""
        return self.depth == 1 and self._numbers

    def begin(self, read: Read) -> None:
        """Reads a few records twice, and all once where that is quick: at the first call alone.

        Of what cannot be read nothing is said: that is said where it is drawn.
        """
        with self._lock:
            if self._begun:
                return
            self._begun = True
            with contextlib.suppress(Exception):
                self._read_all(read)

    def _read_all(self, read: Read) -> None:
        few = np.unique(np.linspace(0, self._records - 1, _FEW).astype(np.int64))
        while self._random and self.depth < 2:
            once, again = read(few).digests, read(few).digests
            if once.all() and np.array_equal(once, again):
                break
            self._deeper()
        start, size, ends = 0, _FEW * _FEW, time.monotonic() + self._seconds
        while self.depth < 2 and start < self._records and (begins := time.monotonic()) < ends:
            part = np.arange(start, min(start + size, self._records))
            self._differing(part, read(part))
            start += size
            size *= 2 if time.monotonic() - begins < _QUICK else 1

    def check(self, drawn: np.ndarray, marks: Marks, read: Read) -> None:
        """Compares records that were just read with what their indices held at the first read.

        Raises: ValueError where one changed that is not random.
        """
        with self._lock:
            if self.depth != marks.depth or self.depth > 1 or not len(drawn):
                return  # it was found out just now that they are random
            differing = self._differing(drawn, marks)
            if not len(differing):
                return
            asked = np.unique(np.concatenate((differing, drawn))[:_FEW])
            if self.vary(asked, read):
                return
        raise ValueError(_CHANGED.format(index=int(differing[0])))

    def vary(self, asked: np.ndarray, read: Read) -> bool:
        """Whether records like these are random: then others, or nothing, are compared from here on."""
        with self._lock:
            found = self._random and all(_vary(asked[:_FEW], read, wait) for wait in (0.0, _APART))
            if found:
                self._deeper()
            return found

    @property
    def key(self) -> int:
        """By which things have their digests, as secret as the records."""
        return self._key

    def take_key(self, key: int, root: str = "") -> None:
        """Digests by this key from here on, which workers share: what was read before is read again.

        Args:
            root: what the paths of files that this worker's items name begin with, which may differ between workers.
        """
        with self._lock:
            again = key != self._key or root != self._root or self._hashed
            self._shared, self._root, self._hashed = True, root, False
            if again:
                self._key, self._begun = key, False
                self._factors.clear()
                self._first = np.zeros_like(self._first)

    def _differing(self, drawn: np.ndarray, marks: Marks) -> np.ndarray:
        new = self._first[drawn] == 0
        self._first[drawn[new]] = marks.digests[new]
        return drawn[self._first[drawn] != marks.digests]

    def deepen(self, depth: int) -> None:
        """Compares what another worker compares, which found that records are random."""
        with self._lock:
            while self.depth < depth:
                self._deeper()

    def _deeper(self) -> None:
        self.depth = 1 if self._transformed and self.depth == 0 else 2
        self._first = np.zeros(self._records if self.depth < 2 else 0, np.uint64)

    def rows(self, leaves: Sequence[np.ndarray], rows: int) -> np.ndarray:
        """Digests of the first rows over all arrays, (at least rows, ...): (rows,) uint64, above 0.

        With the sum of a random 64-bit factor times each 32-bit word, modulo 2^64, two different rows agree with a
        probability of 2^-32 at most: its upper half alone does (Lemire and Kaser 2014, arXiv:1202.4961, multilinear).
        Of rows of more than 2^16 words the sums of parts of them are added up so again, which doubles it.
        """
        total = np.zeros(rows, np.uint64)
        for place, leaf in enumerate(leaves):
            size = math.prod(leaf.shape[1:]) * leaf.dtype.itemsize
            step = max(1, _CHUNK_BYTES // max(1, size))
            for start in range(0, rows, step):
                total[start : start + step] += self._sums(self._words(leaf[start : min(start + step, rows)]), 2 * place)
        return np.maximum(total, 1)

    def _sums(self, words: np.ndarray, number: int) -> np.ndarray:
        """Of each row of words the sum of these times their factors, the ones of this number: (rows,) uint64."""
        if words.shape[1] > _WORDS:
            parts = np.pad(words, ((0, 0), (0, -words.shape[1] % _WORDS))).reshape(-1, _WORDS)
            return self._sums(self._sums(parts, number).reshape(len(words), -1).view(np.uint32), number + 1)
        if (number, words.shape[1]) not in self._factors:
            draws = np.random.Generator(np.random.Philox(key=[self._key, number]))
            self._factors[number, words.shape[1]] = draws.integers(0, 2**64, words.shape[1], np.uint64)
        factors = self._factors[number, words.shape[1]]
        return np.asarray(np.einsum("ij,j->i", words, factors, dtype=np.uint64, casting="unsafe"))

    def _words(self, rows: np.ndarray) -> np.ndarray:
        """What rows hold, as words of 32 bits: (rows, words) uint32. Of texts digests of a row, or hashes."""
        rows = self._of_texts(rows) if rows.dtype.hasobject else np.ascontiguousarray(rows)
        size = math.prod(rows.shape[1:]) * rows.dtype.itemsize
        held = rows.reshape(len(rows), math.prod(rows.shape[1:])).view(np.uint8)
        if size % 4:
            held = np.pad(held, ((0, 0), (0, -size % 4)))
        return held.view(np.uint32)

    def _of_texts(self, rows: np.ndarray) -> np.ndarray:
        if not self._shared:
            self._hashed = True
            return words_of(rows)  # of this process alone, in half the time
        key, each = self._key.to_bytes(8, "little"), rows.reshape(len(rows), math.prod(rows.shape[1:])).tolist()
        digests = b"".join(hashlib.blake2b(_bytes(one), digest_size=8, key=key).digest() for one in each)
        return np.frombuffer(digests, np.uint64)

    def item(self, item: Any) -> int:
        """A digest of an item of a source, above 0; 0 of one that holds objects other than arrays and texts."""
        self._numbers |= isinstance(item, int | float) or (_kind(item) in "iuf" and np.shape(item) == ())
        found = hashlib.blake2b(digest_size=8, key=self._key.to_bytes(8, "little"))
        try:
            for part in _parts(item, self._root):
                found.update(part)
        except TypeError:
            return 0
        return int.from_bytes(found.digest(), "little") or 1


def _kind(item: Any) -> str:
    """Of what has a type of NumPy or TensorFlow its kind; "O" of other objects."""
    return str(np.asarray(item).dtype.kind) if hasattr(item, "dtype") else "O"


def _bytes(row: Sequence[Any]) -> bytes:
    """What its texts are written with, behind their lengths; of other objects how Python shows them."""
    held = [
        one if isinstance(one, bytes) else (one if isinstance(one, str) else repr(one)).encode(errors="surrogatepass")
        for one in row
    ]
    return b"".join([len(one).to_bytes(8, "little") for one in held] + held)


def paths_in(item: Any) -> Iterator[str]:
    """The texts of an item that are absolute paths."""
    if isinstance(item, Mapping | tuple | list):
        for one in item.values() if isinstance(item, Mapping) else item:
            yield from paths_in(one)
    elif isinstance(item, str | os.PathLike) and os.path.isabs(item):
        yield os.fsdecode(item)


def _vary(asked: np.ndarray, read: Read, wait: float) -> bool:
    """Whether one of these records differs from read to read, be it seldom, some seconds from now."""
    time.sleep(wait)
    first, ends = read(asked).digests, time.monotonic() + _SECONDS
    for _ in range(_ROUNDS):
        if not np.array_equal(first, read(asked).digests):
            return True
        if time.monotonic() > ends:
            break
    return False


def _parts(item: Any, root: str) -> Iterator[bytes]:
    """What an item holds, of paths what is below the root. Raises TypeError for objects that do not say it."""
    if isinstance(item, Mapping):
        for key in item:
            yield f"{key!r}:".encode()
            yield from _parts(item[key], root)
    elif isinstance(item, tuple | list):
        yield f"{type(item).__name__} {len(item)}:".encode()
        for one in item:
            yield from _parts(one, root)
    elif isinstance(item, bytes):
        yield f"bytes {len(item)}:".encode() + item
    elif root and isinstance(item, str | os.PathLike) and (path := os.fsdecode(item)).startswith(root):
        yield f"below: {path[len(root) :]!r},".encode()
    elif item is None or isinstance(item, str | int | float):
        yield f"{item!r},".encode()
    elif isinstance(item, os.PathLike):
        yield f"{os.fspath(item)!r},".encode()
    elif hasattr(item, "__array__"):
        array = np.asarray(item)
        if array.dtype.hasobject and not is_text(array):
            raise TypeError("no numbers or texts")
        yield repr((array.shape, array.dtype.str)).encode() + bytes_of(array)
    else:
        raise TypeError(f"{type(item).__name__} does not say what it holds")
