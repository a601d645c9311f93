"""Arrays of records that functions of a pipeline hold, and read more of than the row of their own element."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.sketch import sketch_of
from tfdp_layers.batches.origins import FEWEST
from tfdp_layers.batches.readings import Held, Reading, Row, readings_of, takes_a_row
from tfdp_layers.batches.steps import READERS, below, graphs_of, kind, steps
from tfdp_layers.caller import warn

__all__ = ["warn_of_captured"]

_AS_MANY, _COLUMNS = 32, 4
"""Rows that are told by their number; and numbers of a row to compare."""


def warn_of_captured(
    dataset: tf.data.Dataset,
    records: int,
    arrays: Sequence[np.ndarray] = (),
    draws: bool = False,
    whose: bool = False,
) -> None:
    """Warns where a function of a pipeline reads all of an array whose rows are other records, as far as that shows.

    That is an array of as many rows as there are records, 32 at least, or as a source of the pipeline gives; one of
    which rows are in these; or one that a pipeline of numbers, 0, 1, 2, ..., reads by them. What takes from it the one
    row that the element names, by its index or id, is left in peace, and so are blocks of rows one behind the other.
    Not noticed: arrays of other numbers of rows that were changed, and what Python code and tables hold.

    Args:
        records: how many there are.
        arrays: of x, as they were read.
        draws: whether it draws by itself, so that rows may be taken by any indices.
        whose: whether ids say whose each record is; then blocks of rows may overlap.
    """
    made = list(steps(dataset))
    sources = [one for one in made if not below(one)]
    files = any(kind(one) in READERS for one in made)  # a source may list these
    sizes = {records, *(int(one.cardinality()) for one in sources if not files)}
    tensors = (each for one in sources if kind(one) == "TensorSlice" for each in one._tensors)
    given = [one for one in tensors if isinstance(one, tf.Tensor)]
    for step, graph in [(one, graph) for one in made for graph in graphs_of(one)]:
        found, dims = readings_of(step, graph)  # what fits a record may be a constant of that size
        found = [one for one in found if not (draws and takes_a_row(one.operation))]
        if not draws and _of_blocks(found, whose):
            return
        found = [one for one in found if draws or not _is_block(one)]
        for held, operation, row in _more(found):
            as_many = held.shape[0] in sizes and held.shape[0] >= _AS_MANY and held.shape[0] not in dims and not row
            # A row beside the element's own, which the source gives; elsewhere it may be named by counts from one on.
            if as_many or _shares(held, given if row else [*arrays, *given]):
                alike = ", as many as there are records" if as_many else ", some of them as records have"
                _warn(held.shape[0], operation.name, alike)
                return


def _more(found: Sequence[Reading]) -> Iterator[tuple[Held, Any, bool]]:
    """What reads more than a row that an element names, or (then the third is True) one that constants move.

    Several rows that places name are left to `_of_blocks`.
    """
    named: dict[Hashable, Row] = {}
    for one in found:
        row = one.first if takes_a_row(one.operation) else None
        blocks = row is not None and row.by_place and row.times is not None and one.held.shape[0] >= _AS_MANY
        if row is None or (named.setdefault((id(one.graph), one.held.key), row) != row and not blocks):
            yield one.held, one.operation, False
        elif not row.is_own:
            yield one.held, one.operation, True


def _is_block(one: Reading) -> bool:
    """Whether it takes rows that `_of_blocks` knows."""
    known = one.held.shape[0] >= _AS_MANY and one.first is not None and one.first.by_place and one.span is not None
    return known and not takes_a_row(one.operation)


def _of_blocks(found: Sequence[Reading], whose: bool) -> bool:
    """Looks at what is read by an element's place; warns, and says so, of rows that several elements take, or none."""
    mine = [one for one in found if one.held.shape[0] >= _AS_MANY and not _are_offsets(one.held)]
    mine = [one for one in mine if one.derived or (one.first and one.first.by_place)]
    known = [(one.first, one.span) for one in mine if one.first is not None and one.span is not None]
    odd = [one for one in mine if one.span is None]
    ways = {(one.held.key, one.first[:2]) for one in mine if one.first is not None}
    if (odd and not (whose and all(map(_is_shared, odd)))) or len({key for key, _ in ways}) < len(ways):
        one = odd[0] if odd else mine[-1]
        _warn(one.held.shape[0], one.operation.name)
        return True
    for times in {row.times for row, _ in known}:
        ends = [(row.plus, row.plus + span) for row, span in known if row.times == times]
        taken, apart = max(last for _, last in ends) - min(first for first, _ in ends), abs(times)
        one = next(one for one in reversed(mine) if one.first and one.first.times == times)
        if taken > apart and not whose:
            _warn(one.held.shape[0], one.operation.name)
            return True
        if taken < apart:
            _warn_of_gaps(one.held.shape[0], taken, apart, one.operation.name)
            return True
    return False


def _is_shared(one: Reading) -> bool:
    """Whether it takes a row that several elements have, one behind the other: an image of each five captions."""
    return one.first is not None and one.first.times is None and one.first.plus[0] == "FloorDiv"


def _are_offsets(held: Held) -> bool:
    """Whether an array says where the rows of each record begin in another one."""
    if len(held.shape) != 1:
        return False
    rows = held.rows()
    return rows.dtype.kind in "iu" and bool(np.all(np.diff(rows) >= 0)) and bool(rows[-1] > len(rows))


def _warn_of_gaps(rows: int, taken: int, apart: int, name: str) -> None:
    warn(
        f"A function of this pipeline takes {taken} of every {apart} rows of an array of {rows:,} (operation {name!r})."
        " Where that says which people are trained on, one more moves all behind, and others stay; no epsilon covers"
        " that. Choose each record by itself: hold people out by their ids, tfdp.preprocessing.held_out(ids, share)."
        " Where it is public which, nothing is lost."
    )


def _warn(rows: int, name: str, alike: str = "") -> None:
    warn(
        f"A function of this pipeline holds an array of {rows:,} rows{alike}, and reads more of it than the row that"
        f" its element names (operation {name!r}). If these are rows of other people, what they hold is in each record,"
        " and no epsilon covers that: neighbours, partners of MixUp, ranks, counts and means among them. Make each"
        " record of its own item alone, its row by tf.gather(array, index). Where the array is public, nothing is lost."
    )


def _shares(held: Held, arrays: Sequence[Any]) -> bool:
    width = int(np.prod(held.shape[1:]))
    alike = [one for one in arrays if tuple(one.shape[1:]) == held.shape[1:] and len(one) >= FEWEST]
    if not alike or width < _COLUMNS:
        return False
    rows = held.rows()
    alike = [one for one in map(np.asarray, alike) if one.dtype.kind in "biuf" and rows.dtype.kind in "biuf"]
    sketch = sketch_of([rows]) if alike else None
    return sketch is not None and any(sketch.shares(sketch_of([one])) for one in alike)
