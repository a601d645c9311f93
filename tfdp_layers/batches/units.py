"""Which records belong to one unit of privacy (a person, a household), and how some of them are chosen."""

import numbers
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tfdp_layers.accounting.grouping import canonical, grouping_of
from tfdp_layers.batches.rows import absent

__all__ = ["Units", "each_as", "missing", "named", "one_id_each"]


class Units:
    """Draws one record of each drawn unit, or several that enter a step together.

    Guarantee: whatever records a unit owns, a draw holds at most so many of them, in the unit's own rows, so that what
    they add together can be bounded as one record's gradient is; which ones depends on the unit's own records and on
    fresh randomness alone.

    Args:
        ids: (records,) or (records, 1) integers or strings; records of equal id belong to one unit.

    Raises: ValueError unless there is one id a record; missing ones (None, NaN, empty strings) are none.
    """

    def __init__(self, ids: Any, records: int) -> None:
        ids = one_a_record(ids, records)
        self._names, positions, self._counts = np.unique(ids, return_inverse=True, return_counts=True)
        self._positions = positions.reshape(-1)
        self._order = np.argsort(self._positions, kind="stable")
        self._starts = np.cumsum(self._counts) - self._counts

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def positions(self) -> np.ndarray:
        """Which unit each record belongs to: (records,) integers."""
        return self._positions

    @property
    def names(self) -> np.ndarray:
        """The distinct ids, sorted: (units,)."""
        return self._names

    @property
    def counts(self) -> np.ndarray:
        """How many records each unit owns: (units,)."""
        return self._counts

    def grouping(self, secret: str, records: Iterable[bytes] | None = None) -> str:
        """The `grouping` of a release on these units: see `accounting.grouping`.

        Args:
            secret: of the ledger that is charged.
            records: what tells the records from others, `sample_of`; None where that is not known.
        """
        return grouping_of(secret, records, [canonical(self._positions)])

    def choose(self, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The index of one record, chosen uniformly, of each of these units (distinct positions in 0 ... len - 1)."""
        return self._order[self._starts[units] + rng.integers(0, self._counts[units])]

    def choose_several(self, units: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Up to `count` records of each of these units, chosen uniformly without replacement: (units, count).

        A unit with fewer records enters with all of them; its other rows hold some of the same, marked `absent`.
        Source: Floyd's sampling (Bentley and Floyd 1987, "A sample of brilliance", CACM 30(9)), for all units at once.
        """
        owned = self._counts[units]
        chosen = np.zeros((len(units), count), np.int64)
        for place in range(count):
            # The last index that this place may get; it is taken where the one that was drawn is chosen already.
            last = owned - np.minimum(count, owned) + place
            there = last < owned
            drawn = rng.integers(0, np.where(there, last, 0) + 1)
            taken = np.any(chosen[:, :place] == drawn[:, np.newaxis], axis=1)
            chosen[:, place] = np.where(there, np.where(taken, last, drawn), 0)
        records = self._order[self._starts[units][:, np.newaxis] + chosen]
        return np.where(np.arange(count) < owned[:, np.newaxis], records, absent(records))

    def one_each(self) -> np.ndarray:
        """The index of one record of every unit, chosen uniformly and afresh: (units,), rising."""
        return np.sort(self.choose(np.arange(len(self)), np.random.default_rng()))

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean of each unit's values: (records,) to (units,), float64, within the range of the unit's values."""
        # Divided first: a sum of quotients can't overflow; clamped because each addition is rounded.
        least, most = (np.full(len(self), start) for start in (np.inf, -np.inf))
        np.minimum.at(least, self._positions, values)
        np.maximum.at(most, self._positions, values)
        means = np.bincount(self._positions, values / self._counts[self._positions], len(self))
        return np.clip(means, least, most)


def one_a_record(ids: Any, records: int, argument: str = "unit_ids") -> np.ndarray:
    """The ids as (records,) integers or strings. Raises ValueError, with the fix, for anything else."""
    masked = np.ma.count_masked(ids) if isinstance(ids, np.ma.MaskedArray) else 0
    found = as_ids(ids)
    if found.shape == (records, 1):  # a column, as Keras takes labels
        found = found[:, 0]
    if found.shape != (records,):
        fix = (
            " Of ids in several columns make one, for example by joining them with '/'; where each record belongs to"
            " several people, give them to fit as owners=."
        )
        more = (
            " Of an item that a .filter drops there is no record, and no id: of a Grain data set give"
            f" {argument}=[one for i, one in enumerate(ids) if source[i] is not None]."
        )
        fix = fix if found.ndim > 1 else more if found.ndim == 1 and len(found) > records else ""
        fix = f" A column is given itself: {argument}=table[{ids!r}]." if isinstance(ids, str) else fix
        raise ValueError(
            f"`{argument}` must hold one id for each of the {records} records, shape ({records},). Received shape"
            f" {found.shape}.{fix}"
        )
    holes = masked or int(np.sum(missing(found)))
    if holes:
        raise ValueError(
            f"{holes} of the {records} `{argument}` are missing (None, NaN or empty), and records without an owner"
            " would be protected as those of one more unit. Leave these records out, or give each of them an id of its"
            " own."
        )
    return named(found, argument)


def one_id_each(name: str) -> str:
    """What to give in the place of the name of an entry, to records that are read by index."""
    return (
        "Give one id a record, in the order of the records:"
        f" unit_ids=[source[i][0][{name!r}] for i in range(len(source))] where it is an entry of x, which the transform"
        " leaves out (and without the items that a .filter of Grain drops, which are None)."
    )


def each_as(expression: str, argument: str) -> str:
    """What to write to change all ids: `expression` makes of `one` what it should be.

    Owners stand in lists of lists, or in one list: of them it is told in words, as one way of writing is wrong for the
    other.
    """
    return f"each name `one` in owners as {expression}" if argument == "owners" else f"[{expression} for one in ids]"


_PLAIN: dict[type, Callable[[Any], Any]] = {
    str: lambda one: "".join([one]),
    bytes: lambda one: b"".join([one]),
    numbers.Integral: operator.index,
}
"""What an id is, whatever its class makes of it elsewhere: NumPy writes the member `A = "a"` of an Enum as "N.A"."""


def as_ids(ids: Any) -> np.ndarray:
    """Ids as an array, a list of objects one by one where NumPy would make two of them alike: 1 and "1", 1 and True."""
    if isinstance(ids, list | tuple) and any(isinstance(one, str | bytes | bool | np.bool_) for one in ids):
        found = np.empty(len(ids), object)
        for place, one in enumerate(ids):  # NumPy would unpack collections of one length
            found[place] = one
    else:
        found = np.asarray(ids)
    wrapped = [_is_wrapped(one) for one in found.flat] if found.dtype.kind == "O" else []
    if any(wrapped) and not all(wrapped):
        raise ValueError(
            "Some ids are tensors or arrays of one value, and others are not. Take the values out: [np.asarray(one)[()]"
            " if hasattr(one, '__array__') else one for one in ids]."
        )
    if wrapped and all(wrapped):
        values = np.empty(found.size, object)
        for place, one in enumerate(found.flat):
            values[place] = np.asarray(one)[()]
        found = values.reshape(found.shape)
    return found


def _is_wrapped(one: Any) -> bool:
    """Whether it is a tensor, or an array, of one id, and no scalar of NumPy."""
    return hasattr(one, "__array__") and not isinstance(one, np.generic) and np.ndim(one) == 0


def named(ids: np.ndarray, argument: str) -> np.ndarray:
    """Ids (n,), none of them missing, as integers or strings. Raises ValueError, with the fix, for anything else."""
    if ids.dtype.kind == "O":  # what pandas makes of strings, and of integers that once had holes
        values = ids.tolist()
        for kind, plain in _PLAIN.items():
            if all(isinstance(one, kind) and not isinstance(one, bool) for one in values):
                plains = [plain(one) for one in values]
                _refuse_trailing_zeros(plains, argument)
                ids = np.array(plains)
                break
    if ids.dtype.kind == "O" and any(isinstance(one, Iterable) and not isinstance(one, str | bytes) for one in ids):
        raise ValueError(
            f"`{argument}` must be integers or strings, and some of these are collections. Turned into strings, each"
            " combination of people would pass for a person of its own. Where a record belongs to several people, give"
            " owners=, with a list of integers or strings for each record."
        )
    kinds = sorted({type(one).__name__ for one in ids}) if ids.dtype.kind == "O" else []
    if len(kinds) > 1:
        # str(b"p7") would be "b'p7'": another id than "p7", so that one person would be two
        encoded = any(isinstance(one, bytes) for one in ids)
        text = "one.decode() if isinstance(one, bytes) else str(one)" if encoded else "str(one)"
        raise ValueError(
            f"`{argument}` must be integers or strings, all of one kind. Received: {', '.join(kinds)}. Whether 1 and"
            f" '1' are one person is for you to say. Convert them: {each_as(text, argument)}, if that keeps different"
            " ids apart and writes one person's alike."
        )
    if ids.dtype.kind not in "iuSU":
        fix = each_as("int(one)" if ids.dtype.kind in "fb" else "str(one)", argument)
        fix += ", or str(one) of integers beyond 2^63" if ids.dtype.kind == "f" else ""
        fix += " (pandas: .astype('Int64'), where some are missing)" if fix[0] != "[" and ids.dtype.kind == "f" else ""
        raise ValueError(
            f"`{argument}` must be integers or strings. Received: dtype {ids.dtype}. Convert them: {fix}, if that"
            " keeps different ids apart."
        )
    return ids


def _refuse_trailing_zeros(ids: list[Any], argument: str) -> None:
    """Raises ValueError for strings that end in zero characters: NumPy's arrays drop them, and two people are one."""
    ending = [one for one in ids if isinstance(one, str | bytes) and one[-1:] in ("\0", b"\0")]
    if ending:
        fix = "one.rstrip(b'\\0')" if isinstance(ending[0], bytes) else "one.rstrip('\\0')"
        raise ValueError(
            f"{len(ending)} of the `{argument}` end in a zero character, as {ending[0]!r}: NumPy drops it, and then"
            f" different ids may be one. Give text without it: {each_as(fix, argument)}, if that keeps different ids"
            " apart."
        )


def missing(ids: np.ndarray) -> np.ndarray:
    """Which are None, an empty string, or what does not equal itself: NaN, pandas' NA and NaT. (n,) booleans."""
    if ids.dtype.kind in "SU":
        return np.asarray(ids == ids.dtype.type())
    if ids.dtype.kind in "fOmM":
        return np.fromiter(map(_is_missing, ids.tolist()), bool, len(ids))
    return np.zeros(len(ids), bool)


def _is_missing(one: Any) -> bool:
    try:
        return one is None or one in ("", b"") or not bool(one == one)
    except TypeError:  # pandas' NA
        return True
    except ValueError:  # an array, which is there
        return False
