"""What is known of real numbers: between which they lie, and whether one may be none (NaN)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["ANYTHING", "UNIT", "Reals", "flushed", "hull", "moderate", "of_constant", "without"]

_CHAINED = ("Mul", "RealDiv", "Div", "Neg", "Cast", *("Identity", "Reshape", "Transpose", "BroadcastTo", "Squeeze"))
"""What may lead from one product to another, whose constants are put together then."""


@dataclass(frozen=True)
class Reals:
    """low <= entry <= high of every entry that is a number; `nan`: whether one may be none."""

    low: float = -math.inf
    high: float = math.inf
    nan: bool = True

    @property
    def finite(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def has_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


ANYTHING = Reals()
UNIT = Reals(0.0, 1.0, False)


def hull(*parts: Reals) -> Reals:
    """Of what holds entries of these."""
    return Reals(min(p.low for p in parts), max(p.high for p in parts), any(p.nan for p in parts))


def without(one: Reals, which: frozenset[str], dtype: Any) -> Reals:
    most = float(dtype.max)
    return Reals(
        max(one.low, -most) if "-inf" in which else one.low,
        min(one.high, most) if "inf" in which else one.high,
        one.nan and "nan" not in which,
    )


def flushed(dtype: Any, one: Reals) -> Reals:
    """With zero, as which kernels may read what lies between it and the smallest normal number."""
    least = float(ml_dtypes.finfo(dtype.as_numpy_dtype).smallest_normal)
    low, high = 0.0 if 0.0 < one.low < least else one.low, 0.0 if -least < one.high < 0.0 else one.high
    return Reals(low, high, one.nan)


def moderate(operation: Any, *inputs: Reals) -> bool:
    """Whether constants of a chain of products, put together by Grappler or XLA, are normal numbers of the type: the
    ends of each lie between the roots of the smallest and of the largest number, what leads from one to another within.
    """
    info = ml_dtypes.finfo(operation.outputs[0].dtype.as_numpy_dtype)
    least, most = math.sqrt(float(info.smallest_normal)), math.sqrt(float(info.max))
    points, chained = [a for a in inputs if a.low == a.high], any(one.op.type in _CHAINED for one in operation.inputs)
    ends = [abs(end) for one in (inputs if points and chained else points) for end in (one.low, one.high)]
    return all(end in (0.0, math.inf) or least <= end <= most for end in ends)


def of_constant(array: Any) -> Reals:
    numbers = np.asarray(array, np.float64)
    if not numbers.size or not np.isfinite(numbers).all():
        return ANYTHING
    return Reals(float(numbers.min()), float(numbers.max()), False)
