"""Names of functions, methods and attributes: by which a number may leave a callback, and by which one may come in."""

from __future__ import annotations

import builtins
import collections
import datetime
import enum
import logging
import os
import pathlib
import random
import re
import sys
import types
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.callbacks.steering import top_of

__all__ = [
    "LEAVE_NOTHING",
    "READS_FILES",
    "WRITES_FILES",
    "changes",
    "draws",
    "finds",
    "finds_in",
    "is_name_of_file",
    "is_named",
    "sends",
]

LEAVE_NOTHING = frozenset(
    (
        "abs", "all", "any", "bool", "critical", "debug", "dict", "enumerate", "error", "exception", "float", "flush",
        "format", "get", "getLogger", "getattr", "hasattr", "info", "int", "isinstance", "item", "items", "join",
        "keys", "len", "list", "log", "map", "max", "min", "numpy", "print", "range", "repr", "round", "sorted",
        "str", "sum", "super", "tuple", "type", "values", "warning", "zip"
    )
)  # fmt: skip
"""Functions and methods by which nothing stays that another callback could read: messages and numbers."""
_IN = re.compile(
    "(breakpoint|eval|exec|input)$|current_thread|env|fetch|fromfile|genfromtxt|get_|getenv|geterr|image_data_format"
    "|imread|load|memmap|open|read|recv"
)
"""Beginnings of the names of functions by which something comes from outside, of libraries that else compute."""
_NOT_IN = frozenset(
    (
        "get_build_config", "get_compile_config", "get_config", "get_layer", "get_logger", "get_metrics_result",
        "get_monitor_value", "get_shape", "get_weights", "load_weights", "read_value"
    )
)  # fmt: skip
_OUT = re.compile(
    "add|append|clear|close|copy|create|del|dump|emit|end|finish|flush|histogram|image|init|log|make|mk|move|notify|plot"
    "|post|print|publish|push|put|record|register|remove|rename|replace|report|rm|save|scalar|send|set|show|start|stop"
    "|symlink|text|to_|touch|track|unlink|update|upload|warn|write|.*writer|.*logger",
    re.IGNORECASE,
)
"""Beginnings of the names of functions that hand something out, and give back nothing of what others did."""
_COMPUTE = frozenset(
    (
        "abc", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime",
        "decimal", "enum", "fractions", "functools", "heapq", "itertools", "json", "keras", "logging", "math",
        "matplotlib", "ml_dtypes", "numbers", "numpy", "operator", "pandas", "pprint", "re", "scipy", "seaborn",
        "sklearn", "statistics", "string", "tensorflow", "tfdp_layers", "textwrap", "time", "tqdm", "traceback",
        "types", "typing", "uuid", "warnings"
    )
)  # fmt: skip
"""Libraries, all of whose functions find nothing, but for those with names as in `_IN`."""
READS_FILES = frozenset(
    (
        "exists", "getmtime", "getsize", "glob", "iglob", "is_dir", "is_file", "isdir", "isfile", "iterdir", "lexists",
        "listdir", "rglob", "scandir", "stat", "walk"
    )
)  # fmt: skip
"""Functions that look which files there are: they find what another one leaves in the same place."""
WRITES_FILES = frozenset({"a", "ab", "at", "w", "wb", "wt", "x", "xb"})
_OF_KINDS = (
    *(bool, bytes, bytearray, complex, dict, float, frozenset, int, list, range, set, slice, str, tuple),
    *(collections.Counter, collections.OrderedDict, collections.defaultdict, collections.deque, object, type),
    *(np.ndarray, np.generic, tf.Tensor, type(tf.constant(0)), tf.Variable, keras.Variable, tf.data.Dataset),
    *(keras.Model, keras.Sequential, keras.layers.Layer, keras.optimizers.Optimizer, keras.callbacks.Callback),
    *(keras.losses.Loss, keras.metrics.Metric, keras.metrics.Mean, keras.optimizers.schedules.LearningRateSchedule),
    *(datetime.datetime, datetime.timedelta, logging.Logger, pathlib.PurePath, BaseException),
    *(re.Pattern, re.Match, types.FunctionType, tf.GradientTape),
)
_OF_MODULES = (builtins, np, np.linalg, keras.ops, tf.math, tf)
_MORE = frozenset(
    (
        "DataFrame", "Event", "Lock", "Path", "Series", "Thread", "abspath", "as_default", "basename", "cwd", "dirname",
        "ewm", "expanduser", "fspath", "getcwd", "getpid", "getsignal", "iloc", "inner_optimizer", "inverse_transform",
        "is_set", "isatty", "ledger", "limit_releases", "loc", "partial", "privacy_statement", "releases_left",
        "rolling", "score", "signal", "splitext", "strftime", "transform"
    )
)  # fmt: skip


def _named() -> frozenset[str]:
    found = {name for one in _OF_KINDS for name in dir(one)} | _MORE | LEAVE_NOTHING
    found |= {n for one in _OF_MODULES for n, v in vars(one).items() if not isinstance(v, types.ModuleType)}
    return frozenset(name for name in found if name in _NOT_IN or not _IN.match(name)) - {"random", "environ"}


_NAMES = _named()
"""Names of functions and methods that find nothing, whatever has them: of numbers, containers, models, time."""
_CHANGES = re.compile("assign|enqueue|insert|load_|reset|seed|set(?!default|$)")
_AT_FIRST = {id(one): frozenset(vars(one)) for one in (builtins, keras, np, os, sys, tf)}


def finds(name: str, top: str = "") -> bool:
    """Whether a number that another callback left may come in by a function of this name.

    Args:
        top: the library that it is of; of methods of what is not known, the name alone says it.
    """
    if name in _NOT_IN or name in READS_FILES or name.startswith("__"):
        return False
    if top in _COMPUTE:
        return _IN.match(name) is not None
    return name not in _NAMES and (_IN.match(name) is not None or _OUT.match(name) is None)


def sends(name: str) -> bool:
    """Whether a function or method of this name may take a number out of what its caller holds itself."""
    changes = _CHANGES.match(name) is not None or name.startswith("save")
    return (name not in _NAMES or changes) and not name.startswith("__")


def is_named(name: str) -> bool:
    """Whether something that many objects have is called so, of Keras' or Python's own."""
    return name in _NAMES


def changes(name: str) -> bool:
    """Whether a method of this name changes what it is of, in a library's object."""
    return _CHANGES.match(name) is not None


def finds_in(module: types.ModuleType, name: str) -> bool:
    """Whether an attribute of a library's module is something by which a number may come in."""
    at_first = _AT_FIRST.get(id(module))
    if name not in vars(module) and not hasattr(module, name):
        return True
    value = getattr(module, name)
    if isinstance(value, types.ModuleType) or value is None:
        return False
    if isinstance(value, type) or callable(value):
        top, here = top_of(value), module.__name__.partition(".")[0]
        return not draws([module.__name__]) and finds(name, top if top in _COMPUTE else here)
    constant = isinstance(value, bool | int | float | complex | str | bytes | tuple | frozenset | np.generic | np.dtype)
    constant = constant or isinstance(value, tf.DType | enum.Enum | random.Random | logging.Logger | logging.Handler)
    output = any(value is one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))
    return not (constant or output) or (at_first is not None and name not in at_first)


def draws(names: Iterable[str]) -> bool:
    """Whether these are modules of random numbers that all callbacks draw from."""
    return any(name.rpartition(".")[2] == "random" for name in names)


def is_name_of_file(text: str) -> bool:
    """Whether a text looks like a file's name, or a part of it, and not like the name of a metric."""
    return len(text) > 2 and not re.search(r"\s", text) and (text.isupper() or not text.isidentifier())
