"""Image data sets for the command and the examples: found on disk, downloaded by Keras, or shipped with scikit-learn.

No TensorFlow is imported. A data set that was named is never replaced by another one.
"""

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tfdp_layers.zoo.image_folders import ImageFolder
from tfdp_layers.accounting.plain_files import refuse_no_path
from tfdp_layers.calls import explain
from tfdp_layers.zoo import download, image_files

__all__ = ["DEFAULT", "NAMES", "Dataset", "DatasetNotFound", "black_image", "image_folder", "load", "load_default"]

DEFAULT = "fashion_mnist"
_DIGITS = (8, 8, 1)
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")


class DatasetNotFound(FileNotFoundError):  # noqa: N818 (says what happened; FileNotFoundError is its kind)
    """A data set is nowhere on this machine and cannot be downloaded; the message lists where it was looked for."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set, split as published.

    Attributes:
        name: as given to `load`.
        x_train, x_test: float32 images in [0, 1], (n, height, width, channels).
        y_train, y_test: int64 labels in 0..classes-1, (n,).
        source: the file, folder or package that the records came from.
        classes: number of classes.
        note: why this set and not the default one; empty if it was asked for.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str
    classes: int
    note: str = ""


@dataclass(frozen=True)
class _Images:
    """What is known of a data set before it is found."""

    shape: tuple[int, int, int]
    folders: tuple[str, ...]
    website: str
    idx: bool = False
    debian: str = ""


_IMAGES = {
    "mnist": _Images((28, 28, 1), ("mnist",), "the four idx files of MNIST", idx=True),
    "fashion_mnist": _Images(
        (28, 28, 1),
        ("fashion-mnist", "fashion_mnist"),
        "https://github.com/zalandoresearch/fashion-mnist (four idx files)",
        idx=True,
        debian="dataset-fashion-mnist",
    ),
    "cifar10": _Images((32, 32, 3), ("cifar10",), "https://www.cs.toronto.edu/~kriz/cifar.html"),
}
NAMES = (*_IMAGES, "digits")


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads a data set by its name.

    Looks in `data_dir` (NAME.npz with the arrays x_train, y_train, x_test, y_test; or the four idx files, gzipped or
    not, there or in a folder of the set's name), in Keras' cache, in the folder of Debian's package, and downloads
    through Keras at last. "digits" ships with scikit-learn: 1,797 images of 8x8 pixels; every fifth is a test image.

    Raises:
        ValueError: an unknown name, a `data_dir` that is no folder, or files that do not hold the data set.
        DatasetNotFound: not found and not downloaded; the message says where it was looked for and how to get it.
    """
    if name not in NAMES:
        raise ValueError(f"Unknown data set {name!r}. Choose one of: {', '.join(NAMES)}.")
    if data_dir is not None:
        refuse_no_path(data_dir, "data_dir, a folder,", "data")
    if data_dir is not None and not Path(data_dir).is_dir():
        raise ValueError(
            f"The data folder {data_dir} does not exist or is no folder. Create it and put {name}.npz in it, or leave"
            " it out."
        )
    if name == "digits":
        return _digits()
    folder = None if data_dir is None else Path(data_dir)
    for find in _places(name, folder):
        found = find()
        if found is not None:
            return _finished(name, *found)
    try:
        return _finished(name, _download(name), "downloaded by keras.datasets")
    except Exception as error:  # Keras raises bare Exception where the network fails.
        raise DatasetNotFound(_how_to_get(name, folder, error)) from error


def image_folder(
    folder: str | os.PathLike[str],
    image_size: tuple[int, int],
    *,
    color_mode: str = "rgb",
    interpolation: str = "bilinear",
) -> "ImageFolder":
    """Images of one's own, `folder/class/image.png`: records for `fit` and `tfdp.PrivateBatches`, read when drawn.

    The names of the classes and the number of images count as public. Only file names are read now; an image is read
    anew whenever it is drawn, in threads. Values are those of `keras.utils.image_dataset_from_directory`.

    Args:
        folder: holds one folder for each class; their names in order are the labels 0, 1, ... Images are files with the
            endings bmp, gif (the first frame), jpeg, jpg and png, also in folders below; a link to one of the others is
            warned of, as it would be a second record.
        image_size: (height, width), to which all are resized.
        color_mode: "grayscale", "rgb" or "rgba".
        interpolation: as `tf.image.resize` has it.

    Returns: a source with `len()`; its items are (image, label), float32 of (height, width, channels) in 0 to 255 and a
        whole number; `classes`, `paths` and `labels` say what it found.
    Raises:
        ValueError: an argument out of range, or no image; while records are drawn, a file that is no image.
    """
    from tfdp_layers.zoo.image_folders import ImageFolder

    return ImageFolder(folder, image_size, color_mode, interpolation)


def black_image(name: str) -> Dataset:
    """One black image of a data set's shape, for what is checked before that is loaded."""
    x, y = np.zeros((1, *(_IMAGES[name].shape if name in _IMAGES else _DIGITS)), np.float32), np.zeros(1, np.int64)
    return Dataset(name, x, y, x, y, "made up", 10)


def load_default(data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads Fashion-MNIST, or the digits where it cannot be had; `note` then says so. For when no set was named.

    Raises:
        ValueError: `data_dir` is no folder, or holds files that are damaged.
    """
    try:
        return load(DEFAULT, data_dir)
    except DatasetNotFound as missing:
        why = " ".join(str(missing.__cause__).split())
        return _digits(
            f"{DEFAULT} is not on this machine and could not be downloaded ({why}), so this runs on scikit-learn's"
            f" small digits instead. Name it (--dataset {DEFAULT}) to see the ways to get it."
        )


def _places(name: str, data_dir: Path | None) -> Iterator[Callable[[], tuple[image_files.Arrays, str] | None]]:
    """The ways to find a data set on this machine, in their order."""
    known = _IMAGES[name]
    folders = [] if data_dir is None else [*(data_dir / folder for folder in known.folders), data_dir]
    cache = _keras_cache()
    folders += [cache, *(cache / folder for folder in known.folders)]
    for folder in folders:
        yield functools.partial(image_files.read_npz, folder / f"{name}.npz")
        # Keras' cache itself is shared by all sets: only a set's own folder there may hold idx files.
        if known.idx and folder != cache:
            yield functools.partial(image_files.read_idx, folder, name)
    if known.debian:
        yield functools.partial(image_files.read_idx, _DEBIAN, name)
    if name == "cifar10" and (cache / "cifar-10-batches-py-target").is_dir():
        yield functools.partial(download.read_cached, name, cache)


def _keras_cache() -> Path:
    return Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "datasets"


def _download(name: str) -> image_files.Arrays:
    return download.download(name, _keras_cache())


def _finished(name: str, arrays: image_files.Arrays, source: str) -> Dataset:
    """Pixels to float32 in [0, 1], channels last; everything checked."""
    shape = _IMAGES[name].shape
    x_train, y_train = image_files.checked(arrays.x_train, arrays.y_train, shape, 10, source)
    x_test, y_test = image_files.checked(arrays.x_test, arrays.y_test, shape, 10, source)
    return Dataset(name, x_train, y_train, x_test, y_test, source, 10)


def _digits(note: str = "") -> Dataset:
    import sklearn.datasets

    bunch = sklearn.datasets.load_digits()
    x = (bunch.images[..., np.newaxis] / 16.0).astype(np.float32)
    y = bunch.target.astype(np.int64)
    test = np.arange(len(y)) % 5 == 0
    return Dataset("digits", x[~test], y[~test], x[test], y[test], "scikit-learn (shipped with it)", 10, note)


def _how_to_get(name: str, data_dir: Path | None, error: Exception) -> str:
    known = _IMAGES[name]
    looked = [str(data_dir)] if data_dir is not None else []
    looked += [str(_keras_cache())] + ([str(_DEBIAN)] if known.debian else [])
    ways = [
        "connect this machine to the network, and Keras downloads it",
        f"run `python -c 'import keras; keras.datasets.{name}.load_data()'` where there is a network, and copy"
        " ~/.keras/datasets from there",
        f"put {name}.npz (uint8 arrays x_train, y_train, x_test, y_test) into a folder and give it with --data-dir",
    ]
    if known.idx:
        ways.append(f"or put there {known.website}")
    if known.debian:
        ways.append(f"on Debian and Ubuntu: apt install {known.debian}")
    ways.append("use --dataset digits, which needs no files")
    lines = "\n".join(f"  - {way}" for way in ways)
    return (
        f"The data set {name} was not found in {', '.join(looked)}, and the download failed ({error}). Ways to get"
        f" it:\n{lines}"
    )


explain(globals(), __all__)
