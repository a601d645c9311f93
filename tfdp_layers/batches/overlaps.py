"""Parts of one source that are put together again, and may have records in common: by filters, say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from tfdp_layers.batches.repeats import keys_of
from tfdp_layers.batches.steps import below, is_count, kind, number
from tfdp_layers.caller import warn

__all__ = ["are_displaced", "may_overlap", "taken_places", "warn_of_overlaps"]

_TOGETHER = ("Concatenate", "DirectedInterleave", "Mixed")
"""Steps that give the records of several branches, behind each other or by turns."""
_BY_PLACE = ("Take", "Skip", "Shard", "Slice")
_CUTS = (*_BY_PLACE, "Filter", "Unique", "IgnoreErrors")
"""Steps that give a part of the records."""
_IN_PLACE = (
    "Map",
    "ParallelMap",
    "RandomMap",
    "MapWithIndex",
    "WithSeed",
    "Prefetch",
    "Cache",
    "Options",
    "AssertCardinality",
)
_CHANGING = ("Map", "ParallelMap", "FlatMap", "Interleave", "ParallelInterleave")
_MOST_WAYS, _ALL = 64, range(1 << 62)


def may_overlap(source: Any) -> bool:
    """Whether a pipeline, or a data set of Grain, puts parts of one source together that are not seen to be apart.

    Of two branches one at least gives a part: what both give whole is seen by `repeats`. Apart are cuts by place of one
    data set that have no place in common, `.take(n)` and `.skip(n)` say. Of filters it is not known which records they
    keep. At most 64 ways to sources are looked at.
    """
    ways = list(itertools.islice(_ways(source), _MOST_WAYS))
    return any(_meet(one, other) for one, other in itertools.combinations(ways, 2))


def are_displaced(branches: list[Any]) -> bool:
    """Whether branches of a zip take equally long sources at places that are moved against each other, and overlap.

    With `.skip(1)` in one branch each element but the first and the last stands in two pairs: so does a person who is
    in both sources at one place. Sources whose length is not known, and counts, are left out.
    """
    taken = []
    for place, branch in enumerate(branches):
        for *way, source in _ways(branch):
            length = int(source.cardinality())
            if length > 0 and not is_count(source) and all(kind(step) in (*_IN_PLACE, *_BY_PLACE) for step in way):
                taken.append((place, length, taken_places(tuple(way))[:length]))
    for (one, length, mine), (other, as_long, theirs) in itertools.combinations(taken, 2):
        pairs = min(len(mine), len(theirs))
        mine, theirs = mine[:pairs], theirs[:pairs]
        if one != other and length == as_long and mine != theirs and _have_place(mine, theirs):
            return True
    return False


def warn_of_overlaps(overlap: bool, unit: str) -> None:
    """Warns of such parts, where a record is what is protected."""
    if overlap and unit == "record":
        warn(
            "Parts of one source (a filter, .take, .skip, .shard or a slice of it) are put behind it or behind each"
            " other, or take turns. Whoever is in two of them is several records, and would be protected as one, for a"
            " part of what that costs. Let rare classes count more by weights, give each record once, or say whose"
            " records they are: unit_ids. Where no record is in two parts, nothing is lost."
        )


def _ways(step: Any) -> Iterator[tuple[Any, ...]]:
    """The steps from this one to each source that it gets elements from."""
    left: list[tuple[Any, ...]] = [(step,)]
    while left:
        way = left.pop()
        inputs = below(way[-1])
        if not inputs:
            yield way
        left += [(*way, one) for one in inputs]


def _meet(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two ways part where branches are put together, come to one thing, and may give a record of it both."""
    parted = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a is not b), 0)
    if not parted or kind(one[parted - 1]) not in _TOGETHER:
        return False
    mine, theirs = one[parted:], other[parted:]
    places = {key: place for place, step in reversed([*enumerate(mine)]) for key in keys_of(step)}
    for n, step in enumerate(theirs):
        shared = [places[key] for key in keys_of(step) if key in places]
        if shared:
            return _have_common(mine[: min(shared)], theirs[:n], step)
    return False


def _have_common(mine: tuple[Any, ...], theirs: tuple[Any, ...], shared: Any) -> bool:
    """Whether parts of a data set, given by these steps, the last one first, may have records in common."""
    if not any(kind(step) in _CUTS for step in (*mine, *theirs)):
        return False
    if is_count(shared) and all(any(kind(step) in _CHANGING for step in way) for way in (mine, theirs)):
        return False  # numbers that name rows of one array here, and of another one there
    one, other = taken_places(mine), taken_places(theirs)
    return _have_place(one, other)


def _have_place(one: range, other: range) -> bool:
    """Whether two rows of places may have one in common."""
    if not one or not other or max(one[0], other[0]) > min(one[-1], other[-1]):
        return False
    return (one[0] - other[0]) % math.gcd(one.step, other.step) == 0


def taken_places(way: tuple[Any, ...]) -> range:
    """The places in a data set of all that comes through these steps, and perhaps of more."""
    places = _ALL
    for step in reversed(way):
        if kind(step) in _BY_PLACE:
            places = _cut(step, places)
        elif kind(step) not in _IN_PLACE:
            break
    return places


def _cut(step: Any, places: range) -> range:
    what = kind(step)
    if what == "Slice":
        taken = range(step._start, step._stop, step._step)
        taken = taken if taken.step > 0 else taken[::-1]
        return places[taken.start : taken.stop : taken.step] if taken else range(0)
    names = ("_num_shards", "_index") if what == "Shard" else ("_count",)
    numbers = [number(step, name) for name in names]
    if None in numbers:
        return places
    if what == "Shard":
        return places[int(numbers[1]) :: int(numbers[0])]
    count = int(numbers[0])
    if what == "Take":
        return places if count < 0 else places[:count]
    return range(0) if count < 0 else places[count:]
