"""Zips whose branches do not go together: then a record stands beside what belongs to another one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp_layers.batches.contents import contents_of, have_rows_in_common
from tfdp_layers.batches.overlaps import are_displaced
from tfdp_layers.batches.pieces import elements_of
from tfdp_layers.batches.places import moves
from tfdp_layers.batches.steps import READERS, below, graphs_of, kind, kind_of, number, operations, steps
from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import called_by
from tfdp_layers.proof.values import UnknownError

__all__ = ["crossing", "holds_records", "out_of_step"]

_IN_PLACE = ("Map", "Prefetch", "Cache", "Options", "Restructured", "Zip", "Assert")
"""In the names of data sets that give what they make of an element at its place."""
_BY_NUMBERS = {
    "Unbatch": (),
    "Batch": ("_batch_size", "_drop_remainder"),
    "Repeat": ("_count",),
    "Take": ("_count",),
    "Skip": ("_count",),
    "Shard": ("_num_shards", "_index"),
}
"""Those that move elements to places which follow from these numbers, in this order: "Batch" is part of "Unbatch"."""
_LEAVING = {
    "Filter": ".filter",
    "IgnoreErrors": ".ignore_errors",
    "TakeWhile": ".take_while",
    "Unique": ".unique",
}
"""Steps that leave out elements by what these hold."""
_PICKS, _TEXTS = ("Shuffle", "ShuffleAndRepeat", "Range"), ("Regex", "StaticRegex", "String", "Substr", "AsString")
_APART, _FLAT = ("FlatMap", "Interleave", "ParallelInterleave"), "flat map"
_COUNTED = {"Range": (0, 1, 2), "Repeat": (1,), "Take": (1,), "Skip": (1,), "TensorSlice": ()}
"""Operations in the functions of flat maps, and which of their inputs say how many elements they give."""


def crossing(branches: list[Any]) -> bool | None:
    """Whether branches of one source give its records in different orders; None where they do not, as far as is seen.

    Two sources that were made of one array, or read one file, are one.

    Args:
        branches: of a zip, data sets of tf.data, or operations in a function that make such.

    Returns: True where that is certain.
    """
    held = [_below(one) for one in branches]
    for one, other in itertools.combinations(held, 2):
        for key in [key for key, node in one.items() if key in other and not node.above & other.keys()]:
            ways = [ways for each in (one, other) for ways in each[key].ways]
            if len(set(ways)) == 1 and all("?" not in part for part in ways[0]) and not _is_shuffled(one[key].dataset):
                continue
            return not all(any(map(_is_open, way)) for way in ways)
    return False if have_rows_in_common(branches) else None


def _is_open(moved: tuple[Any, ...]) -> bool:
    """Whether the elements may be at the same places all the same."""
    return moved[0] == _FLAT or ("?" in moved and "Shuffle" not in moved)


def out_of_step(branches: list[Any], loose: bool = False) -> str:
    """What one branch leaves out, adds or moves by what its elements hold, and another one does not; or empty.

    Branches without records (counts, random numbers, one thing again and again) may stand beside any others. Shuffles
    of one seed, interleaves of one shape, equal cuts by place, and steps below all branches move the elements of all
    alike, and cuts at places that have nothing in common pair each once (`are_displaced`). What flat maps
    read besides (a data set that they hold) is not seen here (see `inner`), nor what Python code does.

    Args:
        branches: of a zip, data sets of tf.data, or operations in a function that make such.
        loose: whether the pipeline's options let parallel steps give elements in any order.
    """
    found = [dict(_loosened(one, loose)) for one in branches if holds_records(one)]
    if all(isinstance(one, tf.data.Dataset) for one in branches) and are_displaced(branches):
        return ".skip or .shard in one of them alone, so that what is at one place stands in two pairs"
    for one, other in itertools.permutations(found, 2):
        for key in one.keys() - other.keys():
            return one[key]
    return ""


def _loosened(branch: Any, loose: bool) -> Iterator[tuple[Hashable, str]]:
    """The steps of a branch that leave out, add or move elements: what tells each from others, and its name."""
    for step in steps(branch):
        what = kind(step)
        own = step.name if isinstance(step, tf.Operation) else id(step)
        if called := _LEAVING.get(what) or _grows(step, what):
            yield own, called
        elif what == "Snapshot" and kind(below(step)[0]) == "Zip":
            continue  # by default it writes elements in turns, and reads them so
        elif called := moves(step, loose):
            yield _likewise(step, what, called) or own, called


def _likewise(step: Any, what: str, called: str) -> Hashable:
    """What two steps share that move elements alike; None where none does."""
    if "Shuffle" in what:
        seeds = number(step, "_seed"), number(step, "_seed2")
        known = None not in seeds and any(seeds)
        again = getattr(step, "_reshuffle_each_iteration", None)
        size = int(number(step, "_buffer_size") or 0)
        return (what, *map(int, seeds), size, again, elements_of(below(step)[0])) if known else None
    if isinstance(step, tf.Operation):
        return None
    if what == "DirectedInterleave":
        turns, *parts = step._inputs()
        return None if any(kind(one) == "Random" for one in steps(turns)) else (what, len(parts))
    if "Interleave" in what and "determin" not in called and "within" not in called:
        return ("Interleave", *(int(number(step, one) or 0) for one in ("_cycle_length", "_block_length")))
    return (what, str(step._path)) if what == "Load" else None


def _grows(step: Any, what: str) -> str:
    """How a step makes of an element as many as it holds, or some of what it reads; empty where it does not."""
    if what not in ("Unbatch", *_APART) or isinstance(step, tf.Operation):
        return ""
    batched = elements_of(below(step)[0]) != 1
    if what == "Unbatch":
        specs = tf.nest.flatten(below(step)[0].element_spec)
        return "" if batched or any(one.shape.rank and one.shape[0] for one in specs) else ".unbatch of lists"
    for name, one in ((kind_of(made), one) for made, one in operations(step) if "Dataset" in made):
        if name in _LEAVING:
            return f"{_LEAVING[name]} within a function of it"
        if one is None:
            continue  # within what a function calls, where its inputs are not known
        sizes = [one.inputs[index] for index in _COUNTED.get(name, ())]
        open_rows = name == "TensorSlice" and not any(each.shape.rank and each.shape[0] for each in one.inputs)
        if (open_rows and not batched) or any(tf.get_static_value(each) is None for each in sizes):
            return ".flat_map or .interleave, by which an element becomes as many as it holds"
    return ""


def holds_records(branch: Any) -> bool:
    """Whether a branch may hold records: a count does not, and neither do random numbers, or one thing repeated."""
    made = [*steps(branch)]
    names = {kind(one) for one in made if not below(one)}
    if names <= {"Random", "Tensor"}:
        return any(kind(one) in ("Unbatch", *_APART) for one in made)
    made_of = any(map(_has_functions, made))  # rows of an array that counts name
    return made_of or not names <= {"Range", "Variant", "Random", "Tensor"}


def _has_functions(step: Any) -> bool:
    """Whether functions make, or choose, its elements: of an operation, one that an attribute names."""
    if isinstance(step, tf.Operation):
        return any(one.HasField("func") for one in step.node_def.attr.values())
    return bool(graphs_of(step))


class _Below(NamedTuple):
    """A data set below a branch: by which ways, and what lies above it there."""

    dataset: Any
    ways: set[tuple[Any, ...]]
    above: set[Hashable]


def _below(dataset: Any) -> dict[Hashable, _Below]:
    found: dict[Hashable, _Below] = {}

    def walk(one: Any, way: tuple[Any, ...], above: frozenset[Hashable]) -> None:
        inputs = below(one) if isinstance(one, tf.Operation) else one._inputs()
        keys = {_own(one), *(contents_of(one) if not inputs else ())}
        for key in keys:
            node = found.setdefault(key, _Below(one, set(), set()))
            node.ways.add(way)
            node.above.update(above)
        what = kind(one)
        if "Repeat" in what and all(kind(each) == "Tensor" for each in inputs):
            return  # one thing beside all others: what windows are cut from, say
        for each in inputs:
            walk(each, way + _moved(one, what), above | keys)

    walk(dataset, (), frozenset())
    return found


def _own(step: Any) -> Hashable:
    return step.name if isinstance(step, tf.Operation) else id(step)


def _moved(step: Any, what: str) -> tuple[Any, ...]:
    """Where a data set moves the elements of its input to; with "?" where that is not known."""
    for part, numbers in _BY_NUMBERS.items():
        if part in what and what != "TakeWhile":
            known = [number(step, one) for one in numbers]
            return ((part, "?", _own(step)),) if any(one is None for one in known) else ((part, *map(int, known)),)
    if what in _APART:
        return ((_FLAT, *_within(step)),)
    if what in READERS:
        return ((what, int(number(step, "_num_parallel_reads") or 0)),)
    if any(part in what for part in (*_IN_PLACE, "Identity")):
        return ()
    return (("Shuffle" if "Shuffle" in what else what, "?", _own(step)),)


def _within(step: Any) -> tuple[Hashable, ...]:
    """What a flat map does to places, as far as that is seen: two that do the same move elements alike."""
    if "ParallelInterleave" in kind(step):  # in any order, where it is told so, which the data set does not keep
        return ("?", _own(step))
    turns = [number(step, one) for one in ("_cycle_length", "_block_length")]
    found: list[Hashable] = [tuple(int(one) for one in turns if one is not None)]
    for made, one in _inside(step):
        what = kind_of(made)
        if made.startswith(_TEXTS) and one is not None:  # of a file's name, say: another file than the element says
            return ("?", _own(step))
        if what == made or any(part in what for part in _IN_PLACE):
            continue
        numbers = next((names for part, names in _BY_NUMBERS.items() if part in what), ())
        known = [None if one is None else number(one, each) for each in numbers]
        if what in _PICKS or any(each is None for each in known):
            return ("?", _own(step))
        found.append((what, *(int(each) for each in known if each is not None)))
    return tuple(found)


def _inside(step: Any) -> Iterator[tuple[str, Any]]:
    """The operations in the functions of a step, or of an operation that makes a data set."""
    if not isinstance(step, tf.Operation):
        yield from operations(step)
        return
    with contextlib.suppress(UnknownError):
        for name in called_by(step):
            yield from ((one.type, one) for one in graph_named(step.graph, name).get_operations())


def _is_shuffled(dataset: Any) -> bool:
    """Whether its order is another one in each of two branches."""
    again = getattr(dataset, "_reshuffle_each_iteration", None) is not False
    return ("Shuffle" in kind(dataset) and again) or any(map(_is_shuffled, below(dataset)))
