"""What is known of a data set that a function of a pipeline makes; see `inner`."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["OF_MANY", "Doubt", "Made"]

OF_MANY = frozenset(("file", "rows", "window"))
"""Kinds of elements of which an element of the flat map's source gives several."""


class Doubt(NamedTuple):
    """What in a function is not known to keep records apart, in words that go on after "a function of a flat map".

    Attributes:
        of: "windows" that overlap; "again", where an element becomes several records.
    """

    reason: str
    of: str = ""


class Made(NamedTuple):
    """A data set within a function.

    Attributes:
        kinds: what its elements are: lines of a "file" that an argument names; "rows" of an argument that may be a
            batch, or "parts" of one record; a "whole" argument, or "all" of one that may be a batch; elements of a
            "window"; a "count"; a small "constant". Beside "file": each an "entry", a line or record of it, or "pieces"
            of these.
        size: how many of these a batch put together, None where that is not known.
        of: the arguments of the outermost function that decide what it holds.
        doubts: what is not known of it.
        zips: the operations that zip elements of several records.
        sources: the tensors that its sources are made of, with what these are.
        direct: whether no function was applied to its elements.
        most: how many elements it has at most, where that is known.
    """

    kinds: frozenset[str]
    size: int | None = 1
    of: frozenset[str] = frozenset()
    doubts: tuple[Doubt, ...] = ()
    zips: tuple[Any, ...] = ()
    sources: frozenset[Any] = frozenset()
    direct: bool = True
    most: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether each element of the flat map's source stays one."""
        return bool(self.kinds & {"whole", "all"}) and not self.kinds & (OF_MANY | {"parts", "count"})

    def doubted(self, reason: str, of: str = "") -> Made:
        return self._replace(doubts=(*self.doubts, Doubt(reason, of)))
