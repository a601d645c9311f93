"""Every kind of release that a ledger counts, and how each is read from a file."""

from collections.abc import Mapping
from typing import Any

from tfdp_layers.accounting.events import KINDS, Release
from tfdp_layers.accounting.numeric_sparse import NumericSparse
from tfdp_layers.accounting.selection import Selection
from tfdp_layers.accounting.token_selection import TokenSelection

__all__ = ["AnyRelease", "groupings_in", "records_released", "release_from_json"]

AnyRelease = Release | NumericSparse | Selection | TokenSelection
"""What a ledger counts. Another one is a class with the same members."""


def release_from_json(value: Mapping[str, Any]) -> AnyRelease:
    """Reads a release of any known kind. Raises ValueError for an unknown kind or invalid fields."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    known: dict[str, Any] = {one.kind: one.from_json for one in (NumericSparse, Selection, TokenSelection)}
    known |= dict.fromkeys(KINDS, Release.from_json)
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(f"Unknown kind of release: {kind!r}. Known kinds: {[*known]}.")
    return known[kind](value)


def records_released(release: AnyRelease) -> tuple[Release | TokenSelection, ...]:
    """The releases of records that it is, or may be made of: none of a party's."""
    if isinstance(release, Release | TokenSelection):
        return (release,)
    return release.releases if isinstance(release, Selection) else ()


def groupings_in(release: AnyRelease) -> tuple[str, ...]:
    """Which records belong together in what it releases, where that is known: see `grouping`."""
    return tuple({one.grouping for one in records_released(release)} - {""})
