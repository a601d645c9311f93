"""Whether columns were scaled by statistics of the very records that are trained on."""

from typing import Any

import keras
import numpy as np

from tfdp_layers.caller import warn

__all__ = ["warn_of_scaled"]

_MOST = 64
"""Columns of an array that are looked at, the first ones."""
_FEWEST = 20  # records, and different values of a column between 0 and 1
_ROWS = 1 << 12
_ROUNDED, _STEPS = 1e-6, (10, 16, 100, 255, 1000)
_EXACT = 1e-5
"""Of a standard deviation: float32 rounds finer, and constants from elsewhere miss by about one over the square root of
the number of records."""


def warn_of_scaled(**given: Any) -> None:
    """Warns of columns whose mean is 0 and whose deviation is 1, or whose ends are 0 and 1, as exactly as floats go.

    So scikit-learn's scalers leave them, fitted to these records: by numbers of the private records, without noise.

    Args:
        given: trees of arrays (records, ...) by the name of the argument; None: nothing.
    """
    for name, tree in given.items():
        leaves = (leaf for leaf in keras.tree.flatten(tree) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f")
        tables = [leaf.reshape(len(leaf), -1)[:, :_MOST] for leaf in leaves if len(leaf) >= _FEWEST and leaf.ndim <= 2]
        standard, ranged = sum(map(_standardised, tables)), _ranged(tables)
        if not standard and not ranged:
            continue
        how = "mean 0 and standard deviation 1" if standard else "0 as smallest and 1 as largest value"
        count = standard or ranged
        warn(
            f"Of {name}, {'a column has' if count == 1 else f'{count} columns have each'} exactly {how}: scaled by"
            " statistics of these very records, it seems, as by scikit-learn's scalers. Those are numbers of private"
            " records without noise, and no epsilon covers them. Scale by constants that everybody knows, or learn them"
            " with noise: tfdp.layers.PrivateNormalization, tfdp.preprocessing.quantiles (docs/data.md). Where they"
            " come from elsewhere, nothing is lost."
        )


def _standardised(table: np.ndarray) -> int:
    """How many columns; also by pandas' deviation, which divides by one record less."""
    count, sums, squares = len(table), 0.0, 0.0
    for start in range(0, count, _ROWS):
        part = np.asarray(table[start : start + _ROWS], np.float64)
        sums, squares = sums + part.sum(0), squares + np.einsum("ij,ij->j", part, part)
    deviations = np.sqrt(squares / count)  # about 0
    found = np.abs(np.asarray(sums) / count) <= _EXACT
    found &= np.minimum(abs(deviations - 1.0), abs(deviations - np.sqrt(1.0 - 1.0 / count))) <= _EXACT
    # A balanced design of -1 and 1 is so by itself.
    return sum(bool((np.abs(table[:, column]) != 1.0).any()) for column in np.flatnonzero(found))


def _ranged(tables: list[np.ndarray]) -> int:
    """How many columns go from 0 to 1, if all of many values do, and none by known steps, as pixels do."""
    found = 0
    for table in tables:
        ends = (table.min(0) == 0.0) & (np.abs(table.max(0) - 1.0) <= _ROUNDED)
        for column, whole in zip(table.T, ends, strict=True):
            many = _different(column) > _FEWEST
            if many and not (whole and _continuous(column)):
                return 0
            found += many
    return found if found > 1 else 0


def _different(column: np.ndarray) -> int:
    return len(np.unique(column[:_ROWS]))


def _continuous(column: np.ndarray) -> bool:
    looked_at = column[:_ROWS]
    return all(np.abs(np.rint(looked_at * steps) - looked_at * steps).max() >= 1e-3 for steps in _STEPS)
