"""Whether what is given row for row says, by the indexes of pandas, that its rows belong to other records."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfdp_layers.caller import warn

__all__ = ["refuse_other_rows"]

_WHOSE = ("unit_ids", "owners")
_FEW = 8  # the parts of a list that say what it is of
_TOGETHER, _APART = 1.05, 1.25
"""How often another person begins, by the number of people, at most in a sorted table, and at least in others."""


def refuse_other_rows(name: str, records: Any, **beside: Any) -> None:
    """Raises ValueError where pandas' indexes say that a row of `beside` is another record's.

    Rows are matched by place, as Keras matches them. The index is what shows that the places are wrong, as after a
    shuffle or a split of the records alone. Ids that are off by a row protect persons who do not exist, so where
    `unit_ids` or `owners` have an index, all that has one must have the very same: records, labels and weights, each of
    which may be the only one that still tells where its rows were. Where they have none, labels and weights may also
    count from 0, as columns do that were made anew, and so may the records beside them: where both have the same rows
    in two orders, a warning asks. So it does of ids whose index is 0, 1, 2, ... in another order, as a shuffle of the
    whole table leaves it, where nothing else has an index: whether the records were shuffled, too, nobody knows.

    Whatever takes ids gets here through `whose_of`, with all that it was given row for row.

    Args:
        name: of the records, as the caller knows them: "x".
        records: an array, or a dict, list or tuple of them; what has no index is let in.
        beside: labels, weights, `unit_ids` or `owners`, by name.
    """
    columns = [*_columns(name, records)]
    columns += [column for called, given in beside.items() for column in _columns(called, given)]
    whose = any(path.partition("[")[0] in _WHOSE for path, _ in columns)
    if records is not None and columns and all(path.partition("[")[0] in _WHOSE for path, _ in columns):
        _ask_of_shuffled(name, *columns[0])
    for path, column in columns[1:]:
        first, index, other = columns[0][0], columns[0][1].index, column.index
        anew = not whose and (_counts_from_0(index) or _counts_from_0(other))
        if len(index) != len(other) or index.equals(other):
            continue
        if anew and set(index) == set(other):
            warn(
                f"{first} and {path} are matched by place, and their pandas indexes name the same rows in two orders."
                f" Is one of them shuffled? Then {path}.loc[{first}.index] brings both into one order. If the places"
                f" are right, drop the index: {path}.to_numpy()."
            )
        elif not anew:
            at_stake = "a record would be protected as somebody else's" if whose else "a record would get another's"
            raise ValueError(
                f"{first} and {path} are matched by place, and their pandas indexes name different rows: {at_stake}."
                f" Where the indexes are right, bring both into one order, {path}.loc[{first}.index] say. Where the"
                f" places are right, drop the indexes: {path}.to_numpy()."
            )


def _ask_of_shuffled(name: str, path: str, column: Any) -> None:
    places = np.asarray(column.index)
    if places.dtype.kind not in "iu" or places.ndim != 1:
        return
    numbers, order = np.arange(len(places)), np.argsort(places)
    if np.array_equal(places, numbers) or not np.array_equal(places[order], numbers) or _are_sorted(column, order):
        return
    warn(
        f"{path} and {name} are matched by place, and the pandas index of {path} counts from 0 in another order, as a"
        f" shuffle or sort_values leaves it; {name} has no index that tells whether it was moved, too. If both are of"
        f" one table that was shuffled or sorted, give {name} as a table, whose index is compared with that of {path};"
        f" or say that the places are right: {path}.to_numpy(). If {name} was not moved, records are protected as"
        f" somebody else's: {path}.sort_index() brings the ids back into order."
    )


def _are_sorted(column: Any, order: np.ndarray) -> bool:
    """Whether the rows of each person stand together, as in a table that was sorted, and did not before that."""
    ids = np.asarray(column)
    if ids.ndim != 1 or not len(ids):
        return False
    try:
        people = len(set(ids.tolist()))
    except TypeError:  # lists of owners
        return False
    now, before = (1 + int(np.sum(one[1:] != one[:-1])) for one in (ids, ids[order]))
    return now <= _TOGETHER * people and before > _APART * people


def _columns(name: str, given: Any) -> Iterator[tuple[str, Any]]:
    """The columns and tables of pandas, after what the caller would write for them."""
    if hasattr(given, "iloc") and hasattr(getattr(given, "index", None), "equals"):
        yield name, given
    elif isinstance(given, Mapping):
        for key in given:
            yield from _columns(f"{name}[{key!r}]", given[key])
    elif isinstance(given, list | tuple) and any(map(_may_hold, given[:_FEW])):  # else ids, or numbers
        for place, part in enumerate(given):
            yield from _columns(f"{name}[{place}]", part)


def _may_hold(part: Any) -> bool:
    return hasattr(part, "shape") or isinstance(part, Mapping)


def _counts_from_0(index: Any) -> bool:
    """Whether it is the one that pandas makes of nothing: 0, 1, 2, ..."""
    return getattr(index, "start", None) == 0 and getattr(index, "step", None) == 1
