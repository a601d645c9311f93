"""Pipelines in which one record decides which others stay: no epsilon covers that."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.batches.counted import counted_in
from tfdp_layers.batches.steps import below, kind, number, operations
from tfdp_layers.caller import warn

__all__ = ["choice_in", "warn_of_choice"]

_BY_PLACE = {"Take": ("_count", -1), "Skip": ("_count", 0), "Shard": ("_num_shards", 1)}
"""Steps that choose elements by their places, and the number of each that chooses nothing."""
_PLACING = ("Shuffle", "WindowShuffle", "ShuffleAndRepeat", "Filter", "Unique", "DirectedInterleave", "GroupByWindow")
"""Steps behind which an element's place depends on how many others there are, or on what they hold."""
_APART = ("FlatMap", "Interleave", "ParallelInterleave")


def choice_in(source: Any) -> str:
    """What in a pipeline, or a Grain data set, makes it depend on other records whether a record stays; or empty.

    A `.take` or `.skip` of records that lie in one fixed order lets a record decide about one other, and is not named.
    """
    found = _choice(source, apart=False, files=False)
    if not found and isinstance(source, tf.data.Dataset) and (by := counted_in(source).chosen):
        return f"a .filter by {by}"
    return found


def _choice(step: Any, apart: bool, files: bool) -> str:
    """Args:
    apart: whether something further on takes its elements apart.
    files: whether they are what records are read from, by a flat map.
    """
    what = kind(step)
    if not files and _by_place(step, what):
        verb = "a slice" if what == "Slice" else f".{what.lower()}"
        if what == "Shard" or abs(getattr(step, "_step", 1)) > 1:
            return f"{verb} that counts places: one record more moves all behind it"
        placed = next((one for one in map(kind, _until_read(step)) if one in _PLACING), "")
        if placed:
            return f"{verb} behind {_called(placed)}"
    if what == "DirectedInterleave" and getattr(step, "_stop_on_empty_dataset", False):
        return ".sample_from_datasets or .choose_from_datasets with stop_on_empty_dataset=True"
    if what == "Mixed" and len(step) < sum(map(len, step._parents)):
        return "a mix that ends with the first data set that is used up"
    if apart and "Batch" in what and number(step, "_drop_remainder"):
        return ".batch(..., drop_remainder=True) whose batches are taken apart again"
    if apart and what == "GroupByWindow" and any(_drops(one) for name, one in operations(step) if "Batch" in name):
        return "groups whose last batch is dropped (drop_remainder=True)"
    if taken := _taken_within(step, what):
        return taken
    reads = what in _APART
    apart, files = apart or reads or what == "Unbatch", files or reads
    return next(filter(None, (_choice(one, apart, files) for one in below(step))), "")


def _by_place(step: Any, what: str) -> bool:
    """Whether it leaves elements out by their places."""
    if what == "Slice":
        return len(step) < len(step._parents[0])
    name, none = _BY_PLACE.get(what, ("", None))
    return bool(name) and number(step, name) != none


def _taken_within(step: Any, what: str) -> str:
    """What a step's functions choose by places: of groups and windows any, of what they read behind a shuffle."""
    if what not in ("GroupByWindow", *_APART):
        return ""
    if cut := _cut_within(step):
        return cut
    for one in (one for _, one in operations(step) if one is not None and kind(one) in _BY_PLACE):
        verb = kind(one)
        if tf.get_static_value(one.inputs[1]) == _BY_PLACE[verb][1]:
            continue
        if what == "GroupByWindow":
            return f".{verb.lower()} in the groups of .group_by_window"
        if verb == "Shard":
            if number(one, "_index") is not None:  # else the element says which one, and others say the rest
                return ".shard that counts places, in a function of it: one record more moves all behind it"
            continue
        placed = next((each for each in map(kind, _until_read(one)) if each in _PLACING), "")
        if placed:
            return f".{verb.lower()} behind {_called(placed)}, in a function of it"
    return ""


def _cut_within(step: Any) -> str:
    """What windows leave out that a flat map takes apart again; of those that it batches each is a record."""
    window, made = below(step)[0], list(operations(step))
    if kind(window) != "Window" or any("Batch" in name for name, _ in made):
        return ""
    size, shift, stride = (number(window, name) for name in ("_size", "_shift", "_stride"))
    if None not in (size, shift, stride) and shift > (size - 1) * stride + 1:
        return f".window({size}, shift={shift}) whose windows are taken apart again, and leave records out"
    chosen = [one for _, one in made if one is not None and kind(one) in _BY_PLACE]
    return f".{kind(chosen[0]).lower()} in the windows of .window" if chosen else ""


def _until_read(step: Any) -> list[Any]:
    """The steps behind which this one stands, as far as their elements are not files that a flat map reads."""
    found, left = [], below(step)
    while left:
        one = left.pop()
        found.append(one)
        left += [] if kind(one) in _APART else below(one)
    return found


def _called(what: str) -> str:
    if what == "DirectedInterleave":
        return ".sample_from_datasets"
    return ".group_by_window" if what == "GroupByWindow" else f".{'shuffle' if 'Shuffle' in what else what.lower()}"


def _drops(batch: Any) -> bool:
    """Whether an operation that makes batches leaves out a last one that is not full."""
    last = batch is not None and "BatchDataset" in batch.type and len(batch.inputs) > 2
    return bool(last and tf.get_static_value(batch.inputs[2]))


def warn_of_choice(source: Any) -> None:
    """Warns where one record more in a pipeline, or a Grain data set, changes which of the others stay."""
    found = choice_in(source)
    if found:
        warn(
            f"Which records stay in this pipeline depends on the others: {found}. One person more, and others are"
            " trained on, or are not; no epsilon covers that. Choose each record by itself: hold people out by their"
            " ids, tfdp.preprocessing.held_out(ids, share), or filter records by their own values alone, without .take"
            " or .skip behind it. Where all are trained on anyway, or it is public which, nothing is lost."
        )
