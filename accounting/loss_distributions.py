"""Privacy loss distributions of Gaussian mechanisms on draws, and the epsilon that they prove."""

import contextlib
import functools
import math

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution

from tfdp_layers.accounting.fixed_size import is_fixed_size, sampled_pld
from tfdp_layers.accounting.gaussian_events import Counts, is_sampled_gaussian, joined, sampled_gaussian
from tfdp_layers.accounting.owned_records import owner_pld, shifts
from tfdp_layers.accounting.quiet import quiet
from tfdp_layers.accounting.rounding import left_of
from tfdp_layers.sampling.owners import OwnerDpEvent

__all__ = ["composed_pld", "has_pld", "pld_epsilon", "pld_interval"]

_MOST_STEP_POINTS = 200_000
_MOST_COMPOSED_POINTS = 2_000_000
_MOST_PLDS = 32
_MOST_KEPT_POINTS = 100_000  # of each: 50 MB together
_SURELY_DENSE = 10  # 2 ** 10 points are more than dp-accounting keeps in a dict
# Of the discretisation: beyond it dp-accounting takes exponentials that overflow. With so little noise RDP does too.
_LARGEST_INTERVAL = 500.0


_kept: "dict[tuple[DpEvent, int, float, bool], privacy_loss_distribution.PrivacyLossDistribution]" = {}


def pld_epsilon(counts: Counts, relation: NeighboringRelation, delta: float, interval: float | None = None) -> float:
    """Epsilon by privacy loss distributions; infinity where they cannot bound the composition.

    Without replacement the one of a step is that of `fixed_size.sampled_pld`. Of delta is left out what the
    composition may have rounded away: see `rounding`.

    Args:
        counts, relation, delta: see `smallest_epsilon`.
        interval: of the discretisation, in units of privacy loss; None chooses it. Every interval gives an upper bound.
    Raises: MemoryError where this machine does not hold the distributions; other accountants may answer.
    Source: Doroshenko et al. 2022, arXiv:2207.04380 (connecting the dots: pessimistic).
    """
    composed, left = None, left_of(delta, sum(count for _, count in joined(counts)))
    with contextlib.suppress(ValueError):  # dp-accounting's, where next to nothing is drawn, and rounding shows
        composed = None if left is None else composed_pld(counts, relation, interval)
    if composed is None:
        return math.inf
    with quiet():
        epsilon = float(composed.get_epsilon_for_delta(left))
    return epsilon if epsilon >= 0 else math.inf


def composed_pld(
    counts: Counts, relation: NeighboringRelation, interval: float | None = None
) -> privacy_loss_distribution.PrivacyLossDistribution | None:
    """The (pessimistic) privacy loss distribution of a composition; None where there is none. See `pld_epsilon`.

    Raises: MemoryError where this machine does not hold it.
    """
    fixed_size = relation is NeighboringRelation.REPLACE_ONE
    counts = joined(counts)
    if not has_pld(counts, relation):
        return None
    interval = pld_interval(counts) if interval is None else interval
    if interval > _LARGEST_INTERVAL:
        return None
    with quiet():
        composed = privacy_loss_distribution.identity(interval)
        for event, count in counts:
            part = _part(event, count, interval, fixed_size)
            composed = part if len(counts) == 1 else composed.compose(part)
    return composed


def _part(
    event: DpEvent, count: int, interval: float, fixed_size: bool
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """What one event released `count` times composes to; kept, since a search for noise asks for it again and again."""
    key = event, count, interval, fixed_size
    part = _kept.pop(key, None)
    if part is None:
        single = sampled_pld(*sampled_gaussian(event), interval) if fixed_size else _pld_of(event, interval)
        part = _repeated(single, count)
    if max((held.size for held in vars(part).values() if hasattr(held, "size")), default=math.inf) <= _MOST_KEPT_POINTS:
        _kept[key] = part  # at the end: the one that was not asked for the longest goes first
        for oldest in list(_kept)[:-_MOST_PLDS]:
            _kept.pop(oldest, None)
    return part


def _repeated(
    single: privacy_loss_distribution.PrivacyLossDistribution, count: int
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """`single.self_compose(count)`, the same numbers, without the integer of millions of digits.

    Of a distribution of n points in a dict, dp-accounting computes n ** count to choose between dict and array: 1.6 s
    at a count of a million, twice for each epsilon. From a count of 10 on and two points it always takes the array, so
    here it gets that at once.
    """
    remove, add = getattr(single, "_pmf_remove", None), getattr(single, "_pmf_add", None)
    if count < _SURELY_DENSE or remove is None or add is None or min(remove.size, add.size) < 2:
        return single.self_compose(count)
    parts = [remove.to_dense_pmf()] if add is remove else [remove.to_dense_pmf(), add.to_dense_pmf()]
    return privacy_loss_distribution.PrivacyLossDistribution(*parts).self_compose(count)


def has_pld(counts: Counts, relation: NeighboringRelation) -> bool:
    """Whether there are privacy loss distributions of all these events, and not too many."""
    fixed_size, counts = relation is NeighboringRelation.REPLACE_ONE, joined(counts)
    supported = all(is_fixed_size(event) if fixed_size else is_sampled_gaussian(event) for event, _ in counts)
    return supported and len(counts) <= _MOST_PLDS


@functools.lru_cache(maxsize=8)
def _pld_of(event: DpEvent, interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    if isinstance(event, OwnerDpEvent):
        return owner_pld(event, interval)
    if hasattr(event, "truncated_batch_size"):
        return privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=event.dataset_size,
            sampling_probability=event.sampling_probability,
            truncated_batch_size=event.truncated_batch_size,
            noise_multiplier=event.noise_multiplier,
            value_discretization_interval=interval,
        )
    probability, multiplier = sampled_gaussian(event)
    return privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=probability, value_discretization_interval=interval
    )


def pld_interval(counts: Counts) -> float:
    """At most a tenth of the smallest one-step deviation of the loss, unless that would take too many points.

    The discretisation error is of second order in interval over deviation: about 2e-4 of epsilon at a tenth. With
    little noise losses are large, about as 1 / multiplier^2, and so may the interval be: below 0.4 it grows alike (up
    to 1), and epsilon stays within 1e-4 of itself. An epsilon of 1,000 takes a tenth of the points then.
    """
    finest, widest, composed = 1.0, 0.0, 0.0
    for event, count in joined(counts):
        jumps, probabilities = _jumps(event)
        finest = min(finest, 1e-3 * max(1.0, (0.4 * jumps[0]) ** 2), float(probabilities @ jumps) / 10.0)
        extent = _extent(jumps, probabilities)
        widest = max(widest, extent)
        composed += extent + _drift(jumps, probabilities, count)
    wanted = max(finest, widest / _MOST_STEP_POINTS, composed / _MOST_COMPOSED_POINTS)
    return 2.0 ** math.floor(math.log2(wanted))  # Powers of two: equal intervals for nearly equal runs.


def _jumps(event: DpEvent) -> tuple[np.ndarray, np.ndarray]:
    """By how many deviations of the noise a step moves, and with which probability; 0 with what is left of 1."""
    probability, multiplier = sampled_gaussian(event)
    if isinstance(event, OwnerDpEvent):
        counts, chances = shifts(event)
        return counts / multiplier, np.maximum(np.exp(chances), np.finfo(float).tiny)
    return np.array([1.0 / multiplier]), np.array([probability])


def _extent(jumps: np.ndarray, probabilities: np.ndarray) -> float:
    """Largest loss of one step, tails cut at ten deviations. Decides cost and tightness, never validity."""
    exponents = 0.5 * jumps**2 + 10.0 * jumps
    small = math.log1p(float(probabilities @ np.expm1(np.minimum(exponents, 700.0))))
    return max(small, float(np.max(np.where(exponents < 700.0, 0.0, exponents + np.log(probabilities)))))


def _drift(jumps: np.ndarray, probabilities: np.ndarray, count: int) -> float:
    """Rough mean and ten deviations of the composed loss. Decides cost and tightness, never validity."""
    full = 0.5 * jumps**2
    products = np.expm1(np.minimum(np.outer(jumps, jumps), 700.0))
    chi_square = float(probabilities @ products @ probabilities)
    mean = min(float(probabilities @ full), chi_square)
    variance = min(float(probabilities @ (full**2 + 2.0 * full)), 2.0 * chi_square)
    return count * mean + 10.0 * math.sqrt(count * variance)
