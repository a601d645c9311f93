"""Whether a path names a file that can be read to its end. Loads no TensorFlow."""

import os
import stat
from typing import Any

from tfdp_layers.instances import refuse_other_kind

__all__ = ["refuse_no_path", "refuse_no_plain_file"]

_KINDS = (
    (stat.S_ISDIR, "a folder", "it holds files, and is none"),
    (stat.S_ISFIFO, "a named pipe (FIFO)", "reading it waits for whoever writes into it, and it can be read once"),
    (stat.S_ISSOCK, "a socket", "it is no file that can be read"),
    (stat.S_ISCHR, "a device", "reading it may never end"),
    (stat.S_ISBLK, "a device", "it holds a disk, and no file"),
)


def refuse_no_path(given: Any, argument: str, example: str) -> None:
    """Raises ValueError for what is no path at all: a number, a model, a list, None.

    Args:
        given: as the caller gave it.
        argument: how the caller calls it.
        example: a path.
    """
    refuse_other_kind(given, (str, os.PathLike), argument, f"a path, as text or a pathlib.Path: {example!r}, say")


def refuse_no_plain_file(path: Any, fix: str, error: type[Exception] = ValueError) -> None:
    """Asked before a file is opened whose name somebody gave; looks at what the name stands for, and opens nothing.

    A symbolic link is followed. A path that is not there, or may not be looked at, is left to whoever opens it; so is
    anything but a path, and a name of another machine ("gs://...").

    Args:
        path: as the caller gave it.
        fix: what to give instead, as a sentence.
        error: what to raise.

    Raises: `error` for a folder, a pipe, a socket or a device, saying which.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a zero byte in it
        return
    for is_one, name, why in _KINDS:
        if is_one(mode):
            raise error(f"{os.fsdecode(path)} is {name}, and no file: {why}. {fix}")
