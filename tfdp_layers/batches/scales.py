"""Whether columns were scaled by statistics of the very records that are trained on."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfdp_layers.caller import warn

__all__ = ["warn_of_scaled"]

_MOST = 64
"""Columns of an array that are looked at, the first ones."""
_FEWEST = 20  # records, and different values of a column between 0 and 1
_ROWS = 1 << 12
_ROUNDED, _ENDS, _CROWD, _STEPS = 1e-6, 4.0, 1e-5, np.arange(1, 1 << 16)
"""How far ends may be off, those of -1 and 1 in roundings of the type, too; what is at one end; steps between them."""
_KNOWN = {*(2**k - less for k in range(1, 17) for less in (0, 1)), *(n * 10**k for n in (1, 2, 5) for k in range(5))}
_KNOWN |= {99, 999, 9999, 23, 30, 60, 90, 180, 359, 360, 364, 365, 1439, 1440}
"""Steps from 0 to 1 of what has limits that everybody knows: pixels, sensors, shares, dates, times, angles."""
_EXACT = 1e-5
"""Of a standard deviation: float32 rounds finer, and constants from elsewhere miss by about one over the square root of
the number of records."""
_LOOKED_AT, _NUMBERS, _BY_ITSELF = 256, 1 << 16, 1e-2
"""Rows that are looked at before all of an array is, numbers of it that are added up at once, and how closely rows of
mean 0 and deviation 1 are so."""

_STANDARD = "mean 0 and standard deviation 1"


def warn_of_scaled(**given: Any) -> None:
    """Warns of columns whose mean is 0 and whose deviation is 1, or whose ends are 0 or -1 and 1, as exactly as floats
    go.

    So scikit-learn's scalers leave them, fitted to these records: by numbers of the private records, without noise.
    And of arrays whose mean is 0 and deviation 1 as a whole, where not each record is so by itself, as by
    `tf.image.per_image_standardization`.

    Not noticed: other statistics (medians, ranges other than 0 to 1 and -1 to 1); ends that several rows share, as
    of many ages or counts, since values that were clipped look alike; columns in steps of 1 / n, where n is known
    to everybody (255, 4095, 1439), or two columns have the same; a single column of such a range, or fewer than a
    quarter of them; and records that a part was taken of after they were scaled.

    Args:
        given: trees of arrays (records, ...) by the name of the argument; None: nothing.
    """
    for name, tree in given.items():
        leaves = (leaf for leaf in keras.tree.flatten(tree) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f")
        arrays = [leaf for leaf in leaves if len(leaf) >= _FEWEST]
        tables = [leaf.reshape(len(leaf), -1)[:, :_MOST] for leaf in arrays if leaf.ndim <= 2]
        elsewhere = "they come from elsewhere, or each person's own records were scaled by themselves"
        if standard := sum(map(_standardised, tables)):
            seen = f"{_have(standard)} exactly {_STANDARD}"
        elif any(map(_standard_as_a_whole, arrays)):
            seen = f"an array has as a whole exactly {_STANDARD}"
        elif ranged := _ranged(tables):
            seen = f"{_have(ranged[0])} exactly {ranged[1]} as smallest and 1 as largest value"
            elsewhere = "the limits were known beforehand (values clipped to a range, or ratios, look alike)"
        else:
            continue
        warn(
            f"Of {name}, {seen}: scaled by statistics of these very records, it seems, as by scikit-learn's scalers."
            " Those are numbers of private records without noise, and no epsilon covers them. Scale by constants that"
            " everybody knows, or learn them with noise: tfdp.layers.PrivateNormalization, tfdp.preprocessing.quantiles"
            f" (docs/data.md). Where {elsewhere}, nothing is lost."
        )


def _have(columns: int) -> str:
    return "a column has" if columns == 1 else f"{columns} columns have each"


def _standardised(table: np.ndarray) -> int:
    """How many columns; also by pandas' deviation, which divides by one record less."""
    count, sums, squares = len(table), 0.0, 0.0
    for start in range(0, count, _ROWS):
        part = np.asarray(table[start : start + _ROWS], np.float64)
        sums, squares = sums + part.sum(0), squares + np.einsum("ij,ij->j", part, part)
    found = _is_standard(np.asarray(sums), np.asarray(squares), count, _rounded(table, count))
    return sum(not _by_design(table[:, column]) for column in np.flatnonzero(found))


def _rounded(array: np.ndarray, count: int) -> float:
    """How far mean and deviation of so many numbers may be off by the rounding of each: float16 has 11 bits."""
    return max(_EXACT, float(4.0 * np.finfo(array.dtype).eps / np.sqrt(count)))


def _is_standard(sums: np.ndarray, squares: np.ndarray, count: int, exact: float) -> np.ndarray:
    deviations = np.sqrt(squares / count)  # about 0
    near = np.minimum(abs(deviations - 1.0), abs(deviations - np.sqrt(1.0 - 1.0 / count))) <= exact
    return (np.abs(sums / count) <= exact) & near


def _by_design(numbers: np.ndarray) -> bool:
    """Whether few values come equally often, or some twice as often, as -1 and 1 in a balanced design, or the hours."""
    counts = np.unique(np.round(numbers.astype(np.float64), 6), return_counts=True)[1]
    levels = len(counts)
    return bool(levels**2 <= numbers.size <= 2 * levels * np.gcd.reduce(counts))


def _standard_as_a_whole(array: np.ndarray) -> bool:
    count = array.size
    if count == len(array) or isinstance(array, np.memmap) or not count:
        return False
    rows = array[np.unique(np.linspace(0, len(array) - 1, _LOOKED_AT).astype(int))].reshape(-1, count // len(array))
    rows = rows.astype(np.float64)
    if abs(rows.mean()) > 0.5 or not 0.3 < rows.std() < 3.0:
        return False
    alone = (abs(rows.mean(1)) <= _BY_ITSELF) & (abs(rows.std(1) - 1.0) <= _BY_ITSELF)
    if 2 * alone.sum() >= len(rows):
        return False
    total = np.sum([part.sum(dtype=np.float64) for part in _parts(array)])
    exact = _rounded(array, count)
    if abs(total) > exact * count:
        return False
    squares = np.sum([part @ part for part in (part.astype(np.float64) for part in _parts(array))])
    return bool(_is_standard(total, squares, count, exact)) and not (count <= _NUMBERS and _by_design(array))


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """Its numbers, some rows at once."""
    each = max(1, _NUMBERS * len(array) // array.size)
    for start in range(0, len(array), each):
        yield array[start : start + each].ravel()


def _ranged(tables: list[np.ndarray]) -> tuple[int, int] | None:
    """How many columns a scaler brought to 0 and 1, or to -1 and 1, and the first of these ends; None: none."""
    ends = [(table.min(0), table.max(0)) for table in tables]
    at_0 = [(low == 0.0) & (np.abs(high - 1.0) <= _ROUNDED) for low, high in ends]
    near = [min(_ROUNDED, _ENDS * float(np.finfo(table.dtype).eps)) for table in tables]
    below = [(np.abs(low + 1.0) <= e) & (np.abs(high - 1.0) <= e) for (low, high), e in zip(ends, near, strict=True)]
    for first, whole in ((0, at_0), (-1, below)):
        if found := _from(first, tables, whole):
            return found, first
    return None


def _from(first: int, tables: list[np.ndarray], ends: list[np.ndarray]) -> int:
    """How many columns go from there to 1 by a scaler, if all of many values have these ends, a quarter at least such.

    Args:
        ends: of each table, (columns,) bool: whether the column has both ends.
    """
    looked_at, grids = 0, []
    for table, both in zip(tables, ends, strict=True):
        for column, whole in zip(table.T, both, strict=True):
            if _different(column) > _FEWEST:
                if not whole:
                    return 0
                looked_at += 1
                grids += [_grid(column, first)] if _measured(column, first) else []
    found = sum(grid is None or (grid not in _KNOWN and grids.count(grid) == 1) for grid in grids)
    return found if found > 1 and 4 * found >= looked_at else 0


def _different(column: np.ndarray) -> int:
    return len(np.unique(column[:_ROWS]))


def _measured(column: np.ndarray, first: int) -> bool:
    """Whether one row is at either end: of values that were clipped there are more, most often.

    Those of tanh come to -1 and 1 in single precision, and crowd there.
    """
    near = _CROWD if first else 0.0
    return all(int((np.abs(column - end) <= near).sum()) == 1 for end in (column.min(), column.max()))


def _grid(column: np.ndarray, first: int) -> int | None:
    """The smallest n of up to 65,535 so that all values lie on n equal steps from there to 1; None: no n, or ranks."""
    steps = _STEPS
    for value in ((column[:_ROWS].astype(np.float64) - first) / (1.0 - first)).tolist():
        steps = steps[np.abs(np.rint(value * steps) - value * steps) < 5e-3]
        if not len(steps):
            return None
    return None if steps[0] == len(column) - 1 else int(steps[0])
