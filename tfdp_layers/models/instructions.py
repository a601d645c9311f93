"""What the code of a Python function names: variables, attributes and strings, and whether it sets any of them."""

from __future__ import annotations

import dis
import functools
import sys
import types
from dataclasses import dataclass, fields
from typing import Any

from tfdp_layers.models.arguments import opened_in, places_in

__all__ = ["Code", "code_of", "is_text"]


@dataclass(frozen=True)
class Code:
    """What the code of a function names, with that of the functions inside."""

    names: frozenset[str] = frozenset()  # globals
    named: frozenset[str] = frozenset()  # globals that it sets
    kept: frozenset[str] = frozenset()  # variables of functions around it that it sets
    attributes: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()  # attributes that it sets
    called: frozenset[str] = frozenset()  # methods
    modules: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    chains: frozenset[tuple[str, ...]] = frozenset()  # of attributes that it reads: see `_Chains`
    written: frozenset[tuple[str, ...]] = frozenset()  # of those that it sets
    opened: frozenset[str] = frozenset()  # functions as `open`, where a call may do something else than write
    places: frozenset[str] = frozenset()  # texts that are joined to paths
    stores: bool = False  # whether it sets items, or yields

    def __or__(self, other: Code) -> Code:
        return Code(*(getattr(self, one.name) | getattr(other, one.name) for one in fields(self)))

    @property
    def all_names(self) -> frozenset[str]:
        return self.names | self.attributes


_OPERATIONS = {
    "LOAD_GLOBAL": "names", "LOAD_NAME": "names", "LOAD_FROM_DICT_OR_GLOBALS": "names",
    "STORE_GLOBAL": "named", "DELETE_GLOBAL": "named", "STORE_DEREF": "kept", "DELETE_DEREF": "kept",
    "LOAD_ATTR": "attributes", "LOAD_METHOD": "attributes", "LOAD_SUPER_ATTR": "attributes",
    "IMPORT_FROM": "attributes", "IMPORT_NAME": "modules", "STORE_ATTR": "stored", "DELETE_ATTR": "stored",
}  # fmt: skip
"""Of Python 3.10 to 3.13."""


@functools.lru_cache(maxsize=1024)
def code_of(code: types.CodeType, outermost: bool = True) -> Code:
    """Reads the instructions of a function, once."""
    found: dict[str, set[Any]] = {one.name: set() for one in fields(Code) if one.name != "stores"}
    stores, chains = False, _Chains(found["chains"], found["written"])
    before = [""] * 2
    for one in dis.get_instructions(code):
        operation = one.opname
        chains.follow(operation, one.argval)
        if operation in _OPERATIONS:
            found[_OPERATIONS[operation]].add(one.argval)
        if operation == "STORE_NAME" and outermost:  # of a module
            found["named"].add(one.argval)
        if operation == "LOAD_METHOD" or (sys.version_info >= (3, 12) and operation == "LOAD_ATTR" and one.arg & 1):
            found["called"].add(one.argval)
        if operation == "LOAD_ATTR" and ("NULL" in before[1] or before[0] == "PUSH_NULL"):  # of a module
            found["called"].add(one.argval)
        before = [before[1], f"{operation} {one.argrepr}" if operation in ("LOAD_GLOBAL", "LOAD_NAME") else operation]
        in_place = operation.startswith("INPLACE_") or (operation == "BINARY_OP" and one.argrepr.endswith("="))
        stores |= in_place or operation in ("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR", "YIELD_VALUE")
    found["opened"], found["places"] = opened_in(code), places_in(code)
    whole = Code(**{name: frozenset(held) for name, held in found.items()}, stores=stores)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            whole |= code_of(constant, False)
        else:
            texts = constant if isinstance(constant, tuple) else (constant,)
            whole |= Code(texts=frozenset(filter(is_text, texts)))
    return whole


class _Chains:
    """Follows attributes of attributes from where they begin, through variables too, as far as one can read them off.

    A chain begins with the name of a global, "$" and the name of another variable, "@" and that of a module that the
    function imports, or "" where it is of something that was computed.
    """

    def __init__(self, read: set[tuple[str, ...]], written: set[tuple[str, ...]]) -> None:
        self._read, self._written = read, written
        self._now: tuple[str, ...] | None = None
        self._doubled: tuple[str, ...] | None = None
        self._held: dict[str, tuple[str, ...]] = {}

    def follow(self, operation: str, argument: Any) -> None:
        """One instruction after the other."""
        before, now = self._now, None
        if operation in _ATTRIBUTES:
            now = (*(before or ("",)), argument)
            self._read.add(now)
        elif operation == "STORE_ATTR":
            self._written.add((*(before or self._doubled or ("",)), argument))
        elif operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            now = (argument,)
        elif operation == "IMPORT_NAME":
            now = (f"@{argument}",)
        elif "LOAD_FAST" in operation or operation in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            name = argument[-1] if isinstance(argument, tuple) else argument
            now = self._held.get(name, (f"${name}",))
        elif operation in ("STORE_FAST", "STORE_DEREF") and before is not None:
            self._held[argument] = before
        elif operation in _BESIDE:
            now = before
        if operation in ("COPY", "DUP_TOP"):  # as `one.number += 1` begins
            self._doubled = before
        self._now = now


_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
_BESIDE = frozenset({"CACHE", "COPY", "DUP_TOP", "EXTENDED_ARG", "NOP", "POP_TOP", "PUSH_NULL", "ROT_TWO", "SWAP"})
"""Instructions that leave an object where it is."""


def is_text(value: Any) -> bool:
    """Whether it may be the name of an attribute or of a file."""
    return isinstance(value, str) and 0 < len(value) < 1024 and "\0" not in value
