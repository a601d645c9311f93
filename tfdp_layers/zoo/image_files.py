"""Reads image data sets from files: Keras' npz layout, and the idx files of MNIST and Fashion-MNIST."""

import gzip
import math
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Arrays", "checked", "read_idx", "read_npz"]

_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# The idx files of both sets have the same names. Their first training labels tell them apart.
_FIRST_LABELS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "fashion_mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)}
_DAMAGE = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)


class Arrays(NamedTuple):
    """Training and test images and labels as they lie in files: uint8, with or without an axis of channels."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def read_npz(path: Path) -> tuple[Arrays, str] | None:
    """Returns the arrays x_train, y_train, x_test, y_test and the path; None where there is no such file.

    Raises:
        ValueError: the file is damaged or lacks an array.
    """
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            return Arrays(*(file[name] for name in Arrays._fields)), str(path)
    except _DAMAGE as error:
        raise ValueError(
            f"{path} is damaged or not in Keras' layout (arrays {', '.join(Arrays._fields)}): {error}. Replace or"
            " remove it."
        ) from error


def read_idx(folder: Path, name: str) -> tuple[Arrays, str] | None:
    """Returns the arrays of the four idx files in a folder, gzipped or not, and the folder; None if one is missing.

    Raises:
        ValueError: a file is damaged, or the files are those of the other set with the same file names.
    """
    paths = [_first_file(folder / file, folder / f"{file}.gz") for file in _IDX_FILES]
    if None in paths:
        return None
    x_train, y_train, x_test, y_test = (_read_idx_file(path) for path in paths if path is not None)
    first = tuple(int(label) for label in y_train[:10])
    other = next((other for other, labels in _FIRST_LABELS.items() if labels == first), name)
    if other != name:
        raise ValueError(f"The idx files in {folder} are those of {other}, not of {name}: use --dataset {other}.")
    return Arrays(x_train, y_train, x_test, y_test), str(folder)


def checked(
    x: np.ndarray, y: np.ndarray, shape: tuple[int, ...], classes: int, source: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns float32 images in [0, 1], (n, *shape), and int64 labels, (n,).

    Raises:
        ValueError: other shapes, pixels that are not uint8, labels that are no integers in 0..classes-1, or no records.
    """
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype != np.uint8 or x.shape[1:] not in (shape, shape[:-1] if shape[-1] == 1 else shape) or not len(x):
        raise ValueError(
            f"The images in {source} must be uint8, (n, {', '.join(map(str, shape))}), n at least 1. Received:"
            f" {x.dtype}, {x.shape}."
        )
    if y.shape not in ((len(x),), (len(x), 1)) or y.dtype.kind not in "iu":
        raise ValueError(
            f"The labels in {source} must be one integer for each of {len(x)} images. Received: {y.dtype}, {y.shape}."
        )
    y = y.reshape(-1).astype(np.int64)
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"The labels in {source} must lie in 0..{classes - 1}, and some do not.")
    return x.reshape(-1, *shape).astype(np.float32) / np.float32(255.0), y


def _first_file(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _read_idx_file(path: Path) -> np.ndarray:
    """An array of unsigned bytes: two zero bytes, type 8, the rank, big-endian sizes, then the values."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if data[:3] != b"\x00\x00\x08" or len(data) < 4:
            raise ValueError("it does not start as an idx file of bytes does")
        rank = data[3]
        sizes = [int(size) for size in np.frombuffer(data, ">u4", count=rank, offset=4)]
        if len(data) != 4 + 4 * rank + math.prod(sizes):
            raise ValueError(f"it should hold {math.prod(sizes)} values and holds {len(data) - 4 - 4 * rank}")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(sizes)
    except _DAMAGE as error:
        raise ValueError(f"{path} is damaged: {error}. Replace or remove it.") from error
