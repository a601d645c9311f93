"""How the papers count, for tests only: each function is one paper's convention, not the library's accounting."""

import math
from collections.abc import Sequence

import dp_accounting
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

INTEGER_ORDERS = tuple(range(2, 65))


def classic_conversion(orders: Sequence[float], divergences: Sequence[float], delta: float) -> tuple[float, float]:
    """(epsilon, order) by Mironov 2017, arXiv:1702.07476, Proposition 3."""
    return min((r + math.log(1.0 / delta) / (a - 1.0), a) for a, r in zip(orders, divergences, strict=True))


def printed_zcdp(rho: float, delta: float) -> float:
    """The conversion printed by Stevens et al. 2022: rho + 2 sqrt(rho ln(1 / delta))."""
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


def feedback_alignment(noise: float, batch: int, sensitivity: float, examples: int, steps: int, delta: float) -> float:
    """Lee and Kifer 2020: Wang-Balle-Kasiviswanathan's theorem for Gaussians, integer orders, classic conversion.

    `noise` is on the mean gradient; `sensitivity` is already the replace-one sensitivity of the sum.
    """
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        examples, batch, dp_accounting.GaussianDpEvent(noise * batch / sensitivity)
    )
    accountant = RdpAccountant(INTEGER_ORDERS, NeighboringRelation.REPLACE_ONE).compose(event, steps)
    return classic_conversion(INTEGER_ORDERS, accountant.rdp, delta)[0]


def adaptive_noise(probability: float, noise: float, steps: int, delta: float) -> tuple[float, float]:
    """(epsilon, order) as Xu et al. 2019 count: Poisson subsampling, integer orders, classic conversion."""
    event = dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(noise))
    return classic_conversion(INTEGER_ORDERS, RdpAccountant(INTEGER_ORDERS).compose(event, steps).rdp, delta)


def selective_uploads(epsilon: float, uploads: int, delta: float) -> float:
    """Shokri and Shmatikov 2015: an upload's test costs 8/9 of its epsilon and its value 1/9; composed by PLD."""
    test, value = (
        privacy_loss_distribution.from_laplace_mechanism(parameter, value_discretization_interval=2e-4)
        for parameter in (9.0 / (8.0 * epsilon), 9.0 / epsilon)
    )
    return test.self_compose(uploads).compose(value.self_compose(uploads)).get_epsilon_for_delta(delta)
