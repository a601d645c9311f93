"""Which records belong to one unit of privacy (a person, a household), and how one of them is chosen."""

from typing import Any

import numpy as np

__all__ = ["Units"]


class Units:
    """Draws one record of each drawn unit.

    Guarantee: whatever records a unit owns, a draw holds at most one of them, so the unit's contribution to a step is
    bounded as one record's is; which one it is depends on the unit's own records and on fresh randomness alone.

    Args:
        ids: (records,) integers or strings; records of equal id belong to one unit.

    Raises: ValueError unless there is one id a record.
    """

    def __init__(self, ids: Any, records: int) -> None:
        ids = np.asarray(ids)
        if ids.shape != (records,) or ids.dtype.kind not in "iuSU":
            raise ValueError(
                f"`unit_ids` must hold one integer or string for each of the {records} records. Received: shape"
                f" {ids.shape}, dtype {ids.dtype}."
            )
        _, positions, self._counts = np.unique(ids, return_inverse=True, return_counts=True)
        self._positions = positions.reshape(-1)
        self._order = np.argsort(self._positions, kind="stable")
        self._starts = np.cumsum(self._counts) - self._counts

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def positions(self) -> np.ndarray:
        """Which unit each record belongs to: (records,) integers."""
        return self._positions

    def choose(self, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The index of one record, chosen uniformly, of each of these units (distinct positions in 0 ... len - 1)."""
        return self._order[self._starts[units] + rng.integers(0, self._counts[units])]

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean of each unit's values: (records,) to (units,), float64, within the range of the unit's values."""
        # Divided first: a sum of quotients can't overflow; clamped because each addition is rounded.
        least, most = (np.full(len(self), start) for start in (np.inf, -np.inf))
        np.minimum.at(least, self._positions, values)
        np.maximum.at(most, self._positions, values)
        means = np.bincount(self._positions, values / self._counts[self._positions], len(self))
        return np.clip(means, least, most)
