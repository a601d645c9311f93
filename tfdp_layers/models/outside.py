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
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.callbacks.steering import top_of

__all__ = [
    "DELETES_FILES",
    "LEAVE_NOTHING",
    "LISTS_FILES",
    "READS_FILES",
    "TELLS",
    "are_alike",
    "changes",
    "draws",
    "finds",
    "finds_in",
    "is_name_of_file",
    "is_named",
    "is_screen",
    "parts_of_names",
    "sends",
    "tells_a_file",
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
    "(breakpoint|eval|exec|input)$|current_thread|env|fetch|fromfile|genfromtxt|get_|getenv|geterr|getrlimit"
    "|image_data_format|imread|load|memmap|open|read|recv"
    "|ExcelFile|GFile|HDFStore|checkpoints_iterator|latest_checkpoint|list_files|list_variables|make_csv|make_tf_record"
    "|.*_dataset_from_directory|(TextLine|TFRecord|FixedLengthRecord|Csv|Sql).*Dataset"
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
        "decimal", "enum", "fractions", "functools", "getpass", "heapq", "itertools", "json", "keras", "logging",
        "math", "matplotlib", "ml_dtypes", "numbers", "numpy", "operator", "pandas", "platform", "pprint", "re",
        "resource", "scipy", "seaborn", "sklearn", "statistics", "string", "tempfile", "tensorflow", "tfdp_layers",
        "textwrap", "time", "tqdm", "traceback", "types", "typing", "uuid", "warnings"
    )
)  # fmt: skip
"""Libraries, all of whose functions find nothing, but for those with names as in `_IN`."""
_TALKS = frozenset({"aiohttp", "httpx", "multiprocessing", "queue", "redis", "requests"})
"""Libraries whose objects have a `get` that brings in what others sent."""
READS_FILES = frozenset({"exists", "is_dir", "is_file", "isdir", "isfile", "lexists"})
"""Functions that look whether a file is there: they find what another one leaves in the same place."""
LISTS_FILES = frozenset(
    (
        "getatime", "getctime", "getmtime", "getsize", "glob", "iglob", "iterdir", "listdir", "rglob", "scandir",
        "stat", "walk"
    )
)  # fmt: skip
"""Functions that say which files there are, and how large or new: whatever another one leaves."""
DELETES_FILES = frozenset({"remove", "removedirs", "rmdir", "rmtree", "unlink"})
TELLS = frozenset({"critical", "debug", "error", "exception", "info", "log", "warning"})
"""Methods by which loggers hand out messages."""
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
        "DataFrame", "Event", "Lock", "Path", "Series", "Thread", "abspath", "as_default", "basename", "cpu_count",
        "cwd", "dirname", "disk_usage", "ewm", "expanduser", "fspath", "getcwd", "getfqdn", "gethostname", "getpid",
        "getsignal", "getuser", "iloc", "inner_optimizer", "inverse_transform", "is_set", "isatty", "ledger",
        "limit_releases", "loc", "partial", "privacy_statement", "releases_left", "rolling", "score", "signal",
        "splitext", "strftime", "transform", "uname"
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
    if name in _NOT_IN or name in READS_FILES | LISTS_FILES or name.startswith("__"):
        return False
    if top in _COMPUTE:
        return _IN.match(name) is not None
    if name == "get":
        return top in _TALKS
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
        asked = name == "get" and here not in _COMPUTE  # of a server, say
        return not draws([module.__name__]) and (asked or finds(name, top if top in _COMPUTE else here))
    constant = isinstance(value, bool | int | float | complex | str | bytes | tuple | frozenset | np.generic | np.dtype)
    constant = constant or isinstance(value, tf.DType | enum.Enum | random.Random | logging.Logger | logging.Handler)
    return not (constant or is_screen(value)) or (at_first is not None and name not in at_first)


def is_screen(one: Any) -> bool:
    """Whether this is what messages are printed to."""
    return any(one is output for output in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))


def draws(names: Iterable[str]) -> bool:
    """Whether these are modules of random numbers that all callbacks draw from."""
    return any(name.rpartition(".")[2] == "random" for name in names)


def is_name_of_file(text: str) -> bool:
    """Whether a text looks like a file's name, or a part of it, and not like the name of a metric."""
    return len(text) > 2 and not re.search(r"\s", text) and (text.isupper() or not text.isidentifier())


def parts_of_names(texts: Iterable[str]) -> frozenset[str]:
    """What can be compared of the names of files: the last of their parts, without what fits all."""
    parts = (re.split(r"[/\\]", text.rstrip("/*"))[-1].strip("*") for text in texts)
    return frozenset(part for part in parts if len(part) > 2)


def are_alike(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether some of these parts of names may be of one file: equal ones, or one without the other's end."""
    first, second = set(some), set(others)
    if first & second:
        return True
    return bool(_bare(first) & _stems(second) or _stems(first) & _bare(second))


def _bare(parts: Iterable[str]) -> set[str]:
    return {one for one in parts if "." not in one}


def _stems(parts: Iterable[str]) -> set[str]:
    return {one.partition(".")[0] for one in parts} - {""}


def tells_a_file(logger: Any = None) -> bool:
    """Whether messages of a logger go anywhere but to the screen. None: of one that is not known."""
    if logger is None:
        found = [one() for one in list(logging._handlerList)]  # type: ignore[attr-defined]
        return any(map(_leads_out, found))
    logger = getattr(logger, "logger", logger)
    while logger is not None:
        if any(map(_leads_out, logger.handlers)):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _leads_out(handler: Any) -> bool:
    if isinstance(handler, logging.FileHandler):
        return bool(handler.baseFilename != os.devnull)
    return type(handler).__module__ == "logging.handlers"
