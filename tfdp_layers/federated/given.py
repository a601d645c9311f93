"""What a party gives, compared by its objects, none of which is kept alive."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tfdp_layers.federated.together import Identity

__all__ = ["Given"]


class Given:
    """All that a party gives, part by part: the same objects are one party's.

    The same images with labels of somebody else are another party's. Where files of ledgers tell whose they are, other
    objects of that party are its own, too: it was made anew.

    Attributes:
        party: whose they are, once that is known.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.party: Identity | None = None
        self._parts: tuple[Callable[[], Any], ...] = tuple(map(_weak, parts))

    @property
    def told_by_files(self) -> bool:
        """Whether a party that is made anew is known by its ledgers' files."""
        return self.party is not None and bool(self.party[1])

    def is_same(self, others: "Given") -> bool:
        """Whether they are the same objects, all of which live, or of the same party by its ledgers' files."""
        if self is others or (self.told_by_files and self.party == others.party):
            return True
        if len(self._parts) != len(others._parts):
            return False
        both = list(zip(self._parts, others._parts, strict=True))
        gone = any(isinstance(one, weakref.ref) and one() is None for pair in both for one in pair)
        return not gone and all(one() is other() for one, other in both)


def _weak(part: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(part)
    except TypeError:  # a number or a text, say
        return lambda: part
