"""Privacy loss of a Gaussian mechanism on a truncated Poisson draw, under add-or-remove."""

import functools
import math
from functools import partial
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from dp_accounting.pld import pld_pmf
from scipy import stats

from tfdp_layers.accounting.dots import connected
from tfdp_layers.accounting.fixed_size import gaussian_profile
from tfdp_layers.accounting.owned_records import owner_profile
from tfdp_layers.sampling.owners import OwnerDpEvent

__all__ = ["is_truncated", "truncated_pmf", "truncated_profile"]


def is_truncated(event: DpEvent) -> bool:
    """Whether the event is a Gaussian one on a Poisson draw of which at most so many records are kept."""
    return hasattr(event, "truncated_batch_size")


@functools.lru_cache(maxsize=32)
def truncated_pmf(event: Any, interval: float, order: int) -> pld_pmf.PLDPmf:
    """A pessimistic privacy loss distribution of one step, of the order 0 (a record that is there) or 1.

    Args:
        interval: of the grid, in units of privacy loss. Every interval gives an upper bound.
    """
    own, other = (partial(truncated_profile, event=event, order=each) for each in (order, 1 - order))
    return connected(own, other, interval)


def truncated_profile(epsilon: Any, event: Any, order: int) -> np.ndarray:
    """An upper bound on delta of one step at `epsilon`, rising numbers (n,): (1 - t) d1 + t d2.

    Let t be the probability that the draw is cut where the record at hand is drawn. Where it is not cut, which both
    data sets agree on, the step is one on a plain Poisson draw, of profile d1. Where it is, the record takes the place
    of another one, with the probability q' that it is among those that are kept: d2 is the profile of `_replaced`,
    which is above that of either order. That the mixture dominates is what dp-accounting's
    `from_truncated_subsampled_gaussian_mechanism` rests on; this is the same distribution, without a loop over points.

    Source: Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang 2024, arXiv:2411.04205 (Appendix).
    """
    cut, kept = _chances(event)
    if event.sampling_probability < 1.0:
        drawn = OwnerDpEvent(event.sampling_probability, 1, event.noise_multiplier)
        deltas = owner_profile(epsilon, drawn, order)
    else:
        deltas = gaussian_profile(epsilon, event.noise_multiplier)
    return deltas if cut == 0.0 else (1.0 - cut) * deltas + cut * _replaced(epsilon, kept, event.noise_multiplier / 2.0)


@functools.lru_cache(maxsize=64)
def _chances(event: Any) -> tuple[float, float]:
    """That a draw is cut, given that it holds the record; and that this is kept, given that it is cut."""
    most, size, rate = event.truncated_batch_size, event.dataset_size, event.sampling_probability
    cut = float(stats.binom.sf(most - 1, size - 1, rate))
    return cut, min(1.0, float(stats.binom.sf(most, size, rate)) * most / (cut * size)) if cut > 0.0 else 0.0


def _replaced(epsilon: Any, probability: float, multiplier: float) -> np.ndarray:
    """The profile of P = (1 - q) N(0, 1) + q N(s, 1) and Q = (1 - q) N(0, 1) + q N(-s, 1), s = 1 / multiplier.

    For epsilon >= 0, L = dP / dQ rises, and is e^epsilon where w = e^(s x) is the larger root of c w^2 -
    (1 - q) (e^epsilon - 1) w - c e^epsilon, c = q e^(-s^2 / 2). In phi(t) (L(t) - L(x)) dQ / dN, integrated over t > x,
    terms of q N(s) and of q N(-s) stand apart, and with d_G the Gaussian profile it is

        q d_G(s x - s^2 / 2) + q e^(epsilon - s x - s^2 / 2) d_G(s x + s^2 / 2):

    no term is negative, so nothing cancels. Below zero 1 - e^epsilon + e^epsilon d(-epsilon), as the pair is symmetric.
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    size, half = np.abs(epsilon), 0.5 / multiplier**2
    if probability == 0.0:
        return np.maximum(-np.expm1(np.minimum(epsilon, 0.0)), 0.0)
    # In logarithms: w = (b + sqrt(b^2 + 4 c^2 e^epsilon)) / (2 c) with b = (1 - q) (e^epsilon - 1).
    log_c = math.log(probability) - half
    with np.errstate(all="ignore"):
        log_b = (
            math.log1p(-probability) + size + np.log(-np.expm1(-size)) if probability < 1.0 else -np.inf + 0.0 * size
        )
        log_root = 0.5 * np.logaddexp(2.0 * log_b, math.log(4.0) + 2.0 * log_c + size)
        log_w = np.logaddexp(log_b, log_root) - math.log(2.0) - log_c  # s x
        own = gaussian_profile(log_w - half, multiplier)
        other = np.exp(size - log_w - half) * gaussian_profile(log_w + half, multiplier)
    delta = np.clip(probability * (own + other), 0.0, 1.0)
    return np.where(epsilon < 0.0, -np.expm1(-size) + np.exp(-size) * delta, delta)
