"""Loops over the records, a piece of the batch in each round: what a round works on, and what a loop adds up to.

Such a loop counts up from 0 by a constant step, as long as it is below a limit: `sums` and `filtering` go over pieces
of a batch, `tf.map_fn` over its rows, `patches` and `convolutions` over blocks of a batch that was filled up.

Guarantee: a record is in one piece alone, and every record is in one. What depends on the piece otherwise (which round
it is, how long it is, what earlier rounds found) may not meet what depends on records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdp_layers.proof.rules import Node, refused_kind
from tfdp_layers.proof.sizes import Number, Size, floor_divide, smaller, symbol, varies
from tfdp_layers.proof.values import (
    Batch,
    Carried,
    Constant,
    Counted,
    ListOf,
    MixedError,
    Rows,
    Single,
    Special,
    Total,
    UnknownError,
    Value,
)


@dataclass(frozen=True)
class Walk:
    """A loop over records.

    Attributes:
        key: tells loops apart.
        place: where a round stands: 0, step, 2 step ... below `limit`.
        single: the batch whose records are taken one in each round, in their order; None if the rounds are not so.
        written: variables that the loop writes, which hold something else in every round.
    """

    key: str
    place: Size
    step: int
    limit: Number
    single: Batch | None
    written: frozenset[int]

    @property
    def rounds(self) -> Number:
        return 0 - floor_divide(0 - self.limit, self.step)


def rounded_up(number: Number, step: int) -> Number:
    """The next multiple of the step."""
    return step * (0 - floor_divide(0 - number, step))


def padded(batch: Batch, size: Number) -> Batch | None:
    """The batch with rows added up to a multiple of some step; None if that is not what `size` is."""
    if not isinstance(size, Size) or len(size.terms) != 1:
        return None
    if size == rounded_up(batch.size, size.terms[0][1]):
        return Batch(size, parent=batch, padded=True)
    return None


def piece(walk: Walk, batch: Batch, start: Number, size: Number) -> Batch:
    """The rows that a round cuts out of a batch: `size` of them from `start` on, which it must have.

    Raises: MixedError unless the rounds' pieces follow one another and make up the batch.
    """
    multiple = floor_divide(start, walk.place)
    if not isinstance(multiple, int) or multiple < 1 or multiple * walk.place != start:
        raise MixedError("rows picked by their places in the batch")
    rows = multiple * walk.step
    if size == rows and batch.size == rows * walk.rounds:
        static = symbol(f"{walk.key} rows of {start} + {rows}", varies=True, least=1)
        return Batch(static, parent=batch, start=start, loop=walk.key, padded=batch.padded, static=rows)
    if batch.size == walk.limit and multiple == 1 and size == smaller(walk.step, batch.size - start):
        if isinstance(size, int):  # pieces of one row
            return Batch(symbol(f"{walk.key} row", varies=True, least=1), batch, start, walk.key, batch.padded, size)
        return Batch(size, parent=batch, start=start, loop=walk.key, padded=batch.padded)
    raise MixedError("rows picked by their places in the batch")


def picked(walk: Walk | None, batch: Batch, place: Number, shape: Any) -> Single:
    """The row at a place, in a loop over records; what may be done with it depends on whether it is the round's own.

    Raises: MixedError outside of such a loop, where it is the same row for all.
    """
    if walk is None or batch.padded:
        raise MixedError("one row of the batch, picked by its place")
    return Single(shape, batch=batch, place=place, loop=walk.key)


def packed(walk: Walk | None, values: Sequence[Single]) -> Rows:
    """A block of rows from single records that follow one another; beyond the last record it holds anything.

    Raises: MixedError unless the rounds' blocks follow one another and hold every record.
    """
    first, count = values[0], len(values)
    batch = first.batch
    if walk is None or any(value.batch != batch or value.loop != walk.key for value in values):
        raise MixedError("records of the batch meet")
    start = count * walk.place
    whole = padded(batch, count * walk.rounds) if walk.step == 1 else None
    if whole is None:
        raise MixedError("records of the batch meet")
    for offset, value in enumerate(values):
        if value.place not in (start + offset, smaller(start + offset, batch.size - 1)):
            raise MixedError("records of the batch meet")
    own = piece(walk, whole, start, count)
    if first.shape is None or any(value.shape != first.shape for value in values):
        raise UnknownError("a shape is not known")
    return Rows((own.size, *first.shape), batch=own)


def added(node: Node, inputs: Sequence[Any]) -> Value:
    """What a loop over records carries along, with a sum over this round's piece added: nothing else may be done to it.

    Guarantee: each round adds the sum over its own piece, so all together add up to the sum over the batch.
    """
    carried = [value for value in inputs if isinstance(value, Carried)]
    others = [value for value in inputs if not isinstance(value, Carried)]
    walk = node.frame.walk()
    if node.type not in ("Add", "AddV2", "AddN") or len(carried) != 1 or walk is None or carried[0].loop != walk.key:
        raise refused_kind(carried[0], node.type)
    put = carried[0].put
    for other in others:
        if isinstance(other, Constant) and other.fill == 0.0:
            continue
        if not isinstance(other, Total | Single):
            raise refused_kind(other, "added in a loop over records")
        if not adds_up(walk, other):
            raise MixedError("a sum that is not over the piece of this round, added in every round")
        if put is not None and (not isinstance(put, Total | Single) or whole_of(put) != whole_of(other)):
            raise MixedError("sums over pieces of different batches added up")
        put = dataclasses.replace(other, shape=None)
    return dataclasses.replace(carried[0], put=put)


def adds_up(walk: Walk, value: Total | Single) -> bool:
    """Whether the loop's rounds add up values like this to a sum over a batch."""
    if isinstance(value, Single):
        return walk.single == value.batch and value.place == walk.place and value.loop == walk.key
    return value.batch.loop == walk.key and value.batch.parent is not None and not value.batch.padded


def whole_of(value: Total | Single) -> Batch | None:
    return value.batch if isinstance(value, Single) else value.batch.parent


def after(walk: Walk, value: Value) -> Value:
    """What a carried value is after the last round. Raises MixedError or UnknownError where that says too little."""
    if isinstance(value, Constant | Counted):
        return Counted(value.shape)
    if not isinstance(value, Carried):
        raise MixedError("what the last round of a loop over records left")
    start, put = value.start, value.put
    if put is None:
        return start
    if isinstance(start, ListOf):
        return dataclasses.replace(after_list(walk, put), declared=start.declared)
    if isinstance(put, Special):
        return after_places(start, put)
    assert isinstance(put, Total | Single)
    whole = whole_of(put)
    zero = isinstance(start, Constant) and start.fill == 0.0
    if whole is None or not (zero or (isinstance(start, Total) and start.batch == whole)):
        raise MixedError("a loop over records that does not start from zero")
    return Total(value.shape, batch=whole)


def after_list(walk: Walk, element: Value) -> ListOf:
    """A list that every round put one element to: the rows of all rounds."""
    if isinstance(element, Single) and adds_up(walk, element):
        if element.shape is None or any(n is not None and varies(n) for n in element.shape):
            raise UnknownError("a shape is not known, or as the record says")
        return ListOf(rows=Rows((element.batch.size, *element.shape), batch=element.batch))
    if isinstance(element, Rows) and (element.axis, element.outer, element.inner) == (0, 1, 1):
        batch = element.batch
        if batch.loop == walk.key and None not in (batch.static, batch.parent, element.shape):
            shape = (walk.rounds, batch.static, *(element.shape or ())[1:])
            return ListOf(rows=Special(shape, idiom="blocks", parts=(batch.parent,)))
    if isinstance(element, Constant) and walk.single is not None and element.shape is not None:
        return ListOf(rows=Rows((walk.single.size, *element.shape), batch=walk.single))
    raise MixedError("a list of what each round of a loop over records found")


def after_places(start: Value, put: Special) -> Rows:
    """Rows put at their places by every round."""
    batch, shape = put.parts
    return Rows((batch.size, *shape), batch=batch)
