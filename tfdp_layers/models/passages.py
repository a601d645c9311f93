"""How a number may leave the code of one callback, and come into that of another, past objects that both hold."""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdp_layers.callbacks.steering import top_of
from tfdp_layers.models.arguments import OPENERS
from tfdp_layers.models.instructions import Code
from tfdp_layers.models.outside import (
    DELETES_FILES,
    LISTS_FILES,
    READS_FILES,
    TELLS,
    are_alike,
    changes,
    draws,
    finds,
    finds_in,
    is_name_of_file,
    is_named,
    is_screen,
    parts_of_names,
    sends,
    tells_a_file,
)

__all__ = ["Passages"]


class Passages:
    """What the code of a callback does with the world: it is all that its functions call and name.

    Functions of libraries are told by their names (`outside`): most compute, or hand out messages. By others a number
    may go where it stays (a file, a server, a module's attribute), and by others it may come in. Attributes that are
    set in objects of others (a layer's, a logger's) are told by theirs.

    Args:
        is_library: whether a package is not the caller's.
        body: whether it is the body of a loop, and not a callback.
    Attributes:
        own: objects of the caller's own, whose attributes are looked at elsewhere.
        sends: whether anything that it calls may take a number out.
        finds: the names of what may bring one in.
    """

    def __init__(self, is_library: Callable[[str], bool], body: bool) -> None:
        self.own: list[Any] = []
        self.sends = False
        self.finds: set[str] = set()
        self._is_library, self._body = is_library, body
        self._looks = self._draws = self._seeds = self._alters = False
        self._asks_environment = self._sets_environment = self._stores = False
        self._files: set[str] = set()
        self._get: set[str] = set()
        self._set: set[str] = set()
        self._codes: list[tuple[Code, dict[str, Any], Any]] = []

    def read(self, code: Code, variables: dict[str, Any], function: Any) -> None:
        """A function of the caller's own; None for the body of a loop."""
        self._codes.append((code, variables, function))

    def call(self, name: str, top: str) -> None:
        """A function of a library that is held somewhere, and so may be called."""
        self.sends |= sends(name)
        self.finds |= {name} if finds(name, top) else set()

    @property
    def changes(self) -> bool:
        """Whether it changes objects of libraries."""
        self._settle()
        return self._alters

    def lead_to(self, other: Passages) -> bool:
        """Whether what leaves here may come in there. Around a loop much is read, its data say: that is left out."""
        self._settle()
        other._settle()
        if self._set & other._get or (self._seeds and other._draws):
            return True
        if other._asks_environment and (self._sets_environment or (self._asks_environment and self._stores)):
            return True
        looks = other._looks and are_alike(self._files, other._files)
        return self.sends and not other._body and (looks or bool(other.finds))

    def _settle(self) -> None:
        if not self._codes:  # once all objects of the caller's own are known
            return
        codes, self._codes = self._codes, []
        for code, variables, function in codes:
            here = {name for name in code.names if name not in variables and hasattr(builtins, name)}
            writes, called = OPENERS - code.opened, code.called | code.names
            self.sends |= any(map(sends, here))
            self.finds |= {name for name in here if finds_in(builtins, name)} - writes
            self._looks |= bool(READS_FILES & called)
            self._files |= parts_of_names([*filter(is_name_of_file, code.texts), *code.places])
            if not DELETES_FILES & called:  # as those do that keep the last files alone
                self.finds |= {
                    n for n in LISTS_FILES & called if not (self._is_own(n) or self._is_callers(variables, n))
                }
            self._stores |= code.stores
            self._asks_environment |= any(variables.get(name) is os.environ for name in code.names)
            for chain in code.chains:
                self._follow(chain, code, self._found(chain[:-1], variables, function), writes)
            held = [self._found(chain[:-1], variables, function) for chain in code.written]
            self._set |= {chain[-1] for chain, one in zip(code.written, held, strict=True) if self._is_others(one)}
            names = {text for text in code.texts if text.isidentifier()}
            self._set |= names if "setattr" in code.names else set()
            self._get |= names if {"getattr", "hasattr"} & code.names else set()
        self._alters |= not self._set <= _DECIDED
        self._set = {name for name in self._set if not (is_named(name) or self._is_own(name))}

    def _follow(self, chain: tuple[str, ...], code: Code, holder: Any, writes: frozenset[str]) -> None:
        """An attribute of a module, or of an object of others."""
        name = chain[-1]
        self._tells_by(name, holder, code)
        if is_screen(holder) or self._is_of_environment(name, holder):
            return
        if isinstance(holder, types.ModuleType):
            if not self._is_library(holder.__name__.partition(".")[0]):
                return
            if draws([holder.__name__, f"{holder.__name__}.{name}"]):
                self._draws, self._seeds = True, self._seeds or "seed" in name or name.startswith("set")
            elif finds_in(holder, name):
                self.sends = True
                self.finds |= {name} - READS_FILES - LISTS_FILES - writes
            else:
                self.sends |= callable(getattr(holder, name)) and sends(name)
        elif self._is_others(holder):
            self._get.add(name)
            if name in code.called and not self._is_own(name):
                self._alters |= changes(name)
                self._seeds |= "seed" in name
                self._set |= {name[3:].lstrip("_").lower()} if changes(name) and name.startswith("set") else set()
                self.sends |= sends(name)
                top = "" if holder is None else top_of(holder if isinstance(holder, type) else type(holder))
                self.finds |= {name} - writes if finds(name, top) else set()

    def _tells_by(self, name: str, holder: Any, code: Code) -> None:
        """What a logger writes into a file, has left."""
        known = logging.root if holder is logging else holder
        if name not in TELLS or not isinstance(known, logging.Logger | logging.LoggerAdapter | None):
            return
        if known is not None or "getLogger" in code.all_names:
            self.sends |= tells_a_file(known)

    def _is_of_environment(self, name: str, holder: Any) -> bool:
        """Whether this is the environment: a number comes in by that where the other one sets it."""
        if holder is os and name in ("environ", "environb", "getenv", "getenvb"):
            self._asks_environment = True
            return True
        self._sets_environment |= holder is os and name in ("putenv", "unsetenv")
        if holder is not os.environ:
            return False
        self._asks_environment = True
        self._sets_environment |= name not in ("copy", "get", "items", "keys", "values")
        return True

    def _is_callers(self, variables: dict[str, Any], name: str) -> bool:
        """Whether a global of this name is the caller's own function."""
        return name in variables and not self._is_library(top_of(variables[name]))

    def _is_others(self, one: Any) -> bool:
        """Whether an object is of a library, or unknown."""
        if one is None:
            return True
        own = isinstance(one, bool | int | float | str | tuple | list | dict | set | np.ndarray | types.FunctionType)
        return not own and one is not _OWN and self._is_library(top_of(one if isinstance(one, type) else type(one)))

    def _is_own(self, name: str) -> bool:
        """Whether objects of the caller's own have an attribute of this name."""
        kinds = [kind for one in self.own for kind in type(one).__mro__ if not self._is_library(top_of(kind))]
        return any(name in getattr(one, "__dict__", ()) for one in (*self.own, *kinds))

    def _found(self, base: tuple[str, ...], variables: dict[str, Any], function: Any) -> Any:
        """What has an attribute, as far as it can be told; None where it cannot."""
        root, *names = base
        if root.startswith("@"):
            found = sys.modules.get(root[1:])
        elif root.startswith("$"):
            found = self._variable(root[1:], function)
        else:
            found = variables.get(root, vars(builtins).get(root))
        for name in names:
            if found is _OWN:
                found = next((vars(o)[name] for o in self.own if name in getattr(o, "__dict__", ())), None)
            else:
                found = getattr(found, "__dict__", {}).get(name)
            if found is None:
                return None
        return found

    @staticmethod
    def _variable(name: str, function: Any) -> Any:
        code = getattr(function, "__code__", None)
        if code is None:
            return None
        around = function.__qualname__.rpartition(".")[0]
        if around and not around.endswith("<locals>") and name == next(iter(code.co_varnames), None):
            return _OWN
        if name in code.co_freevars:
            with contextlib.suppress(ValueError):  # it is not set yet
                return function.__closure__[code.co_freevars.index(name)].cell_contents
        return None


_DECIDED = {"learning_rate", "stop_training", "trainable"}
"""Attributes that are set to decide: `Watch` sees that itself."""
_OWN: Any = object()
"""Stands for the object that a method is of."""
