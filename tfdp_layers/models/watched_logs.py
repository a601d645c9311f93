"""The logs of a hook, and the history of earlier ones, which note what is read of them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optree

from tfdp_layers.accounting.logs import mark_unprotected


class WatchedNumber(np.lib.mixins.NDArrayOperatorsMixin):
    """A number that notes being used as one: as a float, in text, in arithmetic, in a comparison.

    Args:
        number: as Keras logged it.
        note: called when it is used.
    """

    def __init__(self, number: Any, note: Callable[[], None]) -> None:
        self._number, self._note = number, note

    def read(self) -> Any:
        """The number itself, noted."""
        self._note()
        return self._number

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.read(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*[i.read() if isinstance(i, WatchedNumber) else i for i in inputs], **kwargs)

    def __float__(self) -> float:
        return float(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __bool__(self) -> bool:
        return bool(self.read())

    def __repr__(self) -> str:
        return repr(self.read())

    def __format__(self, spec: str) -> str:
        return format(self.read(), spec)

    def __hash__(self) -> int:
        return hash(self.read())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.read(), name)

    def __reduce__(self) -> Any:
        return float, (float(self),)


class WatchedLogs(dict[str, Any]):
    """The logs of one hook, which note that a private number was read.

    Its methods give numbers. What lies in its storage, for those who reach past the methods (as `tf.nest` does), is a
    `WatchedNumber`, which notes being used.

    Args:
        logs: as Keras made them.
        private: whether the number of this name is. None is: what `tf.nest` makes of these logs has been read.
        noted: called with the name of each private number that is read.
    """

    def __init__(
        self,
        logs: Any = (),
        private: Callable[[str], bool] = lambda _: False,
        noted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._private, self._noted = private, noted
        super().__init__({name: self._watched(name, number) for name, number in dict(logs).items()})

    def _watched(self, name: str, number: Any) -> Any:
        return WatchedNumber(number, lambda: self._noted(name)) if self._private(name) else number

    def renew(self, logs: dict[str, Any]) -> None:
        """Makes it hold what these logs hold, without a note.

        What was written into it since, by whatever method, whoever wrote it knew: from here on it is read as all else.
        """
        self.clear()
        super().update({name: self._watched(name, number) for name, number in logs.items()})

    def unread(self) -> dict[str, Any]:
        """What it holds, without a note."""
        return {n: v._number if isinstance(v, WatchedNumber) else v for n, v in super().items()}

    def __getitem__(self, name: str) -> Any:
        return plain(super().__getitem__(name))

    def __iter__(self) -> Iterator[str]:  # of its own, so that dict(logs) and **logs come by `__getitem__`
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        return plain(super().get(name, default))

    def pop(self, name: str, *default: Any) -> Any:
        return plain(super().pop(name, *default))

    def popitem(self) -> tuple[str, Any]:
        name, value = super().popitem()
        return name, plain(value)

    def setdefault(self, name: str, default: Any = None) -> Any:
        return plain(super().setdefault(name, default))

    def __eq__(self, other: object) -> bool:
        return dict(self) == other

    def __ne__(self, other: object) -> bool:
        return dict(self) != other

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> Any:
        return dict(self).items()

    def values(self) -> Any:
        return dict(self).values()

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __reduce__(self) -> Any:
        return (dict, (dict(self),))


class Histories:
    """Keras' records of the logs so far, `model.history` and others: in a hook they note what is read of them.

    Args:
        given: among the callbacks of `fit`.
        private, noted: as of `WatchedLogs`. What one callback alone wrote and read, is noted of others only.
        running: what runs, a callback or the body of a loop, is the last of this list.
    """

    def __init__(
        self, given: list[Any], private: Callable[[str], bool], noted: Callable[[str], None], running: list[Any]
    ) -> None:
        self._given, self._private, self._noted, self._running = given, private, noted, running
        self._watched: dict[int, WatchedLogs] = {}
        self._wrote: dict[str, tuple[Any, int]] = {}  # by name: who, and how many numbers there were then

    def _runs(self) -> Any:
        return self._running[-1] if self._running else None

    def _read(self, name: str) -> None:
        if self._wrote.get(name, (None,))[0] is not self._runs() or not self._running:
            self._wrote.pop(name, None)
            self._noted(name)

    def _renew(self, history: dict[str, Any], logs: WatchedLogs) -> None:
        self._wrote = {name: one for name, one in self._wrote.items() if size_of(history.get(name)) == one[1]}
        logs.renew(history)

    def _changed(self, history: dict[str, Any], written: dict[str, Any]) -> None:
        for name, value in written.items():
            known, runs = self._wrote.pop(name, (None, 0))[0], self._runs()
            if name not in history or known is runs is not None:
                self._wrote[name] = runs, size_of(value)
            elif history[name] is value and known is not None:
                self._wrote[name] = known, size_of(value)
        if list(written) != list(history) or any(written[n] is not history[n] for n in written):
            history.clear()
            history.update(written)

    @contextlib.contextmanager
    def marked(self, model: Any) -> Iterator[None]:
        """Afterwards, the histories of a training keep which of their numbers are private."""
        before = getattr(model, "history", None)
        try:
            yield
        finally:
            own = getattr(model, "history", None)
            for history in (*self._given, *(own,) * (own is not None and own is not before)):
                mark_unprotected(history, self._private)

    @contextlib.contextmanager
    def watched(self, own: Any) -> Iterator[None]:
        """Inside, what is read is noted; what is written there is written into the histories themselves.

        Args:
            own: the model's history, if there is one yet.
        """
        changed: list[tuple[dict[str, Any], dict[str, Any], WatchedLogs]] = []
        for one in (own, *self._given):
            history = getattr(one, "history", None)
            if type(history) is dict:  # and not watched already, by a hook that called this one
                logs = self._watched.setdefault(id(one), WatchedLogs((), self._private, self._read))
                self._renew(history, logs)
                vars(one)["history"] = logs
                changed.append((vars(one), history, logs))
        try:
            yield
        finally:
            for held, history, logs in changed:
                if held.get("history") is logs:
                    held["history"] = history
                    self._changed(history, logs.unread())


def size_of(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def plain(value: Any) -> Any:
    return value.read() if isinstance(value, WatchedNumber) else value


def _flattened(logs: Any) -> Any:
    names = sorted(logs)
    return [logs[name] for name in names], names, names


def _unflattened(names: Any, values: Any) -> Any:
    return dict(zip(names, values, strict=True))


# For `keras.tree`, to which a dict of another class is no tree.
optree.register_pytree_node(WatchedLogs, _flattened, _unflattened, namespace="keras")
