"""What the composition of privacy loss distributions may round away of a delta."""

__all__ = ["left_of", "rounded_away"]

_SMALLEST_DELTA = 1e-12
"""Below it the tail that PLD cuts off (1e-15 a composition) is no longer small."""
_EACH = 8.0 * 2.0**-53
_FIRST = 100


def rounded_away(releases: int) -> float:
    """By how much delta may be too small that a composition of so many releases gives, or too large.

    `convolutions` raises the Fourier transform of one release's distribution to the power of their number n, in double
    precision u = 2^-53. A coefficient near 1, as those of low frequencies are, is off by u or so, and its power by
    n u: an absolute error, however small the delta. Found were 0.92 n u at most, of either sign, in compositions of
    10^3 to 10^8 releases whose delta has a closed form (`python benchmarks/composed_rounding.py`), and up to 3.0 n u
    beside transforms in extended precision (draws of a fixed size, n 432); here is 8 n u. dp-accounting transforms
    complex numbers, this package real ones: beside extended precision both err alike. It matters where delta is below
    n 1e-12 or so.
    """
    return _EACH * (releases + _FIRST)


def left_of(delta: float, releases: int, most: float = 0.5) -> float | None:
    """The delta at which a composition is asked for its epsilon, so that this holds at `delta` however it was rounded.

    Args:
        most: the share of delta that rounding may take. None where it may take more: then another way must answer.
    """
    left = delta - rounded_away(releases)
    return left if delta >= _SMALLEST_DELTA and left >= delta * (1.0 - most) else None
