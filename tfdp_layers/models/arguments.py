"""What the code of a function gives to functions of some names: how it opens files, and of what it makes paths."""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["OPENERS", "opened_in", "places_in"]

OPENERS = frozenset({"File", "GFile", "HDFStore", "TarFile", "ZipFile", "memmap", "open"})
"""Functions that open a file, and say how by a text."""
_ONLY_WRITE = frozenset({"a", "ab", "at", "w", "wb", "wt", "x", "xb"})
_JOIN = frozenset(
    ("Path", "PurePath", "exists", "isdir", "isfile", "join", "joinpath", "makedirs", "mkdir", "open", "touch")
)
_NAMES = ("LOAD_ATTR", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_NAME")
_PLAIN = ("LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_SMALL_INT")
_BESIDE = frozenset({"CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP", "RESUME"})


class _Call(NamedTuple):
    """A call of a function by its name, and those of its last arguments that are constants or variables."""

    name: str
    constants: list[object]
    only_writes: bool  # whether its way to open is a constant that lets it write, and do nothing else


def opened_in(code: types.CodeType) -> set[str]:
    """The names of `OPENERS` by which this code may do something else than write into a file."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in _BESIDE]
    calls = _calls(steps, OPENERS)
    return {name for name, call in calls if call is None or not call.only_writes}


def places_in(code: types.CodeType) -> set[str]:
    """The texts that this code joins to paths: by `/`, `os.path.join` and their like."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in _BESIDE]
    joined = {one for _, call in _calls(steps, _JOIN) if call is not None for one in call.constants}
    for one, behind in itertools.pairwise(steps):
        divides = behind.opname == "BINARY_TRUE_DIVIDE" or (behind.opname == "BINARY_OP" and behind.argrepr == "/")
        joined |= {one.argval} if one.opname == "LOAD_CONST" and divides else set()
    return {one for one in joined if isinstance(one, str) and 0 < len(one) < 1024}


def _calls(steps: list[dis.Instruction], names: frozenset[str]) -> Iterator[tuple[str, _Call | None]]:
    """The calls of functions of these names; None for one that is named, and called elsewhere or nobody sees how."""
    for place, one in enumerate(steps):
        if one.opname in _NAMES and one.argval in names:
            end = _end_of_call(steps, place)
            yield one.argval, None if end is None else _call_of(steps, place, end)


def _end_of_call(steps: list[dis.Instruction], place: int) -> int | None:
    """Where the function that was loaded here is called."""
    above = 0  # how much lies above it
    for number in range(place + 1, len(steps)):
        one = steps[number]
        try:
            above += dis.stack_effect(one.opcode, one.arg, jump=False)
        except ValueError:
            return None
        if one.opname == "JUMP_FORWARD":  # behind the first of two values, of which one is taken
            above -= 1
        if above <= 0 and one.opname.startswith("CALL"):
            return number
        if above < 0:
            return None
    return None


def _call_of(steps: list[dis.Instruction], place: int, end: int) -> _Call:
    end -= steps[end - 1].opname == "PRECALL"
    first = end
    while first - 1 > place and steps[first - 1].opname.startswith(_PLAIN):
        first -= 1
    given = steps[first:end]
    constants = [one.argval for one in given if one.opname == "LOAD_CONST"]
    name, method = str(steps[place].argval), steps[place].opname in ("LOAD_ATTR", "LOAD_METHOD")
    named_first = first == place + 1 and not method  # what is first is the file's name
    ways = [one.argval for one in given[named_first:] if one.opname == "LOAD_CONST" and isinstance(one.argval, str)]
    if given and steps[first - 1].opname == "JUMP_FORWARD":  # one of two
        other = steps[first - 2]
        ways = ways if other.opname == "LOAD_CONST" and other.argval in _ONLY_WRITE else []
    return _Call(name, constants, bool(_ONLY_WRITE & set(ways)))
