"""Which changes of its weights a party uploads, and which weights it downloads. NumPy only.

Source of all of it: Shokri, Shmatikov 2015, "Privacy-preserving deep learning" (CCS), distributed selective SGD.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from tfdp_layers.accounting.numeric_sparse import NumericSparse
from tfdp_layers.federated.laplace import LARGEST_SCALE, discrete_laplace

__all__ = [
    "LargestValues",
    "RandomAboveThreshold",
    "Selection",
    "SparseVector",
    "Update",
    "most_updated",
    "share_of",
]

# Steps of the grid between 0 and the bound: values and noise are multiples of bound / _LEVELS.
_LEVELS = 2**20
LARGEST_BOUND = float(np.finfo(np.float32).max)
_TEST_SHARE = 8.0 / 9.0  # Of epsilon, for the threshold tests; the rest is for the released values.


@dataclass(frozen=True, eq=False)
class Update:
    """Some coordinates of a vector of weights.

    Attributes:
        indices: int64, (count,), ascending and without duplicates where this library made it.
        values: float32, (count,): changes in an upload, weights in a download.
    """

    indices: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)


class Selection(Protocol):
    """How a party chooses what it uploads.

    Attributes:
        fraction: at most this part of the coordinates goes into an upload.
        bound: every uploaded value lies in [-bound, bound].
        private: whether an upload is a differentially private release.
    """

    fraction: float
    bound: float
    private: ClassVar[bool]

    def select(self, change: np.ndarray, rng: np.random.Generator) -> Update:
        """Chooses coordinates of `change`, (size,); non-finite ones count as zero."""


@dataclass(frozen=True)
class LargestValues:
    """Uploads the largest changes by magnitude. Not private.

    Attributes:
        fraction: in (0, 1]; at most fraction * size coordinates (at least one) are uploaded.
        bound: uploaded values are clipped to [-bound, bound].
    Raises:
        ValueError: a fraction or bound out of range.
    """

    fraction: float
    bound: float = 1.0
    private: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _as_floats(self, "fraction", "bound")
        _check(self.fraction, self.bound)

    def select(self, change: np.ndarray, rng: np.random.Generator) -> Update:
        """Returns the `share_of(fraction, size)` largest coordinates; zeros are never uploaded. Ties fall anyhow."""
        del rng
        change = _finite(change)
        count = min(share_of(self.fraction, len(change)), int(np.count_nonzero(change)))
        return _update(np.argpartition(-np.abs(change), count - 1)[:count] if count else [], change, self.bound)


@dataclass(frozen=True)
class RandomAboveThreshold:
    """Uploads random changes among those whose magnitude is above a threshold. Not private.

    Attributes:
        fraction, bound: see `LargestValues`.
        threshold: at least 0; a change must be above it.
    Raises:
        ValueError: a number out of range.
    """

    fraction: float
    threshold: float
    bound: float = 1.0
    private: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _as_floats(self, "fraction", "bound", "threshold")
        _check(self.fraction, self.bound, self.threshold)

    def select(self, change: np.ndarray, rng: np.random.Generator) -> Update:
        """Returns a uniformly chosen subset of the coordinates above the threshold, all of them if they are few."""
        change = _finite(change)
        above = np.flatnonzero(np.abs(change) > self.threshold)
        count = min(share_of(self.fraction, len(change)), len(above))
        return _update(rng.choice(above, count, replace=False), change, self.bound)


@dataclass(frozen=True)
class SparseVector:
    """Uploads noisy values of coordinates whose noisy magnitude passes a noisy threshold: NumericSparse.

    With c = `share_of(fraction, size)`, a test (one noisy threshold, until a coordinate passes it) costs
    eps_t = (8/9) epsilon / c, and the value released after it eps_r = (1/9) epsilon / c.

    Guarantee: an upload of at most c tests is epsilon-differentially private when the party's whole data set is
    replaced by any other; each test started costs eps_t + eps_r, whether it finds a coordinate or not. Nothing about
    the training is assumed: each change is clipped to [-bound, bound] BEFORE any noise, non-finite ones to 0, so data
    move a magnitude by at most `bound` and a value by at most 2 `bound`. The threshold's noise has scale
    2 bound / eps_t and the magnitude's 4 bound / eps_t (AboveThreshold), the value's 2 bound / eps_r (Laplace). The
    released value is clipped once more, which is post-processing. Coordinates are tried in a random order, each once.

    As printed, the value is clipped after the noise alone: one change of 10 bounds then shows ten times the loss that
    is claimed. The printed noise of the tests is twice what is needed (a magnitude moves by one bound, not two).

    The noise is discrete Laplace on a grid of bound / 2^20 (see `laplace`). Not covered: the time that a selection
    takes, the local weights, and what the local training prints.

    Attributes:
        fraction: see `LargestValues`.
        epsilon: of one upload of c tests, for one party.
        bound: the clip gamma, in units of a weight's change.
        threshold: tau, at least 0, same units. Public: it must not be chosen by looking at the party's data.
    Raises:
        ValueError: a number out of range.
    Source: Dwork, Roth 2014, "The algorithmic foundations of differential privacy", Algorithms 1 and 3, Theorem 3.28.
    """

    fraction: float
    epsilon: float
    bound: float
    threshold: float
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _as_floats(self, "fraction", "bound", "threshold", "epsilon")
        _check(self.fraction, self.bound, self.threshold)
        if not 0.0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be a finite number above 0. Received: {self.epsilon!r}.")
        if self.threshold > 2**20 * self.bound:
            raise ValueError(
                f"threshold={self.threshold!r} is above a million bounds of {self.bound!r}: nothing reaches it."
                " Use a threshold of at most the bound."
            )

    def tests(self, size: int) -> int:
        """c: the most tests, and uploaded coordinates, of one upload from `size` weights."""
        return share_of(self.fraction, size)

    def release(self, size: int, seeded: bool = False) -> NumericSparse:
        """What one test and the value after it release; the ledger counts it once for each test STARTED."""
        unit = self.bound / _LEVELS
        threshold, query, value = (scale * unit for scale in self._scales(size))
        return NumericSparse(self.bound, threshold, query, value, seeded)

    def select(self, change: np.ndarray, rng: np.random.Generator, most: int | None = None) -> Update:
        """Runs the tests; see `started` for how many a result cost.

        Args:
            change: (size,), any real dtype, any content.
            rng: keyed by the operating system (`sampling.entropy_generator()`).
            most: tests that may be started, at most and by default c. Their noise is that of c.
        Raises:
            ValueError: more tests than c.
        """
        size = len(change)
        most = self.tests(size) if most is None else most
        if not 0 <= most <= self.tests(size):
            raise ValueError(f"An upload has 0 to {self.tests(size)} tests. Received: most={most!r}.")
        threshold_scale, query_scale, value_scale = self._scales(size)
        levels = _levels(change, self.bound)
        order = rng.permutation(size)
        noisy = np.abs(levels[order]) + discrete_laplace(query_scale, size, rng)
        thresholds = round(self.threshold / self.bound * _LEVELS) + discrete_laplace(threshold_scale, most, rng)
        chosen = np.sort(order[_passing(noisy, thresholds)])
        values = levels[chosen] + discrete_laplace(value_scale, len(chosen), rng)
        bounded = np.clip(values, -_LEVELS, _LEVELS) * (self.bound / _LEVELS)
        return Update(chosen.astype(np.int64), np.clip(bounded, -self.bound, self.bound).astype(np.float32))

    def started(self, update: Update, most: int) -> int:
        """Tests that an upload started: one for each value, and one that found none unless all `most` did find one."""
        return min(len(update) + 1, most)

    def _scales(self, size: int) -> tuple[int, int, int]:
        """Noise of threshold, magnitude and value in steps of the grid, rounded up: never less than stated."""
        each = self.epsilon / self.tests(size)
        test, value = _TEST_SHARE * each, (1.0 - _TEST_SHARE) * each
        largest = 4 * _LEVELS / min(test, value)
        if not largest < LARGEST_SCALE:
            raise ValueError(
                f"epsilon={self.epsilon!r} over {self.tests(size)} tests is too small: the noise would be"
                f" {largest / _LEVELS:.3g} times the bound, and nothing of use would be uploaded. Use a larger epsilon"
                " or a smaller fraction."
            )
        return math.ceil(2 * _LEVELS / test), math.ceil(4 * _LEVELS / test), math.ceil(2 * _LEVELS / value)


def share_of(fraction: float, size: int) -> int:
    """floor(fraction * size), at least 1 and at most size. The slack is for fractions like 0.1 that binary rounds."""
    return max(1, min(size, math.floor(fraction * size * (1 + 1e-12))))


def most_updated(counters: np.ndarray, fraction: float) -> np.ndarray:
    """Indices, ascending, of the `share_of(fraction, size)` weights that were uploaded most often; ties by index."""
    _check(fraction, 1.0)
    count = share_of(fraction, len(counters))
    return np.sort(np.argsort(-np.asarray(counters), kind="stable")[:count])


def _levels(change: np.ndarray, bound: float) -> np.ndarray:
    """The changes in steps of the grid, int64 in [-_LEVELS, _LEVELS]: the bound BEFORE the noise."""
    clipped = np.clip(_finite(change).astype(np.float64), -bound, bound)
    return np.clip(np.rint(clipped / bound * _LEVELS), -_LEVELS, _LEVELS).astype(np.int64)


def _passing(noisy: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Positions that pass: each threshold is used until a position passes it, and positions are never tried again."""
    found, start = [], 0
    for threshold in thresholds:
        position = _first_at_least(noisy, threshold, start)
        if position is None:
            break
        found.append(position)
        start = position + 1
    return np.asarray(found, dtype=np.int64)


def _first_at_least(values: np.ndarray, threshold: int, start: int) -> int | None:
    width = 64
    while start < len(values):  # In growing pieces: the next one to pass is mostly near.
        passes = values[start : start + width] >= threshold
        position = int(np.argmax(passes))
        if passes[position]:
            return start + position
        start, width = start + width, 2 * width
    return None


def _finite(change: np.ndarray) -> np.ndarray:
    change = np.asarray(change)
    if change.ndim != 1 or not len(change) or change.dtype.kind not in "fiu":
        raise ValueError(
            f"A change must be a vector of real numbers, not empty. Received: shape {change.shape}, {change.dtype}."
        )
    return np.where(np.isfinite(change), change, 0)


def _update(chosen: np.ndarray | Sequence[int], change: np.ndarray, bound: float) -> Update:
    indices = np.sort(np.asarray(chosen, dtype=np.int64))
    return Update(indices, np.clip(change[indices], -bound, bound).astype(np.float32))


def _as_floats(selection: Any, *names: str) -> None:
    """Makes these numbers Python's own: in an integer of 8 bits, or a float of 16, scales of noise overflow."""
    for name in names:
        object.__setattr__(selection, name, float(getattr(selection, name)))


def _check(fraction: float, bound: float, threshold: float = 0.0) -> None:
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"A fraction must be above 0 and at most 1. Received: fraction={fraction!r}.")
    if not 0.0 < bound <= LARGEST_BOUND:
        raise ValueError(
            f"bound must be a finite number above 0, and at most {LARGEST_BOUND:.4g}: uploads are float32, and beyond"
            f" it infinite. Received: {bound!r}."
        )
    if not 0.0 <= threshold < math.inf:
        raise ValueError(f"threshold must be a finite number of at least 0. Received: {threshold!r}.")
