"""Files that a party's training reads or writes beside its ledger: what one leaves there, another one may not read."""

import os
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfdp_layers.federated.given import Given
from tfdp_layers.federated.together import Identity

__all__ = ["Files", "paths_of"]

_NAMED = re.compile(r"(^|_)(path|folder|prefix|file(path|name|s)?|(log|back|backup|check)?dir(ectory|s)?)($|_)")
_LONGEST = 4096

_noted: "dict[str, weakref.WeakSet[Files]]" = {}
"""By each path: those that may use it."""
_lasting: "dict[Any, Files]" = {}
"""Those with which a turn was taken: what it left lies there for good."""


class Files:
    """Those of one training: all that pipelines cache in, and all that callbacks hold which may name a file.

    Text of a callback counts as a path where its attribute is called so ("filepath"), where it is absolute, or as soon
    as something lies there: before each turn.

    Args:
        model: its name, for messages.
        given: what tells the party from others as long as it is not known which `Party` it is.
        cached: where pipelines cache; and
        held: what callbacks hold, and whether it is a path for sure.

    Raises: ValueError where another party may use one of them.
    """

    def __init__(self, model: str, given: Given, cached: Iterable[str], held: Mapping[str, bool]) -> None:
        self._model, self._given = model, given
        self._sure: dict[str, bool] = {}
        for path, sure in [*((one, True) for one in cached), *held.items()]:
            self._sure[os.path.realpath(path)] = self._sure.get(os.path.realpath(path), False) or sure
        self._party: Identity | None = None
        self._refuse_others(final=False)
        for path in self._sure:
            _noted.setdefault(path, weakref.WeakSet()).add(self)

    def belong_to(self, party: Identity) -> None:
        """Says whose they are. Raises ValueError where another party may use one of them."""
        self._party = self._party or party
        self._refuse_others()

    def used(self) -> None:
        """Notes that a turn begins. Raises ValueError where another party may use one of them."""
        self._refuse_others()
        if self._sure:
            _lasting[self._party or id(self), frozenset(self._sure)] = self

    def _refuse_others(self, final: bool = True) -> None:
        """Raises ValueError where another party may use one; not `final` where it may be the same one's, made anew."""
        for path, sure in self._sure.items():
            for other in list(_noted.get(path, ())):
                later = not final and other._party is not None
                if later or self._is_same_party(other) or not (sure or other._sure[path] or os.path.exists(path)):
                    continue
                raise ValueError(
                    f"The training of model {self._model!r} reads or writes the file {path!r}, by .cache(filename) of"
                    " its data or by a callback, as that of another party does: records, or weights of a turn that"
                    " failed, would go from there into the other one's uploads. Give each party files of its own. (A"
                    " Party that is made anew, with the same name and the same file of its ledger, may use its own.)"
                )

    def _is_same_party(self, other: "Files") -> bool:
        if self is other or self._given.is_same(other._given):
            return True
        return self._party is not None and self._party == other._party


def paths_of(callbacks: Any) -> dict[str, bool]:
    """What callbacks, as `fit` takes them, hold that may name a file, and whether it does for sure."""
    import keras

    found: dict[str, bool] = {}
    for one in keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)):
        for name, value in getattr(one, "__dict__", {}).items():
            for text, sure in _texts(value):
                found[text] = found.get(text, False) or sure or bool(_NAMED.search(name)) or os.path.isabs(text)
    return found


def _texts(value: Any) -> Iterator[tuple[str, bool]]:
    """What may name a file in an attribute, also in lists and dicts; and whether it is a path by its type."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        elif isinstance(one, str | os.PathLike):
            text = os.fsdecode(one)
            if text and len(text) <= _LONGEST and "\0" not in text:
                yield text, not isinstance(one, str)
