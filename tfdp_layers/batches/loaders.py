"""Batches that loaders, sequences and data sets of Grain give, where the caller declares how they are drawn."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfdp_layers.batches.behind import data_sets_of
from tfdp_layers.batches.choices import warn_of_choice
from tfdp_layers.batches.cut import say_no_draw, say_other_size, say_repeated
from tfdp_layers.batches.grain import look_at_grain
from tfdp_layers.batches.overlaps import may_overlap, warn_of_overlaps
from tfdp_layers.batches.repeats import repeats
from tfdp_layers.batches.steps import below, is_grain, kind, steps
from tfdp_layers.caller import warn
from tfdp_layers.sampling import Sampling

__all__ = ["look_at_loader"]

_WHOLE = ("Prefetch", "WithOptions", "WithSeed", "Shuffle", "WindowShuffle", "Repeat", "Slice")
"""Steps that give whole batches as they are, be it at other places."""


def look_at_loader(dataset: Any, sampling: Sampling, examples: int) -> bool:
    """Warns where an iterable, no tf.data pipeline, is seen to be made otherwise than declared, before any is read.

    Of a data set of Grain, or one that a loader holds, each step is looked at, as of a pipeline of tf.data: repeats,
    parts that overlap, records that stay by what others hold, zips, and batches cut from passes. The function of its
    `.batch`, and those of `.map` and `.map_with_index` behind it, are called: where another record in one row changes
    other rows, records meet. What batches hold is looked at as training reads them (`replayed.py`).

    Not seen: functions behind `.batch` that draw (`.random_map`), or behind steps that take several data sets; those of
    a `grain.DataLoader`; and what other loaders do to their batches.

    Returns: whether it was said that the batches are no such draw.

    Raises: ValueError where a zip of Grain puts records of one source beside others of it.
    """
    of_passes = sampling.kind in ("partition", "cyclic")
    for one in _grain_in(dataset):
        look_at_grain(one, draws=not of_passes)
        if of_passes:
            _look_at_passes(one, sampling)
        if _meets(one):
            warn(
                "Records meet in this Grain data set: a function of its .batch, or behind it, gives other rows another"
                " value where one record is another one (a mean of the batch, say). What one person's record holds is"
                " in the records of others, and the statement does not hold. Put the function before .batch, where it"
                " gets one record alone."
            )
    if of_passes or sampling.batch_size >= examples:
        return False
    size = _cut_to(dataset) if is_grain(dataset) else 0
    if 1 < size < examples:
        say_no_draw(sampling, size)
        return True
    return False


def _look_at_passes(one: Any, sampling: Sampling) -> None:
    if repeats(one):
        say_repeated(sampling)
    elif may_overlap(one):
        warn_of_overlaps(True, "record")
    else:
        warn_of_choice(one)
    size = _cut_to(one)
    if size and size != sampling.batch_size:
        say_other_size(sampling, size)


def _grain_in(dataset: Any) -> list[Any]:
    """The data set itself, where it is of Grain; else those that a loader holds, or that its code reads."""
    if is_grain(dataset):
        return [dataset]
    held = list(getattr(dataset, "__dict__", {}).values())
    return [one for one in (held if _of_grain(dataset) else data_sets_of(dataset, *held)) if is_grain(one)]


def _of_grain(dataset: Any) -> bool:
    return any(one.__module__.partition(".")[0] == "grain" for one in type(dataset).__mro__)


def _cut_to(source: Any) -> int:
    """The size of the batches that a data set of Grain cuts passes over sources of single records into; 0: not seen."""
    known = list(steps(source))
    sizes = {getattr(one, "_batch_size", 0) for one in known if kind(one) == "Batch"}
    passes = all(kind(one) == "Source" for one in known if not below(one))  # what is made of a range may be drawn
    return int(sizes.pop()) if len(sizes) == 1 and passes else 0


def _meets(source: Any) -> bool:
    """Whether the function of a Grain data set's `.batch`, or one behind it, is seen to let one row into others."""
    functions: list[Callable[[Any], Any]] = []
    step = source
    while kind(step) in (*_WHOLE, "Map", "MapWithIndex") and below(step):
        if callable(function := getattr(step, "_map_fn", None)):
            functions.append(functools.partial(function, 0) if kind(step) == "MapWithIndex" else function)
        step = below(step)[0]
    if kind(step) != "Batch":
        return False
    with contextlib.suppress(Exception):  # of anybody's code: said where the batches are trained on
        batch = getattr(step, "_batch_fn", None)
        if callable(batch):
            return _lets_in([batch, *functions[::-1]], _items(below(step)[0], int(step._batch_size)), _with_item)
        return bool(functions) and _lets_in(functions[::-1], _first(step, 1)[0], _with_row)
    return False


def _items(step: Any, most: int) -> list[Any]:
    return [one for one in _first(step, most) if one is not None]


def _first(step: Any, most: int) -> list[Any]:
    if hasattr(step, "__getitem__"):
        return [step[place] for place in range(min(most, len(step)))]
    begun = iter(step)
    found = [*itertools.islice(begun, most)]
    if callable(end := getattr(begun, "close", None)):
        end()
    return found


def _with_item(items: Any, at: int, other: int) -> Any:
    """Copies of the items, with another of them at a place."""
    return [copy.deepcopy(items[other if place == at else place]) for place in range(len(items))]


def _with_row(batch: Any, at: int, other: int) -> Any:
    """A copy of the batch with another of its records at a place."""

    def put(leaf: Any) -> np.ndarray:
        copied = np.array(leaf)
        copied[at] = copied[other]
        return copied

    return keras.tree.map_structure(put, batch)


def _lets_in(functions: list[Callable[[Any], Any]], given: Any, replace: Callable[[Any, int, int], Any]) -> bool:
    """Whether another record at one place changes what functions make of others."""
    rows = len(given) if isinstance(given, list) else len(keras.tree.flatten(given)[0])

    def made(at: int, other: int) -> list[np.ndarray]:
        """What becomes of them; of that row nothing."""
        batch = replace(given, at, other)
        for function in functions:
            batch = function(batch)
        found = [np.asarray(leaf) for leaf in keras.tree.flatten(batch)]
        return [np.delete(leaf, at, axis=0) for leaf in found if leaf.ndim and len(leaf) == rows]

    for at, other in ((0, rows // 2), (rows - 1, 0)) if rows > 2 else ():
        plain, again, changed = made(at, at), made(at, at), made(at, other)
        if _alike(plain, again) and len(plain) == len(changed) and not _alike(plain, changed):
            return True
    return False


def _alike(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return len(some) == len(others) and all(map(_equal, some, others))


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether they are equal, as far as both go: a batch may be padded to the longest of its records."""
    if one.ndim != other.ndim:
        return False
    both = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    one, other = one[both], other[both]
    if one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
