"""Images in a folder of folders, read as they are drawn."""

import os
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.plain_files import refuse_no_path, refuse_no_plain_file
from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.caller import warn

__all__ = ["ImageFolder"]

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}


class ImageFolder:
    """Records by index from `folder/class/image.png`: see `tfdp.datasets.image_folder`.

    Attributes:
        classes: names of the folders, in the order of their labels.
        paths: of the images, in the order of the records.
        labels: int64, one for each.
    """

    def __init__(
        self, folder: str | os.PathLike[str], image_size: tuple[int, int], color_mode: str, interpolation: str
    ) -> None:
        if color_mode not in _CHANNELS:
            raise ValueError(f"color_mode must be one of {sorted(_CHANNELS)}. Received: {color_mode!r}.")
        if (
            not isinstance(image_size, tuple | list)
            or len(image_size) != 2
            or any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in image_size)
        ):
            raise ValueError(f"image_size must be (height, width), both of at least 1. Received: {image_size!r}.")
        self.image_size, self._channels, self._interpolation = (
            tuple(map(int, image_size)),
            _CHANNELS[color_mode],
            interpolation,
        )
        refuse_no_path(folder, "folder", "photos")
        if not Path(folder).is_dir():
            raise ValueError(
                f"The folder {folder} does not exist or is no folder. Give one that holds a folder a class."
            )
        kinds = sorted(kind for kind in Path(folder).iterdir() if kind.is_dir())
        self.classes = [kind.name for kind in kinds]
        found = [sorted(path for path in kind.rglob("*") if path.suffix.lower() in _ENDINGS) for kind in kinds]
        self.paths = [path for paths in found for path in paths]
        self.labels = np.repeat(np.arange(len(kinds)), [len(paths) for paths in found])
        if not self.paths:
            raise ValueError(
                f"{folder} holds no images ({', '.join(_ENDINGS)}) in folders of its own, one folder a class."
            )

        for path in self.paths:
            refuse_no_plain_file(path, "Remove it: while fit runs it would hold up whoever draws it.")
        _warn_of_links(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        """The image, float32 of (height, width, channels) in 0 to 255, and its label."""
        path = self.paths[index]
        try:
            image = tf.io.decode_image(tf.io.read_file(str(path)), self._channels, expand_animations=False)
        except tf.errors.OpError as error:
            raise ValueError(
                f"{path} cannot be read as an image of {self._channels} channels: {error.message}. Remove or replace it"
                " before training: leaving out what cannot be read while fit runs would tell who was drawn."
            ) from error
        resized = tf.image.resize(image, self.image_size, self._interpolation)
        return np.asarray(resized), self.labels[index]


def _warn_of_links(paths: list[Path]) -> None:
    """Warns where several names lead to one file, by symbolic or hard links: it would be several records."""
    # A broken link is no image, which is said where it is drawn; some systems do not number files.
    stats = [path.stat() for path in paths if path.exists()]
    numbers = [(one.st_dev, one.st_ino) for one in stats if one.st_ino]
    more = len(numbers) - len(set(numbers))
    if more:
        warn(
            f"The {len(paths):,} images are {len(paths) - more:,} files: the other names are links to them. Who is in a"
            f" file of k names is in k records, and {AS_SO_MANY} Remove the links (in Python: {{path.resolve() for path"
            " in source.paths} are the files that symbolic ones lead to); or say whose each image is, unit_ids=."
        )
