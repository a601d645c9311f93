"""Copies among records that do not lie in memory: by what was read of each index, or by equal items of a list."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np

from tfdp_layers.accounting.people import People
from tfdp_layers.accounting.repeats import repeated
from tfdp_layers.accounting.sketch import Sketch, differ, sketch_by
from tfdp_layers.batches.held import Held

__all__ = ["Read", "copies_in"]

_MOST_ITEMS = 1 << 20
_COMPARED = 128
"""Different records that are read once more to see whether few columns tell them apart, half of them with copies."""
_PATH = re.compile(r"[/\\].*[^\W\d_]|[^\W\d_].*[/\\]|\w\.[A-Za-z]\w{0,4}$")
_KEY, _MEASURED = re.compile(r"(?=.*\d)[^\s,;|]{6,}"), re.compile(r"[-+]?\d+([.:/+-]+\d+)+")
"""Paths or files' names; keys; and numbers with a point, dates and times, which are none."""


class Read(Protocol):
    """Records that are read by index: a `Store`."""

    held: Held

    def begin(self) -> None: ...

    def untouched(self, places: np.ndarray) -> list[Any]: ...

    def looked_at(self, places: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]: ...


def copies_in(store: Read, items: Any = None, people: People | None = None) -> Sketch | None:
    """What tells whether such records come several times, by the rules for rows of arrays (`accounting/repeats.py`).

    Compared are the digests of what was read as the training began (`Held`), which are of all records where that takes
    less than a second; and items of a list or tuple, names of files or indices say, without reading anything. None
    where no two are equal.

    Args:
        items: what the records are made of, where that is a list or tuple.
        people: whose the records are, if that is known.
    """
    with contextlib.suppress(Exception):  # what cannot be read is said where it is drawn
        store.begin()
    found = None
    for digests in (_of_items(items), store.held.known()):
        made = None if digests is None else _sketch(store, digests, people)
        if made is not None and repeated(made) is not None:
            return made
        found = made or found
    return found


def _sketch(store: Read, digests: np.ndarray, people: People | None) -> Sketch | None:
    read = np.flatnonzero(digests)
    known = digests[read]
    rising = np.sort(known)  # np.unique takes 13 times as long
    if not np.any(rising[1:] == rising[:-1]):
        return None
    order = np.argsort(known, kind="stable")

    def told(values: np.ndarray, several: np.ndarray) -> tuple[bool, bool]:
        alone = np.setdiff1d(values, several, assume_unique=True)
        some = [one[: _COMPARED // 2] for one in (several, alone)]
        places = read[order[np.searchsorted(known, np.concatenate(some), sorter=order)]]
        return _told_apart(store, places, len(some[0])) if len(some[0]) else (False, False)

    return sketch_by(known, told, None if people is None else people.of(read))


def _told_apart(store: Read, places: np.ndarray, several: int) -> tuple[bool, bool]:
    """Whether next to no two records agree by half, and those that come several times, the first ones, by a quarter.

    Random records, where items are compared, differ in any case: of these the items tell. Names do; of numbers it is
    not known whether they are indices, or values that other people have as well.
    """
    arrays = store.looked_at(places)[0]
    if store.held.depth:
        columns = [*zip(*(keras.tree.flatten(one) for one in store.untouched(places)), strict=False)]
        if any(map(_are_names, columns)):
            return True, True
        if store.held.of_numbers:
            return True, False
        arrays = [*map(_stacked, columns)]
    rows = np.arange(len(arrays[0]) if arrays else 0)
    those = rows[:several]
    if not len(those):
        return False, False
    return differ(arrays, rows, 2) and differ(arrays, those, 2), differ(arrays, those, 4)


def _stacked(column: Sequence[Any]) -> np.ndarray:
    """One row an item; of arrays of several shapes a number that tells them apart."""
    made = [np.asarray(one) for one in column]
    return np.stack(
        made
        if len({one.shape for one in made}) == 1
        else [np.asarray(hash((one.shape, one.tobytes()))) for one in made]
    )


def _of_items(items: Any) -> np.ndarray | None:
    """Digests of names, numbers, and tuples and dicts of them, by a key that is forgotten; None of other items."""
    if not isinstance(items, list | tuple) or len(items) > _MOST_ITEMS:
        return None
    key = secrets.randbits(64)
    try:
        return np.array([hash((key, _plain(one))) & (2**64 - 1) or 1 for one in items], np.uint64)
    except Exception:  # of items that load what they hold: they are no names, and said where they are read
        return None


def _plain(one: Any) -> Hashable:
    """The item, as something that can be hashed. Raises TypeError for one that is no name, number, tuple or dict."""
    if isinstance(one, str | bytes | int | float):
        return one
    if isinstance(one, tuple):
        return tuple(map(_plain, one))
    if isinstance(one, Mapping):
        return tuple((name, _plain(value)) for name, value in one.items())
    if isinstance(one, os.PathLike):
        return os.fspath(one)
    if isinstance(one, np.generic) and isinstance(one, Hashable):
        return one
    raise TypeError(f"{type(one).__name__} is compared by what is read of it")


def _are_names(column: Sequence[Any]) -> bool:
    """Whether different items have each a name of a file, or a key, of their own there: values come several times."""
    texts = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in column]
    texts = [one.decode(errors="replace") if isinstance(one, bytes) else one for one in texts]
    return all(isinstance(one, str) for one in texts) and len(set(texts)) == len(texts) and all(map(_is_name, texts))


def _is_name(text: str) -> bool:
    """Whether it looks like a path, a file's name, or a long key: no line of a table, word, number or date."""
    path = _PATH.search(text) is not None and not set(text) & {",", ";", "|", "\t", "\n"}
    return path or (_KEY.fullmatch(text) is not None and _MEASURED.fullmatch(text) is None)
