"""Privacy loss of a Gaussian mechanism on a Poisson draw, for an owner of several of its records."""

import functools
import math
from functools import partial
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy import special, stats

from tfdp_layers.accounting.dots import connected
from tfdp_layers.accounting.fixed_size import gaussian_profile
from tfdp_layers.sampling.owners import OwnerDpEvent

__all__ = ["HAS_PLD", "owner_pld", "owner_pmf", "owner_profiles", "owner_rdp", "shifts"]

HAS_PLD = hasattr(pld_pmf, "create_pmf_pessimistic_connect_dots_fixed_gap")
"""Whether the installed dp-accounting connects dots of a profile."""

_NEWTON = 60
_MOST_POINTS = 200_000  # of an integral for one order
_REACH = 15.0  # Deviations beyond which a Gaussian density integrates to less than 1e-50.


@functools.lru_cache(maxsize=64)
def shifts(event: OwnerDpEvent) -> tuple[np.ndarray, np.ndarray]:
    """How many of the owner's records are drawn, 1, 2, ..., and the logarithm of the probability of each."""
    counts = np.arange(1, event.records + 1)
    # Logarithms: the chance of a draw of many may be no float, and Renyi divergences rest on it.
    return counts.astype(np.float64), stats.binom.logpmf(counts, event.records, event.sampling_probability)


def owner_profiles(epsilon: Any, event: OwnerDpEvent) -> tuple[np.ndarray, np.ndarray]:
    """The smallest deltas of one step at `epsilon`, rising numbers (n,), for records that are there and are not.

    Let s = 1 / z, p_j the probabilities that j records are drawn, Q = N(0, 1), P = sum_j p_j N(j s, 1), and L = dP / dQ
    = sum_j p_j e^(l_j), l_j(x) = j s x - j^2 s^2 / 2, which rises in x from p_0 on. With d_j the Gaussian profile of
    multiplier z / j, at the x with L(x) = e^epsilon:

        P(L > e^epsilon) - e^epsilon Q(L > e^epsilon) = sum_j p_j (P_j(> x) - e^(l_j(x)) Q(> x))
                                                      = sum_j p_j d_j(l_j(x)), P_j = N(j s, 1),

    since e^epsilon = sum_j p_j e^(l_j(x)); and at the x with L(x) = e^-epsilon in the same way

        Q(L < e^-epsilon) - e^epsilon P(L < e^-epsilon) = e^epsilon sum_j p_j e^(l_j(x)) d_j(-l_j(x)).

    No term is negative, so nothing cancels. The x that is found is never to the wrong side of the root, where the
    divergence of a smaller epsilon is returned: never less than the true one.

    Returns: ((n,), (n,)), of (P, Q) and of (Q, P).
    """
    return owner_profile(epsilon, event, 0), owner_profile(epsilon, event, 1)


def owner_profile(epsilon: Any, event: OwnerDpEvent, order: int) -> np.ndarray:
    """The first or the second of `owner_profiles`."""
    epsilon = np.asarray(epsilon, dtype=np.float64)
    with np.errstate(all="ignore"):
        return _without_records(epsilon, event) if order else _with_records(epsilon, event)


def _with_records(epsilon: np.ndarray, event: OwnerDpEvent) -> np.ndarray:
    deltas = -np.expm1(np.minimum(epsilon, 0.0))  # below log p_0 every x counts, and L > e^epsilon everywhere
    inside = epsilon > _least_log_ratio(event)
    x = _root(epsilon[inside], event, above=False)
    sums = np.zeros_like(x)
    for count, chance in zip(*shifts(event), strict=True):
        sums += math.exp(chance) * gaussian_profile(_log_ratio(x, count, event), event.noise_multiplier / count)
    deltas[inside] = np.maximum(sums, deltas[inside])
    return _falling(deltas)


def _without_records(epsilon: np.ndarray, event: OwnerDpEvent) -> np.ndarray:
    deltas = np.zeros_like(epsilon)
    inside = -epsilon > _least_log_ratio(event)
    least = epsilon[inside]
    x = _root(-least, event, above=True)
    sums = np.zeros_like(x)
    for count, chance in zip(*shifts(event), strict=True):
        logs = _log_ratio(x, count, event)
        sums += np.exp(least + logs + chance) * gaussian_profile(-logs, event.noise_multiplier / count)
    deltas[inside] = np.maximum(sums, -np.expm1(np.minimum(least, 0.0)))
    return _falling(deltas)


def _log_ratio(x: np.ndarray, count: float, event: OwnerDpEvent) -> np.ndarray:
    """l_j(x)."""
    shift = count / event.noise_multiplier
    return shift * x - 0.5 * shift**2


def _least_log_ratio(event: OwnerDpEvent) -> float:
    """log p_0, which log L exceeds everywhere."""
    return event.records * math.log1p(-event.sampling_probability)


def _root(logarithms: np.ndarray, event: OwnerDpEvent, above: bool) -> np.ndarray:
    """The x with log L(x) = these numbers, all above log p_0, rounded up or down.

    Newton's method on log sum_{j > 0} p_j e^(l_j(x)) = log(e^t - p_0), a convex, rising function of slope s at least,
    from where one term alone reaches the value: the sum does before, so the steps go down and never pass the root.
    """
    counts, chances = shifts(event)
    slopes = counts / event.noise_multiplier
    offsets = chances - 0.5 * slopes**2
    goal = logarithms + np.log(-np.expm1(_least_log_ratio(event) - logarithms))
    x = np.full(goal.shape, np.inf)
    for slope, offset in zip(slopes, offsets, strict=True):
        x = np.minimum(x, (goal - offset) / slope)
    for _ in range(_NEWTON):
        value, slope_here = _log_sum(x, slopes, offsets)
        step = (value - goal) / slope_here
        x = x - step
        if not np.any(step > 1e-13 * (1.0 + np.abs(x))):
            break
    margin = 1e-11 * (1.0 + np.abs(x))
    return x + margin if above else x - margin


def _log_sum(x: np.ndarray, slopes: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log sum_j exp(offset_j + slope_j x), and its derivative."""
    highest = np.full(x.shape, -np.inf)
    for slope, offset in zip(slopes, offsets, strict=True):
        highest = np.maximum(highest, offset + slope * x)
    total, weighted = np.zeros(x.shape), np.zeros(x.shape)
    for slope, offset in zip(slopes, offsets, strict=True):
        term = np.exp(offset + slope * x - highest)
        total += term
        weighted += slope * term
    return highest + np.log(total), weighted / total


def _falling(deltas: np.ndarray) -> np.ndarray:
    """The smallest falling sequence that is nowhere below."""
    return np.clip(np.maximum.accumulate(deltas[::-1])[::-1], 0.0, 1.0)


def owner_pld(event: OwnerDpEvent, interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """A pessimistic privacy loss distribution of one step, in both orders; valid for adaptive compositions.

    Args:
        interval: of the grid, in units of privacy loss. Every interval gives an upper bound.
    Source: Doroshenko et al. 2022, arXiv:2207.04380, Algorithm 1 (connecting the dots of `owner_profiles`).
    """
    return privacy_loss_distribution.PrivacyLossDistribution(*(owner_pmf(event, interval, order) for order in (0, 1)))


@functools.lru_cache(maxsize=32)
def owner_pmf(event: OwnerDpEvent, interval: float, order: int) -> pld_pmf.PLDPmf:
    """That of one order, 0 for records that are there and 1 for those that are not: see `owner_pld`."""
    own, other = (partial(owner_profile, event=event, order=each) for each in (order, 1 - order))
    return connected(own, other, interval)


def owner_rdp(event: OwnerDpEvent, orders: tuple[float, ...]) -> np.ndarray:
    """The Renyi divergence of one step at these orders, the larger of both.

    The divergences are log E L^a / (a - 1) and log E L^(1 - a) / (a - 1), over x ~ N(0, 1); the latter is at most
    -log p_0, as L > p_0. (Of one record the former is known to be the larger; of several it was wherever we looked, but
    both are computed.) They are integrated by the trapezoidal rule of step h, whose error is at most about
    e^(-2 pi y / h) times the integrals of the integrand's size over the lines x + i y and x - i y. There a density
    grows by e^(y^2 / 2), and |L|^a does not grow. L is a polynomial in e^(s x) whose zeros are negative numbers (those
    of (1 - q + q w)^k are, and e^(-j^2 s^2 / 2) is a multiplier sequence of Polya and Schur), so |L| falls by a factor
    of cos(s y / 2)^k at most. With the steps below the errors are below 1e-15 of the integrals; 1e-12 is added.
    Where an integral would reach too far, a bound stands for it: a k^2 / (2 z^2), of all records in every draw
    (divergences are quasi-convex, so the mixture's is at most that of its furthest Gaussian), or -log p_0.
    """
    largest = event.records / event.noise_multiplier
    cap, coarsest = -_least_log_ratio(event), min(0.1, 0.14 * event.noise_multiplier)
    found = np.asarray(orders, dtype=np.float64) * largest**2 / 2.0
    for place, order in enumerate(orders):
        if order * largest > _MOST_POINTS * coarsest:
            continue
        # Beyond order times the largest slope the integrand falls at least as a Gaussian density does.
        found[place] = _log_mean(event, order, -_REACH, order * largest + _REACH, coarsest)
        if found[place] < cap * (order - 1.0):
            growth = 0.5 + 0.14 * event.records * (order - 1.0) / event.noise_multiplier**2
            y = min(event.noise_multiplier, 6.3 / math.sqrt(growth))
            step = min(coarsest, 2.0 * math.pi * y / (40.0 + growth * y**2))
            other = cap * (order - 1.0)
            if order * largest <= _MOST_POINTS * step:
                other = min(other, _log_mean(event, 1.0 - order, -(order * largest + _REACH), _REACH, step))
            found[place] = max(found[place], other)
        found[place] = max(found[place], 0.0) / (order - 1.0)
    return found


def _log_mean(event: OwnerDpEvent, power: float, low: float, high: float, step: float) -> float:
    """log E L(x)^power over x ~ N(0, 1)."""
    counts, chances = shifts(event)
    slopes = np.append(counts, 0.0) / event.noise_multiplier
    offsets = np.append(chances, _least_log_ratio(event)) - 0.5 * slopes**2
    grid = np.arange(low, high + step, step)
    logs, _ = _log_sum(grid, slopes, offsets)
    return float(special.logsumexp(power * logs - 0.5 * grid**2) + math.log(step / math.sqrt(2.0 * math.pi))) + 1e-12
