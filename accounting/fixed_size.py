"""Privacy loss of a Gaussian mechanism on a batch of fixed size, drawn without replacement, under replace-one."""

import functools
import math
from functools import partial
from typing import Any

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting.pld import privacy_loss_distribution
from scipy import special

from tfdp_layers.accounting.dots import connected

__all__ = ["gaussian_profile", "is_fixed_size", "sampled_pld", "sampled_profile"]


def is_fixed_size(event: DpEvent) -> bool:
    """Whether the event is a Gaussian one on all records or on a draw without replacement.

    Under replace-one its multiplier is relative to 2S, as dp-accounting's RDP reads it (its PLD reads it otherwise).
    """
    drawn = isinstance(event, SampledWithoutReplacementDpEvent) and isinstance(event.event, GaussianDpEvent)
    return drawn or isinstance(event, GaussianDpEvent)


def gaussian_profile(epsilon: Any, multiplier: float) -> np.ndarray:
    """The smallest delta of a Gaussian mechanism at `epsilon` (any real numbers), to nearly full relative accuracy.

    Args:
        epsilon: numbers, any shape.
        multiplier: noise standard deviation over the sensitivity under the relation at hand (replace-one: 2S).
    Source: Balle and Wang 2018, arXiv:1805.06530, Theorem 8: Phi(a) - e^epsilon Phi(b); and phi(a) =
    e^epsilon phi(b).
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    a = 0.5 / multiplier - epsilon * multiplier
    b = a - 1.0 / multiplier
    # Far out both terms are nearly equal: there take the density out of them, and subtract what is of order one.
    with np.errstate(all="ignore"):
        mills = special.erfcx(-a / math.sqrt(2.0)) - special.erfcx(-b / math.sqrt(2.0))
        outside = 0.5 * np.exp(-0.5 * a**2) * mills
        inside = special.ndtr(a) - np.exp(epsilon + special.log_ndtr(b))
    return np.clip(np.where(a < -1.0, outside, inside), 0.0, 1.0)


def sampled_profile(epsilon: Any, probability: float, multiplier: float) -> np.ndarray:
    """An upper bound on delta of one step on m of n records, drawn without replacement, under replace-one.

    For epsilon >= 0 it is q delta_G(log(1 + (e^epsilon - 1) / q)) with q = m / n and delta_G the Gaussian profile of
    sensitivity 2S; below zero 1 - e^epsilon + e^epsilon delta(-epsilon), since the relation is symmetric.

    Proof. Let j be the replaced record. With probability 1 - q it is not drawn, and both data sets give the same
    distribution M0; otherwise they give M1 and M1'. For e = log(1 + (e^epsilon - 1) / q) and b = e^(epsilon - e),
    advanced joint convexity says H_epsilon((1 - q) M0 + q M1, (1 - q) M0 + q M1')
    = q H_e(M1, (1 - b) M0 + b M1') <= q ((1 - b) H_e(M1, M0) + b H_e(M1, M1')), H being the hockey-stick divergence.
    Both pairs are mixtures over batches that can be coupled so as to differ in one record: M1 and M1' in j alone, M1
    and M0 in j exchanged for a record drawn from those outside the batch. The sum then moves by at most 2S, so by joint
    convexity each divergence is at most delta_G(e). It is attained where all other records contribute -S.

    Args:
        epsilon: numbers, any shape.
        probability: q, in (0, 1].
        multiplier: noise standard deviation over 2S.
    Source: Balle, Barthe, Gaboardi 2018, arXiv:1807.01647 (without replacement, under substitution).
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    size = np.abs(epsilon)
    inner = np.where(
        size < 700.0, np.log1p(np.expm1(np.minimum(size, 700.0)) / probability), size - math.log(probability)
    )
    delta = probability * gaussian_profile(inner, multiplier)
    return np.where(epsilon < 0.0, -np.expm1(epsilon) + np.exp(epsilon) * delta, delta)


@functools.lru_cache(maxsize=8)
def sampled_pld(
    probability: float, multiplier: float, interval: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """A pessimistic privacy loss distribution of one step; valid for adaptive compositions.

    `sampled_profile` bounds both orders of the two data sets, and as a function of e^epsilon it is convex, decreasing,
    from 1 at 0 and never below max(0, 1 - e^epsilon): there is a pair of distributions with exactly this profile, which
    dominates the step. Connecting the profile's dots on a grid only raises it.

    Args:
        probability, multiplier: see `sampled_profile`.
        interval: of the grid, in units of privacy loss. Every interval gives an upper bound.
    Source: Zhu, Dong, Wang 2022, arXiv:2106.08567, Propositions 8 and 10 and Theorem 10 (profiles, dominating pairs and
    their composition).
    """
    profile = partial(sampled_profile, probability=probability, multiplier=multiplier)
    return privacy_loss_distribution.PrivacyLossDistribution(connected(profile, profile, interval))
