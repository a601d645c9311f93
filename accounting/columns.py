"""Columns of a data set, known again beside others: scaled features, other features, predictions added to them."""

from __future__ import annotations

import functools
import hashlib
import secrets
import zlib
from collections.abc import Hashable, Iterable

import numpy as np

__all__ = ["columns_of", "words_of"]

_MOST = 32
"""Columns of an array that are looked at, the first ones: tables of more hold enough that did not change."""
_ROWS = 1 << 14
"""Rows of a column that are compared: the first ones."""
_CODED = 1024
_LEAST_BYTES, _LEAST_SHARE = 32, 0.6
"""Of the first codes of a column, packed, and as a share of them packed in random order: below, the column has few
values, or its order is a pattern (numbered, sorted, taking turns)."""


def columns_of(arrays: Iterable[np.ndarray]) -> frozenset[bytes]:
    """What tells columns of these arrays again, in a data set of as many rows in the same order.

    Two tables that agree in a column from row to row are of the same people, whatever else they hold: what many
    people agree in by chance, few values or a pattern, is left out.

    Args:
        arrays: (records, ...), numbers or texts.
    """
    found = set()
    for array in arrays:
        if not array.size:
            continue
        flat = array.reshape(len(array), -1)
        for words in np.ascontiguousarray(words_of(flat[:_ROWS, :_MOST]).T):
            if _says_enough(words[:_CODED]):
                found.add(hashlib.blake2b(words.tobytes(), digest_size=16, key=_key(len(flat))).digest())
    return frozenset(found)


def words_of(part: np.ndarray) -> np.ndarray:
    """Each entry as the bits of a float32, or the hash of a text or of another object: uint64 of the same shape."""
    if part.dtype.kind in "biufV" and part.dtype.names is None:
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(part, np.float32).view(np.uint32).astype(np.uint64)
    hashes = [hash(one if isinstance(one, Hashable) else repr(one)) & (2**64 - 1) for one in part.ravel().tolist()]
    return np.array(hashes, np.uint64).reshape(part.shape)


def _says_enough(words: np.ndarray) -> bool:
    """Whether neither the values nor their steps are a pattern, or next to nothing."""
    codes = np.unique(words, return_inverse=True)[1].ravel().astype(np.uint16)
    shuffled = np.random.Generator(np.random.PCG64(0)).permutation
    for one in (codes, np.diff(codes)):
        size = _packed(one)
        if size < max(_LEAST_BYTES, _LEAST_SHARE * _packed(shuffled(one))):
            return False
    return True


def _packed(codes: np.ndarray) -> int:
    return len(zlib.compress(codes.tobytes(), 1))


@functools.cache
def _secret() -> bytes:
    return secrets.token_bytes(32)


def _key(rows: int) -> bytes:
    """Of this process and a number of rows: without it digests tell nothing of a column."""
    return _secret() + rows.to_bytes(8, "little")
