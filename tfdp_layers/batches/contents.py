"""What the sources of pipelines hold: two that were made of one array, or read one file, give the same records."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.sketch import sketch_of
from tfdp_layers.batches.origins import name_of
from tfdp_layers.batches.steps import below, identity, steps

__all__ = ["contents_of", "have_rows_in_common"]

_FEWEST, _COLUMNS = 8, 4
"""Different rows, and numbers of each, by which an array is known: labels and columns of one number are alike."""
_LOOKED_AT = 1 << 12


def contents_of(source: Any) -> Iterator[Hashable]:
    """What a source, or an operation that is one in a function, shares with others that give the same records.

    These are its arrays, where they are known by their rows, its files, or the tensors of the function.
    """
    if isinstance(source, tf.Operation):
        held = [source.outputs[0]] if source.type == "Placeholder" else source.inputs
        yield from ((id(source.graph), name_of(one)) for one in held if name_of(one)[:5] != "Const")
        return
    yield identity(source)
    names = getattr(source, "_filenames", None)
    for one in [names] if isinstance(names, tf.Tensor) else getattr(names, "_tensors", ()):
        yield from (("file", each) for each in np.ravel(np.asarray(one)).tolist())
    yield from (_content(one) for one in _arrays(source))


def _arrays(source: Any) -> list[np.ndarray]:
    tensors = getattr(source, "_tensors", ()) if isinstance(source, tf.data.Dataset) else ()
    eager = (one for one in tensors if isinstance(one, tf.Tensor) and one.dtype != tf.variant)
    return [one for one in map(np.asarray, eager) if _is_known(one)]


def _is_known(array: np.ndarray) -> bool:
    """Whether its rows are so many and so rich that another array has not the same ones by chance."""
    if array.ndim and array.dtype == object:  # texts, names of files say
        return 0 < len(array) <= _LOOKED_AT and len(set(np.ravel(array).tolist())) == array.size
    if array.ndim < 2 or len(array) < _FEWEST or array.size < _COLUMNS * len(array) or array.dtype.kind not in "biuf":
        return False
    return len(np.unique(_some(array).reshape(min(len(array), _LOOKED_AT), -1), axis=0)) >= _FEWEST


def _some(array: np.ndarray) -> np.ndarray:
    return array[np.linspace(0, len(array) - 1, min(len(array), _LOOKED_AT)).astype(int)]


def _content(array: np.ndarray) -> Hashable:
    some = np.ascontiguousarray(_some(array))
    return (array.shape, array.dtype.str, hash(tuple(some.tolist()) if some.dtype == object else some.tobytes()))


def have_rows_in_common(branches: list[Any]) -> bool:
    """Whether arrays of two branches have the same rows at other places: one moved by a row, or turned round, say.

    Rows that are equal at the same places stand beside themselves.
    """
    arrays = [[one for step in steps(branch) if not below(step) for one in _arrays(step)] for branch in branches]
    each = [list({id(one): one for one in some}.values()) for some in arrays]
    pairs = ((a, b) for k, some in enumerate(each) for others in each[:k] for a in some for b in others if a is not b)
    return any(a.shape[1:] == b.shape[1:] and a.dtype != object != b.dtype and _moved(a, b) for a, b in pairs)


def _moved(one: np.ndarray, other: np.ndarray) -> bool:
    both = min(len(one), len(other))
    beside = (one[:both] == other[:both]).reshape(both, -1).all(axis=1).sum()
    return beside < _FEWEST and sketch_of([one]).shares(sketch_of([other]))
