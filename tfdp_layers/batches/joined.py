"""Several owners of a record that were written into one text, and would be taken for one person: "p1; p7"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tfdp_layers.caller import warn

__all__ = ["warn_of_joined"]

_BETWEEN = (";", ",", "|", "\t", "\n", " ")
_AROUND = "[](){}'\" "
_FIRST, _MOST = 10_000, 100_000
"""Ids that are looked at first, and at most."""
_FEWEST, _SHARE = 3, 0.5
_FILLED = 0.1
"""From which share on, of all pairs of a first and a later part, two equal parts tell that these are fields."""


def warn_of_joined(names: Sequence[int | str | bytes], argument: str) -> bool:
    """Warns of ids that seem to be lists of people, and returns whether it did: parts that come again as people do.

    Parts stand between ";", ",", "|", tabs, lines or spaces, also as Python or JSON write a list: "['p1', 'p7']".

    Either several parts are addresses of mail; or most of the ids that have parts are of people who have an id of their
    own besides, "ann", "bob" and "ann;bob"; or the same people come first in some and later in others, "p1 p7" and
    "p7 p2". Names ("Smith, John", "Li Wei") and ids of several fields ("ward 3|bed 7", "3,17") do none of this; nor
    do fields of the same values ("A1|B2"), of which two equal ones come as often as others, as no list names somebody
    twice. Not noticed: other marks; and lists whose members never come alone, of numbers, or of names without numbers
    between commas and spaces (between spaces also where they do): ids of two fields, and full names, look like these.
    Wrongly noticed: few ids of fields that share their values, each with letters, of which no two equal ones come.

    Args:
        names: the distinct ids, all integers, all strings or all bytes.
        argument: how the caller gave them.
    """
    texts = _texts(names)
    between = next((one for one in _BETWEEN if _is_list(texts, one)), None)
    if between is not None:
        around = repr(_AROUND) if any(one[:1] in _AROUND[:-1] for one in texts) else ""
        fix = f"owners=[[part.strip({around}) for part in one.split({between!r})] for one in {argument}]"
        kept = "which fit takes of records that tfdp.preprocessing.limit_owners keeps"
        warn(
            f"Some ids in `{argument}` seem to name several people in one text, with {between!r} between them. Each"
            " such text passes for one more person: who is in several of them, or has records alone besides, is"
            f" protected less than stated. Give a list of owners for each record, {fix}, {kept}. Where each is the id"
            " of one person, nothing is lost."
        )
    return between is not None


def _texts(names: Sequence[int | str | bytes]) -> list[str]:
    """Up to 100,000 of the ids; none of numbers, or of bytes that are no text."""
    if not len(names) or not isinstance(names[0], str | bytes):
        return []
    try:
        some = names[:: -(-len(names) // _MOST)]
        return [one.decode() if isinstance(one, bytes) else str(one) for one in some]
    except UnicodeDecodeError:
        return []


def _is_list(texts: list[str], between: str) -> bool:
    if not any(between in one for one in texts):
        return False
    step = -(-len(texts) // _FIRST)
    return (step > 1 and _names_people(texts[::step], between)) or _names_people(texts, between)


def _names_people(texts: list[str], between: str) -> bool:
    split = [[part.strip(_AROUND) for part in one.split(between) if part.strip(_AROUND)] for one in texts]
    several = [parts for parts in split if len(parts) > 1]
    if any(all("@" in part for part in parts) for parts in several):
        return True
    if len(several) < _FEWEST or _are_fields(several):
        return False
    alone = {parts[0] for parts in split if len(parts) == 1}
    alone = {one for one in alone if between != " " or _is_person(one, between)}
    of_them = sum(all(part in alone for part in parts) for parts in several)
    return of_them >= max(_FEWEST, _SHARE * len(several)) or _changes_places(several, between)


def _are_fields(several: list[list[str]]) -> bool:
    """Whether these are pairs that hold two equal parts as often as two others: no list names somebody twice."""
    pairs = {(parts[0], parts[1]) for parts in several if len(parts) == 2}
    first, later = {one for one, _ in pairs}, {one for _, one in pairs}
    share = len(pairs) / max(1, len(first) * len(later))
    equal, by_chance = sum(one == other for one, other in pairs), share * len(first & later)
    return share >= _FILLED and equal >= _FEWEST and _SHARE * by_chance <= equal <= by_chance / _SHARE


def _changes_places(several: list[list[str]], between: str) -> bool:
    """Whether the same people come first in some lists, and later in others: no fields of an id do."""
    often = Counter(part for parts in several for part in set(parts))
    if max(often.values()) > _SHARE * len(several):  # a word in all of them
        return False
    first, later = {parts[0] for parts in several}, {part for parts in several for part in parts[1:]}
    fewer = min(len(first), len(later))
    both = first & later
    people = [one for one in both if len(one) > 1 and _is_person(one, between)]
    return len(people) >= max(_FEWEST, _SHARE * fewer)


def _is_person(part: str, between: str) -> bool:
    """Whether it is no field of an id, and no first or last name, that comes at several places by chance."""
    numbered = any(map(str.isdigit, part))
    return not part.isdigit() and (numbered or between not in (",", " "))
