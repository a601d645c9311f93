"""One open file, locked against other processes and known by more than its name."""

import contextlib
import gc
import os
import stat
from pathlib import Path
from typing import Any

from tfdp_layers.accounting.half_files import keep_rights

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LedgerError", "LockedElsewhereError", "LockedFile"]

_TRIES = 100


class LedgerError(RuntimeError):
    """A ledger cannot be read, trusted, locked or written."""


class LockedElsewhereError(LedgerError):
    """Another ledger has the file."""


class LockedFile:
    """A file that no other object has locked, in this process or another, until `release`.

    The lock is the file's own, so that it holds wherever the file is moved to; `in_place` says whether it still has its
    name. A crash releases it. A forked process shares it, and must `close` its own end.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file

    @classmethod
    def open(cls, path: Path, create: bool = False) -> "LockedFile | None":
        """Opens and locks a file, without following a symbolic link; a new one is its owner's alone.

        Returns:
            None where there is none and it need not be created.
        Raises:
            LedgerError: it is locked, no plain file, has a second name, or cannot be opened for writing; or this system
                has no such locks.
        """
        if fcntl is None:
            raise LedgerError(
                f"{path} cannot be locked on this system (Windows has no such locks), and of two trainings that write"
                " one ledger the counts of one would be lost. Run under WSL or in a Linux container; or leave the path"
                " out: the count is then saved with the model (model.save)."
            )
        for _ in range(_TRIES):
            try:
                file = cls.opened(path, "r+b")
            except FileNotFoundError:
                if not create:
                    return None
                cls._create(path)
                continue
            except OSError as error:
                raise LedgerError(f"{path} cannot be opened for writing: {error}. Choose another path.") from error
            locked = cls(path, file)
            locked._lock()
            # Between opening and locking it may have been replaced: only the file that has the name is worth a lock.
            if locked.in_place:
                return locked
            locked.release()
        raise LedgerError(
            f"{path} is replaced again and again while it is opened. Find out what does that, and stop it."
        )

    @staticmethod
    def _create(path: Path) -> None:
        try:
            _opened(path, "x+b").close()
        except FileExistsError:  # Another was faster.
            pass
        except OSError as error:
            raise LedgerError(f"{path} cannot be created: {error}. Choose another path.") from error

    @classmethod
    def adopt(cls, path: Path, descriptor: int) -> "LockedFile":
        """Locks a new file, which is going to have this name. Raises OSError."""
        locked = cls(path, os.fdopen(descriptor, "r+b", buffering=0))
        locked._lock()
        return locked

    @staticmethod
    def opened(path: Path, mode: str = "rb") -> Any:
        """The file, not locked: a plain one of one name. Raises OSError, and LedgerError for any other."""
        file = _opened(path, mode)
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            file.close()
            raise LedgerError(f"{path} is no plain file. Remove it, or choose another path.")
        if found.st_nlink > 1:
            file.close()
            raise LedgerError(
                f"{path} has a second name (a hard link): the two would diverge, and each count a part. Remove one of"
                " them, or copy the file in its place; a symbolic link does as a second name."
            )
        return file

    @classmethod
    def is_free(cls, path: Path) -> bool:
        """Whether a file is unlocked now, told without waiting. Raises OSError and LedgerError, as `opened`."""
        if fcntl is None:
            return True
        with cls.opened(path) as file:  # whose end unlocks it
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    @property
    def in_place(self) -> bool:
        """Whether the path is still a name of this very file, and the only one."""
        if self._file.closed:
            return False
        try:
            named = os.lstat(self._path)
        except OSError:
            return False
        return named.st_nlink <= 1 and os.path.samestat(named, os.fstat(self._file.fileno()))

    def begins_with(self, data: bytes) -> bool:
        """Whether these are its first bytes. Raises OSError."""
        self._file.seek(0)
        return self._file.read(len(data)) == data

    def write(self, start: int, data: bytes) -> None:
        """Writes at a place. Raises OSError."""
        self._file.seek(start)
        while data:
            data = data[self._file.write(data) :]

    def truncate(self, size: int) -> None:
        """Cuts what follows. Raises OSError."""
        self._file.truncate(size)

    def sync(self) -> None:
        """Returns once the file is on the disk. Raises OSError."""
        os.fsync(self._file.fileno())

    def take_rights_of(self, other: "LockedFile") -> None:
        """Gives this file owner, group and rights of another; rights of a group that it cannot have are left out."""
        keep_rights(self._file.fileno(), os.fstat(other._file.fileno()))

    def release(self) -> None:
        """Unlocks and closes it, also where a forked process still has it open."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Closes this end of it."""
        self._file.close()

    def _lock(self) -> None:
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                gc.collect()  # the ledger of a model that is gone, in circles as Keras' models are, holds it until then
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise LockedElsewhereError(
                f"Another ledger is writing {self._path}, and counts would be lost if two did: that of a training which"
                " runs in this process, or one of another process, which keeps the file until it ends (a notebook:"
                " until its kernel is shut down) or calls ledger.close(). Wait for it, or close it there."
            ) from error
        except OSError as error:
            self._file.close()
            raise LedgerError(
                f"{self._path} cannot be locked: {error}. Choose a path on another file system."
            ) from error


def _opened(path: Path, mode: str) -> Any:
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)

    return open(path, mode, buffering=0, opener=opener)
