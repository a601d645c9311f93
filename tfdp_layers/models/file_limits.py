"""How much memory a model file may ask for: declared sizes are added up before anything of them is read or made."""

import contextlib
import io
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import h5py
import tensorflow as tf

__all__ = ["LARGEST", "MemoryLimit", "ModelFileError"]

LARGEST = 4 * 2**30
"""Bytes that a model file may ask for, unless whoever loads it allows more: 4 GiB."""
_LARGEST_CONFIG = 64 * 2**20
_WEIGHTS = "model.weights.h5"


class ModelFileError(ValueError):
    """A model file cannot be read, or names what may not be loaded."""


class MemoryLimit:
    """Adds up what a file declares, and refuses it past a limit.

    Three sums are bounded, each by itself: the members of the archive, unpacked (reading stops at the declared size,
    whatever is packed); the arrays among the weights, which HDF5 may pack once more; and the variables that the model
    and its optimizer make. So loading takes a small multiple of the limit.

    Args:
        limit: bytes.

    Raises: ValueError unless it is a positive number.
    """

    def __init__(self, limit: float = LARGEST) -> None:
        if isinstance(limit, bool) or not limit > 0:
            raise ValueError(f"`max_bytes` must be a positive number of bytes. Received: max_bytes={limit!r}.")
        self._limit = limit

    def check_members(self, archive: zipfile.ZipFile) -> None:
        """Raises ModelFileError for members that are too large together, or a config that is."""
        sizes = [(member.file_size, member.filename) for member in archive.infolist()]
        self._refuse(sum(size for size, _ in sizes), "unpacks to", max(sizes, default=(0, "nothing"))[1])
        for size, name in sizes:
            if name.endswith(".json") and size > _LARGEST_CONFIG:
                raise ModelFileError(
                    f"{name} of the model file is {size:,} bytes, and at most {_LARGEST_CONFIG:,} are read: it"
                    " describes layers, and is never that long. Do not load this file."
                )

    def check_arrays(self, archive: zipfile.ZipFile) -> None:
        """Raises ModelFileError for weights whose arrays are too large together, or lie in other files."""
        if _WEIGHTS not in archive.namelist():
            return
        with archive.open(_WEIGHTS) as member, buffered(member) as reader, h5py.File(reader, "r") as file:
            sizes: list[tuple[int, str]] = []

            def add(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    if item.external or item.is_virtual:
                        raise ModelFileError(f"Array {name!r} of the model file lies in other files. Do not load it.")
                    sizes.append((item.size * item.dtype.itemsize, name))

            file.visititems(add)
        self._refuse(sum(size for size, _ in sizes), "holds arrays of", max(sizes, default=(0, "none"))[1])

    @contextlib.contextmanager
    def of_variables(self) -> Iterator[None]:
        """Inside, in this thread, raises ModelFileError before variables are made that are too large together."""
        made = 0

        def create(following: Callable[..., Any], **arguments: Any) -> Any:
            nonlocal made
            made += size_of(arguments.get("initial_value"))
            self._refuse(made, "makes variables of", str(arguments.get("name")))
            return following(**arguments)

        with tf.variable_creator_scope(create):
            yield

    def _refuse(self, size: int, does: str, largest: str) -> None:
        if size > self._limit:
            raise ModelFileError(
                f"The model file {does} {size:,} bytes (most in, or last: {largest!r}), and at most"
                f" {self._limit:,.0f} are allowed. If you trust it and have the memory, load it with a larger"
                " max_bytes=."
            )


def size_of(value: Any) -> int:
    """Bytes of a variable's initial value, which is not computed: its shape is found by building a graph of it."""
    if callable(value):
        with tf.__internal__.FuncGraph("size").as_default():  # may read variables: a generator of seeds has one
            value = tf.convert_to_tensor(value())
    count = value.shape.num_elements() if hasattr(value, "shape") else 1
    return int(count or 0) * int(tf.as_dtype(getattr(value, "dtype", tf.float32)).size)


def buffered(member: Any) -> BinaryIO:
    """A member of an archive, of which HDF5 reads here and there."""
    return io.BufferedReader(member, 2**20)
