"""Epsilon of a composition by tilted masses, whose rounding is small beside delta, however small that is."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import fft, optimize, special

from tfdp_layers.accounting.rounding import rounded_away

__all__ = ["tilted_epsilon"]

_CUT = 1e-15
"""Of the tilted composition, what may lie beyond the places that are looked at."""
_UNIT = 2.0**-53
_DEVIATIONS = (4.0, 6.0, 8.4, 12.0, 20.0)
"""Further tilts, by the composition's deviation, at which Chernoff's bound on its reach is taken."""
_SEARCH = 80
_WORTH = 1e-4  # of epsilon: how much lower a bound must be for a search to go on
_COARSE = 2_000  # groups of masses that the tilt is looked for by
_LARGEST_EXPONENT, _LEAST = 600.0, 1e-300
_FAR = 45.0
"""Losses so far above epsilon, in units of 1 / t, count as e^-45 of the tilted composition, together."""


class _Released(NamedTuple):
    """The masses of one release's losses, which lie at `first`, `first` + 1, ..., and how often it was made."""

    masses: np.ndarray
    first: int
    times: int
    interval: float
    certain: float  # the mass of infinity

    @property
    def losses(self) -> np.ndarray:
        return (self.first + np.arange(self.masses.size)) * self.interval

    def tilted(self, tilt: float) -> tuple[float, np.ndarray]:
        """log M = log of the sum of p e^(t L), and the masses p e^(t L) / M."""
        exponents = tilt * self.losses
        highest = self.highest(tilt)
        tilted = self.masses * np.exp(np.minimum(exponents - highest, 0.0))
        total = float(tilted.sum())
        return highest + math.log(total), tilted / total

    def highest(self, tilt: float) -> float:
        """The largest t L of a mass that is not zero."""
        places = np.flatnonzero(self.masses)
        return float(tilt * self.interval * (self.first + (places[-1] if tilt > 0.0 else places[0])))

    def roundings(self, tilt: float) -> float:
        """What the tilted masses, and log M, are rounded by, in units of the last place: the mean of t L, its largest,
        and some more for the products.
        """
        mean = float(self.tilted(tilt)[1] @ np.abs(tilt * self.losses))
        return self.times * (mean + abs(self.highest(tilt)) + 32.0)


def tilted_epsilon(parts: Sequence[tuple[pld_pmf.PLDPmf, int]], delta: float) -> float:
    """An epsilon at which the composition's delta is at most this one; infinity where none is found.

    Let p be the masses of all losses, convolved, and q = p e^(t L) / M, M = E e^(t L), which is the convolution of the
    releases' own masses, tilted alike. At any t > 0

        delta(epsilon) = sum over L > epsilon of p (1 - e^(epsilon - L))
                       = M e^(-t epsilon) sum over L > epsilon of q e^(-t (L - epsilon)) (1 - e^(epsilon - L)),

    and all weights of q are in [0, 1]. So an error of q, a wrapped end or the rounding of its transform, counts times
    M e^(-t epsilon): Chernoff's bound on the probability of such losses, and near the best t a moderate multiple of
    delta, where without the tilt it counts times 1. Both are added: what lies beyond the ends (`_CUT`), what the
    transform rounds (`rounded_away`), and a share of delta for the rounding of the tilted masses, to the power of their
    number. All is an upper bound at every t; how good, is decided by it.

    Args:
        parts: distributions of one release, of one grid, pessimistic, and how often each was made.
    Source: exponential tilting, as in Esscher 1932; for privacy losses Gopi, Lee, Wutschitz 2021, arXiv:2106.02848,
        bound the error of the transform without it.
    """
    released = [_released(*part) for part in parts]
    certain = -math.expm1(sum(one.times * math.log1p(-min(one.certain, 0.5)) for one in released))
    if certain >= delta or any(one.certain >= 0.5 for one in released):
        return math.inf
    tilt = _best_tilt(released, math.log(delta - certain))
    cumulant, losses, masses = _composed(released, tilt)
    return _least(tilt, cumulant, losses, masses, delta, certain, released)


def _released(single: pld_pmf.PLDPmf, count: int) -> _Released:
    dense = single.to_dense_pmf()
    return _Released(dense._probs, dense._lower_loss, count, dense._discretization, dense._infinity_mass)


def _cumulant(released: Sequence[_Released], tilt: float) -> float:
    return sum(one.times * one.tilted(tilt)[0] for one in released)


def _best_tilt(released: Sequence[_Released], log_delta: float) -> float:
    """The t at which Chernoff's bound on epsilon, (log M - log delta) / t, is about the least."""
    groups = [(_in_groups(one), one.times) for one in released]

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        means = (count * float(special.logsumexp(tilt * losses, b=masses)) for (losses, masses), count in groups)
        return (sum(means) - log_delta) / tilt

    log_tilt, step = 0.0, 2.0
    value = bound(log_tilt)
    for _ in range(_SEARCH):  # it falls, and then rises
        better = [(bound(other), other) for other in (log_tilt - step, log_tilt + step)]
        least, other = min(better)
        if least < value - _WORTH * abs(value):  # of bounded losses it may fall forever
            value, log_tilt = least, other
        elif step < 0.04:
            break
        else:
            step /= 2.0
    return math.exp(log_tilt)


def _in_groups(one: _Released) -> tuple[np.ndarray, np.ndarray]:
    """Masses of neighbours together, at the means of their losses."""
    starts = np.arange(0, one.masses.size, -(-one.masses.size // _COARSE))
    masses = np.add.reduceat(one.masses, starts)
    kept = masses > 0.0
    return np.add.reduceat(one.masses * one.losses, starts)[kept] / masses[kept], masses[kept]


def _composed(released: Sequence[_Released], tilt: float) -> tuple[float, np.ndarray, np.ndarray]:
    """log M, losses and their tilted masses, rising, of all but `_CUT` of the tilted composition."""
    interval, first = released[0].interval, sum(one.first * one.times for one in released)
    tilted = [one.tilted(tilt) for one in released]
    cumulant = sum(one.times * log for one, (log, _) in zip(released, tilted, strict=True))
    variance = sum(one.times * _variance(one.losses, q) for one, (_, q) in zip(released, tilted, strict=True))
    deviation = math.sqrt(variance) or interval

    def reach(sign: int) -> float:
        best = math.inf
        for times in _DEVIATIONS:  # it falls, and then rises
            further = sign * times / deviation
            bound = sign * (_cumulant(released, tilt + further) - cumulant + math.log(2.0 / _CUT)) / further
            if bound >= best:
                break
            best = bound
        return sign * best

    last = first + sum((one.masses.size - 1) * one.times for one in released)
    low = max(first, math.floor(reach(-1) / interval))
    high = min(last, math.ceil(reach(1) / interval))
    length = fft.next_fast_len(max(high - low + 1, *(one.masses.size for one in released)), real=True)
    transform = np.ones(length // 2 + 1, dtype=np.complex128)
    for one, (_, masses) in zip(released, tilted, strict=True):
        transform *= fft.rfft(masses, length) ** one.times
    found = np.roll(fft.irfft(transform, length), first - low)[: high - low + 1]
    return cumulant, (low + np.arange(found.size)) * interval, np.maximum(found, 0.0)


def _variance(losses: np.ndarray, masses: np.ndarray) -> float:
    mean = float(masses @ losses)
    return float(masses @ (losses - mean) ** 2)


def _least(
    tilt: float,
    cumulant: float,
    losses: np.ndarray,
    masses: np.ndarray,
    delta: float,
    certain: float,
    released: Sequence[_Released],
) -> float:
    """The epsilon at which the bound on delta is `delta`; the largest loss is above it, or infinity is the answer."""
    rounded = abs(cumulant) + sum(one.roundings(tilt) for one in released)
    share = math.exp(min(4.0 * _UNIT * rounded, _LARGEST_EXPONENT))
    added = _CUT + math.exp(-_FAR) + rounded_away(sum(one.times for one in released))

    def bound(epsilon: float) -> float:
        first, last = np.searchsorted(losses, (epsilon, epsilon + _FAR / tilt))
        beyond = losses[first:last] - epsilon
        tail = float(masses[first:last] @ (np.exp(-tilt * beyond) * -np.expm1(-beyond)))
        exponent = cumulant - tilt * epsilon
        return share * math.exp(min(exponent, _LARGEST_EXPONENT)) * (tail + added) + certain

    return _root(bound, delta, float(losses[-1]))


def _root(bound: Callable[[float], float], delta: float, high: float) -> float:
    """The least epsilon above 0, to 1e-9 of itself and from above, at which a falling bound is at most delta."""
    if bound(0.0) <= delta:
        return 0.0
    high = max(high, 1e-9)
    for _ in range(_SEARCH):
        if bound(high) <= delta:
            break
        high *= 1.25
    else:
        return math.inf

    def above(epsilon: float) -> float:
        return math.log(max(bound(epsilon), _LEAST) / delta)

    found = float(optimize.brentq(above, 0.0, high, xtol=1e-15, rtol=1e-10, disp=False))
    step = max(1e-10 * found, 1e-18)
    while bound(found) > delta:
        found, step = found + step, 2.0 * step
    return found
