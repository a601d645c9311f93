"""Files that are written whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdp_layers.accounting.plain_files import refuse_no_plain_file


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[Any]:
    """The path to write a file of weights or a model to, so that at any moment there is the old file or the new one.

    Yields `path` itself where it is not a local file ending in .keras or .weights.h5, or may not be overwritten.
    Raises: ValueError for a folder, a pipe or a device; FileNotFoundError where its folder does not exist; an OSError
        of writing names `path`.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    local = text.endswith((".keras", ".weights.h5")) and "://" not in text
    if not local or (not overwrite and os.path.exists(text)):
        yield path
        return
    target = Path(os.path.realpath(text))
    refuse_no_plain_file(target, "Give the name of a file to write.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} of {target.name} does not exist. Create it first.")
    temporary = target.with_name(f".partial.{target.name}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        # Keras and the system name the file that was written, or none: the user knows the other one.
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(target)
        raise
