"""The smallest noise, or the most steps, that keep to a target: searches of a monotone cost."""

import math
from collections.abc import Callable, Sequence

__all__ = ["OutOfReachError", "least", "most", "near", "slope_of", "within"]

LEAST_NOISE, _MOST_NOISE = 1e-2, 1e7
_FURTHER = 1.05
_VERY_NEAR, _MOST_SECANTS, _MOST_STEPS = 0.003, 8, 2
_MOST_SLOW = 2
_HUGE, _MOST_NUMBER = 1e150, 1e18


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


def most(cost: Callable[[int], float], target: float, guess: int, maximum: int, close: float = 0.0) -> int:
    """The largest integer in [0, maximum] whose cost is at most the target, of a cost that rises; 0 where none is.

    A cost may take seconds, so few are asked for. The square of an epsilon is nearly straight in the number of
    releases, so a line through two costs tells where it crosses the target; where this does not halve what is left (a
    cost may rise in steps), the middle does. However it rises, the answer's cost was computed and is at most the target
    (or the answer is 0), and the next one's was computed and is above (or the answer is the maximum).

    Args:
        close: how near to the target a cost is, relatively, with which the search ends at once. Such an answer, whose
            cost may be above the target, is what another search starts from.
    """
    low, high, probe, slow = 0, maximum + 1, guess, 0
    line = [(0, cost(0))]
    while high - low > 1:
        probe, left = min(max(probe, low + 1), high - 1, 4 * low + guess + 1), high - low
        reached = cost(probe)
        if abs(reached - target) < close * target:
            return probe
        low, high = (probe, high) if reached <= target else (low, probe)
        slow = slow + 1 if 2 * (high - low) > left else 0
        line = [*line[-1:], (probe, reached)]
        crossing = _crossing(line, target)
        if crossing is None or slow >= (_MOST_SLOW if high <= maximum else 3 * _MOST_SLOW):
            crossing, slow = _middle(low, high), 0
        probe = crossing
    return low


def _crossing(line: Sequence[tuple[int, float]], target: float) -> int | None:
    """Where the squares of two costs, continued as a line, reach that of the target; None where they do not rise."""
    (first, start), (last, end) = sorted(line)
    if not start < end < _HUGE:
        return None
    place = first + (target**2 - start**2) / (end**2 - start**2) * (last - first)
    return math.floor(min(place, _MOST_NUMBER))


def _middle(low: int, high: int) -> int:
    return (low + high) // 2 if high < 4 * low else math.isqrt(max(low, 1) * high)
