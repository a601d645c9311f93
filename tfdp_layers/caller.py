"""Who calls: the line of the user's code that a warning is about, and the thread. Loads no TensorFlow."""

import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["as_it_is", "in_this_thread", "warn"]

_NOT_USERS = frozenset(
    ("tfdp_layers", "keras", "tf_keras", "tensorflow", "keras_tuner", "tensorflow_privacy", "dp_accounting")
) | {"contextlib", "threading", "concurrent", "functools"}
"""First names of modules that stand between the user's line and ours."""

_INSTALLED = tuple({sysconfig.get_paths()[kind] + os.sep for kind in ("purelib", "platlib", "stdlib")})
"""Where packages are that somebody else wrote: what calls `fit` from there, a cross-validation say, is no user's."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line that is neither this library's nor of Keras or TensorFlow, whoever called whom.

    A count of calls (`stacklevel`) would be wrong as soon as one call more lies between, and Keras calls callbacks from
    anywhere; `skip_file_prefixes` needs Python 3.12, and one folder.

    Without such a line (in a thread of ours) it is that of the outermost call.
    """
    frame = _users(sys._getframe(1))
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__") or "<unknown>",
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def as_it_is(error: Exception) -> None:
    """Has Keras leave an error that this library raised within a layer's call as it is.

    Keras puts the call's arguments around every error on its way out, in escape codes for a terminal: of use where an
    operation failed on them, and in the way of a sentence that says what to do.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None and str(trace.tb_frame.f_globals.get("__name__")).split(".")[0] == "tfdp_layers":
        error._keras_call_info_injected = True  # type: ignore[attr-defined]


def _users(frame: FrameType) -> FrameType:
    """The innermost frame of the user's, from this one on outwards; where all are installed, that of other packages."""
    while frame.f_back is not None and _ours(frame):
        frame = frame.f_back
    outer: FrameType | None = frame
    while outer is not None and (_ours(outer) or outer.f_code.co_filename.startswith(_INSTALLED)):
        outer = outer.f_back
    return frame if outer is None else outer


def _ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).split(".")[0] in _NOT_USERS


def in_this_thread(function: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """What calls one function in the thread that asks for it now, and another in all others.

    So a step may put something else in the place of a method that other threads call meanwhile, as `predict` does.
    """
    own = threading.get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (function if threading.get_ident() == own else otherwise)(*args, **kwargs)

    return chosen
