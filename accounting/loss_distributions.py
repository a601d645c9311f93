"""Privacy loss distributions of Gaussian mechanisms on draws, and the epsilon that they prove."""

import contextlib
import math
from collections.abc import Callable
from functools import partial

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution

from tfdp_layers.accounting.convolutions import least_epsilon, points, repeated
from tfdp_layers.accounting.fixed_size import is_fixed_size, sampled_pld
from tfdp_layers.accounting.gaussian_events import Counts, fewer, is_sampled_gaussian, joined, sampled_gaussian
from tfdp_layers.accounting.owned_records import HAS_PLD, owner_pmf, shifts
from tfdp_layers.accounting.quiet import quiet
from tfdp_layers.accounting.rounding import left_of
from tfdp_layers.accounting.tilted import tilted_epsilon
from tfdp_layers.accounting.truncated_draws import is_truncated, truncated_pmf
from tfdp_layers.sampling.owners import OwnerDpEvent

__all__ = ["composed_pld", "pld_epsilon", "pld_interval", "pld_knows", "quick"]

_MOST_STEP_POINTS = 200_000
_MOST_COMPOSED_POINTS = 2_000_000
_MOST_PLDS = 64  # 1 to 2 s of CPU time for the first answer; of more, some are counted as one
_MOST_KEPT_POINTS = 100_000  # of each
_MOST_KEPT_TOGETHER = 6_000_000  # 48 MB
_FINER = 4.0  # times: an interval to the next
_COARSEST = 64.0  # times the finest interval
_MANY_POINTS, _FEW_POINTS = 60_000, 5_000  # of a grid: more are worth a coarser one first, and fewer save no time
_ROUNDED = 1e-3  # the share of delta that rounding may take before masses are tilted
_LITTLE = 0.01  # epsilon: below it tilts are so large that what they add to delta may show
_SETTLED = 6e-4  # of epsilon: by how much a step to the next interval may lower it, to be the last
# Of the discretisation: beyond it dp-accounting takes exponentials that overflow. With so little noise RDP does too.
_LARGEST_INTERVAL = 500.0


_kept: "dict[tuple[DpEvent, int, float, bool, int | None], privacy_loss_distribution.PrivacyLossDistribution]" = {}


def pld_epsilon(
    counts: Counts, relation: NeighboringRelation, delta: float, interval: float | None = None, coarser: float = 1.0
) -> float:
    """Epsilon by privacy loss distributions; infinity where they cannot bound the composition.

    Without replacement the one of a step is that of `fixed_size.sampled_pld`. Of delta is left out what the
    composition may have rounded away (`rounding`); where that would show, masses are tilted first (`tilted`).

    Args:
        counts, relation, delta: see `smallest_epsilon`.
        interval: of the discretisation, in units of privacy loss. Every interval gives an upper bound. None takes ever
            finer ones, down to that of `pld_interval`, until the next changes little. Each grid holds the points of the
            one before, so the bounds fall, and their excess to a quarter at least, as a rule (it is of second order: to
            a sixteenth). So what is left of it is a third of the last fall, 2e-4 of epsilon, or less. Where next to
            nothing is drawn, a few large losses decide, and a coarse grid will do. The order of the two data sets that
            costs less is never looked at more closely than shows that it does.
        coarser: times the interval of None, for an answer that is sooner found and less tight.
    Raises: MemoryError where this machine does not hold the distributions; other accountants may answer.
    Source: Doroshenko et al. 2022, arXiv:2207.04380 (connecting the dots: pessimistic).
    """
    counts = joined(counts)
    if not all(pld_knows(event, relation) for event, _ in counts):
        return math.inf
    finest = coarser * pld_interval(counts) if interval is None else interval
    refined = partial(_refined, counts=counts, finest=finest, settled=_SETTLED * coarser**2)
    present, absent = (partial(_epsilon_at, counts, relation, delta, order=order) for order in (0, 1))
    epsilon = refined(present) if interval is None else present(interval)
    if relation is NeighboringRelation.REPLACE_ONE:  # both orders are one
        return epsilon
    return max(epsilon, refined(absent, enough=epsilon))


def _refined(
    cost: Callable[[float], float], counts: Counts, finest: float, settled: float, enough: float = 0.0
) -> float:
    """The cost at ever smaller intervals, until it settles, or is enough: each is an upper bound."""
    most = _extents(counts)[1] / finest
    times = _COARSEST if most > _MANY_POINTS else 1.0
    while times > 1.0 and most / times < _FEW_POINTS:
        times /= _FINER
    least = math.inf
    while True:
        before, least = least, min(least, cost(times * finest))
        if times <= 1.0 or least <= enough or before - least <= settled * least < math.inf:
            return least
        times /= _FINER


def _epsilon_at(counts: Counts, relation: NeighboringRelation, delta: float, interval: float, order: int) -> float:
    """Epsilon of one order of the two data sets, on one grid of losses; infinity where it bounds nothing."""
    releases, found = sum(count for _, count in counts), math.inf
    with contextlib.suppress(ValueError), quiet():  # dp-accounting's, where losses are so small that rounding shows
        if left_of(delta, releases, _ROUNDED) is None and interval <= _LARGEST_INTERVAL:
            fixed_size = relation is NeighboringRelation.REPLACE_ONE
            singles = ((_part(event, 1, interval, fixed_size, order), count) for event, count in counts)
            found = tilted_epsilon([(single._pmf_remove, count) for single, count in singles], delta)
            if found >= _LITTLE:
                return found
        left = left_of(delta, releases)
        composed = None if left is None else composed_pld(counts, relation, interval, order)
        return found if composed is None or left is None else min(found, least_epsilon(composed, left))
    return found


def composed_pld(
    counts: Counts, relation: NeighboringRelation, interval: float | None = None, order: int | None = None
) -> privacy_loss_distribution.PrivacyLossDistribution | None:
    """The (pessimistic) privacy loss distribution of a composition; None where there is none. See `pld_epsilon`.

    Args:
        interval: None for the finest.
        order: 0 for what it costs a record that is there, 1 for one that is not, alone; None for both.
    Raises: MemoryError where this machine does not hold it.
    """
    fixed_size = relation is NeighboringRelation.REPLACE_ONE
    counts = joined(counts)
    if not all(pld_knows(event, relation) for event, _ in counts):
        return None
    interval = pld_interval(counts) if interval is None else interval
    if interval > _LARGEST_INTERVAL:
        return None
    with quiet():
        composed = privacy_loss_distribution.identity(interval)
        for event, count in counts:
            part = _part(event, count, interval, fixed_size, order)
            composed = part if len(counts) == 1 else composed.compose(part)
    return composed


def _part(
    event: DpEvent, count: int, interval: float, fixed_size: bool, order: int | None
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """What one event released `count` times composes to; kept, since a search asks for it again and again."""
    key = event, count, interval, fixed_size, order
    part = _kept.pop(key, None)
    if part is not None:
        _kept[key] = part  # at the end: the one that was not asked for the longest goes first
        return part
    part = repeated(_single(event, interval, fixed_size, order), count)
    if points(part) <= _MOST_KEPT_POINTS:
        _kept[key] = part
        spare = sum(points(held) for held in list(_kept.values())) - _MOST_KEPT_TOGETHER
        for oldest in list(_kept):
            if spare <= 0:
                break
            if (dropped := _kept.pop(oldest, None)) is not None:
                spare -= points(dropped)
    return part


def quick(counts: Counts, relation: NeighboringRelation) -> Counts | None:
    """The counts, or so few that cost no less, that composing their privacy loss distributions is quick.

    None where not all have such distributions, or are of too many kinds.
    """
    if not all(pld_knows(event, relation) for event, _ in counts):
        return None
    return counts if len(joined(counts)) <= _MOST_PLDS else fewer(joined(counts), _MOST_PLDS)


def pld_knows(event: DpEvent, relation: NeighboringRelation) -> bool:
    """Whether there is a privacy loss distribution of the event under the relation."""
    return is_fixed_size(event) if relation is NeighboringRelation.REPLACE_ONE else is_sampled_gaussian(event)


def _single(
    event: DpEvent, interval: float, fixed_size: bool, order: int | None
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Of one event, in one order or both."""
    probability, multiplier = sampled_gaussian(event)
    if fixed_size or (HAS_PLD and probability == 1.0 and not is_truncated(event)):
        return sampled_pld(probability, multiplier, interval)
    if HAS_PLD:  # dp-accounting's own visits the points one by one
        drawn = event if isinstance(event, OwnerDpEvent) else OwnerDpEvent(probability, 1, multiplier)
        made = partial(truncated_pmf, event) if is_truncated(event) else partial(owner_pmf, drawn)
        orders = (0, 1) if order is None else (order,)
        return privacy_loss_distribution.PrivacyLossDistribution(*(made(interval, one) for one in orders))
    both = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=probability, value_discretization_interval=interval
    )
    parts = (both._pmf_remove, both._pmf_add)
    return both if order is None else privacy_loss_distribution.PrivacyLossDistribution(parts[order])


def pld_interval(counts: Counts) -> float:
    """At most a tenth of the smallest one-step deviation of the loss, unless that would take too many points.

    The discretisation error is of second order in interval over deviation: about 2e-4 of epsilon at a tenth. With
    little noise losses are large, about as 1 / multiplier^2, and so may the interval be: below 0.4 it grows alike (up
    to 1), and epsilon stays within 1e-4 of itself. An epsilon of 1,000 takes a tenth of the points then.
    """
    finest = 1.0
    for event, _ in joined(counts):
        jumps, probabilities = _jumps(event)
        finest = min(finest, 1e-3 * max(1.0, (0.4 * jumps[0]) ** 2), float(probabilities @ jumps) / 10.0)
    widest, composed = _extents(counts)
    wanted = max(finest, widest / _MOST_STEP_POINTS, composed / _MOST_COMPOSED_POINTS)
    return 2.0 ** math.floor(math.log2(wanted))  # Powers of two: equal intervals for nearly equal runs.


def _extents(counts: Counts) -> tuple[float, float]:
    """How far the losses of a step reach at most, and those of the composition."""
    widest, composed = 0.0, 0.0
    for event, count in joined(counts):
        jumps, probabilities = _jumps(event)
        extent = _extent(jumps, probabilities)
        widest = max(widest, extent)
        composed += extent + _drift(jumps, probabilities, count)
    return widest, composed


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
