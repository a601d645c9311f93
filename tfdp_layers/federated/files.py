"""Files that a party's training reads or writes beside its ledger: what one leaves there, another one may not read."""

import functools
import gc
import io
import itertools
import os
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from tfdp_layers.federated.given import Given
from tfdp_layers.federated.own_code import is_of_libraries

__all__ = ["Files", "paths_of"]

_NAMED = re.compile(
    r"(^|_)([a-z]*path|[a-z]*folder|[a-z]*dir(ectory)?|(log|csv|out|in|back|check|save)?file|filename)s?"
    r"(_(name|prefix|template|pattern))?\d*$"
)
"""Attributes that are called as what holds a path."""
_OF_KERAS = frozenset({"filepath", "filename", "log_dir", "backup_dir"})
"""In Keras' own callbacks; all that their other text names is no path of a file."""
_LONGEST, _MOST, _LEVELS = 1024, 1000, 4
"""Letters of a path; parts that are looked at; objects within each other."""

_noted: "dict[str, weakref.WeakSet[Files]]" = {}
"""By each path: those that may use it."""
_patterns: set[str] = set()
"""Those of them that have braces, and are paths for sure."""
_lasting: "dict[tuple[Any, str], Files]" = {}
"""Those with which a turn was taken: what it left lies there for good."""


class Files:
    """Those of one training: all that pipelines cache in, and all that callbacks hold which may name a file.

    Text counts as a path where its attribute is called so ("filepath"), or as soon as a file lies there: it is looked
    at before and after each turn. Braces ("w{epoch}.h5") stand for any text.

    Args:
        owner: whose they are, as long as it lives.
        model: its name, for messages.
        given: what tells the party from others.
        held: what may name a file, and whether it is a path for sure.

    Raises: ValueError where another party may use one of them.
    """

    def __init__(self, owner: Any, model: str, given: Given, held: Mapping[str, bool]) -> None:
        self._owner, self._model, self._given = weakref.ref(owner), model, given
        self._sure: dict[str, bool] = {}
        self._took = False
        self._add(held)
        self._refuse_others(final=False)
        self._note()

    def settle(self) -> None:
        """Where it is known whose they are. Raises ValueError where another party may use one of them."""
        self._refuse_others()

    def used(self, held: Mapping[str, bool]) -> None:
        """Notes that a turn begins, or ended, with these. Raises ValueError where another party may use one of them."""
        self._add(held)
        self._refuse_others(turn=True)
        self._took = True
        self._note()

    def look(self, held: Mapping[str, bool]) -> None:
        """Notes what the training holds now."""
        self._add(held)
        self._note()

    def _add(self, held: Mapping[str, bool]) -> None:
        for path, sure in held.items():
            real = os.path.realpath(path)
            self._sure[real] = self._sure.get(real, False) or sure

    def _note(self) -> None:
        for path in self._sure:
            _noted.setdefault(path, weakref.WeakSet()).add(self)
            if "{" in path and self._sure[path]:
                _patterns.add(path)
            if self._took:
                _lasting[self._given.party or id(self), path] = self

    def _refuse_others(self, final: bool = True, turn: bool = False) -> None:
        """Raises ValueError where another party may use one; not `final` where it may be the same one's, made anew."""
        for path, sure in self._sure.items():
            for its, other in _users(path, sure):
                later = not final and other._given.party is not None
                if later or self._is_same_party(other, turn):
                    continue
                if not (sure or other._sure.get(its, False) or os.path.isfile(path) or os.path.isfile(its)):
                    continue
                raise ValueError(
                    f"The training of model {self._model!r} reads or writes the file {path!r}, by .cache(filename) of"
                    " its data or by a callback, as that of another party does: records, or weights of a turn that"
                    " failed, would go from there into the other one's uploads. Give each party files of its own. (A"
                    " Party that is made anew, with the same name and the same file of its ledger, may use its own.)"
                )

    def _is_same_party(self, other: "Files", turn: bool) -> bool:
        if self._given.is_same(other._given):
            return True
        if self._given.party is None or self._given.party != other._given.party:
            return False
        if not turn or not other._lives():
            return True
        gc.collect()
        return not other._lives()

    def _lives(self) -> bool:
        """Whether a turn may follow by it: then one of its name without a file of a ledger is another party."""
        return self._owner() is not None


def _users(path: str, sure: bool) -> list[tuple[str, Files]]:
    """Those that may use a path, and as what: text that is a path for sure stands for others by its braces."""
    found = [(path, one) for one in list(_noted.get(path, ()))]
    for its in list(_noted if sure and "{" in path else _patterns):
        if its != path and ((sure and _fits(path, its)) or (its in _patterns and _fits(its, path))):
            found += [(its, one) for one in list(_noted[its])]
    return found


def _fits(pattern: str, path: str) -> bool:
    """Whether a text with braces may become the other one."""
    return path.startswith(pattern.partition("{")[0]) and bool(_pattern(pattern).fullmatch(_BRACES.sub("0", path)))


_BRACES = re.compile(r"\{[^{}]*\}")


@functools.lru_cache(maxsize=1024)
def _pattern(text: str) -> "re.Pattern[str]":
    return re.compile("[^/]*".join(map(re.escape, _BRACES.split(text))))


def paths_of(callbacks: Any) -> dict[str, bool]:
    """What callbacks, as `fit` takes them, hold that may name a file, and whether it does for sure.

    Looked at are the attributes of callbacks, and of objects of own classes that they hold, also in lists and dicts.
    """
    import keras

    found: dict[str, bool] = {}
    seen: dict[int, Any] = {}
    left = deque((one, "", 0) for one in keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)))
    for _ in range(_MOST):
        if not left:
            break
        one, name, level = left.popleft()
        if isinstance(one, str | bytes | os.PathLike):
            text = os.fsdecode(one) if len(os.fspath(one)) <= _LONGEST else ""
            if text.strip("/") and text != os.devnull and "\0" not in text and "\n" not in text:
                sure = isinstance(one, os.PathLike) or bool(_NAMED.search(_spaced(name)))
                found[text] = found.get(text, False) or sure
        elif id(one) not in seen and level <= _LEVELS:
            seen[id(one)] = one
            deeper = ((held, called or name, level + below) for held, called, below in _held_by(one))
            left += itertools.islice(deeper, _MOST)
    return found


def _spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _held_by(one: Any) -> Iterator[tuple[Any, str, int]]:
    """What an object holds, how that is called, and by how many levels deeper it lies."""
    if isinstance(one, dict):
        yield from ((value, key if isinstance(key, str) else "", 0) for key, value in list(one.items()))
    elif isinstance(one, list | tuple | set | frozenset):
        yield from ((value, "", 0) for value in list(one))
    elif isinstance(one, functools.partial):
        yield from ((part, "", 1) for part in (one.func, *one.args, one.keywords))
    elif isinstance(one, types.MethodType):
        yield one.__self__, "", 1
    elif isinstance(one, io.IOBase):
        yield getattr(one, "name", None), "", 1
    else:
        yield from ((value, name, 1) for name, value in _attributes(one))


def _attributes(one: Any) -> Iterator[tuple[str, Any]]:
    """Those of a callback, or of an object of an own class: of the class, too."""
    import keras

    own = [kind for kind in type(one).__mro__ if not _is_of_others(kind)]
    if not own and isinstance(one, keras.callbacks.Callback):
        text = str | bytes | os.PathLike | dict | list | tuple
        yield from ((n, v) for n, v in vars(one).items() if n.lstrip("_") in _OF_KERAS or not isinstance(v, text))
    skipped = keras.Model, keras.layers.Layer, keras.optimizers.Optimizer, keras.utils.PyDataset, type
    if own and not isinstance(one, skipped):
        for kind in own:
            yield from ((name, value) for name, value in vars(kind).items() if not name.startswith("__"))
        yield from list(getattr(one, "__dict__", {}).items())


def _is_of_others(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names or is_of_libraries(kind)
