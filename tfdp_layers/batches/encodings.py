"""What is no array of numbers: made one where that loses nothing, else what it is, and how to make one of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.batches.texts import is_text
from tfdp_layers.batches.units import missing

__all__ = ["as_numbers", "columns_of", "is_numeric", "refuse_lists", "refuse_other_arrays", "refuse_sparse"]

_CLASSES = "Number the classes: (y == 'yes').astype('float32') for two, [CLASSES.index(one) for one in y] for more."


_SCALARS = (str, bytes, int, float, bool, np.number, np.bool_)


def refuse_lists(name: str, structure: Any) -> None:
    """Raises ValueError for a list of numbers or words in the place of an array, also within a dict of columns."""
    if isinstance(structure, Mapping):
        for key in structure:
            refuse_lists(f"{name}[{key!r}]", structure[key])
    elif isinstance(structure, list) and structure:
        if isinstance(structure[0], _SCALARS):
            words = name[0] == "y" and isinstance(structure[0], str | bytes)
            fix = f"{_CLASSES} Then" if words else "Make an array of it:"
            raise ValueError(
                f"{name} is a list of {len(structure):,} {type(structure[0]).__name__}s, and a list would hold one"
                f" array an input. {fix} numpy.asarray({name})."
            )
        if all(isinstance(row, list | tuple) and _of_scalars(row) for row in structure):
            fix = _padding(name, structure) if _ragged(structure) else f"Make an array of it: numpy.asarray({name})."
            raise ValueError(
                f"{name} is a list of {len(structure):,} lists, and must be an array, or a list of one array an input."
                f" {fix}"
            )


def _of_scalars(row: Any) -> bool:
    """Whether numbers or words are all that a list holds, itself or in further lists."""
    return all(_of_scalars(one) if isinstance(one, list | tuple) else isinstance(one, _SCALARS) for one in row)


def _ragged(rows: list[Any]) -> bool:
    """Whether lists differ in length, at whatever depth."""
    try:
        return np.asarray(rows).dtype.kind == "O"
    except ValueError:
        return True


def _padding(name: str, rows: list[Any]) -> str:
    """What to do with rows that differ in length."""
    first = next((one for row in rows for one in row), 0)
    if isinstance(first, str):
        return f"Its rows differ in length: make a text of each, numpy.array([' '.join(row) for row in {name}])."
    kind = ", dtype='float32'" if isinstance(first, float) else ""
    return (
        "Its rows differ in length: pad them to one, and cut longer ones,"
        f" keras.utils.pad_sequences({name}, maxlen=N{kind}). {_KNOWN}"
    )


_KNOWN = (
    "N is a length that you know beforehand: how long the longest record is, the model would tell, and no epsilon"
    " covers it."
)


def refuse_other_arrays(name: str, leaf: Any) -> None:
    """Raises ValueError for ragged, sparse and masked arrays, which hold no number, or no place, for each entry."""
    if isinstance(leaf, tf.RaggedTensor):
        raise ValueError(
            f"{name} holds a RaggedTensor: its rows have no common shape that padding could fill. Make it dense, with"
            f" .to_tensor(shape=(None, N)). {_KNOWN}"
        )
    if isinstance(leaf, tf.SparseTensor):
        raise ValueError(f"{name} is a SparseTensor. Make it dense: tf.sparse.to_dense({name}).")
    if isinstance(leaf, np.ma.MaskedArray):
        fix = f"put a constant there: {name}.filled(0), beside a column that says where (docs/recipe_tabular.md)"
        fix = "leave these records out, or give a dense array with a label for each" if name[0] == "y" else fix
        raise ValueError(f"{name} is a MaskedArray, whose masked entries hold no numbers; {fix}.")
    refuse_sparse(name, leaf)


def refuse_sparse(name: str, given: Any) -> None:
    """Raises ValueError for SciPy's sparse matrices, which look like sources of records."""
    if hasattr(given, "nnz") and hasattr(given, "toarray"):
        raise ValueError(f"{name} is a {type(given).__name__}, a sparse matrix. Make it dense: {name}.toarray().")


def columns_of(frame: Any, array: np.ndarray) -> np.ndarray:
    """float32 of a data frame of numbers and booleans, none missing, of which NumPy made an array of objects.

    It does where columns are of no common type: booleans beside numbers, or pandas' nullable numbers.

    Args:
        frame: what the caller gave.
        array: what NumPy made of it, and what comes back for all else.
    """
    if array.dtype.kind != "O" or not array.size or not hasattr(frame, "iloc") or _columns_without_numbers(frame) != []:
        return array
    columns = [frame.iloc[:, place] for place in range(frame.shape[1])]
    if any(bool(column.isna().any()) for column in columns if not isinstance(column.dtype, np.dtype)):
        return array
    return np.stack([column.to_numpy("float32") for column in columns], axis=1)


def as_numbers(name: str, leaf: Any, array: np.ndarray) -> str:
    """What to do with records that are no numbers, by what they are."""
    kind, entries = array.dtype.kind, array.ravel()
    if is_text(array) or (kind == "O" and is_text(entries[~missing(entries)])):
        return _of_texts(name, array)
    if kind == "m":
        return f"Count days: {name} / numpy.timedelta64(1, 'D')."
    if kind == "M":
        return f"Count days from a date that is known beforehand: {_days(name)}."
    if kind == "c":
        return "Encode complex numbers by two columns, their real and imaginary parts."
    if array.size and all(isinstance(one, np.ndarray | list | tuple) for one in entries):
        return (
            f"Its entries are arrays themselves: numpy.stack({name}). Rows of several lengths: pad them to one"
            " that you know beforehand, and cut longer ones."
        )
    if array.dtype.names:
        return (
            f"Its fields are {', '.join(array.dtype.names)}. Give one array of each, {name}[{array.dtype.names[0]!r}]"
            f" say, or of all: numpy.stack([{name}[one] for one in {name}.dtype.names], axis=1).astype('float32')."
        )
    columns = _columns_without_numbers(leaf)
    numbers = array.size and all(isinstance(one, int | float | np.number | np.bool_) for one in array.flat)
    if numbers:
        return f"Its entries are numbers: encode them by {name}.astype('float32')."
    if columns == []:
        return (
            f"Its columns are numbers that may be missing: put a constant where they are, then {name}.astype('float32')"
            " (docs/recipe_tabular.md)."
        )
    named = f" (no numbers: {', '.join(columns)})" if columns else ""
    dates = next((one for one in columns or () if getattr(leaf.dtypes[one], "kind", "O") == "M"), None)
    days = "" if dates is None else f" Of dates count days: {_days(f'{name}[{dates!r}]')}."
    return (
        f"Columns of several types{named}: encode each one as numbers, then numpy.stack (docs/recipe_tabular.md).{days}"
        " Ragged rows: pad them to one length that you know beforehand, and cut longer ones. Other numbers:"
        " .astype('float32')."
    )


def _of_texts(name: str, array: np.ndarray) -> str:
    if not is_text(array):
        return f"Some of its strings are missing: put one there, {name}.fillna('') of pandas say."
    if name[0] == "y":
        return _CLASSES
    if name.startswith("sample_weight"):
        return "It holds strings, and weights are numbers."
    return "It holds strings: turn words into numbers first (docs/recipe_tabular.md)."


def _days(name: str) -> str:
    """Days since a date, whatever unit the dates have."""
    return f"({name} - numpy.datetime64('2020-01-01')) / numpy.timedelta64(1, 'D')"


def _columns_without_numbers(frame: Any) -> list[str] | None:
    """The columns of a data frame that hold no numbers; None for what is no data frame."""
    if not hasattr(getattr(frame, "dtypes", None), "items"):
        return None
    return [str(column) for column, dtype in frame.dtypes.items() if getattr(dtype, "kind", "O") not in "biuf"]


def is_numeric(dtype: np.dtype) -> bool:
    try:
        kind = tf.as_dtype(dtype)
    except TypeError:
        return False
    return dtype.isnative and (kind.is_floating or kind.is_integer or kind.is_bool)
