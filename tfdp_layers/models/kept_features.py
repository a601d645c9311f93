"""Features kept in files, each named after what it was computed from."""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.naming import to_snake_case

from tfdp_layers._version import __version__
from tfdp_layers.accounting.half_files import half, private, put_first, remove_left, sync
from tfdp_layers.accounting.plain_files import refuse_no_plain_file

__all__ = ["file_for", "read", "remove_half_files", "write"]

_SECRET = "features.key"
_BYTES = 32
_GARBLED = (ValueError, EOFError, SyntaxError, TypeError, OverflowError, tokenize.TokenError, FileNotFoundError)
"""What NumPy raises of a file that was cut off or changed, or a link to none."""
_HALF = re.compile(r"\.partial\.[0-9a-f]{16}\.features[-.]\w+(\.npy)?|features-[0-9a-f]{32}\.npy\.\d+\.partial")
"""Names of half files; the second one, which containers may share, is that of earlier versions."""


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
        with half(file) as partial:
            with private(partial) as opened:
                opened.write(secrets.token_bytes(_BYTES))
                sync(opened)
            put_first(partial, file)
    found = file.read_bytes() if file.exists() else b""  # a symbolic link to nothing
    if len(found) != _BYTES:
        raise ValueError(
            f"{file}, by which files of features are named, holds {len(found)} bytes in the place of {_BYTES}. Remove"
            " it: a new one is made, and the features are computed once more."
        )
    return found


def read(file: Path, count: int) -> np.ndarray:
    """The features of so many records, mapped from their file. Raises ValueError for one that is not whole."""
    with contextlib.suppress(*_GARBLED):
        found = np.lib.format.open_memmap(file, mode="r")
        whole = found.flags.c_contiguous and found.offset + found.nbytes == file.stat().st_size
        if whole and found.ndim and len(found) == count:
            return found
    raise ValueError(f"{file} was cut off or changed. Remove it, and the features are computed once more.")


def write(file: Path, parts: Iterator[np.ndarray], count: int, dtype: np.dtype | None) -> None:
    """Writes the features of `count` records, whole or not at all; readable by their owner alone, as records are.

    Of several at once the first one's file stands, which others may have mapped. What killed writers left in the folder
    is removed an hour later. The folder is there: `file_for` made it.

    Raises: ValueError for a type that NumPy's files do not know; OSError where the disk has no room for all, before
        most is computed where the file system tells.
    """
    with half(file) as partial:
        with private(partial) as opened:
            for part in parts:
                rows = part.astype(dtype or part.dtype, copy=False)
                if not opened.tell():
                    _begin(opened, (count, *rows.shape[1:]), rows.dtype)
                opened.write(rows.tobytes())
            sync(opened)
        put_first(partial, file)


def remove_half_files(folder: Path) -> None:
    """Removes what killed writers left in a folder of features, whichever those were, an hour later."""
    remove_left(folder, _HALF)


def _begin(opened: BinaryIO, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Writes what a file of NumPy begins with, and claims the room of the rest."""
    if dtype.kind == "V" or dtype.hasobject:
        raise ValueError(f'Files of features hold no {dtype.name}. Give another type: dtype="float32".')
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(opened, about)
    opened.flush()
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(opened.fileno(), 0, opened.tell() + math.prod(shape) * dtype.itemsize)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):  # then each write tells
                raise
