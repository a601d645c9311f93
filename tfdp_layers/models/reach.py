"""What a callback, or the body of a loop, can reach: where one of them may leave a number for another."""

from __future__ import annotations

import builtins
import collections
import contextlib
import enum
import functools
import itertools
import logging
import os
import random
import sys
import types
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.callbacks.steering import top_of
from tfdp_layers.models.instructions import Code, code_of, is_text
from tfdp_layers.models.outside import LEAVE_NOTHING, is_screen
from tfdp_layers.models.passages import Passages

__all__ = ["Reach", "body_of_loop", "passes"]

_LIBRARIES = frozenset({"keras", "ml_dtypes", "numpy", "optree", "tensorboard", "tensorflow", "tfdp_layers", "wrapt"})
_UNCHANGED = (tf.data.Dataset, tf.DType, tf.TensorShape, tf.TypeSpec, tf.summary.SummaryWriter, tf.distribute.Strategy)
_MODELS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.losses.Loss, tf.Module)
_NUMBERED = (tf.Variable, keras.Variable, keras.metrics.Metric)
_NEUTRAL = (enum.Enum, logging.Logger, logging.LoggerAdapter, logging.Handler, random.Random, range, slice)
_CONSTANT = frozenset({"_thread", "datetime", "decimal", "fractions", "re", "uuid"})
_PARAMS = frozenset({"batch_size", "do_validation", "epochs", "metrics", "samples", "steps", "verbose"})
_DYNAMIC = frozenset({"__import__", "eval", "exec", "globals", "locals"})
_WRITE_ARRAYS = frozenset({"copyto", "fill", "itemset", "out", "partition", "put", "resize", "setflags", "sort"})
_MOST, _LONGEST = 5000, 1000
_LOOP = "tfdp_layers.models.loops"


class Reach:
    """What can be reached from a callback, through its attributes and what its functions name.

    Numbers, strings, modules, Keras' layers and what libraries keep for themselves do not count. The model and its
    optimizer are reached by every callback: of them, those attributes count that the functions name and that are no
    Keras' own. The code of installed packages is not read, but for that of the callback's own.

    Args:
        root: the callback; None for a loop.
        model: in `fit`.
        frame: of the function in whose body a loop is, where that was found.
    """

    def __init__(self, root: Any, model: Any, frame: types.FrameType | None = None) -> None:
        self.held: dict[int, Any] = {}  # what may change, and arrays, which fewer functions do
        self.arrays: dict[int, Any] = {}
        self.things: dict[int, Any] = {}  # objects of Keras and TensorFlow, which only some functions change
        self.passages = Passages(self._is_library, root is None)
        self.cells: dict[int, Any] = {}  # variables of functions around, and those that its functions set
        self.kept: set[int] = set()
        self.names: set[tuple[int, str]] = set()  # globals and attributes, and those that its functions set
        self.named: set[tuple[int, str]] = set()
        self.texts: set[str] = set()
        self.leaves = self.stores = False  # whether its functions leave anything anywhere, and in arrays
        self.whole = root is not None or frame is not None
        self._seen: dict[int, Any] = {}
        self._makes = False  # whether it calls `__init__` itself
        self._code = Code()
        self._kinds: dict[int, Any] = {}
        private = model.optimizer
        inner = getattr(private, "inner_optimizer", private)
        self._holders = {id(one): one for one in (model, private, inner)}
        self._of_model = {*map(id, [*model.variables, *private.variables, *inner.variables, *model.metrics])}
        self._of_model |= {
            id(getattr(inner, "_learning_rate", None)),
            *map(id, [*model._flatten_layers(), private, inner]),
        }
        functions = [getattr(one, "__wrapped__", one) for one in vars(root).values()] if root is not None else []
        self._made: list[Any] = []  # what ran before `fit`
        self._own = {top_of(type(root)), *(top_of(one) for one in functions if callable(one))} - _LIBRARIES
        self._root, self._left = root, [root]
        if frame is not None:
            self._own.add(frame.f_globals.get("__name__", "").partition(".")[0])
            self._read(frame.f_code, frame.f_globals)
            self._left += frame.f_locals.values() if frame.f_code.co_flags & 1 else ()
        self._walk()

    @property
    def beyond(self) -> bool:
        """Whether it reaches anything but the callback itself that may change."""
        files = any(map(os.path.isfile, self.texts))
        return files or bool(self.held.keys() - {id(self._root)} or self.arrays or self.cells)

    def _walk(self) -> None:
        while self._left:
            while self._left:
                value = self._left.pop()
                if isinstance(value, str | os.PathLike):
                    self.texts |= {text for text in (os.fspath(value),) if is_text(text)}
                elif not is_plain(value) and id(value) not in self._seen:
                    self._seen[id(value)] = value
                    try:
                        self._visit(value)
                    except Exception:  # of code of the object's own
                        self.whole = False
                if len(self._seen) > _MOST:
                    self.whole, self._left = False, []
            if self._makes:
                self._left, self._made = [*self._left, *self._made], []
            if {"type", "__class__"} & (self._code.names | self._code.attributes):
                self._holders |= self._kinds
            for holder in list(self._holders.values()):
                self._slots(holder)

    def _visit(self, value: Any) -> None:
        visit = next((one for kind, one in _VISITS.items() if isinstance(value, kind)), None)
        top = top_of(type(value))
        if visit is not None:
            visit(self, value)
        elif isinstance(value, _MODELS):
            self._holders[id(value)] = value
            self.things |= {} if id(value) in self._of_model else {id(value): value}
        elif isinstance(value, _NUMBERED):
            self.held |= {} if id(value) in self._of_model else {id(value): value}
        elif isinstance(value, keras.callbacks.Callback) or not self._is_library(top):
            self._object(value)
        elif not is_neutral(value) and not isinstance(value, _UNCHANGED):
            (self.things if top in _LIBRARIES else self.held)[id(value)] = value

    def _object(self, value: Any) -> None:
        kind = type(value)
        inner = dict(getattr(value, "__dict__", {})) | {
            name: getattr(value, name, None) for one in kind.__mro__ for name in vars(one).get("__slots__", ())
        }
        if self._is_library(top_of(kind)):
            self.things[id(value)] = value
        if isinstance(value, keras.callbacks.Callback):  # Keras gives all of them the model, and one dict
            inner.pop("_model", None)
            if set(inner.get("params") or ()) <= _PARAMS:
                inner.pop("params", None)
        frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False) or is_neutral(value)
        if not (self._is_library(top_of(kind)) or frozen):
            self.held[id(value)] = value
            self.passages.own.append(value)
        self._left += inner.values()
        self._class(kind, made=value is self._root)

    def _class(self, kind: Any, made: bool = False) -> None:
        """What a class has; without its `__init__` where that `made` the callback: nothing was read before `fit`."""
        but = {"__doc__", "__module__", "__qualname__", *(["__init__"] if made else [])}
        for one in kind.__mro__:
            if not self._is_library(top_of(one)):
                self._kinds[id(one)] = one
                self._left += [value for name, value in vars(one).items() if name not in but]
                self._made += [vars(one).get("__init__")] if made else []

    def _kind(self, kind: Any) -> None:
        if self._is_library(top_of(kind)):
            self.leaves |= kind.__name__ not in LEAVE_NOTHING
            self.passages.call(kind.__name__, top_of(kind))
        else:
            self._holders[id(kind)] = kind
            self._class(kind)

    def _function(self, function: Any) -> None:
        self._left.append(vars(function).get("__wrapped__"))
        if top_of(function) == "tfdp_layers" or self._is_library(top_of(function)):
            if "__wrapped__" not in vars(function):
                self.leaves |= function.__name__ not in LEAVE_NOTHING
                self.passages.call(function.__name__, top_of(function))
            return
        code = self._read(function.__code__, function.__globals__, function)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.cells[id(cell)] = cell
            if name in code.kept:
                self.kept.add(id(cell))
                self.leaves = True
            with contextlib.suppress(ValueError):  # it is not set yet
                self._left.append(cell.cell_contents)
        self._holders[id(function)] = function
        self._left += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]

    def _read(self, written: types.CodeType, variables: dict[str, Any], function: Any = None) -> Code:
        """What a function names, in its globals and elsewhere; without one, the body of a loop does."""
        code = code_of(written)
        self.passages.read(code, variables, function)
        self._code |= code
        self.texts |= code.texts
        self.stores |= code.stores or bool(_WRITE_ARRAYS & (code.attributes | code.texts))
        self.leaves |= code.stores or bool(code.stored or code.named or code.called - LEAVE_NOTHING)
        self.leaves |= bool((code.names & vars(builtins).keys()) - variables.keys() - LEAVE_NOTHING)
        self.whole &= not code.names & _DYNAMIC
        self._makes |= "__init__" in code.attributes and written.co_name != "__init__"
        self.named |= {(id(variables), name) for name in code.named}
        self.names |= {(id(variables), name) for name in code.names | code.named}
        self._left += [variables[name] for name in code.names if name in variables]
        self._left += [sys.modules[name] for name in code.modules if name in sys.modules]
        return code

    def _slots(self, holder: Any) -> None:
        """Attributes of a module, a class, a function or a model, where the code names them."""
        code, held = self._code, vars(holder)
        here = (code.attributes | code.stored | code.texts) & held.keys()
        if isinstance(holder, _MODELS):
            here -= stored_by(type(holder))  # type: ignore[arg-type]
        self.names |= {(id(held) if isinstance(holder, types.ModuleType) else id(holder), name) for name in here}
        set_here = here & (code.stored | (code.texts if {"setattr", "vars", "__dict__"} & code.all_names else set()))
        self.named |= {(id(held) if isinstance(holder, types.ModuleType) else id(holder), name) for name in set_here}
        self._left += [held[n] for n in here if id(held[n]) not in self._seen and not is_plain(held[n])]

    def _is_library(self, top: str) -> bool:
        return top in _LIBRARIES or (top not in self._own and is_installed(top))

    def _container(self, value: Any) -> None:
        self.held[id(value)] = value
        if isinstance(value, dict):  # past the methods of watched logs, which would note it
            self._left += [one for one in list(dict.values(value))[:_LONGEST] if not is_plain(one)]
        else:
            self._items(value)

    def _items(self, value: Any) -> None:
        self._left += [one for one in itertools.islice(value, _LONGEST) if not is_plain(one)]

    def _module(self, value: Any) -> None:
        if not self._is_library(value.__name__.partition(".")[0]):
            self._holders[id(value)] = value

    def _array(self, value: Any) -> None:
        while isinstance(value.base, np.ndarray):
            value = value.base
        file = getattr(value, "filename", None)  # two may be mapped from one
        self.arrays[id(value) if file is None else hash(os.path.realpath(file))] = value

    def _wrapped(self, value: Any) -> None:
        """A method, a partial, a property, a decorated function, a weak reference: what it holds."""
        names = ("__self__", "__func__", "__wrapped__", "func", "args", "keywords", "fget", "fset", "python_function")
        self._left += [getattr(value, name, None) for name in names]
        if isinstance(value, types.BuiltinFunctionType):
            self.leaves |= value.__name__ not in LEAVE_NOTHING
            self.passages.call(value.__name__, top_of(value))
        if isinstance(value, weakref.ref):
            self._left.append(value())


_VISITS: dict[Any, Any] = {
    types.FunctionType: Reach._function,
    types.MethodType | types.BuiltinFunctionType | functools.partial | property: Reach._wrapped,
    staticmethod | classmethod | weakref.ref | type(tf.function(lambda: None)): Reach._wrapped,
    types.ModuleType: Reach._module,
    type: Reach._kind,
    np.ndarray: Reach._array,
    tuple | frozenset: Reach._items,
    list | dict | set | collections.deque: Reach._container,
}


def passes(reader: Reach, other: Reach) -> bool:
    """Whether the first may leave what it read where the other finds it, or nobody can tell."""
    if not reader.leaves and reader.whole:
        return reader.passages.lead_to(other.passages)
    if not (reader.whole and other.whole):
        return all(one.beyond for one in (reader, other) if one.whole)
    if reader.held.keys() & other.held.keys() or reader.kept & other.cells.keys() or reader.named & other.names:
        return True
    if reader.stores and reader.arrays.keys() & other.arrays.keys():
        return True
    if reader.things.keys() & other.things.keys() and reader.passages.changes:
        return True
    if reader.passages.lead_to(other.passages):
        return True
    return any(os.path.isfile(text) for text in reader.texts & other.texts)


def body_of_loop() -> types.FrameType | None:
    """The frame of the caller's own function that goes through a loop, and called this library from there."""
    frame: Any = sys._getframe(1)
    frames = []
    while frame is not None:
        frames.append((frame, frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    inside = [place for place, (_, name) in enumerate(frames) if name == _LOOP]
    outside = frames[inside[-1] + 1 if inside else 0 :]
    skipped = ("keras", "tfdp_layers", "contextlib")
    return next((one for one, name in outside if name.split(".")[0] not in skipped), None)


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | complex | bytes | np.generic | tf.Tensor)


def is_neutral(value: Any) -> bool:
    """Whether an object keeps no numbers for others: constants, and what messages go to."""
    return isinstance(value, _NEUTRAL) or top_of(type(value)) in _CONSTANT or is_screen(value) or value is os.environ


@functools.cache
def is_installed(top: str) -> bool:
    """Whether a package is Python's own, or installed: what a user writes mostly lies elsewhere."""
    if top == "__main__":
        return False
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return top in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file


@functools.cache
def stored_by(kind: type) -> frozenset[str]:
    """The attributes that the code of Keras, TensorFlow and this library sets in objects of a class."""
    found = {"history", "stop_training"}
    for one in kind.__mro__:
        for function in vars(one).values() if top_of(one) in _LIBRARIES else ():
            code = getattr(getattr(function, "fset", None) or function, "__code__", None)
            found |= code_of(code).stored if code is not None else set()
    return frozenset(found)
