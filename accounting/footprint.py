"""What tells the records of a training again, kept without the records: where they lie, and a sketch of their rows.

Kept in the memory of this process alone, under a key drawn for it: no file, statement or ledger holds any of it.
"""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfdp_layers.accounting.columns import Columns, columns_of
from tfdp_layers.accounting.people import People
from tfdp_layers.accounting.predictions import FEWEST, Predicted, predicted_in, remember
from tfdp_layers.accounting.sketch import Sketch, sketch_of

__all__ = ["PLACE", "Footprint", "came_from", "footprint_of", "living", "predicted_for"]

PLACE = "one place"
"""What shows that two data sets are of the same records: the program, whatever the records are."""
Place = tuple[Any, Any]
"""The number, or the file, of what holds the records, and which rows of it; None: all."""


_NONE, _NOTHING = Columns(), Predicted()


@dataclass(frozen=True)
class Footprint:
    """Of the records of one training.

    Attributes:
        places: where they lie.
        sketch: of their rows; None where these cannot be looked at.
        records: how many there are; None where that is not known.
        columns: of them and their labels, known again in a data set of the same rows.
        derived: where the records lie that one of these columns was computed from.
        copies: a sketch of records that are read by index, for copies within them alone: its hashes are no others'.
        predicted: the records that private models predicted values of these columns for.
    """

    places: frozenset[Place] = frozenset()
    sketch: Sketch | None = None
    records: int | None = None
    columns: Columns = _NONE
    derived: frozenset[Place] = frozenset()
    copies: Sketch | None = None
    predicted: Predicted = _NOTHING

    def same_place(self, other: Footprint) -> bool:
        """Whether both are of one object, or of rows of one array that meet: what the program says, not the records."""
        return _met(self.places, other.places)

    def overlaps(self, other: Footprint) -> bool:
        """Whether both are in one place, agree in a column, hold equal rows, or one predictions for the other's."""
        return self.seen(other) is not None

    def seen(self, other: Footprint) -> str | None:
        """What shows that these are of the same records: `PLACE`, or, in words, what is equal. None where nothing does.

        Equal numbers may be other people's all the same: a day's temperature, a product that several people rate.
        """
        equal = self._equal(other)
        return "predictions among the values" if not equal and self._predicted(other) else equal

    def _equal(self, other: Footprint) -> str | None:
        """As `seen`, of the records themselves."""
        if _met(self.places, other.places):
            return PLACE
        if self.sketch is not None and other.sketch is not None and self.sketch.shares(other.sketch):
            return "equal rows"
        derived = _met(self.places | self.derived, other.places | other.derived)
        return "a column of equal values" if derived else self.columns.equal(other.columns)

    def _predicted(self, other: Footprint) -> bool:
        """Whether one holds predictions for records of the other, or both do for the same ones."""
        if self.predicted.shares(other.predicted):
            return True
        pairs = ((made.predicted, one) for made, one in ((self, other), (other, self)) if made.predicted.rows)
        return any(_of(predicted)._equal(one) is not None for predicted, one in pairs)


def footprint_of(
    given: Iterable[Any],
    leaves: Sequence[np.ndarray] | None = None,
    labels: Iterable[Any] = (),
    people: People | None = None,
) -> Footprint:
    """The footprint of records.

    Args:
        given: what the caller gave: arrays, tables, tensors, sources. None of it is kept.
        leaves: the records as arrays (records, ...), numbers or texts; None where they cannot be looked at.
        labels: arrays beside them, (records, ...): equal labels alone make no two places one, but where labels were
            computed from other records, these are in it.
        people: whose the records are, if that is known.
    """
    arrays, beside = [] if leaves is None else list(leaves), list(labels)
    places = set(itertools.chain.from_iterable(map(_places, [*given, *arrays])))
    looked_at = bool(arrays) and len(arrays[0]) and not any(_mapped(one) is not None for one in arrays)
    columns = columns_of(arrays, [one for one in beside if _mapped(one) is None]) if looked_at else _NONE
    places.update(itertools.chain.from_iterable(_places(one)[1:] for one in beside))
    made = columns.telling & _made_columns.keys()
    derived = frozenset(itertools.chain.from_iterable(_made_columns[one] for one in made))
    records = len(arrays[0]) if arrays else None
    sketch = sketch_of(arrays, people) if looked_at else None
    predicted = predicted_in([*arrays, *(one for one in beside if _mapped(one) is None)]) if looked_at else _NOTHING
    _sizes.add(records or 0)
    return Footprint(frozenset(places), sketch, records, columns, derived, predicted=predicted)


def _of(predicted: Predicted) -> Footprint:
    """The records that values were predicted for: where they lie, from the first to the last, and what equals them."""
    held = [(one, rows) for one, rows in predicted.origins]
    places = frozenset((number, _composed(first, rows)) for one, rows in held for number, first in one.places)
    columns = Columns(*(frozenset().union(*some) for some in zip(*(one.columns for one, _ in held), strict=True)))
    return Footprint(places, predicted.sketch(), columns=columns)


def living(footprint: Footprint) -> Footprint:
    """The footprint without the places of objects that are gone: no other one will ever be there."""
    if all(isinstance(number, str) or number in _living for number, _ in footprint.places | footprint.derived):
        return footprint
    computed = [*_origins.values(), *_made_columns.values()]  # what was computed from them
    origins = {number for places in computed for number, _ in places}

    def kept(places: frozenset[Place]) -> frozenset[Place]:
        return frozenset(one for one in places if isinstance(one[0], str) or one[0] in _living or one[0] in origins)

    return replace(footprint, places=kept(footprint.places), derived=kept(footprint.derived))


# Places ---------------------------------------------------------------------------------------------------------------

_known: dict[int, tuple[weakref.ref[Any], int]] = {}
_numbers = itertools.count()
_living: set[int] = set()
_origins: dict[Any, frozenset[Place]] = {}
_made_columns: dict[bytes, frozenset[Place]] = {}
_MOST_COLUMNS = 1024
_sizes: set[int] = set()
"""How many records there were of each data set: columns of as many alone could ever be equal."""


def came_from(made: Any, *given: Any) -> None:
    """Notes that an array was computed row for row from records: from here on it has their places, too.

    So has a table that one of its columns is put into.
    """
    (mine, _), *_ = _places(made)
    _origins[mine] = places = frozenset(itertools.chain.from_iterable(map(_places, given)))
    for column in columns_of([made] if made.ndim and _mapped(made) is None else []).telling:
        _made_columns.pop(column, None)
        _made_columns[column] = places
    for column in [*_made_columns][:-_MOST_COLUMNS]:
        _made_columns.pop(column, None)


def predicted_for(made: Sequence[np.ndarray], given: Sequence[Any]) -> None:
    """Notes that private models predicted arrays for records: whatever data set holds their values, in whatever order,
    part and column, is of these records, too, from here on.

    Args:
        made: arrays, (records, ...).
        given: what the model was given: arrays, tables, tensors, of as many records; others are not looked at.
    """
    for array in made:
        came_from(array, *given)
    looked_at = [held for one in given if (held := _array(one)) is not None]
    told = [array for array in made if array.ndim and len(array) >= FEWEST]
    if told and looked_at and all(len(one) == len(told[0]) for one in (*told, *looked_at)):
        mapped = any(_mapped(one) is not None for one in looked_at)
        columns = columns_of(looked_at) if len(told[0]) in _sizes and not mapped else _NONE
        places = frozenset(itertools.chain.from_iterable(map(_places, given)))
        remember(told, None if mapped else looked_at, Footprint(places, columns=columns))


def _array(one: Any) -> np.ndarray | None:
    """An array, a table or a tensor as an array; None for anything else."""
    try:
        array = np.asarray(one) if hasattr(one, "__array__") and hasattr(one, "shape") else None
    except Exception:  # of whatever kind: what cannot be read is not looked at
        return None
    return array if array is not None and array.ndim else None


def _places(one: Any) -> list[Place]:
    """Where an object lies: itself, the array that it is a view of, and what that was computed from."""
    if not isinstance(one, np.ndarray):
        found = [(_number(one), None)]
        return [(number, rows) for number, rows in found if number is not None]
    file, owner = _mapped(one), one
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    number, rows = _number(owner) if file is None else file, _rows(one, owner)
    if number is None:
        return []
    return [(number, rows), *((origin, _composed(first, rows)) for origin, first in _origins.get(number, ()))]


def _number(one: Any) -> int | None:
    """One number an object, never used again; None for what is made anew at each look, or has no weak references."""
    if one is None or isinstance(one, str | bytes | int | float | list | tuple | dict):
        return None
    held = _known.get(id(one))
    if held is None or held[0]() is not one:
        place, number = id(one), next(_numbers)

        def forget(reference: weakref.ref[Any]) -> None:
            if _known.get(place, (None,))[0] is reference:
                del _known[place]
            _origins.pop(number, None)
            _living.discard(number)

        try:
            held = _known[place] = (weakref.ref(one, forget), number)
        except TypeError:
            return None
        _living.add(number)
    return held[1]


def _mapped(one: np.ndarray) -> str | None:
    """What an array is mapped from; None for one in memory."""
    owner: Any = one
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) and owner.filename is not None:
            return f"file {owner.filename}"
        owner = owner.base
    return "a mapping" if isinstance(owner, mmap.mmap) else None


def _rows(one: np.ndarray, owner: np.ndarray) -> Any:
    """Which rows of its owner a view holds, as a range; where that cannot be said, how it lies in memory."""
    (start, _), (first, _) = one.__array_interface__["data"], owner.__array_interface__["data"]
    if one.ndim and owner.ndim and owner.flags.c_contiguous and owner.strides[0] > 0:
        step, stride = owner.strides[0], one.strides[0]
        if stride and stride % step == 0:
            at, by = (start - first) // step, stride // step
            return range(at, at + by * len(one), by)
    return start, one.shape, one.strides


def _composed(first: Any, then: Any) -> Any:
    """The rows `then` of the rows `first`, which one array was computed from."""
    if not (isinstance(first, range) and isinstance(then, range) and then):
        return first
    rising = then if then.step > 0 else then[::-1]
    return first[rising.start : rising[-1] + 1 : rising.step]


def _met(some: frozenset[Place], others: frozenset[Place]) -> bool:
    return any(_meet(a, b) for a in some for b in others)


def _meet(a: Place, b: Place) -> bool:
    if a[0] != b[0]:
        return False
    if not (isinstance(a[1], range) and isinstance(b[1], range)):
        return bool(a[1] == b[1])
    few, many = sorted((a[1], b[1]), key=len)
    if few.step == many.step == 1:
        return max(few.start, many.start) < min(few.stop, many.stop)
    return any(row in many for row in few)
