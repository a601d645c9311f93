"""What a composition of events costs: each accountant of dp-accounting that can bound it, and the smallest bound.

Every bound here is a valid upper bound, so the smallest is one too. Counts are composed, never single steps.
"""

import contextlib
import functools
import importlib.metadata
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

import dp_accounting
import numpy as np
from absl import logging as absl_logging
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant

from tfdp_layers.accounting import pure
from tfdp_layers.accounting.fixed_size import is_fixed_size, sampled_pld

__all__ = [
    "Counts",
    "canonical",
    "composed_pld",
    "convert_rdp",
    "exact_gaussian",
    "pld_epsilon",
    "pld_interval",
    "rdp_curve",
    "rdp_epsilon",
    "rdp_of",
    "smallest_epsilon",
    "zcdp_epsilon",
]

Counts = tuple[tuple[DpEvent, int], ...]
"""Distinct events, and how often each was released."""

# Orders close to 1 serve little noise. Without replacement an order costs its square: fewer of them.
_ORDERS = (1.02, 1.05, *rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
_ORDERS_WITHOUT_REPLACEMENT = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 33),
    36,
    40,
    48,
    56,
    64,
    96,
    128,
    256,
    512,
    1024,
)
_ZCDP_ORDERS = tuple(1.0 + np.geomspace(0.02, 1e6, 2000))

# Below this delta the tail that PLD cuts off (1e-15 a composition) and its rounding are no longer small.
_SMALLEST_PLD_DELTA = 1e-12
_MOST_STEP_POINTS = 200_000
_MOST_COMPOSED_POINTS = 2_000_000
_MOST_PLDS = 32
# Of the discretisation: beyond it dp-accounting takes exponentials that overflow. With so little noise RDP does too.
_LARGEST_INTERVAL = 500.0
_DECLARED_RELATIONS_SINCE = (0, 6)


def smallest_epsilon(counts: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> tuple[float, str]:
    """Returns the smallest valid epsilon of a composition, and the name of the accountant that proved it.

    Args:
      counts: how often each event was released.
      relation: the neighbouring relation that all events are stated under.
      delta: in (0, 1).

    Raises:
      NotImplementedError: no accountant of the installed dp-accounting can bound these events under this relation.
    """
    return _smallest_epsilon(canonical(counts), relation, delta)


@functools.lru_cache(maxsize=4096)
def _smallest_epsilon(counts: Counts, relation: NeighboringRelation, delta: float) -> tuple[float, str]:
    if not counts:
        return 0.0, "nothing released"
    if any(isinstance(event, NonPrivateDpEvent) for event, _ in counts):
        return math.inf, "no noise"
    if all(isinstance(event, pure.NumericSparseDpEvent) for event, _ in counts):
        return _smallest_of_tests(counts, delta)
    _require_relation(relation)
    multiplier = exact_gaussian(counts)
    if multiplier is not None:
        bounds = {"analytic Gaussian": _analytic_epsilon(multiplier, delta), "zCDP": zcdp_epsilon(multiplier, delta)}
    else:
        bounds = {"PLD": pld_epsilon(counts, relation, delta), "RDP": rdp_epsilon(counts, relation, delta)}
    name = min(bounds, key=lambda key: bounds[key])
    if not math.isfinite(bounds[name]):
        raise NotImplementedError(
            f"No accountant can bound {[event for event, _ in counts]} under {relation.name} at delta={delta!r}. Use"
            " a larger delta, more noise, or another sampling."
        )
    return bounds[name], name


def _smallest_of_tests(counts: pure.Tests, delta: float) -> tuple[float, str]:
    bounds = {
        "basic composition": pure.basic_epsilon(counts),
        "zCDP": convert_rdp(np.asarray(_ZCDP_ORDERS), pure.renyi(counts, np.asarray(_ZCDP_ORDERS)), delta),
    }
    if delta >= _SMALLEST_PLD_DELTA:
        with _quiet():
            bounds["PLD"] = pure.pld_epsilon(counts, delta)
    name = min(bounds, key=lambda key: bounds[key])
    return bounds[name], name


def exact_gaussian(counts: Counts) -> float | None:
    """The one Gaussian mechanism that equals the composition, as a noise multiplier; None if an event is subsampled."""
    precision = 0.0
    for event, count in counts:
        multiplier = _full_batch_multiplier(event)
        if multiplier is None:
            return None
        precision += count / multiplier**2
    return precision**-0.5


def rdp_epsilon(counts: Counts, relation: NeighboringRelation, delta: float) -> float:
    """Epsilon by Renyi differential privacy; infinity where it cannot bound an event under `relation`."""
    return convert_rdp(*rdp_curve(counts, relation), delta)


def rdp_curve(counts: Counts, relation: NeighboringRelation) -> tuple[np.ndarray, np.ndarray]:
    """Orders, and the composition's Renyi divergence at each (infinity where it is not known)."""
    orders = _orders(relation)
    total = np.zeros(len(orders))
    for event, count in counts:
        if count:  # 0 * infinity is not a number.
            total = total + count * rdp_of(event, relation)
    return np.asarray(orders, dtype=np.float64), total


def convert_rdp(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """Smallest epsilon over the orders. Source: Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Proposition 12."""
    # A negative or undefined divergence is a numerical failure, which dp-accounting would read as epsilon 0.
    sound = np.isfinite(divergences) & (divergences >= 0)
    if not sound.any():
        return math.inf
    with _quiet():
        return float(rdp_privacy_accountant.compute_epsilon(orders[sound], divergences[sound], delta)[0])


def zcdp_epsilon(multiplier: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism by concentrated differential privacy with rho = 1 / (2 multiplier^2).

    Source: Bun, Steinke 2016, arXiv:1605.02065, with the conversion of arXiv:2004.00010.
    """
    orders = np.asarray(_ZCDP_ORDERS)
    return convert_rdp(orders, orders / (2.0 * multiplier**2), delta)


def pld_epsilon(counts: Counts, relation: NeighboringRelation, delta: float, interval: float | None = None) -> float:
    """Epsilon by privacy loss distributions; infinity where they cannot bound the composition.

    Without replacement the one of a step is that of `fixed_size.sampled_pld`.

    Args:
      counts, relation, delta: see `smallest_epsilon`.
      interval: of the discretisation, in units of privacy loss; None chooses it. Every interval gives an upper bound.
    Source: Doroshenko et al. 2022, arXiv:2207.04380 (connecting the dots: pessimistic).
    """
    composed = composed_pld(counts, relation, interval) if delta >= _SMALLEST_PLD_DELTA else None
    if composed is None:
        return math.inf
    with _quiet():
        epsilon = float(composed.get_epsilon_for_delta(delta))
    return epsilon if epsilon >= 0 else math.inf


def composed_pld(
    counts: Counts, relation: NeighboringRelation, interval: float | None = None
) -> privacy_loss_distribution.PrivacyLossDistribution | None:
    """The (pessimistic) privacy loss distribution of a composition; None where there is none. See `pld_epsilon`."""
    fixed_size = relation is NeighboringRelation.REPLACE_ONE
    supported = all(is_fixed_size(event) if fixed_size else _is_sampled_gaussian(event) for event, _ in counts)
    if not supported or len(counts) > _MOST_PLDS:
        return None
    interval = pld_interval(counts) if interval is None else interval
    if interval > _LARGEST_INTERVAL:
        return None
    with _quiet():
        composed = privacy_loss_distribution.identity(interval)
        for event, count in counts:
            single = sampled_pld(*_sampled_gaussian(event), interval) if fixed_size else _pld_of(event, interval)
            part = single.self_compose(count)
            composed = part if len(counts) == 1 else composed.compose(part)
    return composed


@functools.lru_cache(maxsize=4096)
def rdp_of(event: DpEvent, relation: NeighboringRelation) -> np.ndarray:
    """The Renyi divergence of one event at the orders used for `relation`; infinity where it is not known."""
    orders = _orders(relation)
    accountant = rdp_privacy_accountant.RdpAccountant(list(orders), neighboring_relation=relation)
    if not accountant.supports(event):
        return np.full(len(orders), math.inf)
    with _quiet():
        divergences = accountant.compose(event).rdp
    divergences.setflags(write=False)
    return divergences


@functools.lru_cache(maxsize=8)
def _pld_of(event: DpEvent, interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    if hasattr(event, "truncated_batch_size"):
        return privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=event.dataset_size,
            sampling_probability=event.sampling_probability,
            truncated_batch_size=event.truncated_batch_size,
            noise_multiplier=event.noise_multiplier,
            value_discretization_interval=interval,
        )
    probability, multiplier = _sampled_gaussian(event)
    return privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=probability, value_discretization_interval=interval
    )


def _is_sampled_gaussian(event: DpEvent) -> bool:
    plain = isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent)
    return plain or isinstance(event, GaussianDpEvent) or hasattr(event, "truncated_batch_size")


def _sampled_gaussian(event: DpEvent) -> tuple[float, float]:
    """(sampling probability, noise multiplier) of an event that PLD supports."""
    if isinstance(event, PoissonSampledDpEvent):
        return event.sampling_probability, event.event.noise_multiplier
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return event.sample_size / event.source_dataset_size, event.event.noise_multiplier
    return getattr(event, "sampling_probability", 1.0), event.noise_multiplier


def _full_batch_multiplier(event: DpEvent) -> float | None:
    if isinstance(event, GaussianDpEvent):
        return event.noise_multiplier
    if isinstance(event, PoissonSampledDpEvent) and event.sampling_probability == 1.0:
        return _full_batch_multiplier(event.event)
    if isinstance(event, SampledWithoutReplacementDpEvent) and event.sample_size == event.source_dataset_size:
        return _full_batch_multiplier(event.event)
    return None


def pld_interval(counts: Counts) -> float:
    """At most a tenth of the smallest one-step deviation of the loss, unless that would take too many points.

    The discretisation error is of second order in interval over deviation: about 2e-4 of epsilon at a tenth.
    """
    finest, widest, composed = 1e-3, 0.0, 0.0
    for event, count in counts:
        probability, multiplier = _sampled_gaussian(event)
        finest = min(finest, probability / (10.0 * multiplier))
        extent = _extent(probability, multiplier)
        widest = max(widest, extent)
        composed += extent + _drift(probability, multiplier, count)
    wanted = max(finest, widest / _MOST_STEP_POINTS, composed / _MOST_COMPOSED_POINTS)
    return 2.0 ** math.floor(math.log2(wanted))  # Powers of two: equal intervals for nearly equal runs.


def _extent(probability: float, multiplier: float) -> float:
    """Largest loss of one step, tails cut at ten deviations. Decides cost and tightness, never validity."""
    exponent = 0.5 / multiplier**2 + 10.0 / multiplier
    return math.log1p(probability * math.expm1(exponent)) if exponent < 700.0 else exponent


def _drift(probability: float, multiplier: float, count: int) -> float:
    """Rough mean and ten deviations of the composed loss. Decides cost and tightness, never validity."""
    full = 0.5 / multiplier**2
    chi_square = probability**2 * math.expm1(min(2.0 * full, 700.0))
    mean = min(probability * full, chi_square)
    variance = min(probability * (full**2 + 2.0 * full), 2.0 * chi_square)
    return count * mean + 10.0 * math.sqrt(count * variance)


def _analytic_epsilon(multiplier: float, delta: float) -> float:
    with _quiet(), contextlib.suppress(ValueError, RuntimeError):
        epsilon = float(dp_accounting.get_epsilon_gaussian(multiplier, delta))
        return epsilon if epsilon >= 0 else math.inf
    return math.inf


def canonical(counts: Mapping[DpEvent, int]) -> Counts:
    kept = [(event, count) for event, count in counts.items() if count and not isinstance(event, NoOpDpEvent)]
    return tuple(sorted(kept, key=repr))


def _orders(relation: NeighboringRelation) -> tuple[float, ...]:
    return _ORDERS_WITHOUT_REPLACEMENT if relation is NeighboringRelation.REPLACE_ONE else _ORDERS


def _require_relation(relation: NeighboringRelation) -> None:
    installed = importlib.metadata.version("dp-accounting")
    version = tuple(int(part) for part in installed.split(".")[:2])
    if relation is not NeighboringRelation.ADD_OR_REMOVE_ONE and version < _DECLARED_RELATIONS_SINCE:
        raise NotImplementedError(
            f"dp-accounting {installed} reads noise multipliers under {relation.name} by another convention, so an"
            " epsilon from it would be wrong. Install dp-accounting >= 0.6, or use Poisson sampling (add-or-remove)."
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps dp-accounting's convergence warnings from the user: an order that fails is left out, which is sound."""
    logger = absl_logging.get_absl_logger()
    hide = _FromDpAccounting()
    logger.addFilter(hide)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logger.removeFilter(hide)


class _FromDpAccounting(logging.Filter):
    def filter(self, record: Any) -> bool:
        return "dp_accounting" not in record.pathname
