"""A ledger's two files on disk, text and mark: locked against other writers, replaced atomically, appended to."""

import contextlib
import os
import re
import tempfile
from pathlib import Path

from tfdp_layers.accounting.locked_file import LedgerError, LockedFile
from tfdp_layers.accounting.plain_files import refuse_no_path, refuse_no_plain_file

__all__ = ["LedgerError", "LedgerFile", "Stamp"]

Stamp = tuple[int, ...] | None
"""What changes whenever a file does; None where there is none."""


class LedgerFile:
    """The file of a ledger, `ledger.json` say, and beside it `ledger.json.mark`, which says how far it had come.

    A writer holds locks on both, so that either may be moved, replaced or deleted while it writes, and no other writer
    comes in. Readers need no lock: they read the mark first, and the ledger is never behind it.

    Args:
        path: the file; a symbolic link is followed, once, and its folder must exist.
        writable: whether the folder must be writable as well.

    Raises:
        LedgerError: the path is a folder, a pipe or a device, or its folder is missing or not writable.
    """

    def __init__(self, path: str | os.PathLike[str], writable: bool = True) -> None:
        refuse_no_path(path, "The path of a ledger", "ledger.json")
        self.path = Path(os.path.realpath(path))
        self.mark_path = self.path.with_name(self.path.name + ".mark")
        self._text: LockedFile | None = None
        self._mark: LockedFile | None = None
        self._version_0_1: LockedFile | None = None
        folder = self.path.parent
        refuse_no_plain_file(self.path, "Give the name of a file, for example ledger.json.", LedgerError)
        refuse_no_plain_file(self.mark_path, "It is the ledger's mark: remove it, or choose another.", LedgerError)
        if not folder.is_dir():
            home = os.fspath(path).startswith("~")
            fix = "Write os.path.expanduser(path): Python opens no ~ as home." if home else f"Create {folder} first."
            raise LedgerError(f"The folder of the ledger {self.path} does not exist. {fix}")
        if writable and not os.access(folder, os.W_OK):
            raise LedgerError(
                f"The folder {folder} is not writable, so nothing could be counted there. Choose another."
            )

    def read(self) -> tuple[bytes | None, str | None]:
        """Returns what the mark and the ledger hold, None for one that is missing. Raises LedgerError."""
        mark, text = self._read(self.mark_path), self._read(self.path)
        try:
            return mark, None if text is None else text.decode()
        except UnicodeDecodeError as error:
            raise self._unreadable(self.path, error) from error

    def read_mark(self) -> bytes | None:
        """Returns what the mark holds; None where there is none. Raises LedgerError."""
        return self._read(self.mark_path)

    def stamp(self) -> Stamp:
        """That of the ledger's file."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    @property
    def held(self) -> bool:
        """Whether this object took the locks; see `keeps_out_others`."""
        return self._mark is not None

    @property
    def keeps_out_others(self) -> bool:
        """Whether both locks are those of the files that are there now."""
        text = self._text.in_place if self._text is not None else not os.path.lexists(self.path)
        return text and self._mark is not None and self._mark.in_place

    def lock(self) -> None:
        """Takes the locks, until `unlock` or the end of this object. Raises LedgerError where another has them."""
        self.unlock()
        try:
            self._mark = LockedFile.open(self.mark_path, create=True)
            self._text = LockedFile.open(self.path)
            # A process of version 0.1 may be writing: it knows this lock alone, and refuses what this version writes.
            old = self._text is not None and self._text.begins_with(b'{"format": 1,')
            self._version_0_1 = LockedFile.open(self.path.with_name(self.path.name + ".lock"), create=old)
        except BaseException:
            self.unlock()
            raise
        self._remove_temporaries()

    def unlock(self) -> None:
        """Releases the locks, if held."""
        for file in (self._version_0_1, self._text, self._mark):
            if file is not None:
                file.release()
        self._version_0_1 = self._text = self._mark = None

    def forget(self) -> None:
        """In a forked process: closes the files; their locks stay with the other process."""
        for file in (self._version_0_1, self._text, self._mark):
            if file is not None:
                file.close()
        self._version_0_1 = self._text = self._mark = None

    def append(self, text: str, end: int, closing: str) -> None:
        """Writes `text` and then `closing`, in place of the `closing` at `end`. Raises LedgerError.

        After a crash the file holds the text whole, or what was before it and a part of the text.
        """
        assert self._text is not None
        try:
            self._text.write(end, (text + closing).encode())
            self._text.sync()
        except OSError as error:
            with contextlib.suppress(OSError):  # On a full disk half a row would keep the last room.
                self._text.write(end, closing.encode())
                self._text.truncate(end + len(closing))
            raise self._unwritable(error) from error

    def replace(self, text: str) -> None:
        """Replaces the file: after a crash it holds the old text or the new one, whole. Raises LedgerError.

        The new file is locked before it has its name. It keeps owner and rights of the old one; a first one can be read
        and written by its owner alone. It starts under a name that nobody can foresee, as a file that did not exist.
        """
        name = ""
        try:
            descriptor, name = tempfile.mkstemp(".tmp", f".{self.path.name}.", self.path.parent)
            new = LockedFile.adopt(self.path, descriptor)
            if self._text is not None:
                new.take_rights_of(self._text)
            new.write(0, text.encode())
            new.sync()
            if os.name == "nt" and self._text is not None:  # Windows does not replace open files.
                self._text.close()
            os.replace(name, self.path)
            old, self._text = self._text, new
            if old is not None:
                old.release()
            self._sync_folder()
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(name)
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise

    def write_mark(self, start: int, data: bytes) -> None:
        """Writes over a part of the mark; it may reach the disk much later. Raises LedgerError."""
        assert self._mark is not None
        try:
            self._mark.write(start, data)
        except OSError as error:
            raise self._unwritable(error) from error

    def sync_mark(self) -> None:
        """What the mark says is on the disk before this returns. Raises LedgerError."""
        assert self._mark is not None
        try:
            self._mark.sync()
        except OSError as error:
            raise self._unwritable(error) from error

    def write_first_mark(self, data: bytes) -> None:
        """Writes all of the mark, on the disk before this returns, or nothing of it. Raises LedgerError."""
        assert self._mark is not None
        try:
            self._mark.write(0, data)
            self._mark.sync()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._mark.truncate(0)
            raise self._unwritable(error) from error

    def _remove_temporaries(self) -> None:
        """Removes what writers left that were killed: whoever holds the lock has none of its own yet."""
        ours = re.compile(rf"\.{re.escape(self.path.name)}\.[a-z0-9_]{{8}}\.tmp")
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(self.path.parent) if ours.fullmatch(name)]
            for name in names:
                os.unlink(self.path.parent / name)

    def _read(self, path: Path) -> bytes | None:
        try:
            with LockedFile.opened(path) as file:
                # At once: reading on to the end could add a part of what is written meanwhile to what was there before.
                return file.read(os.fstat(file.fileno()).st_size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: Path, error: Exception) -> LedgerError:
        return LedgerError(
            f"The ledger {self.path} cannot be read, for {path.name}: {error}. It was left as it is; make it readable,"
            " or restore it from a backup."
        )

    def _unwritable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"The ledger {self.path} cannot be written: {error}. Make room or choose another path; until then nothing"
            " may be released, because it could not be counted."
        )

    def _sync_folder(self) -> None:
        try:
            folder = os.open(self.path.parent, os.O_RDONLY)
        except OSError:  # Windows cannot open folders.
            return
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
