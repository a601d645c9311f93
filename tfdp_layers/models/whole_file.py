"""Files, and folders of files, that are written whole or not at all."""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdp_layers.accounting.plain_files import refuse_no_plain_file
from tfdp_layers.caller import warn

_LEFT = 3600.0
"""Seconds after its last change until a half file is one that a killed writer left: nobody writes to it any more."""

_ENDINGS = (".keras", ".weights.h5")
_LONGEST = 100
"""Bytes of a file's name that its half files are named by: file systems end names at 255, or at 143."""


def whole_model(path: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
    """Where `model.save`, called with these arguments, is to write: a file, or with zipped=False a folder."""
    zipped = (*args, kwargs.get("zipped"))[0]
    return whole_file(path, overwrite) if zipped or zipped is None else whole_folder(path, overwrite)


def whole_weights(path: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
    """Where `model.save_weights`, called with these arguments, is to write: a file, or with max_shard_size several."""
    largest = (*args, kwargs.get("max_shard_size"))[0]
    return whole_file(path, overwrite) if largest is None else whole_shards(path, overwrite)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[Any]:
    """The path to write a file of weights or a model to, so that at any moment there is the old file or the new one.

    Each writer, of whichever thread, process or machine, has a half file of its own: of several at once the last one's
    file stands, whole. What killed writers left is removed by whoever writes the same file an hour later.

    Yields `path` itself where it is not a local file ending in .keras or .weights.h5, or may not be overwritten.
    Raises: ValueError for a folder, a pipe or a device; FileNotFoundError where its folder does not exist; an OSError
        of writing names `path`.
    """
    text = _local(path, overwrite, _ENDINGS)
    if not text:
        yield path
        return
    target = _target(text)
    with _half(target, target.parent) as temporary:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[Any]:
    """As `whole_file`, for a folder that a model is saved to: nothing of it is there before all is written.

    Into a folder that is there, the files are moved one by one, and what else it holds stays: whoever is killed between
    two moves leaves a folder that cannot be loaded, and never weights of one save with what those of another cost.

    Yields `path` itself as `whole_file` does, and for *.keras, of which Keras makes no folder.
    Raises: ValueError for a file; an OSError of writing names `path`.
    """
    text = _local(path, overwrite, ("",))
    if not text or text.endswith(".keras"):
        yield path
        return
    target = Path(os.path.realpath(text))
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file, and zipped=False writes a folder. Give the path of a folder.")
    target.parent.mkdir(parents=True, exist_ok=True)  # as Keras does
    there = target.is_dir()
    with _half(target, target if there else target.parent) as temporary:
        temporary.mkdir()
        written = temporary / "written"
        yield written
        files = _synced(written)
        if there:
            _move({file: target / file.relative_to(written) for file in files}, temporary)
        else:
            os.replace(written, target)


@contextlib.contextmanager
def whole_shards(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[Any]:
    """As `whole_file`, for weights in several files, and a list of these: NAME.weights.json.

    The list is taken away before the files are moved, and put there after them: whoever is killed between two moves
    leaves no list, so that weights never meet what those of another save cost.

    Yields `path` itself as `whole_file` does, and where Keras refuses its ending.
    Raises: as `whole_file`, and ValueError for names that Keras writes, and does not load ("weights.json").
    """
    text = _local(path, overwrite, ("weights.h5", "weights.json"))
    if not text:
        yield path
        return
    if not text.endswith((".weights.h5", ".weights.json")):
        raise ValueError(f"{text} could not be loaded: Keras reads lists of weights that end in .weights.json alone.")
    if text.endswith(".h5"):  # as Keras does, which would name the half file in its warning
        text = text.removesuffix(".h5") + ".json"
        warn(f"Weights in several files are listed in a .json file, which is loaded: {text}. Give that path.")
    target = _target(text)
    with _half(target, target.parent) as temporary:
        written = temporary / "written"
        written.mkdir(parents=True)
        yield written / target.name
        files = sorted(_synced(written), key=lambda one: one.name == target.name)
        _move({file: target.with_name(file.name) for file in files}, temporary)


def _local(path: Any, overwrite: bool, endings: tuple[str, ...]) -> str:
    """A path of this machine that ends so and is to be written at once; else nothing: Keras says, or asks, the rest."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    local = isinstance(text, str) and text.endswith(endings) and "://" not in text
    return "" if not local or (not overwrite and os.path.exists(text)) else text


def _target(text: str) -> Path:
    """The file that a path stands for. Raises: as `whole_file`."""
    target = Path(os.path.realpath(text))
    refuse_no_plain_file(target, "Give the name of a file to write.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} of {target.name} does not exist. Create it first.")
    return target


@contextlib.contextmanager
def _half(target: Path, home: Path) -> Iterator[Path]:
    """A path within `home` for what is not whole yet. At the end nothing is there, nor what killed writers left."""
    temporary = home / f".partial.{secrets.token_hex(8)}.{_short(target.name)}"
    try:
        yield temporary
    except BaseException as error:
        # Keras and the system name the file that was written, or none: the user knows the other one.
        named = str(getattr(error, "filename", None) or temporary)
        if isinstance(error, OSError) and error.errno and named.startswith(str(temporary)):
            error.filename = str(target)
        raise
    finally:
        _remove(temporary)
    _remove_left(target, home)


def _synced(folder: Path) -> list[Path]:
    """All files in a folder and those within, in order, on the disk."""
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    for one in files:
        with open(one, "rb") as file:
            os.fsync(file.fileno())
    return files


def _move(places: dict[Path, Path], temporary: Path) -> None:
    """Moves files to their places, and back what was there where one cannot be moved. The last one comes last.

    First all that was there is taken away, the last one first: whoever is killed within leaves no two saves mixed, but
    an incomplete one, which cannot be loaded.
    """
    earlier: dict[Path, Path] = {}
    made: list[Path] = []
    try:
        for number, place in enumerate(reversed(places.values())):
            if place.exists():
                kept = temporary / f"earlier.{number}"
                earlier[place] = kept
                os.replace(place, kept)
        for file, place in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            made.append(place)
            os.replace(file, place)
    except BaseException:
        for place in made:
            _remove(place)
        for place, kept in reversed(earlier.items()):
            if kept.exists():
                os.replace(kept, place)
        raise


def _short(name: str) -> str:
    """What half files of a file are named by: no file that can be written itself has a name too long for them."""
    if len(os.fsencode(name)) <= _LONGEST:
        return name
    ending = next((one for one in _ENDINGS if name.endswith(one)), "")  # by which Keras knows what to write
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + ending


def _remove(one: Path) -> None:
    with contextlib.suppress(OSError):
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)


def _remove_left(target: Path, home: Path) -> None:
    """Removes half files of killed writers, also by the name that all had once."""
    ours = re.compile(
        rf"\.partial\.([0-9a-f]{{16}}\.{re.escape(_short(target.name))}|{re.escape(target.name)})",
    )
    with contextlib.suppress(OSError), os.scandir(home) as found:
        now = target.stat().st_mtime  # by the file system's clock: it was written just now
        for one in found:
            if ours.fullmatch(one.name) and now - _changed(Path(one.path)) > _LEFT:
                _remove(Path(one.path))


def _changed(one: Path) -> float:
    """When a half file, or one within a half folder, changed last."""
    within = one.rglob("*") if one.is_dir() and not one.is_symlink() else ()
    return max(each.lstat().st_mtime for each in (one, *within))
