"""Data sets that give the items of a source of records: the source itself, or what its Python code reads."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdp_layers.batches.overlaps import may_overlap
from tfdp_layers.batches.places import moved_by
from tfdp_layers.batches.repeats import repeats
from tfdp_layers.batches.steps import is_grain, steps

__all__ = ["data_sets_of", "moved_in", "overlap_in", "repeated_in"]

_DEEPEST, _MOST = 4, 2_000
"""How far, and at how many objects, it is looked: functions call functions."""
_METHODS = types.MethodType | types.BuiltinMethodType | types.MethodWrapperType
_BY_INDEX = {"at", "skip"}
"""What a function calls that reads a pipeline of tf.data by index: `tf.data.experimental.at`, `dataset.skip(index)`."""
_READING = ("__getitem__", "__getitems__", "__call__")


def data_sets_of(*given: Any) -> list[Any]:
    """Data sets of Grain and of tf.data that give the items of a source, or that a function reads them from.

    Found are a source itself; what a bound method, a partial, or a closure is of; what a function reads by name or has
    as a default, of tf.data where it reads by index; and of Grain, attributes of a source, and what the functions of
    its steps hold. Not found: what lists, modules and libraries hold.

    Args:
        given: sources and functions of their items; None is neither.
    """
    found: list[Any] = []
    seen: dict[int, Any] = {}  # the objects, too: another one could get the id of one that is gone
    left = [(one, 0) for one in given]
    while left and len(seen) < _MOST:
        one, depth = left.pop(0)
        if id(one) in seen or depth > _DEEPEST:
            continue
        seen[id(one)] = one
        try:
            held, is_found = [*_held_by(one)], isinstance(one, tf.data.Dataset) or _is_read(one)
        except Exception:  # of anybody's code: classes whose attributes raise when they are looked at
            continue
        found += [one] if is_found else []
        left += [(each, depth + 1) for each in held]
    return found


def repeated_in(data_sets: list[Any], source: Any) -> tuple[bool, str]:
    """Whether one of the data sets that give a source's items is seen to repeat its records, see `repeats`; and the
    class of it, where it is not the source itself.
    """
    found = next(filter(repeats, data_sets), None)
    return found is not None, "" if found is None or found is source else type(found).__name__


def moved_in(*given: Any) -> str:
    """Which operation of a data set that gives these items moves them; empty where none does: see `moved_by`."""
    return next(filter(None, map(moved_by, data_sets_of(*given))), "")


def overlap_in(data_sets: list[Any]) -> bool:
    """Whether one of them puts parts together that may have records in common: see `may_overlap`."""
    return any(map(may_overlap, data_sets))


def _is_read(one: Any) -> bool:
    """Whether it is a data set of Grain with an index: its steps keep statistics, too, which have steps below."""
    return is_grain(one) and hasattr(one, "__getitem__")


def _held_by(one: Any) -> Iterable[Any]:
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, _METHODS):
        return [one.__self__, getattr(one, "__func__", None), *_attributes(one.__self__)]
    if isinstance(one, types.FunctionType):
        return _read_by(one)
    if isinstance(one, tf.data.Dataset | type):
        return []
    if _is_read(one):
        return [each for step in steps(one) for each in vars(step).values() if not is_grain(each)]
    reading = [method for name in _READING if isinstance(method := getattr(type(one), name, None), types.FunctionType)]
    return [*_attributes(one), *reading] if reading else []


def _attributes(one: Any) -> list[Any]:
    """What an object holds. A pipeline of tf.data is not read by index, so that it gives no item: it is left out."""
    return [each for each in getattr(one, "__dict__", {}).values() if not isinstance(each, tf.data.Dataset)]


def _read_by(function: types.FunctionType) -> list[Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    named = [function.__globals__[name] for name in _names_in(function.__code__) if name in function.__globals__]
    held = [*cells, *named, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    by_index = not _BY_INDEX.isdisjoint(_called_in(function.__code__))
    return [one for one in held if by_index or not isinstance(one, tf.data.Dataset)]


def _called_in(code: types.CodeType) -> set[str]:
    """Names of all that a function reads, attributes too, in functions within it, too."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*map(_called_in, inner))


def _names_in(code: types.CodeType) -> set[str]:
    """Names of globals that a function reads, in functions within it, too; names of attributes are none."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    own = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return own.union(*map(_names_in, inner))
