"""Weights that are being loaded, which have their numbers later: what is done about them once they are there."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["Load", "is_loading", "loading"]

_MARK = "_tfdp_load"
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_here = threading.local()


class _Mark:
    """What marks a call, and ends with it."""


class _Block:
    """A `loading` that no other one of its thread is around."""

    ended = failed = False


class Load:
    """Something to do when the file that a thread reads here is read, whichever thread does it then.

    Made by that thread, while it reads. It ends with the outermost `loading` around, and with the outermost call of
    Keras that loads: what Keras loads without this library says nowhere that it ended, but its calls return. So that
    call is marked, among its local variables, and looked for among the calls that its thread is in.

    Args:
        then: what to do. May be called several times.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then
        self._block: _Block | None = getattr(_here, "block", None)
        self._thread, mark = threading.get_ident(), _marked(sys._getframe(1))
        self._mark = None if mark is None else weakref.ref(mark)

    def when_over(self, call: Callable[[], object]) -> None:
        """Calls a function as the call of Keras that loads returns: before whoever asked for it can change anything.

        Not where something else keeps that call's frame, a debugger or an error, say.
        """
        mark = None if self._mark is None else self._mark()
        if mark is not None:
            weakref.finalize(mark, _quietly, call).atexit = False

    @property
    def over(self) -> bool:
        """Whether the weights have the numbers that they are loaded with; also where the loading failed."""
        if self._block is not None and not self._block.ended:
            return False
        mark = None if self._mark is None else self._mark()
        return mark is None or not _is_marked(mark, sys._current_frames().get(self._thread))

    @property
    def failed(self) -> bool:
        """Whether what was loaded is not kept: its `loading` raised."""
        return self._block is not None and self._block.failed


def _is_marked(mark: _Mark, frame: FrameType | None) -> bool:
    inner = None
    while frame is not None:
        if _loads(frame) and frame.f_locals.get(_MARK) is mark:
            return True
        inner, frame = frame, frame.f_back
    # A generator that went to sleep meanwhile, in its own thread, leads nowhere.
    return inner is not None and bool(inner.f_code.co_flags & _GENERATORS)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Inside, in this thread, a `Load` waits: of a model within a model the inner one is loaded last.

    Where it raises, nothing was loaded that is kept: what waits is not done.
    """
    if is_loading():
        yield
        return
    _here.block = block = _Block()
    try:
        yield
    except BaseException:
        block.failed = True
        raise
    finally:
        block.ended, _here.block = True, None


def is_loading() -> bool:
    """Whether this thread is inside of `loading`."""
    return getattr(_here, "block", None) is not None


def _loads(frame: FrameType) -> bool:
    """Whether this call is one of Keras' that load, or of a layer that it has load its own."""
    root, *rest = str(frame.f_globals.get("__name__")).split(".")
    return (root in ("keras", "tf_keras") and "saving" in rest) or frame.f_code.co_name == "load_own_variables"


def _quietly(call: Callable[[], object]) -> None:
    """What cannot be read now is read at the next look."""
    with contextlib.suppress(Exception):
        call()


def _marked(frame: FrameType | None) -> _Mark | None:
    """The mark of the outermost call around that loads; None without one."""
    outermost = None
    while frame is not None:
        if _loads(frame):
            outermost = frame
        frame = frame.f_back
    # Not the frame itself: that would keep all that is around it.
    return None if outermost is None else outermost.f_locals.setdefault(_MARK, _Mark())
