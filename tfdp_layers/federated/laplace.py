"""Laplace noise on a grid, drawn with integers: no low-order bits of floating point for an attack to read."""

import numpy as np

__all__ = ["LARGEST_SCALE", "discrete_laplace"]

LARGEST_SCALE = 2**56
"""The noise, at most about 40 scales, then fits into 64 bits beside the value that it is added to."""


def discrete_laplace(scale: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws integers X with P(X = k) proportional to exp(-|k| / scale).

    Guarantee: added to an integer that a change of data moves by at most s, it is (s / scale)-differentially private.
    Every integer that can come out for one value can come out for its neighbours, which Laplace noise computed in
    floating point does not give (Mironov 2012, "On significance of the least significant bits"). What remains of
    floating point is the rounding of probabilities, about 1e-16 each, and a cut of the tail at some 36 scales.

    Args:
        scale: in units of the grid, from 1 to LARGEST_SCALE.
        size: how many.
        rng: must be keyed by the operating system (`sampling.entropy_generator()`); whoever knows its key has the
            noise.

    Returns:
        int64, (size,). For large scales the distribution is Laplace's of that scale: variance 2 scale^2.
    Raises:
        ValueError: a scale out of range.
    Source: Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Algorithm 2.
    """
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(
            f"scale must be an integer from 1 to {LARGEST_SCALE}. Received: {scale!r}. A scale so large is that of an"
            " epsilon too small to upload anything of use."
        )
    kept: list[np.ndarray] = []
    missing = size
    while missing > 0:
        tries = 2 * missing + 16
        remainder = rng.integers(scale, size=tries)
        accepted = rng.random(tries) < np.exp(-remainder / scale)
        magnitude = remainder + scale * (rng.geometric(-np.expm1(-1.0), tries) - 1)
        negative = rng.integers(2, size=tries).astype(bool)
        accepted &= ~(negative & (magnitude == 0))  # Zero has one sign, or it would come out twice too often.
        drawn = np.where(negative, -magnitude, magnitude)[accepted][:missing]
        kept.append(drawn)
        missing -= len(drawn)
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)
