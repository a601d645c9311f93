"""Records kept in files of a folder, which several jobs may share: each uses what it wrote, or what was whole before.

`records.json` is there once all else is, and names the folder beside it that holds the arrays. Each writer has such a
folder of its own, of a random name; who is first to put its `records.json` is the one that is read.
"""

import contextlib
import json
import math
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tfdp_layers.accounting.half_files import half, private, put_first, remove_left, sync
from tfdp_layers.accounting.plain_files import refuse_no_plain_file
from tfdp_layers.batches.places import kept_before, refuse_moved

_LISTED = "records.json"
_ARRAYS = re.compile(r"records\.[0-9a-f]{16}")
_OURS = re.compile(rf"{_ARRAYS.pattern}|\.partial\.[0-9a-f]{{16}}\.records\.json")
_ANEW = "Remove the folder, and the pipeline is read anew."


def in_files(
    batches: Iterator[list[np.ndarray]], spec: str, folder: Path, ids: str | None = None
) -> tuple[list[np.ndarray], bool]:
    """The records as arrays that are mapped from files of this folder, which are written if they are not there.

    Args:
        batches: the records' arrays, many records at a time; not read where the folder has them.
        spec: what the records are made of: the folder keeps it, and one that is there already must have the same.
        ids: a digest of ids by place, kept and compared in the same way.

    Returns: the arrays, and whether another reading wrote them: before this one, or while this one read.
    Raises: ValueError for a folder of other records, or other ids, and for files that were cut off or changed.
    """
    file = folder / _LISTED
    refuse_no_plain_file(file, "Remove it, or give another folder as cache.")
    ours = None if file.exists() else written(batches, spec, folder, ids)
    listed = listing(file) if ours is None else ours
    if listed["spec"] != spec:
        raise ValueError(
            f"{folder} holds records of another pipeline: {listed['spec']}, where this one gives {spec}. Give"
            " another folder, or remove that one."
        )
    if ids is not None and listed.get("ids") != ids:
        refuse_moved(kept_before(f"the folder {folder}, by cache=, written with other ids or none,"), "unit_ids")
    # Only now that one is first: who still writes another has lost, and will find the first one's.
    remove_left(folder, _OURS, but=listed.get("folder", ""))
    within = folder / listed.get("folder", "")  # earlier versions wrote beside
    arrays = [
        mapped(within / f"{i}.raw", np.dtype(kind), tuple(shape)) for i, (kind, shape) in enumerate(listed["arrays"])
    ]
    return arrays, ours is None


def listing(file: Path) -> dict[str, Any]:
    """What `records.json` says. Raises ValueError for one that `written` did not write."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        whole = isinstance(found["spec"], str) and bool(found["arrays"])
        whole = whole and ("folder" not in found or bool(_ARRAYS.fullmatch(found["folder"])))
        for kind, shape in found["arrays"]:
            whole = whole and np.dtype(kind).itemsize > 0 and all(type(one) is int and one >= 0 for one in shape)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise ValueError(f"{file} is not what tfdp.records writes: it was cut off or changed. {_ANEW}")
    return found


def mapped(path: Path, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The array in a file. Raises ValueError for a file of another size."""
    refuse_no_plain_file(path, _ANEW)
    wanted, found = math.prod(shape) * kind.itemsize, path.stat().st_size if path.exists() else 0
    if found != wanted:
        raise ValueError(
            f"{path} has {found:,} bytes, and the records that {_LISTED} lists have {wanted:,}: the file was cut off or"
            f" changed. {_ANEW}"
        )
    return np.memmap(path, dtype=kind, mode="r", shape=shape) if wanted else np.empty(shape, kind)


def written(batches: Iterator[list[np.ndarray]], spec: str, folder: Path, ids: str | None) -> dict[str, Any] | None:
    """Writes the records, and what lists them; the latter, or None where another writer was first."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    within = folder / f"records.{secrets.token_hex(8)}"
    within.mkdir(mode=0o700)
    first = False
    try:
        listed = {"spec": spec, "folder": within.name, "arrays": write(batches, within), "ids": ids}
        with half(folder / _LISTED) as partial:
            with private(partial) as file:
                file.write(json.dumps(listed).encode())
                sync(file)
            first = put_first(partial, folder / _LISTED)
    except OSError as error:
        if error.errno and error.filename is None:  # a full disk
            error.filename = str(folder)
        raise
    finally:
        if not first and not _is_listed(within):
            shutil.rmtree(within, ignore_errors=True)
    return listed if first else None


def _is_listed(within: Path) -> bool:
    """Whether `records.json` names this folder, as one does that was put in place just before an interrupt."""
    try:
        return listing(within.parent / _LISTED).get("folder") == within.name
    except ValueError:  # of none, too
        return False
    except OSError:  # it is not known; a later job removes what is not named
        return True


def write(batches: Iterator[list[np.ndarray]], folder: Path) -> list[tuple[str, list[int]]]:
    """Writes each array of the records into a file; the types and shapes of all."""
    files: list[BinaryIO] = []
    count, first = 0, None
    with contextlib.ExitStack() as opened:
        for batch in batches:
            if first is None:
                first = batch
                files = [opened.enter_context(private(folder / f"{i}.raw")) for i in range(len(batch))]
            for file, leaf in zip(files, batch, strict=True):
                file.write(np.ascontiguousarray(leaf).view(np.uint8).data)  # bfloat16 has no buffer of its own
            count += len(batch[0])
        for file in files:
            sync(file)
    if first is None:
        raise ValueError("The dataset has no records, so nothing can be drawn from it. Give at least one.")
    return [(leaf.dtype.name, [count, *leaf.shape[1:]]) for leaf in first]
