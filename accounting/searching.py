"""The smallest noise, or the most steps, that keep to a target: searches of a monotone cost."""

import math
from collections.abc import Callable

__all__ = ["OutOfReachError", "least", "most", "near", "slope_of", "within"]

LEAST_NOISE, _MOST_NOISE = 1e-2, 1e7
_FURTHER = 1.05
_VERY_NEAR, _MOST_SECANTS, _MOST_STEPS = 0.003, 8, 2


class OutOfReachError(ValueError):
    """No noise reaches a target: too much is spent, or the target is too small."""


def least(cost: Callable[[float], float], target: float, guess: float, tolerance: float, stride: float = 2.0) -> float:
    """The smallest value from `LEAST_NOISE` on, to a relative tolerance, whose cost (falling) is at most the target.

    A delta above the chance that a record is drawn at all asks for no noise: without an end the search would go on.
    """
    high = guess
    while cost(high) > target:
        high *= stride
        stride = min(stride**2, 2.0)
        if high > _MOST_NOISE:
            raise OutOfReachError(
                f"No noise multiplier up to {_MOST_NOISE:g} can be shown to reach target_epsilon={target!r}. Less noise"
                " may do: of a very small epsilon and delta together the accountants can show nothing, since they count"
                " what their own numbers round as cost. Use a larger target or delta, or fewer steps."
            )
    low = high / stride
    while high > LEAST_NOISE and cost(max(low, LEAST_NOISE)) <= target:
        stride = min(stride**2, 2.0)
        high, low = max(low, LEAST_NOISE), low / stride
    if high <= LEAST_NOISE:
        return high
    while high > low * (1.0 + tolerance):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    return high


def within(
    cost: Callable[[float], float], enough: float, target: float, guess: float, slope: float
) -> tuple[float, bool]:
    """A value whose cost is from `enough` to the target, and whether it is: found by a known slope of the logarithms.

    Where a few steps do not find one, the last guess is what to search from.
    """
    aim = (enough + target) / 2.0
    for _ in range(_MOST_STEPS):
        reached = cost(guess) if LEAST_NOISE < guess < _MOST_NOISE else 0.0
        if enough <= reached <= target:
            return guess, True
        if not 0.0 < reached < math.inf:
            break
        guess *= (reached / aim) ** (-1.0 / slope)
    return guess, False


def near(
    cost: Callable[[float], float], target: float, guess: float, slope: float = -1.0, close: float = 0.02
) -> tuple[float, float] | None:
    """A value whose cost is near the target, by secants of the logarithms, and their slope; None: not in a few steps.

    Args:
        slope: of a cost alike.
        close: how near to the target the last cost is, relatively, from which one more secant is followed.
    """
    line: tuple[float, float] | None = None
    for _ in range(_MOST_SECANTS):
        reached = cost(guess) if LEAST_NOISE < guess < _MOST_NOISE else 0.0
        if not 0.0 < reached < math.inf:
            return None
        place, off = math.log(guess), math.log(reached / target)
        if line is not None and place != line[0]:
            slope = min((off - line[1]) / (place - line[0]), -0.1)
        known, line = line is not None, (place, off)
        guess = math.exp(place - off / slope)
        if abs(off) < (close if known else _VERY_NEAR):
            return guess, slope
    return None


def slope_of(cost: Callable[[float], float], value: float) -> float:
    """Of the logarithm of a falling cost over that of the value; -1, as of much noise, where it is no number."""
    costs = cost(value), cost(value * _FURTHER)
    found = math.log(costs[1] / costs[0]) / math.log(_FURTHER) if 0.0 < min(costs) <= max(costs) < math.inf else -1.0
    return min(found, -0.1)


def most(fits: Callable[[int], bool], guess: int, stride: int, maximum: int) -> int:
    """The largest integer in [0, maximum] that fits, for a condition that holds at 0 and never again once it fails."""
    low = guess
    while low > 0 and not fits(low):
        high, low = low, max(0, low - stride)
        stride *= 2
        if low == 0 or fits(low):
            return _bisect(fits, low, high)
    while low < maximum:
        high = min(low + stride, maximum)
        if not fits(high):
            return _bisect(fits, low, high)
        low, stride = high, stride * 2
    return low


def _bisect(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest integer that fits, where low fits and high does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
