"""Files and folders that are not whole yet, beside the names that they get once they are. Loads no TensorFlow.

The rule of all that is written here for later readers: each writer writes what nobody else has a name for, and it is
seen by one move, whole and on the disk, or never.
"""

import contextlib
import errno
import hashlib
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["ENDINGS", "half", "keep_rights", "private", "put_first", "put_last", "remove_left", "sync"]

ENDINGS = (".keras", ".weights.h5")
"""By which Keras knows what to write."""

_LEFT = 3600.0
"""Seconds after its last change until a half file is one that a killed writer left: nobody writes to it any more."""

_LOOKED: dict[Path, float] = {}
"""When this process looked for what killed writers left beside files: a folder of 20,000 files takes 0.2 s."""

_LONGEST = 100
"""Bytes of a file's name that its half files are named by: file systems end names at 255, or at 143."""


@contextlib.contextmanager
def half(target: Path) -> Iterator[Path]:
    """A path beside for what is not whole yet, of a random name. At the end nothing is there, nor what killed writers
    left of the same name, for which a process looks once an hour.

    Raises: an OSError of writing it names `target`.
    """
    temporary = target.with_name(f".partial.{secrets.token_hex(8)}.{_short(target.name)}")
    try:
        yield temporary
    except BaseException as error:
        # Keras and the system name the file that was written, or none: the user knows the other one.
        named = str(getattr(error, "filename", None) or temporary)
        if isinstance(error, OSError) and error.errno and named.startswith(str(temporary)):
            error.filename = str(target)
        raise
    finally:
        _remove(temporary)
    now = time.monotonic()
    if now - _LOOKED.get(target, -math.inf) < _LEFT:
        return
    _LOOKED[target] = now
    names = rf"[0-9a-f]{{16}}\.{re.escape(_short(target.name))}"
    if not target.is_dir():  # also by the name that all had once
        names += f"|{re.escape(target.name)}"
    remove_left(target.parent, re.compile(rf"\.partial\.({names})"))


def private(path: Path) -> BinaryIO:
    """A new, empty file that only this user may read. Raises: FileExistsError where one is there."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def sync(file: BinaryIO) -> None:
    """Returns once what was written is on the disk. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def put_first(partial: Path, file: Path) -> bool:
    """Gives a whole file its name, unless somebody else was first; whether it has it.

    Of several at once one is first, where the file system knows links. Elsewhere the last one's may stand.

    Raises: FileNotFoundError for a half file that is gone, as another job took it for one of a killed writer.
    """
    try:
        os.link(partial, file)
    except OSError:  # a file is there, or this one by now, of which a network's answer was lost; or there are no links
        if os.path.lexists(file):
            return file.exists() and partial.exists() and os.path.samefile(partial, file)
        if not partial.exists():
            gone = "its half file was removed by another job, as nobody wrote to it for an hour. Run this job again"
            raise FileNotFoundError(errno.ENOENT, gone, str(file)) from None
        os.replace(partial, file)
    return True


def put_last(partial: Path, file: Path) -> None:
    """Gives a whole file, once it is on the disk, its name, with owner and rights of the one that it replaces.

    Of several at once the last one's stands. Raises OSError.
    """
    with open(partial, "rb") as opened:
        with contextlib.suppress(OSError):  # no older one is there, or a file system without rights
            keep_rights(opened.fileno(), file.stat())
        os.fsync(opened.fileno())
    os.replace(partial, file)


def keep_rights(descriptor: int, found: os.stat_result) -> None:
    """Gives an open file owner, group and rights of another; rights of a group that it cannot have are left out."""
    mine, mode = os.fstat(descriptor), stat.S_IMODE(found.st_mode)
    if hasattr(os, "fchown") and (found.st_uid, found.st_gid) != (mine.st_uid, mine.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, found.st_uid, -1)
        try:
            os.fchown(descriptor, -1, found.st_gid)
        except OSError:
            mode &= ~stat.S_IRWXG
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)


def remove_left(folder: Path, ours: re.Pattern[str], but: str = "") -> None:
    """Removes half files and folders of these names that nobody wrote to for an hour, but for one."""
    with contextlib.suppress(OSError):
        found = [one for one in folder.iterdir() if one.name != but and ours.fullmatch(one.name)]
        if not found:
            return
        with tempfile.TemporaryFile(dir=folder) as newest:
            now = os.fstat(newest.fileno()).st_mtime  # by the file system's clock
        for one in found:
            with contextlib.suppress(OSError):  # it may be gone: its writer was at its end
                if now - _changed(one) > _LEFT:
                    _remove(one)


def _short(name: str) -> str:
    """What half files of a file are named by: no file that can be written itself has a name too long for them."""
    if len(os.fsencode(name)) <= _LONGEST:
        return name
    ending = next((one for one in ENDINGS if name.endswith(one)), "")
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + ending


def _remove(one: Path) -> None:
    with contextlib.suppress(OSError):
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)


def _changed(one: Path) -> float:
    """When a half file, or one within a half folder, changed last."""
    within = one.rglob("*") if one.is_dir() and not one.is_symlink() else ()
    return max(each.lstat().st_mtime for each in (one, *within))
