"""Which records belong to which people, where a record may belong to several of them."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from tfdp_layers.accounting.grouping import canonical_sets, grouping_of
from tfdp_layers.batches.units import missing, named

__all__ = ["Owners", "checked_limit"]

_MOST_RECORDS = 2**20


class Owners:
    """The owners of each record, one or several; whoever is named twice owns a record once.

    Args:
        owners: (records,) or (records, most) integers or strings, or for each record its owner or a collection of its
            owners, in the order of the records: a dict or a set has another one. None, empty strings, masked entries,
            and NaN among objects stand for nobody: rows are filled up with them.
        records: how many there are; as many as `owners` tells of, if left out.

    Raises: ValueError unless every record has an owner, and all owners are integers, or all strings.

    Attributes:
        names: (owners,) distinct, sorted.
        records, indices: (pairs,): record records[i] belongs to names[indices[i]]; sorted, and no pair comes twice.
        counts: (owners,) how many records each owns, alone or with others.
    """

    def __init__(self, owners: Any, records: int | None = None) -> None:
        rows, found, self._size = _entries(owners, records)
        there = ~missing(found)
        if isinstance(owners, np.ma.MaskedArray):
            masked = np.ma.getmaskarray(owners)
            there &= ~(masked[rows] if masked.ndim == 1 else masked.reshape(-1))
        owned = np.zeros(self._size, bool)
        owned[rows[there]] = True
        if not np.all(owned):
            raise ValueError(
                f"{self._size - int(np.sum(owned))} of the {self._size} records have no owner in `owners`, so they"
                " would protect nobody. Leave these records out, or give each of them an owner of its own."
            )
        self.names, indices = np.unique(named(found[there], "owners"), return_inverse=True)
        pairs = np.sort(rows[there] * len(self.names) + indices.reshape(-1))
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])]
        self.records, self.indices = np.divmod(pairs, len(self.names))
        self.counts = np.bincount(self.indices, minlength=len(self.names))

    def __len__(self) -> int:
        return self._size

    @property
    def starts(self) -> np.ndarray:
        """(records + 1,): the owners of record r are indices[starts[r] : starts[r + 1]]."""
        return np.searchsorted(self.records, np.arange(self._size + 1))

    def grouping(self, secret: str, records: Iterable[bytes] | None = None) -> str:
        """The `grouping` of a release on records of these owners, as `Units.grouping`."""
        return grouping_of(secret, records, [np.array(len(self)), canonical_sets(self.records, self.indices)])

    def refuse_more(self, records_per_owner: int) -> None:
        """Raises ValueError where somebody owns more records than these."""
        most = int(np.argmax(self.counts))
        if self.counts[most] > records_per_owner:
            raise ValueError(
                f"{int(np.sum(self.counts > records_per_owner))} of the {len(self.names)} owners own more than"
                f" records_per_owner={records_per_owner} of the {self._size} records: {self.names[most].item()!r} owns"
                f" {self.counts[most]}. Choose records with kept, report = tfdp.preprocessing.limit_owners(owners,"
                " records_per_owner=...), and train on x[kept], y[kept], owners[kept]; or give a larger"
                " records_per_owner, which costs more. A name that stands for nobody is masked:"
                " np.ma.masked_equal(owners, name)."
            )


def checked_limit(records_per_owner: Any) -> int:
    """The limit as an integer. Raises ValueError unless it is one of at least 1."""
    count = records_per_owner
    if isinstance(count, bool | np.bool_) or not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(
            "`records_per_owner` is how many records one owner owns at most, alone or with others: an integer of at"
            f" least 1. Received: records_per_owner={count!r}."
        )
    if count > _MOST_RECORDS:
        raise ValueError(
            f"records_per_owner={count:,} is beyond {_MOST_RECORDS:,}: no noise hides an owner of so many. Choose fewer"
            " of each: tfdp.preprocessing.limit_owners."
        )
    return int(count)


def _entries(owners: Any, records: int | None) -> tuple[np.ndarray, np.ndarray, int]:
    """The record of each entry, the entries, and how many records there are."""
    if isinstance(owners, str | bytes):
        raise ValueError(
            f"`owners` holds the owners of each record. A column is given itself: owners=table[{owners!r}]."
        )
    if isinstance(owners, Mapping | Set):  # of a dict, its keys would pass for owners: each record would have its own
        raise ValueError(
            f"`owners` holds the owners of each record, in the order of the records. Received: {type(owners).__name__},"
            " which does not say which record each entry is of. Give a list: [owners[record] for record in"
            " range(len(x))], where the keys of a dict are the numbers of the records."
        )
    if hasattr(owners, "__array__"):
        table = np.ma.getdata(owners) if isinstance(owners, np.ma.MaskedArray) else np.asarray(owners)
    else:
        table = _objects(owners)
    if table.ndim not in (1, 2) or not len(table) or len(table) != (len(table) if records is None else records):
        raise ValueError(
            "`owners` holds the owners of each record: shape (records,) or (records, most owners of one), or a list of"
            f" lists. Received shape {table.shape}{'' if records is None else f', for {records} records'}."
        )
    if table.ndim == 1 and table.dtype.kind == "O":
        several = [_of_record(one) for one in table.tolist()]
        rows = np.repeat(np.arange(len(table)), [len(one) for one in several])
        return rows, _objects(name for one in several for name in one), len(table)
    each = table.shape[1] if table.ndim == 2 else 1
    return np.repeat(np.arange(len(table)), each), table.reshape(-1), len(table)


def _of_record(given: Any) -> list[Any]:
    """The owners of one record, given as one or as any collection of them."""
    if isinstance(given, Mapping):
        raise ValueError(
            "A record's entry in `owners` is a dict: whether its keys or its values own the record is not said. Give a"
            " list of owners, list(entry.values()) say."
        )
    if hasattr(given, "__array__") and not isinstance(given, np.ma.MaskedArray | str | bytes):  # tensors, columns
        return list(np.atleast_1d(np.asarray(given)).tolist())
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]


def _objects(values: Any) -> np.ndarray:
    """One object for each value, whatever it holds: (values,)."""
    try:
        listed = list(values)
    except TypeError:
        raise ValueError(f"`owners` holds the owners of each record. Received: {type(values).__name__}.") from None
    found = np.empty(len(listed), object)
    for place, value in enumerate(listed):  # numpy would unpack lists of one length
        found[place] = value
    return found
