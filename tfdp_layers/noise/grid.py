"""Sums and noise in float32 on one grid, so that no bit of what is released tells which sums are possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from tfdp_layers.noise.normals import GRID_BITS

LARGE = 100_000
"""Numbers of a tensor from which on XLA compiles the sum: that takes 0.1 s once, and saves half of the time."""

_ROUNDED = 2.0**-11
"""Of a record's bound: more than scaling two float32 sums of 2,048 bounds to units of the grid moves them apart."""

_COARSE = 2.0**-3
"""Of a record's bound: where the grid could move a sum by more than this, no grid is used."""

_BELOW = 2.0**-10
"""Of the deviation: of the second numbers that fill what lies between those on the grid, where sums are not on it."""

_SIZES = (1e-25, 1e25)
"""Of standard deviations whose units float32 knows."""


class OnGrid(float):
    """A standard deviation for noise that is rounded, as the sum is, to a grid of 2^-`GRID_BITS` of itself."""


class OffGrid(float):
    """One for noise on sums that are not rounded, for which a grid would be too coarse."""


def on_grid(stddevs: Sequence[float], noise_multiplier: float, count: int) -> list[float]:
    """The standard deviations to draw with, so that the grid takes nothing from the guarantee; as they are without one.

    With the deviation k sigma and t = 2^-20 z sqrt(d), rounding d sums to a grid of 2^-20 k sigma makes a record's
    contribution C (1 + k t) at most, C = sigma / z, and scaling them by a number that is no power of two moves them by
    2^-11 C more (two sums of 2,048 times C, 2^-24 of themselves each). It is enough where k >= 1 + 2^-11 + k t, so
    k = (1 + 2^-11) / (1 - t). Beyond t = 2^-3 (many weights and much noise: z sqrt(d) above 131,072) that much noise
    would be too high a price: then there is no grid, see `spread`.

    Args:
        noise_multiplier: z, of all that is released together.
        count: d, how many numbers that are.
    """
    rounded = 2.0**-GRID_BITS * noise_multiplier * math.sqrt(count)
    low, high = _SIZES
    if not rounded <= _COARSE or not all(low < stddev < high or stddev == 0.0 for stddev in stddevs):
        return [OffGrid(stddev) for stddev in stddevs]
    return [OnGrid(stddev * (1.0 + _ROUNDED) / (1.0 - rounded)) for stddev in stddevs]


def spread(noise: tf.Tensor, more: tf.Tensor) -> tf.Tensor:
    """Standard normal numbers on no grid, of those and of as many others, which add 2^-21 to the deviation.

    Added to a sum that is not rounded, numbers on a grid would tell what the sum has beside multiples of its unit.
    """
    return noise + _BELOW * more


def added_on_grid(total: tf.Tensor, stddev: OnGrid, noise: tf.Tensor) -> tf.Tensor:
    """`total` and `stddev` times standard normal `noise`, as whole numbers of units, added, and scaled back.

    What comes out is a function of (sum in units, rounded) + (noise in units): whole numbers, whose float32 sum is the
    correctly rounded one, so it depends on nothing but the exact sum. Were the noise exactly normal, that would be the
    same as cutting off (sum on the grid + noise), which is post-processing of the Gaussian mechanism on rounded sums.
    The numbers of `NoiseSource.normal` are multiples of the unit already, as evenly spread as `normals.on_grid` says;
    those of another source are cut off, never rounded: halves that go to even numbers would tell which sums are odd.
    Without the grid, sum + noise is a number that noise alone can give for some sums only: in one step it told 20 times
    of 20 whether a record was there that alone reached 380 weights (`benchmarks/noise_bits.py`).
    """
    kind = tf.float64 if total.dtype == tf.float64 else tf.float32
    units = tf.constant(2.0**GRID_BITS / stddev, kind), tf.constant(stddev * 2.0**-GRID_BITS, kind)
    size = total.shape.num_elements()
    added = _compiled if size is not None and size >= LARGE else _added
    return tf.cast(added(tf.cast(total, kind), noise, *units), total.dtype)


def _added(total: tf.Tensor, noise: tf.Tensor, scale: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
    whole = tf.cast(tf.floor(noise * 2.0**GRID_BITS), total.dtype)
    return (tf.round(total * scale) + whole) * unit


_compiled = tf.function(_added, jit_compile=True, autograph=False)
"""In one pass, which takes as long as adding alone."""
