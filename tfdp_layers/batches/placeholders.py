"""Ids that protect nobody: one that stands for people whose ids are missing, ids that are all different, and lists."""

import re

import numpy as np

from tfdp_layers.batches.joined import warn_of_joined
from tfdp_layers.caller import warn

__all__ = ["placeholder_in", "warn_of_names"]

_WORDS = re.compile(
    r"[-?.\s]*|-1|-99+|n/a|na|<na>|nan|nat|none|null|nil|missing|unknown|other|anonymous|undefined|unspecified|unassigned"
    r"|not available|not known|tbd|xxx"
)
"""What stands in the place of a missing id, in small letters."""
_EXTREME = {np.iinfo(kind).min for kind in (np.int32, np.int64)} | {
    np.iinfo(kind).max for kind in (np.int32, np.uint32, np.int64, np.uint64)
}
"""What -1 and NaN become where they are cast to other integers."""
_MOST, _TIMES, _UNITS = 20, 10, 5


def placeholder_in(names: np.ndarray, counts: np.ndarray) -> int | None:
    """Which id seems to stand for people without one, by its place; None where none does.

    One of several records that is -1 or -999, a word for nothing ("unknown", "nan"), or the smallest or largest
    integer; or one that owns 20 records or more, and ten times those of any other, out of five ids or more.

    Args:
        names: (units,) distinct ids.
        counts: (units,) how many records each owns.
    """
    several = np.flatnonzero(counts > 1)
    for place in several.tolist():
        if _stands_for_nobody(names[place].item()):
            return int(place)
    if len(counts) >= _UNITS:
        second, most = np.partition(counts, -2)[-2:]
        if most >= max(_MOST, _TIMES * second):
            return int(np.argmax(counts))
    return None


def _stands_for_nobody(name: int | str | bytes) -> bool:
    if isinstance(name, int):
        return name in _EXTREME or bool(_WORDS.fullmatch(str(name)))
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return bool(_WORDS.fullmatch(text.strip().casefold()))


def warn_of_names(names: np.ndarray, counts: np.ndarray, argument: str, one_each: bool) -> None:
    """Warns of ids, or owners, that seem to protect nobody, or several people as one.

    Args:
        names, counts: as of `placeholder_in`.
        argument: how the caller gave them, "unit_ids" or "owners".
        one_each: whether each record has one name, and it is news where all are different.
    """
    place = placeholder_in(names, counts)
    if place is not None:
        warn(
            f"The id {names[place].item()!r} owns {counts[place]:,} of the records. If it stands for people whose ids"
            " are missing, they are taken for one person: hardly drawn, and whoever has records under an id of their"
            " own besides is protected less than stated. Leave these records out, or give each of them an id of its"
            " own. Where it is one person, nothing is lost."
        )
    if warn_of_joined(names.tolist(), argument):
        return
    if one_each and len(counts) > 1 and np.max(counts) == 1:
        warn(
            f"Each of the {len(counts):,} records has an id of its own in `{argument}`, so nothing is grouped: the"
            " guarantee is one for single records. If these are numbers of rows, visits or measurements, give the ids"
            " of the people. Where everybody has one record, nothing is lost."
        )
