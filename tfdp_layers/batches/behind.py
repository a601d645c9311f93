"""Data sets that give the items of a source of records: the source itself, or what its Python code reads."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdp_layers.batches.places import moved_by
from tfdp_layers.batches.repeats import repeats
from tfdp_layers.batches.steps import is_grain, steps

__all__ = ["data_sets_of", "moved_in", "repeated_in"]

_DEEPEST, _MOST = 4, 2_000
"""How far, and at how many objects, it is looked: functions call functions."""
_METHODS = types.MethodType | types.BuiltinMethodType | types.MethodWrapperType
_READING = ("__getitem__", "__getitems__", "__call__")


def data_sets_of(*given: Any) -> list[Any]:
    """Data sets of Grain and of tf.data that give the items of a source, or that a function reads them from.

    Found are a source itself; what a bound method, a partial, or a closure is of; what a function reads by name or has
    as a default; and of Grain, attributes of a source, and what the functions of its steps hold. Not found: what lists,
    modules and libraries hold.

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
        found += [one] if isinstance(one, tf.data.Dataset) or _is_read(one) else []
        left += [(each, depth + 1) for each in _held_by(one)]
    return found


def repeated_in(*given: Any) -> bool:
    """Whether one of the data sets that give these items is seen to repeat its records: see `repeats`."""
    return any(map(repeats, data_sets_of(*given)))


def moved_in(*given: Any) -> str:
    """Which operation of a data set that gives these items moves them; empty where none does: see `moved_by`."""
    return next(filter(None, map(moved_by, data_sets_of(*given))), "")


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
    return [*cells, *named, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _names_in(code: types.CodeType) -> set[str]:
    """Names of globals that a function reads, in functions within it, too; names of attributes are none."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    own = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return own.union(*map(_names_in, inner))
