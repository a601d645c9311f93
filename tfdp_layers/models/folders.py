"""Folders that a model was saved to, read as model files are."""

import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from tfdp_layers.accounting.plain_files import refuse_no_plain_file
from tfdp_layers.models.file_limits import ModelFileError

__all__ = ["MEMBERS", "ModelFolder", "opened", "refuse_no_model_folder"]

MEMBERS = frozenset({"config.json", "metadata.json", "model.weights.h5"})
"""What every model that Keras saved consists of."""

_FIX = "Give a file *.keras, or a folder, that model.save wrote."


class ModelFolder:
    """What `zipfile.ZipFile` tells of a model file, of a folder: so limits and checks are the same for both.

    Looked at is what Keras reads: the three files that every model consists of, and what lies under `assets`. What else
    is in the folder is the user's, and not read.

    Raises: ModelFileError for what of these is no file (a pipe, a device) and for links to other folders: neither says
        how much there is to read.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._sizes = path, {name: (path / name).stat().st_size for name in sorted(MEMBERS)}
        for folder, folders, files in os.walk(path / "assets"):
            for name in folders:
                if os.path.islink(os.path.join(folder, name)):
                    raise ModelFileError(f"{os.path.join(folder, name)} is a link to another folder. {_FIX}")
            for name in files:
                file = Path(folder, name)
                refuse_no_plain_file(file, _FIX, ModelFileError)
                self._sizes[file.relative_to(path).as_posix()] = file.stat().st_size

    def __enter__(self) -> "ModelFolder":
        return self

    def __exit__(self, *raised: Any) -> None:
        """As a file's: nothing stays open."""

    def infolist(self) -> list[zipfile.ZipInfo]:
        """The files by name and size."""
        found = []
        for name, size in self._sizes.items():
            found.append(zipfile.ZipInfo(name))
            found[-1].file_size = size
        return found

    def namelist(self) -> list[str]:
        """The names of the files, by which they are read."""
        return list(self._sizes)

    def open(self, name: str) -> BinaryIO:
        """A file, to be read here and there. Raises: OSError."""
        return open(self._path / name, "rb", buffering=0)  # type: ignore[return-value]

    def read(self, name: str) -> bytes:
        """A file's bytes. Raises: OSError."""
        return (self._path / name).read_bytes()

    def testzip(self) -> None:
        """Nothing: files in a folder have no checksums that could tell of a damaged one."""


def opened(path: Path) -> Any:
    """A saved model's files, for `with`: of a file *.keras, or of a folder."""
    return ModelFolder(path) if path.is_dir() else zipfile.ZipFile(path)


def refuse_no_model_folder(path: Path) -> None:
    """Raises ModelFileError for a folder that Keras saved no model to, or that it would not read."""
    missing = sorted(name for name in MEMBERS if not (path / name).is_file())
    if missing:
        raise ModelFileError(
            f"{path} is a folder, and no model that model.save(path, zipped=False) wrote: it has no"
            f" {' and no '.join(missing)}. {_FIX} What model.export wrote is read by tf.saved_model.load,"
            " and holds no ledger."
        )
    if path.suffix == ".keras":
        raise ModelFileError(
            f"{path} is a folder, and Keras reads files alone whose names end in .keras. Give the folder another name."
        )
