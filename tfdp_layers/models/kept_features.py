"""Features kept in files, each named after what it was computed from."""

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.naming import to_snake_case

from tfdp_layers._version import __version__
from tfdp_layers.accounting.plain_files import refuse_no_plain_file
from tfdp_layers.batches.written import private

__all__ = ["file_for", "writing"]

_SECRET = "features.key"
_BYTES = 32


def file_for(folder: Path, layers: Sequence[Any], x: np.ndarray, dtype: np.dtype | None) -> Path:
    """Where features are kept: the name is a digest of the layers, their weights, the records and the versions.

    Other records, layers or weights so have another file, and a file is never taken for what it is not. What the
    configuration of a layer does not tell, such as a changed source of a class of your own, is not seen.

    Guarantee: who may list the folder, and not read the secret in it, cannot try guesses of a record by the name: the
    digest is keyed by it. Makes the folder, for this user alone, and the secret, where they are missing.
    Raises: ValueError as `secret_of`.
    """
    digest = hashlib.blake2b(digest_size=16, key=secret_of(folder))
    about = [__version__, keras.__version__, tf.__version__, str(dtype), x.shape, x.dtype.str]
    about += [[f"{type(layer).__module__}.{type(layer).__qualname__}", layer.get_config()] for layer in layers]
    text = json.dumps(about, default=repr, sort_keys=True)
    for place, part in enumerate(part for layer in layers for part in layer._flatten_layers()):
        if re.fullmatch(rf"{to_snake_case(type(part).__name__)}(_\d+)?", part.name):
            # Keras counts the layers that a process made. A name that somebody gave may be that of an activation.
            text = text.replace(json.dumps(part.name), f'"layer {place}"')
    digest.update(text.encode())
    for array in (*(np.asarray(weight) for layer in layers for weight in layer.weights), x):
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return folder / f"features-{digest.hexdigest()}.npy"


def secret_of(folder: Path) -> bytes:
    """The secret by which the names in a folder are made: random, the folder's own, readable by its owner alone.

    The first who asks makes it, whole or not at all; of several at once all get the secret of one of them, where the
    file system knows links (elsewhere one may compute its features once more).

    Raises: ValueError for a folder, a pipe or a device in its place, and for one that is not whole.
    """
    file = folder / _SECRET
    refuse_no_plain_file(file, "Remove it, or give another folder as cache.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not file.exists():
        partial = file.with_name(f"{_SECRET}.{secrets.token_hex(8)}.partial")
        try:
            with private(partial) as opened:
                opened.write(secrets.token_bytes(_BYTES))
                opened.flush()
                os.fsync(opened.fileno())
            _put_first(partial, file)
        finally:
            partial.unlink(missing_ok=True)
    found = file.read_bytes() if file.exists() else b""  # a symbolic link to nothing
    if len(found) != _BYTES:
        raise ValueError(
            f"{file}, by which files of features are named, holds {len(found)} bytes in the place of {_BYTES}. Remove"
            " it: a new one is made, and the features are computed once more."
        )
    return found


def _put_first(partial: Path, file: Path) -> None:
    """Gives a file its name, unless somebody else was first."""
    with contextlib.suppress(FileExistsError):
        try:
            os.link(partial, file)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.replace(partial, file)


class writing:  # noqa: N801 (used like a function)
    """An array in a file that takes its name only once it is whole; readable by its owner alone, as records are.

    Its folder is there: `file_for` made it.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._partial = file.with_name(f"{file.name}.{os.getpid()}.partial")

    def __enter__(self) -> "writing":
        return self

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Raises: ValueError for a type that NumPy's files do not know."""
        if dtype.kind == "V":
            raise ValueError(f'Files of features hold no {dtype.name}. Give another type: dtype="float32".')
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        with private(self._partial) as file:
            np.lib.format.write_array_header_1_0(file, about)
            file.truncate(file.tell() + math.prod(shape) * dtype.itemsize)
        return np.lib.format.open_memmap(self._partial, mode="r+")

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            os.replace(self._partial, self.file)
        else:
            self._partial.unlink(missing_ok=True)
