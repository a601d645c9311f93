"""A lock of one thread at a time, which goes on as another one's where two ledgers become one."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Alone"]


class Alone:
    """A reentrant lock. After `join`, whoever waits for it, or takes it later, takes the other's."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._joined: Alone | None = None
        self._taken = threading.local()  # by this thread through this object, the innermost last

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As a lock of `threading`."""
        while True:
            found: Alone = self
            while found._joined is not None:
                found = found._joined
            if not found._lock.acquire(blocking, timeout):
                return False
            if found._joined is None:
                break
            found._lock.release()  # joined while this thread waited
        self._locks().append(found._lock)
        return True

    def release(self) -> None:
        """As a lock of `threading`."""
        self._locks().pop().release()

    def __enter__(self) -> Alone:
        self.acquire()
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def join(self, other: Alone) -> None:
        """By a thread that holds both: from here on this is a name of the other."""
        self._joined = other

    def _locks(self) -> list[Any]:
        if not hasattr(self._taken, "locks"):
            self._taken.locks = []
        return self._taken.locks  # type: ignore[no-any-return]
