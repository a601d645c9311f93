"""Which records are held out, and which fold each is in: by their own id alone, whatever other records there are."""

import hashlib
from typing import Any

import numpy as np

from tfdp_layers.batches.joined import warn_of_joined
from tfdp_layers.batches.spellings import warn_of_spellings
from tfdp_layers.batches.units import as_ids, one_a_record
from tfdp_layers.caller import warn
from tfdp_layers.sampling.base import whole_number

__all__ = ["folds", "held_out"]

_LEVELS = 2**64
_MANY = 20
"""People who are expected somewhere where nobody is: by chance that happens once in e^20 times."""


def held_out(ids: Any, share: float = 0.2, *, salt: str = "") -> np.ndarray:
    """Which records are held out: those of about a `share` of the people, each with all records of theirs.

    Guarantee: whether a record is held out depends on its own id, on `share` and on `salt`, and on nothing else: one
    person more or less moves no other person's record from one side to the other. A shuffle does, also one with a seed
    (`train_test_split(random_state=0)`, `validation_split`), so that one person's presence decides whose others are
    trained on, which no epsilon covers. It costs nothing. What is held out of private records is private: an accuracy
    on it is released by `tfdp.release_metric`.

    An id is its text: 5, "5" and b"5" are one, and "5.0" is another (a warning says so where all are written so). How
    many are held out is not exactly the share, but off by about sqrt(share (1 - share) people); the more unequally
    people own records, the more of these.

    Args:
        ids: (records,) or (records, 1) integers or strings, none missing: of the person, or of the record where nobody
            has several. A number of the row in the table is none: a row less moves all that follow.
        share: of the people, between 0 and 1.
        salt: another text gives another split. A split inside of another needs one: by the same salt nobody of those
            who were not held out is held out. Of `folds` this split is independent as it is. Settle it beforehand: a
            split that was chosen by what came out is not each record's own.

    Returns: (records,) booleans, True where held out.
    Raises: ValueError for ids or settings that cannot be used.

    Example:
        test = tfdp.preprocessing.held_out(patients, 0.2)
        model.fit(x[~test], y[~test], unit_ids=patients[~test], callbacks=[budget])
    """
    if isinstance(share, bool) or not isinstance(share, int | float | np.floating) or not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1, as 0.2 for a fifth. Received: share={share!r}.")
    places = _places(ids, salt, "")
    found = np.asarray(places < np.uint64(int(float(share) * _LEVELS)))
    _warn_of_empty(["held out"] * (not found.any()) + ["left over"] * bool(found.all()), min(share, 1 - share), places)
    return found


def folds(ids: Any, count: int = 5, *, salt: str = "") -> np.ndarray:
    """The fold of each record, 0 to `count` - 1: all records of a person in one, chosen by the id alone.

    Guarantee: as for `held_out`; of about equally many people each. All trainings of a cross-validation need one
    ledger: each person is in all but one of them.

    Args:
        ids, salt: as for `held_out`, of which these folds are independent, whatever the salt; folds inside of a fold
            need another one.
        count: at least 2.

    Returns: (records,) int64.
    Raises: ValueError for ids or settings that cannot be used.

    Example:
        fold = tfdp.preprocessing.folds(patients, 5)
        cross_val_score(wrapper, x, y, cv=sklearn.model_selection.PredefinedSplit(fold), params={"callbacks": [budget]})
    """
    count = whole_number("count", count, minimum=2)
    places = _places(ids, salt, "folds")
    found = np.array([place * count // _LEVELS for place in places.tolist()], np.int64)
    empty = np.flatnonzero(np.bincount(found, minlength=count) == 0) if len(places) >= _MANY * count else ()
    _warn_of_empty([f"in fold {number}" for number in empty], 1 / count, places)
    return found


def _warn_of_empty(where: list[str], share: float, places: np.ndarray) -> None:
    """Warns of parts where nobody is, though each was to have a share of many people."""
    people = len(np.unique(places)) if where else 0
    if share * people >= _MANY:
        warn(
            f"Nobody of {people:,} people is {where[0]}: they are a part of another split with this salt, it seems,"
            " by which each id has the same place again. Give another text to a split inside of another:"
            " salt='second split'. Where that is meant, nothing is lost."
        )


def _places(ids: Any, salt: Any, purpose: str) -> np.ndarray:
    """A place for each id between 0 and 2^64, evenly spread, and always the same for one purpose: (ids,) uint64."""
    if not isinstance(salt, str):
        raise ValueError(f"salt must be a text, such as 'second split'. Received: salt={salt!r}.")
    if isinstance(ids, str | bytes) or np.ndim(as_ids(ids)) == 0:
        raise ValueError(f"ids must hold one id for each record: ids=table['patient']. Received: ids={ids!r}.")
    found = one_a_record(ids, len(ids), "ids").tolist()
    warn_of_joined(found, "ids")
    warn_of_spellings(found, "ids")
    _warn_of_numbers(found)
    start, digests = hashlib.blake2b(salt.encode() + b"\0", digest_size=8, person=purpose.encode()), []
    for one in found:
        digest = start.copy()
        digest.update(one if isinstance(one, bytes) else str(one).encode())
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def _warn_of_numbers(ids: list[Any]) -> None:
    """Warns of ids of text that are all whole numbers with ".0" behind them. They are private: it quotes none."""
    if not ids or not isinstance(ids[0], str | bytes):
        return
    end = b".0" if isinstance(ids[0], bytes) else ".0"
    if all(one.endswith(end) and one[:-2].isdigit() for one in ids):
        warn(
            "All `ids` are whole numbers with .0 behind them, as pandas writes numbers of a column where one was"
            " missing. An id is its text: '7.0' has another place than '7', so a table where none is missing is split"
            " otherwise, and who is held out of one is trained on in the other. Read them as text,"
            " pandas.read_csv(..., dtype={'patient': str}), or as 'Int64'; or write"
            " [one.removesuffix('.0') for one in ids]. Where ids are written so everywhere, nothing is lost."
        )
