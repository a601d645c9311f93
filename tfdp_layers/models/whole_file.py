"""Files, and folders of a model's files, that are written whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdp_layers.accounting.half_files import ENDINGS, half, put_last
from tfdp_layers.accounting.plain_files import refuse_no_plain_file
from tfdp_layers.layers.carried import HDF5, SEVERAL


def whole_model(path: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
    """Where `model.save`, called with these arguments, is to write: a file, or with zipped=False a folder.

    Raises: ValueError for an HDF5 file, before Keras empties one that is there.
    """
    if str(path).endswith((".h5", ".hdf5")):
        raise ValueError(HDF5)
    zipped = (*args, kwargs.get("zipped"))[0]
    return whole_file(path, overwrite) if zipped or zipped is None else whole_folder(path)


def whole_weights(path: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
    """Where `model.save_weights`, called with these arguments, is to write.

    Raises: ValueError for weights in several files (`max_shard_size`, or a list of files: NAME.weights.json).
    """
    if (*args, kwargs.get("max_shard_size"))[0] is not None or str(path).endswith("weights.json"):
        raise ValueError(SEVERAL)
    return whole_file(path, overwrite)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[Any]:
    """The path to write a file of weights or a model to, so that at any moment there is the old file or the new one.

    Each writer, of whichever thread, process or machine, has a half file of its own: of several at once the last one's
    file stands, whole. It has owner and rights of the one that it replaces. What killed writers left is removed by
    whoever writes the same file an hour later.

    Yields `path` itself where it is not a local file ending in .keras or .weights.h5, or may not be overwritten.
    Raises: ValueError for a folder, a pipe or a device; FileNotFoundError where its folder does not exist; an OSError
        of writing names `path`.
    """
    text = _local(path, ENDINGS)
    if not text or (not overwrite and os.path.exists(text)):
        yield path
        return
    target = Path(os.path.realpath(text))
    refuse_no_plain_file(target, "Give the name of a file to write.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} of {target.name} does not exist. Create it first.")
    with half(target) as temporary:
        yield temporary
        put_last(temporary, target)


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The path to write a new folder to, which has its name once all is in it, by one move.

    Nothing that is there already is changed or removed. Of several writers at once the first one's folder stands.

    Yields `path` itself where it is not local, and for *.keras, of which Keras makes no folder.
    Raises: FileExistsError where a file, a folder or a link is there; an OSError of writing names `path`.
    """
    text = _local(path, ("",))
    if not text or text.endswith(".keras"):
        yield path
        return
    _refuse_what_is_there(Path(text))
    target = Path(os.path.realpath(text))
    target.parent.mkdir(parents=True, exist_ok=True)  # as Keras does
    with half(target) as temporary:
        yield temporary
        for one in temporary.rglob("*"):
            if one.is_file():
                with open(one, "rb") as file:
                    os.fsync(file.fileno())
        try:
            os.rename(temporary, target)
        except OSError:
            _refuse_what_is_there(target)  # another writer was first
            raise


def _refuse_what_is_there(place: Path) -> None:
    """Raises FileExistsError for a file, a folder or a link, of which the user alone knows whether it may go."""
    if os.path.lexists(place):
        raise FileExistsError(
            f"{place} is there already, and zipped=False writes a new folder: what is there might be yours, or be read"
            " just now, so nothing of it is deleted or replaced, with overwrite=True neither. Name a new folder, or"
            " remove this one yourself before; a file *.keras (without zipped=False) is replaced whole."
        )


def _local(path: Any, endings: tuple[str, ...]) -> str:
    """A path of this machine that ends so; else nothing: Keras says, or asks, the rest."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    return text if isinstance(text, str) and text.endswith(endings) and "://" not in text else ""
