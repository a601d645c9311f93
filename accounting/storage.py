"""A small text file that is replaced atomically and locked against other writers."""

import contextlib
import os
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: no advisory lock; the atomic replacement remains.
    fcntl = None  # type: ignore[assignment]

__all__ = ["LedgerError", "LedgerFile"]


class LedgerError(RuntimeError):
    """A ledger cannot be read, trusted, locked or written."""


class LedgerFile:
    """One ledger's file on disk.

    Args:
      path: the file; its folder must exist and be writable. A symbolic link is followed.
    Raises:
      LedgerError: the path is a folder, or its folder is missing or not writable.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self._held: IO[str] | None = None
        folder = self.path.parent
        if self.path.is_dir():
            raise LedgerError(f"{self.path} is a folder. Give the name of a file in it, for example ledger.json.")
        if not folder.is_dir():
            raise LedgerError(f"The folder of the ledger {self.path} does not exist. Create {folder} first.")
        if not os.access(folder, os.W_OK):
            raise LedgerError(
                f"The folder {folder} is not writable, so nothing could be counted there. Choose another."
            )

    def read(self) -> str | None:
        """Returns the file's text, or None where there is no file. Raises LedgerError where it cannot be read."""
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be read: {error}. It was left as it is; restore it from a backup."
            ) from error

    def write(self, text: str) -> None:
        """Replaces the file: after a crash it holds the old text or the new one, whole. Raises LedgerError."""
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            self._sync_folder()
        except OSError as error:
            with contextlib.suppress(OSError):  # On a full disk half a file would keep the last room.
                temporary.unlink(missing_ok=True)
            raise LedgerError(
                f"The ledger {self.path} cannot be written: {error}. Make room or choose another path; until then no"
                " update may be made, because it could not be counted."
            ) from error

    def lock(self) -> bool:
        """Takes the lock for as long as this object lives; returns whether it was not yet held. Raises LedgerError."""
        if self._held is not None:
            return False
        name = f"{self.path}.lock"
        try:
            file = open(name, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise LedgerError(f"The lock {name} cannot be opened: {error}. Choose another path.") from error
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.close()
                raise LedgerError(
                    f"Another ledger (in this process or another) is writing {self.path}, and counts would be lost if"
                    " two did. Wait for it, close it (ledger.close()), or give each run its own file and merge them."
                ) from error
        self._held = file
        return True

    def unlock(self) -> None:
        """Releases the lock, if held."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _sync_folder(self) -> None:
        try:
            folder = os.open(self.path.parent, os.O_RDONLY)
        except OSError:  # Windows cannot open folders.
            return
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
