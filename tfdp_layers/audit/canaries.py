"""Records that are put among the training data, each by a fair coin, to see whether the model tells."""

from dataclasses import dataclass

import numpy as np

from tfdp_layers.sampling import entropy_generator

__all__ = ["KINDS", "Canaries", "make_canaries"]

KINDS = ("gradient", "mislabelled", "noise")
_REACH = 3.0
"""Of a gradient canary: entries in units of the data's largest. Clips bind; predictions don't saturate yet, and so a
canary that happens to be predicted right has a gradient all the same."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Canary records and their coins.

    Attributes:
        x, y: (canaries, ...) each, as the training data.
        included: (canaries,) boolean: the coins, fair and independent.
        other_x, other_y: what stands in a canary's place where it is left out and records can only be replaced.

    Raises: ValueError unless all have one length.
    """

    x: np.ndarray
    y: np.ndarray
    included: np.ndarray
    other_x: np.ndarray
    other_y: np.ndarray

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in ("x", "y", "included", "other_x", "other_y")}
        if len(set(lengths.values())) != 1 or not len(self.x):
            raise ValueError(f"Canaries need one row for each in every array, at least one. Received: {lengths}.")

    def __len__(self) -> int:
        return len(self.included)


def make_canaries(
    x: np.ndarray, y: np.ndarray, count: int, kind: str = "gradient", seed: int | None = None
) -> Canaries:
    """Makes canaries for a data set.

    Args:
        x: (records, ...) array of numbers.
        y: (records,) integer labels; under "gradient" and "noise" also targets of any shape.
        count: how many; about half are included.
        kind: "gradient": records far out in random directions, which saturate every clip, so that their bounded
            gradients lie at the bound in nearly orthogonal directions: the hardest for a training to hide.
            "mislabelled": records of x with wrong labels. "noise": uniform noise in the range of x: out of
            distribution.
        seed: for tests; without it the operating system tosses the coins.

    Returns: the canaries; in their places, where left out, a record of zeros with the first label.
    Raises: ValueError for an unknown kind, or data that a kind cannot be made from.
    """
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {KINDS}. Received: {kind!r}.")
    if not hasattr(x, "shape") or not hasattr(y, "shape") or len(x) != len(y) or not len(x):
        raise ValueError(
            "Canaries are made from arrays x and y with one row a record. For other data make your own:"
            " tfdp.audit.Canaries(x, y, included, other_x, other_y)."
        )
    if isinstance(count, bool) or count < 1:
        raise ValueError(f"`count` is the number of canaries, at least 1. Received: {count!r}.")
    x, y, rng = np.asarray(x), np.asarray(y), entropy_generator(seed)
    made_x = _inputs(x, count, kind, rng)
    made_y = y[rng.integers(0, len(y), count)]
    if kind == "mislabelled":
        made_x, made_y = _mislabelled(x, y, count, rng)
    zeros, first = np.zeros_like(made_x), np.repeat(y[:1], count, axis=0)
    return Canaries(made_x, made_y, rng.random(count) < 0.5, zeros, first)


def _inputs(x: np.ndarray, count: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    shape = (count, *x.shape[1:])
    if x.dtype.kind in "iu":  # tokens and pixels: any value in range
        return rng.integers(x.min(), x.max(), shape, endpoint=True).astype(x.dtype)
    low, high = float(np.min(x)), float(np.max(x))
    if kind == "gradient":
        reach = _REACH * max(abs(low), abs(high), 1e-3)
        return (reach * rng.choice([-1.0, 1.0], shape)).astype(x.dtype)
    return rng.uniform(low, high, shape).astype(x.dtype)


def _mislabelled(x: np.ndarray, y: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    classes = np.unique(y)
    if y.dtype.kind not in "iu" or y.ndim != 1 or len(classes) < 2:
        raise ValueError("Mislabelled canaries need integer labels (records,) of two classes or more.")
    rows = rng.choice(len(x), count, replace=count > len(x))
    shift = rng.integers(1, len(classes), count)
    return x[rows], classes[(np.searchsorted(classes, y[rows]) + shift) % len(classes)]
