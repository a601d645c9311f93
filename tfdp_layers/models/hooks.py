"""The hooks of callbacks, around which something of this library's goes while a training runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tfdp_layers.callbacks.steering import hook_names, is_unknown, overridden

_puts: dict[int, tuple[Any, Any]] = {}
"""By the id of what lies around a hook now: that, and what the callback had in its place. A copy of it is none."""
_threads: dict[int, tuple[int, Any]] = {}
"""By the ids of callbacks: the thread that trains with them, and its outermost `Hooks`."""

__all__ = ["Hooks", "is_callback", "named"]

Around = Callable[[Any, str, Callable[..., Any], bool], Callable[..., Any]]


class _Hook(NamedTuple):
    """What is known of a hook: what the callback had in its place, what is there now, and what its class has."""

    own: Any
    put: Any
    of_class: Any


class Hooks:
    """Puts something around the hooks of callbacks, and around those that are set or replaced while a training runs.

    Code of the caller that runs then can set a hook of any callback, or of its class: after it, `look` is called, so
    that no hook runs that nothing goes around.

    Args:
        callbacks: of the training.
        around: of a callback, the name of a hook, the hook, and whether it was set while the training runs: what is to
            be called in its place, or the hook itself.
        more: gives callbacks that Keras adds as it begins.
    """

    def __init__(self, callbacks: Sequence[Any], around: Around, more: Callable[[], Sequence[Any]]) -> None:
        self._callbacks, self._around, self._more = list(callbacks), around, more
        self._known: dict[int, tuple[Any, dict[str, _Hook]]] = {}

    @contextlib.contextmanager
    def surrounded(self) -> Iterator[None]:
        """Inside, what goes around the hooks is in place; after it callbacks are what they were, or were made.

        Raises: ValueError for hooks in whose place nothing can be put, and for callbacks of another thread's training.
        """
        mine, used = (threading.get_ident(), self), list[int]()
        try:
            for callback in self._callbacks:
                thread, hooks_of = _threads.setdefault(id(callback), mine)
                if hooks_of is self:
                    used.append(id(callback))
                if thread != mine[0]:
                    raise ValueError(
                        f"The callback {type(callback).__name__} is in use: another thread trains with it, and what it"
                        " does there would be taken for what it does here. Give each training one of its own."
                    )
            for callback in self._callbacks:
                self._surround(callback, late=False)
            yield
        finally:
            for callback, hooks in self._known.values():
                for name, hook in hooks.items():
                    if hook.put is not None and vars(callback).get(name) is hook.put:
                        _set(callback, name, hook.own)
                    _puts.pop(id(hook.put), None)
            for one in used:
                _threads.pop(one, None)
            self._known.clear()

    def look(self) -> None:
        """Puts something around what was set since. Raises: as `surrounded`."""
        for callback, hooks in self._known.values():
            held, kind = vars(callback), type(callback)
            for name, (_, put, of_class) in hooks.items():
                there = held.get(name)
                if there is not put and _within(there, put):
                    continue
                if there is not put or getattr(kind, name, None) != of_class:
                    self._surround(callback, late=True)
                    break
                if id(put) in _puts:
                    _refuse_unset(callback, name, put)
        for callback in self._more():
            if id(callback) not in self._known and self._known:
                self._surround(callback, late=is_unknown(callback))

    def _surround(self, callback: Any, late: bool) -> None:
        _, hooks = self._known.setdefault(id(callback), (callback, {}))
        mine, held = overridden(callback), vars(callback)
        for name in hook_names():
            of_class = getattr(type(callback), name, None)
            before, own = hooks.get(name), held.get(name)
            if before is not None and own is before.put and of_class == before.of_class:
                continue
            put = None
            if before is not None and before.put is not None and own is before.put:
                _set(callback, name, own := before.own)  # what its class has now is seen again
            if before is not None:
                _puts.pop(id(before.put), None)
            if name in mine:
                hook = getattr(callback, name)
                put = self._around(callback, name, hook, late)
                put = None if put is hook else put
            if put is not None:
                _set(callback, name, put)
                _puts[id(put)] = put, own
                _refuse_unset(callback, name, put)
            hooks[name] = _Hook(own, own if put is None else put, of_class)


def _within(there: Any, put: Any) -> bool:
    """Whether a training within a hook of another one put this around what the other one had put there."""
    while id(there) in _puts and _puts[id(there)][0] is there:
        there = _puts[id(there)][1]
        if there is put:
            return True
    return False


def is_callback(reader: Any) -> bool:
    return hasattr(reader, "on_train_begin")


def named(reader: Any) -> str:
    """What to call a callback, or the body of a loop."""
    return f"The callback {type(reader).__name__}" if is_callback(reader) else "The loop"


def _set(callback: Any, name: str, hook: Any) -> None:
    if hook is None:
        vars(callback).pop(name, None)
    else:
        vars(callback)[name] = hook


def _refuse_unset(callback: Any, name: str, put: Any) -> None:
    if getattr(callback, name) is not put:
        vars(callback).pop(name, None)
        raise ValueError(
            f"{name} of {type(callback).__name__} is a property, or another descriptor: what it gives each time cannot"
            " be watched. Make it a method."
        )
