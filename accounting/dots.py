"""Privacy loss distributions on a grid, by connecting the dots of a profile: delta of one step as epsilon rises."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf

__all__ = ["connected"]

Profile = Callable[[Any], np.ndarray]
"""The deltas of one step at epsilons, falling; or bounds on them."""

_TAIL = 1e-22
"""Probability per step of the losses beyond the grid: it is counted as a certain loss."""


def connected(profile: Profile, other: Profile, interval: float) -> pld_pmf.PLDPmf:
    """A pessimistic privacy loss distribution of one order of the two data sets.

    Args:
        profile: of that order.
        other: of the other one: how far it reaches is how far losses go below zero.
        interval: of the grid, in units of privacy loss. Every interval gives an upper bound.
    Source: Doroshenko et al. 2022, arXiv:2207.04380, Algorithm 1.
    """
    high, low = math.ceil(_largest_loss(profile) / interval), -math.ceil(_largest_loss(other) / interval)
    deltas = profile(np.arange(low, high + 1) * interval)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas)


def _largest_loss(profile: Profile) -> float:
    """An epsilon at which delta is below `_TAIL`."""
    epsilon = 1.0

    def delta(at: float) -> float:
        return float(profile(np.array([at]))[0])

    while delta(epsilon) > _TAIL:
        epsilon *= 1.25
    while epsilon > 1e-12 and delta(epsilon / 1.25) <= _TAIL:
        epsilon /= 1.25
    return epsilon
