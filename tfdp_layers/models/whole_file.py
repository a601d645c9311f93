"""Files that are written whole or not at all."""

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdp_layers.accounting.plain_files import refuse_no_plain_file

_LEFT = 3600.0
"""Seconds after its last change until a half file is one that a killed writer left: nobody writes to it any more."""

_ENDINGS = (".keras", ".weights.h5")
_LONGEST = 100
"""Bytes of a file's name that its half files are named by: file systems end names at 255, or at 143."""


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[Any]:
    """The path to write a file of weights or a model to, so that at any moment there is the old file or the new one.

    Each writer, of whichever thread, process or machine, has a half file of its own: of several at once the last one's
    file stands, whole. What killed writers left is removed by whoever writes the same file an hour later.

    Yields `path` itself where it is not a local file ending in .keras or .weights.h5, or may not be overwritten.
    Raises: ValueError for a folder, a pipe or a device; FileNotFoundError where its folder does not exist; an OSError
        of writing names `path`.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    local = text.endswith(_ENDINGS) and "://" not in text
    if not local or (not overwrite and os.path.exists(text)):
        yield path
        return
    target = Path(os.path.realpath(text))
    refuse_no_plain_file(target, "Give the name of a file to write.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} of {target.name} does not exist. Create it first.")
    temporary = target.with_name(f".partial.{secrets.token_hex(8)}.{_short(target.name)}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
            written = os.fstat(file.fileno()).st_mtime
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        # Keras and the system name the file that was written, or none: the user knows the other one.
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(target)
        raise
    _remove_left(target, written)


def _short(name: str) -> str:
    """What half files of a file are named by: no file that can be written itself has a name too long for them."""
    if len(os.fsencode(name)) <= _LONGEST:
        return name
    ending = next(one for one in _ENDINGS if name.endswith(one))  # by which Keras knows what to write
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + ending


def _remove_left(target: Path, now: float) -> None:
    """Removes half files of killed writers, also by the name that all had once; `now`: by the file system's clock."""
    ours = re.compile(
        rf"\.partial\.([0-9a-f]{{16}}\.{re.escape(_short(target.name))}|{re.escape(target.name)})",
    )
    with contextlib.suppress(OSError), os.scandir(target.parent) as found:
        for one in found:
            if ours.fullmatch(one.name) and now - one.stat(follow_symlinks=False).st_mtime > _LEFT:
                os.unlink(one.path)
