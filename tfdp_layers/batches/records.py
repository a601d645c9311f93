"""Records in arrays, checked before anything is drawn from them: shapes, dtypes, finite values, weights, classes."""

import math
import mmap
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.batches.encodings import as_numbers, columns_of, is_numeric, refuse_lists, refuse_other_arrays
from tfdp_layers.batches.texts import is_text
from tfdp_layers.instances import refuse_class
from tfdp_layers.sampling import Sampling

_CHUNK_BYTES = 8 << 20  # what a check reads at once, so that memory-mapped records are never in memory together


def arrays(name: str, structure: Any) -> Any:
    refuse_lists(name, structure)
    called = {id(leaf): path for path, leaf in leaves_by_name(name, structure)}
    return keras.tree.map_structure(
        lambda leaf: _array(called.get(id(leaf), name), leaf), keras.tree.lists_to_tuples(structure)
    )


def leaves_by_name(name: str, structure: Any) -> Iterator[tuple[str, Any]]:
    """Each array of nested ones, after what the caller would write for it: x, x['age'], y[1]."""
    if isinstance(structure, Mapping):
        for key in structure:
            yield from leaves_by_name(f"{name}[{key!r}]", structure[key])
    elif isinstance(structure, list | tuple):
        for place, part in enumerate(structure):
            yield from leaves_by_name(f"{name}[{place}]", part)
    else:
        yield name, structure


def _array(name: str, leaf: Any) -> np.ndarray:
    refuse_other_arrays(name, leaf)
    if isinstance(leaf, str):
        raise ValueError(f"{name} is a string, and no array. A column is given itself: {name}=table[{leaf!r}], say.")
    if not hasattr(leaf, "__array__"):
        raise ValueError(
            f"{name} must be an array, or a dict, list or tuple of arrays (one for each input or output). There is an"
            f" object of type {type(leaf).__name__} in it. Convert lists of numbers by numpy.asarray."
        )
    array = columns_of(leaf, np.asarray(leaf))  # a view without a copy, of a memory-mapped array too
    if not (is_numeric(array.dtype) or (name[0] == "x" and is_text(array))):
        raise ValueError(
            f"{name} has dtype {array.dtype}, which layers cannot compute with. {as_numbers(name, leaf, array)}"
        )
    if array.ndim == 0:
        raise ValueError(
            f"{name} must have a first axis that counts the records. Received a scalar: put it into an array."
        )
    return array


_NAMED_LENGTHS = 8
"""How many arrays an error names; a list of records would be a list of thousands."""


def common_length(**named: Any) -> int:
    lengths = {
        path: len(leaf)
        for name, leaves in named.items()
        for path, leaf in leaves_by_name(name, leaves)
        if leaf is not None
    }
    distinct = set(lengths.values())
    if len(distinct) > 1:
        first = list(lengths.items())[:_NAMED_LENGTHS]
        others = f", and {len(lengths) - len(first):,} other arrays" if len(lengths) > len(first) else ""
        many = " A list of single records goes to fit as tfdp.records(the_list)." if others else ""
        raise ValueError(
            f"x and y must hold the same records, so their first axes must agree. Received lengths:"
            f" {', '.join(f'{path} {length:,}' for path, length in first)}{others}.{many}"
        )
    if distinct in (set(), {0}):
        raise ValueError("The data are empty, so nothing can be drawn from them. Pass at least one record.")
    return distinct.pop()


SOME_LABELS = (
    "Of records that have some of several labels: put a number there that is no label, -1 say, and give compile a loss"
    " that leaves it out, loss=lambda y, p: keras.ops.mean(keras.ops.where(y == -1, 0.0, keras.ops.square(y - p)),"
    " axis=-1); or make each label an output of its own, and give a sample_weight for each, 0 where it is missing, with"
    " any label there."
)
"""What to do with records of which some labels are missing, in a model of several tasks."""


_SINGLE = np.dtype(np.float32)
"""The type that records are computed in: what is beyond its range is infinite to a model."""


def check_finite(name: str, leaves: Any) -> None:
    for path, leaf in leaves_by_name(name, leaves):
        if leaf is None or not tf.as_dtype(leaf.dtype).is_floating:  # NumPy's objects are strings to TensorFlow
            continue
        if all(_is_finite(chunk) for chunk in chunks(leaf)):
            continue
        missing = not all(np.isfinite(chunk).all() for chunk in chunks(leaf))
        if name == "y":
            some = f" {SOME_LABELS}" if leaf[:1].size > 1 or path != name else ""
            held = "NaN or infinite values" if missing else "values beyond 3.4e38 (infinite in float32)"
            raise ValueError(f"{path} holds {held}, which are no labels. Leave these records out.{some}")
        if not missing:
            raise ValueError(
                f"{path} holds values beyond 3.4e38, the largest number of float32, which a model takes as infinite:"
                " such a record contributes nothing, and hides mistakes. Bring them to limits that everybody knows,"
                f" numpy.clip({path}, -1e6, 1e6) say, or give their logarithms."
            )
        raise ValueError(
            f"{path} holds NaN or infinite values: such a record contributes nothing, and hides mistakes. Put a"
            f" constant in their place, numpy.nan_to_num({path}.astype('float32'), posinf=0.0, neginf=0.0) say, beside"
            " a column that says where; a mean of the column is a number of the private records"
            " (docs/recipe_tabular.md)."
        )


def _is_finite(numbers: np.ndarray) -> bool:
    if numbers.dtype.itemsize > _SINGLE.itemsize:
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = numbers.astype(_SINGLE)
    return bool(np.isfinite(numbers).all())


def weights_of(sample_weight: Any, y: Any, records: int) -> Any:
    if sample_weight is None:
        return np.broadcast_to(np.float32(1), (records,))  # ones, without their memory
    weights = arrays("sample_weight", sample_weight)
    if keras.tree.is_nested(weights):
        try:
            keras.tree.assert_same_structure(weights, y)
        except (TypeError, ValueError):
            raise ValueError(
                "sample_weight must be one array, or have the structure of y: one array of weights for each output."
                f" Received: {keras.tree.map_structure(np.shape, weights)} (shapes)."
            ) from None
    return keras.tree.map_structure(lambda leaf: _record_weights(leaf, records), weights)


def _record_weights(leaf: np.ndarray, records: int) -> np.ndarray:
    if leaf.shape == (records, 1):  # a column, as Keras takes it
        leaf = leaf[:, 0]
    if leaf.shape != (records,):
        raise ValueError(
            f"sample_weight must be one number a record, shape ({records},). Received shape: {leaf.shape}. Weights of"
            " positions within a record belong into the loss."
        )
    return finite_weights(leaf)


def finite_weights(leaf: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        weights = leaf.astype(np.float32)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(
            "Weights must be finite and at least 0 in float32: a record's weight scales its loss. Received weights"
            " that are negative, NaN or infinite. Clip or replace them."
        )
    return weights


def differing(weights: np.ndarray) -> bool:
    """Whether weights above 0 differ: 0 leaves a record out."""
    above = weights[weights > 0]
    return above.size > 1 and bool(above.min() != above.max())


def as_mapping(class_weight: Any) -> Any:
    """A column of pandas, by its index, as a dict; anything else as it is."""
    return dict(class_weight.items()) if hasattr(class_weight, "iloc") else class_weight


def class_factors(y: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """float64 (records,): each record's factor."""
    class_weight = as_mapping(class_weight)
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            "class_weight must map integer classes to finite factors of at least 0, such as {0: 1.0, 1: 5.0}. Received:"
            f" {class_weight!r}. Factors counted from the private labels, 'balanced' say, are private numbers: take the"
            " classes' shares from elsewhere (docs/choosing.md, Rare classes)."
        )
    good = all(isinstance(label, int | float | np.number | np.bool_) and label == label // 1 for label in class_weight)
    numbers = all(isinstance(factor, int | float | np.number) for factor in class_weight.values())
    if not good or not numbers or not all(math.isfinite(one) and one >= 0 for one in class_weight.values()):
        raise ValueError(
            "class_weight must map integer classes to finite factors of at least 0, such as {0: 1.0, 1: 5.0}."
            f" Received: {class_weight!r}."
        )
    if not isinstance(y, np.ndarray):
        raise ValueError(
            f"class_weight needs y to be one array of labels. Received: {type(y).__name__}. Fold the factors into"
            " sample_weight, one array for each output."
        )
    values, inverse = np.unique(classes_of(y), return_inverse=True)
    return np.array([float(class_weight.get(int(value), 1.0)) for value in values])[inverse.reshape(-1)]


def largest_factor(class_weight: Mapping[int, float], classes: int | None) -> float:
    """Of any class that there may be, by public numbers alone: the labels are private.

    Classes that are not named weigh 1, and there may be some unless all of 0 ... classes - 1 are named.

    Args:
        classes: how many there are, where that is public; else None.
    """
    factors = [float(factor) for factor in class_weight.values()]
    whole = classes is not None and set(map(int, class_weight)).issuperset(range(classes))
    return max(factors if whole else [*factors, 1.0])


def classes_of(y: np.ndarray) -> np.ndarray:
    """The classes of labels (records,), (records, 1), or one-hot. Raises ValueError for others."""
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        if all((chunk == np.round(chunk)).all() for chunk in chunks(y)):
            return np.asarray(y).reshape(-1)
    elif y.ndim == 2 and all(np.isin(chunk, (0, 1)).all() and (chunk.sum(axis=1) == 1).all() for chunk in chunks(y)):
        return np.argmax(y, axis=1)
    raise ValueError(
        "class_weight needs integer labels of shape (records,) or (records, 1), or one-hot labels (records, classes)."
        f" Received y of shape {y.shape} and dtype {y.dtype} that are neither. Fold the factors into sample_weight."
    )


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
    return (array[start : start + rows] for start in range(0, len(array), rows))


def checked_sampling(sampling: Any) -> Sampling:
    """The sampler. Raises ValueError for anything else."""
    refuse_class(sampling, "`sampling`", "256")
    if not isinstance(sampling, Sampling):
        raise ValueError(
            "`sampling` must be a sampler, which says how batches are drawn, and what they cost; for batches of"
            f" expected size 256: tfdp.sampling.Poisson(256). Received: sampling={sampling!r}."
        )
    return sampling


def checked_examples(sampling: Sampling, examples: Any) -> int:
    sampling.check(examples)
    return int(examples)


def checked_physical(size: Any) -> int | None:
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size < 2**31:
        raise ValueError(
            "physical_batch_size is the number of rows computed at once: it must be an integer of at least 1, below"
            f" 2^31, or None for all of them. Received: {size!r}."
        )
    return int(size)
