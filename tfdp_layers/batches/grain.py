"""Data sets of Grain in which one record's place, or another record, is in what a record holds."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import Any

from tfdp_layers.batches.steps import below, identity, is_grain, kind, steps
from tfdp_layers.caller import warn

__all__ = ["look_at_grain"]

_IN_PLACE = (
    *("Map", "RandomMap", "MapWithIndex", "WithSeed", "Source", "Range", "Zip"),
    *("Prefetch", "WithOptions", "Sampler", "DataLoaderPipelineMarker", "DataLoaderState"),
)
"""Steps that give what they make of an element at its place."""
_MOVING = ("Shuffle", "WindowShuffle", "Slice", "Repeat", "Concatenate", "Mixed", "Batch", "Filter", "Interleave")
"""Steps that give whole elements at other places, or leave some out: others look at these (`choices`, `repeats`)."""
_RANGE = "range"
_BY_PLACE = {
    "RandomMap": ".random_map, whose numbers follow from a seed and the place",
    "MapWithIndex": ".map_with_index, whose function is given the place",
}


def look_at_grain(source: Any, draws: bool = False) -> None:
    """Warns where an element of a Grain data set is made of its place, or where it is not known how it is made.

    What the Python code of its maps does is not seen.

    Args:
        draws: whether it is declared to draw records by itself: then places and seeds may do that.

    Raises: ValueError where a zip puts records of one source beside others of it.
    """
    known = [one for one in steps(source) if is_grain(one)]
    if any(kind(one) == "Zip" and _crosses(one) for one in known):
        raise ValueError(
            "Records meet in this Grain data set: a zip puts records of one source beside others of it (a shuffle or a"
            " slice in one branch), so that one is in several. What one person's record holds would be in the records"
            " of others, and no epsilon is stated for that. Make each record of its own item alone."
        )
    if any(kind(one) == "Zip" and _crosses(one, numbers=True) for one in known):
        warn(
            "A zip of this Grain data set puts numbers of one range beside others of it. Where they name rows of one"
            " array, one person's row is in several records, and no epsilon covers that. Make each record of its own"
            " item alone. Where they name rows of two arrays, or these are public, nothing is lost."
        )
    by_place = next((_BY_PLACE[kind(one)] for one in known if kind(one) in _BY_PLACE), "")
    if by_place and not draws:
        warn(
            f"What records of this Grain data set hold depends on the others: {by_place}. With one person less all"
            " behind them get other ones, and no epsilon covers that; nor do draws change from epoch to epoch. Make"
            " each record of its own item alone, and draw by random layers of the model (keras.layers.RandomFlip, say),"
            " or in tfdp.records(source, transform), from a generator without a seed."
        )
    odd = next((kind(one) for one in known if kind(one) not in (*_IN_PLACE, *_MOVING) and _is_its_own(one)), "")
    if odd:
        warn(
            f"Whether records meet in this Grain data set is not known: what its step {odd!r} does. The statement"
            " assumes that each record was made of its own item alone."
        )


def _is_its_own(step: Any) -> bool:
    """Whether it is a class of Grain, and no class of somebody's that is made from one."""
    return type(step).__module__.partition(".")[0] == "grain"


def _crosses(step: Any, numbers: bool = False) -> bool:
    """Whether branches of a zip give the elements of one source, or (`numbers`) of ranges, in two orders."""
    held = [{key: ways for key, ways in _ways(one) if (key == _RANGE) == numbers} for one in below(step)]
    shared = ((one, other, key) for one, other in itertools.combinations(held, 2) for key in one.keys() & other.keys())
    return any(one[key] != other[key] for one, other, key in shared)


def _ways(step: Any) -> Iterator[tuple[Hashable, frozenset[tuple[Hashable, ...]]]]:
    """Of each source below a step, by which moves its elements come there."""
    found: dict[Hashable, set[tuple[Hashable, ...]]] = {}
    left: list[tuple[Any, tuple[Hashable, ...]]] = [(step, ())]
    while left:
        one, way = left.pop()
        if not below(one):
            ranges = kind(one) == "Range"
            start = ((getattr(one, "start", 0), getattr(one, "step", 1)),) if ranges else ()
            found.setdefault(_RANGE if ranges else identity(one), set()).add((*way, *start))
        left += [(each, (*way, *_move(one))) for each in below(one)]
    yield from ((key, frozenset(ways)) for key, ways in found.items())


def _move(step: Any) -> tuple[Hashable, ...]:
    what = kind(step)
    if what in _IN_PLACE:
        return ()
    if what == "Slice":
        return ((what, *(getattr(step, name, None) for name in ("_start", "_stop", "_step"))),)
    return ((what, getattr(step, "_seed", None) if what == "Shuffle" else id(step)),)
