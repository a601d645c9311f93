"""Which records belong together, kept as a digest: so that two trainings that mean different units show as such.

What an epsilon of units promises is about a unit, and which records that is, is said by the ids that a training was
given. Two trainings of one ledger with other ids would be composed into a number that holds for neither's units. So a
release of units or owners brings a `grouping`, a text of three parts:

    KEY:RECORDS:GROUPS    16 hexadecimal digits, 32 (or none, where records are read as they are drawn), 32

GROUPS is a digest of which records belong together, by their places; names of units do not enter. RECORDS is a digest
of up to 64 of the records, to know the same ones again. Both are keyed by a secret: without it they are random numbers
that tell nothing but whether two of them are equal (BLAKE2b with a key is a pseudorandom function), so that nobody can
try out a guess of the ids. KEY tells secrets apart. The secret is one of the process, and stays in it, but for the file
of a `Ledger(path)`, which keeps that of the process that began it: whoever has this file, and knows all ids but one,
could try out the last one.

Whether two trainings had the same groupings is told by the records, without noise: that a patient came once more. So
groupings are no part of what a ledger states, copies, saved models and `to_json()` hold none, and releases that
differ in them alone are equal. They are kept in this process, and in the file beside the secret, for whoever holds the
records: to refuse other units of the same ones. Other groups of as many records, of which nothing else may be known,
bring a warning (`warn_of_regrouping`), by what this process alone remembers.
"""

import functools
import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tfdp_layers.caller import warn

__all__ = [
    "GROUPING",
    "canonical",
    "canonical_sets",
    "check_grouping",
    "forget_groupings",
    "grouping_of",
    "groupings_known",
    "know_groupings",
    "new_secret",
    "refuse_regrouping",
    "sample_of",
    "warn_of_regrouping",
]

GROUPING = re.compile("[0-9a-f]{16}:(?:[0-9a-f]{32})?:[0-9a-f]{32}")
_SAMPLED = 64
_MOST = 10_000
_LARGE = 2.0
"""So many times as many groups of as many records are no groups of other people's, who own about as many each."""
_known: dict[str, dict[str, str]] = {}
"""By the uid of a ledger, and by the records: their grouping."""
_shapes: dict[str, "_Shape"] = {}
_seen: dict[str, dict[str, "_Shape"]] = {}
"""By the grouping, and by the uid of a ledger and the grouping: what this process knows of it."""


class _Shape(NamedTuple):
    """Of a grouping: how many records and groups there are, and how the records look that it was taken of."""

    records: int
    groups: int
    looks: tuple[int, ...]


@functools.cache
def new_secret() -> str:
    """The secret of this process, which every ledger that begins in it gets: 64 hexadecimal digits."""
    return secrets.token_hex(32)


def grouping_of(secret: str, records: Iterable[bytes] | None, groups: Iterable[np.ndarray]) -> str:
    """The `grouping` of records: see the head of this module.

    Args:
        secret: of the ledger, `Ledger.secret`.
        records: what tells them from others (`sample_of`); None where that is not known.
        groups: integers that are equal for groupings that are: see `canonical`.
    """
    key = bytes.fromhex(secret)
    named = _digest(key, b"key", [])[:16]
    sample = None if records is None else list(records)
    known = "" if sample is None else _digest(key, b"records", sample)
    whole = list(groups)
    parts = (repr((one.shape, one.dtype.str)).encode() + one.tobytes() for one in map(np.ascontiguousarray, whole))
    found = f"{named}:{known}:{_digest(key, b'groups', parts)}"
    looks = tuple(len(one) for one in sample or ())
    one_each = whole[0].ndim == 1  # of owners the number of records comes first, then a row for each of them
    records_and_groups = (
        (len(whole[0]), int(whole[0].max(initial=-1)) + 1) if one_each else (int(whole[0]), len(whole[1]))
    )
    _shapes.pop(found, None)
    _shapes[found] = _Shape(*records_and_groups, looks)
    _drop_oldest(_shapes)
    return found


def sample_of(arrays: Iterable[np.ndarray]) -> list[bytes]:
    """What tells records, (records, ...) each, from others: up to 64 rows of each array, far apart, and its shape."""
    found = []
    for array in arrays:
        rows = np.unique(np.linspace(0, max(0, len(array) - 1), _SAMPLED).astype(np.int64))[: len(array)]
        found.append(repr((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array[rows]).tobytes())
    return found


def canonical(labels: np.ndarray) -> np.ndarray:
    """Labels (records,) by the order in which they first come: equal for equal groups, whatever they are called."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    ranks = np.empty(len(first), np.int64)
    ranks[np.argsort(first)] = np.arange(len(first))
    return ranks[inverse.reshape(-1)]


def canonical_sets(records: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Of pairs of a record and an owner: the digests of each owner's records, sorted: (owners, 16) bytes."""
    order = np.lexsort((records, owners))
    ends = np.flatnonzero(np.diff(owners[order])) + 1
    owned = np.split(records[order].astype(np.int64), ends)
    digests = [hashlib.blake2b(one.tobytes(), digest_size=16).digest() for one in owned]
    return np.frombuffer(b"".join(sorted(digests)), np.uint8).reshape(-1, 16)


def know_groupings(uid: str, groupings: Iterable[str]) -> bool:
    """Keeps groupings for the ledger of this uid; returns whether any is new. The 10,000 used last are kept."""
    groupings = list(groupings)
    _seen.setdefault(uid, {}).update({one: _shapes[one] for one in groupings if one in _shapes})
    _drop_oldest(_seen[uid])
    named = {records: one for one in groupings if (records := _records_in(one)) is not None}
    if not named:
        return False
    known = _known.setdefault(uid, {})
    new = bool(named.keys() - known.keys())
    for records, one in named.items():  # those that were used last come last
        known[records] = known.pop(records, one)
    _drop_oldest(known)
    return new


def _drop_oldest(known: dict[str, Any]) -> None:
    while len(known) > _MOST:
        del known[next(iter(known))]


def groupings_known(uid: str) -> list[str]:
    """What is known of the ledger of this uid, its copies included, oldest first."""
    return [*_known.get(uid, {}).values()]


def forget_groupings(uid: str) -> None:
    """Forgets what is known of the ledger of this uid."""
    _known.pop(uid, None)
    _seen.pop(uid, None)


def refuse_regrouping(uid: str, groupings: Iterable[str], unit: str) -> None:
    """Raises ValueError where records that the ledger of this uid was charged for are grouped otherwise now."""
    known = _known.get(uid, {})
    for one in groupings:
        if known.get(_records_in(one) or "", one) != one:
            raise ValueError(
                f"These very records were grouped into other {unit}s when this ledger was charged before: an"
                f" epsilon over both would hold for no {unit} of either. Give the same"
                f" {'owners' if unit == 'owner' else 'unit_ids'}, record by record, in every call on these"
                " records, whatever the names; or use a new ledger, of a new model (and report two guarantees)."
            )


def warn_of_regrouping(uid: str, groupings: Iterable[str], unit: str) -> None:
    """Warns where the ledger of this uid was charged, in this process, for as many records in other groups.

    It needs no records: a metric has none, and a column of a table is none of its rows. Records that look alike, as the
    folds of a cross-validation do, are told of where these are twice as many groups, or half as many, and others where
    none of the groups known of as many records is the same.
    """
    known = _seen.get(uid, {})
    for one in groupings:
        shape = _shapes.get(one)
        alike = {
            groups: other
            for groups, other in known.items()
            if shape and groups[:16] == one[:16] and other.records == shape.records
        }
        if not shape or not alike or any(groups[-32:] == one[-32:] for groups in alike):
            continue
        same = [other.groups for other in alike.values() if other.looks == shape.looks]
        if any(max(n, shape.groups) < _LARGE * min(n, shape.groups) for n in same):
            continue  # other people's, of another fold say
        name = "owners" if unit == "owner" else "unit_ids"
        warn(
            f"This ledger was charged before for as many records, {shape.records:,}, and they were in other {unit}s:"
            f" {max(other.groups for other in alike.values()):,} of them, where these are in {shape.groups:,}. If these"
            f" are the same records, an epsilon over both holds for no {unit} of either: give the same {name}, record"
            " by record, in every call on them, or use another ledger, and report two guarantees. Where these are other"
            " people's records, nothing is lost."
        )


def _records_in(grouping: str) -> str | None:
    """Which records a grouping is of, as far as its secret tells; None where that is not known."""
    return None if "::" in grouping else grouping[:-32]


def check_grouping(grouping: Any, unit: str) -> None:
    """Raises ValueError unless it is a text that `grouping_of` gives, of units or owners, or empty."""
    if not isinstance(grouping, str) or (grouping and (unit == "record" or not GROUPING.fullmatch(grouping))):
        raise ValueError(f"grouping must be what grouping_of gives, and empty for records. Received: {grouping!r}.")


def _digest(key: bytes, what: bytes, parts: Iterable[Any]) -> str:
    found = hashlib.blake2b(key=key, person=what, digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()
