"""Flat maps that take their elements apart: whether these may be batches of records, and what a flat map makes of one.

An element of a generator, say, may be a batch of records or what one person gives; only a `.batch` below tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp_layers.batches.effects import arguments, arguments_of
from tfdp_layers.batches.pieces import elements_of
from tfdp_layers.batches.steps import below, kind, operations

__all__ = [
    "Rows",
    "are_numbers",
    "gives_parts",
    "have_rows",
    "is_batched",
    "may_be_batches",
    "parts_of",
    "rows_in",
    "sliced",
    "sliced_within",
    "wholes",
]

_FLAT = ("FlatMap", "Interleave", "ParallelInterleave")


class Rows(NamedTuple):
    """Components of an element that may be the records of a batch, one in each of their rows.

    Attributes:
        size: how many rows, None where it is not known.
        members: the arguments of the flat map's function that these are; its other ones are of the whole element.
        all: whether these are all of its arguments.
        made: which of the tensors that are taken apart (see `sliced`) are made of them, other than as a whole.
        beside: whether tensors that are taken apart are made of other components with rows.
    """

    size: int | None
    members: list[Any]
    all: bool
    made: list[int]
    beside: bool

    def taken(self, graph: Any) -> list[Any]:
        """The tensors of `made`, in the function's graph or in one that was traced anew."""
        found = sliced(graph)
        return [found[i] for i in self.made]


def sliced(graph: Any) -> list[Any]:
    """What its flat map takes apart, as `Dataset.from_tensor_slices` in its function does."""
    return [one for each in graph.get_operations() if each.type == "TensorSliceDataset" for one in each.inputs]


def wholes(graph: Any) -> list[Any]:
    """What its flat map hands on as one element, as `Dataset.from_tensors` in its function does."""
    return [one for each in graph.get_operations() if each.type == "TensorDataset" for one in each.inputs]


def sliced_within(dataset: Any) -> bool:
    """Whether functions that its flat map calls take batches apart, or what may be such: these are not followed."""
    if not have_rows(dataset._inputs()[0]):
        return False
    sizes = [one.shape[0] for one in tf.nest.flatten(dataset._inputs()[0].element_spec)]
    alike = is_batched(dataset._inputs()[0]) or (len(sizes) > 1 and any(sizes.count(one) > 1 for one in sizes))
    return alike and any(made == "TensorSliceDataset" and one is None for made, one in operations(dataset))


def have_rows(dataset: Any, numbers: Sequence[bool] = ()) -> bool:
    """Whether all components of its elements have an axis 0, and there is one, but for those that are plain numbers."""
    specs = tf.nest.flatten(dataset.element_spec)
    rows = [one for one, plain in zip(specs, numbers or [False] * len(specs), strict=True) if not plain]
    return bool(rows) and all(isinstance(one, tf.TensorSpec) and bool(one.shape.rank) for one in rows)


def is_batched(dataset: Any) -> bool:
    """Whether its elements are batches for certain: one record may have several parts, too, which a flat map gives."""
    return elements_of(dataset) != 1 or _are_cut(dataset)


def _are_cut(dataset: Any) -> bool:
    """Whether a step cuts batches that nothing takes apart further on, also into groups of them."""
    what = kind(dataset)
    if "Batch" in what or gives_parts(dataset):
        return "Batch" in what and "Unbatch" not in what
    return any(map(_are_cut, below(dataset)))


def gives_parts(dataset: Any) -> bool:
    """Whether it is a flat map or an interleave, whose function makes data sets of its elements.

    `sample_from_datasets` and `choose_from_datasets` (`DirectedInterleave`) hand on elements as they are.
    """
    return kind(dataset) in _FLAT


def may_be_batches(source: Any, graph: Any) -> set[str]:
    """The names of the arguments of a flat map's function that may hold one record in each row, as in `rows_in`."""
    specs = tf.nest.flatten(source.element_spec)
    given = [one for one in arguments(graph) if one.dtype != tf.variant]
    ranked = [one for one in given if one.shape.rank != 0]
    if is_batched(source):
        return {one.name for one in ranked}
    if not all(isinstance(one, tf.TensorSpec) and one.shape.rank is not None for one in specs):
        return set()
    counts = _counts(ranked)
    found = [members for count in counts for members, several in [_members(ranked, count, len(specs))] if several]
    return {one.name for members in found for one in members}


def _counts(ranked: Sequence[Any]) -> set[int | None]:
    return {one.shape[0] for one in ranked} - {None} or {None}


def _members(ranked: Sequence[Any], count: int | None, parts: int) -> tuple[list[Any], bool]:
    """The components that have so many rows, and whether these may be records: beside plain numbers several must."""
    members = [one for one in ranked if one.shape[0] in (None, count)]
    alike = len(members) == len(ranked) or sum(one.shape[0] == count for one in members) > 1
    return members, alike and not (len(ranked) < parts and len(members) == 1)


def rows_in(source: Any, graph: Any) -> Iterator[Rows]:
    """What may be records in the elements that a flat map's function gets, by each number of rows that they have.

    Components may be records where all have as many rows, or several do, or where the flat map makes as many records.
    Beside plain numbers (one person's label) several must, and the flat map make as many. What it makes of a component
    as a whole (a record and its negative, one below the other) is no record of a batch.
    """
    specs = tf.nest.flatten(source.element_spec)
    if not all(isinstance(one, tf.TensorSpec) and one.shape.rank is not None for one in specs):
        return
    ranked = [one for one in arguments(graph) if one.shape.rank]
    plain = len(ranked) < len(specs)
    for count in _counts(ranked):
        members, several = _members(ranked, count, len(specs))
        others = {one.name for one in ranked} - {one.name for one in members}
        made, beside = [], False
        for i, one in enumerate(sliced(graph)):
            reached = arguments_of(graph, [one.op])
            of_members = [each for each in members if each.name in reached]
            as_many = count is None or _size(one) in (None, count)
            whole = _is_whole(one, of_members) and (one.op.type == "Pack" or not as_many or not several)
            if of_members and not whole and (several or not plain if as_many else several and not plain):
                made.append(i)
            beside = beside or (bool(others & reached) and (as_many or i in made))
        if made:
            yield Rows(count, members, len(members) == len(specs), made, beside)


def parts_of(source: Any, graph: Any) -> int:
    """How many records a flat map makes of each element where they are none of its rows; 0 where that is not seen."""
    specs = [one for one in tf.nest.flatten(source.element_spec) if isinstance(one, tf.TensorSpec)]
    if are_numbers(source) or is_batched(source):
        return 0
    rows = {one.shape[0] if one.shape.rank else None for one in specs if one.shape.rank != 0}
    for one in sliced(graph):
        size, reached = _size(one), arguments_of(graph, [one.op])
        whole = one.op.type == "Pack" or _is_whole(one, [each for each in arguments(graph) if each.name in reached])
        if size and size > 1 and reached and (whole or (rows and None not in rows and size not in rows)):
            return size
    return 0


def are_numbers(source: Any) -> bool:
    """Whether its elements are whole numbers alone, such as name rows of an array, or how many there are."""
    specs = tf.nest.flatten(source.element_spec)
    plain = [one for one in specs if isinstance(one, tf.TensorSpec)]
    return len(plain) == len(specs) and all(one.dtype.is_integer and one.shape.rank == 0 for one in plain)


def _size(tensor: Any) -> int | None:
    return tensor.shape[0] if tensor.shape.rank else None


def _is_whole(made: Any, arguments: Sequence[Any]) -> bool:
    """Whether each row of what is made has the shape of an argument: it is that, changed, and no row of it."""
    return bool(made.shape.rank) and any(
        one.shape.as_list() == made.shape.as_list()[1:] for one in arguments if one.shape.rank
    )
