"""How much noise a target needs, and how many steps a budget affords. Both answers keep to the target for certain."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, NonPrivateDpEvent, PoissonSampledDpEvent

from tfdp_layers.accounting.accountant import check_delta, events_of, without_segment
from tfdp_layers.accounting.budget import Budget, BudgetExhausted
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.composition import smallest_epsilon
from tfdp_layers.accounting.events import GroupNoise, Release
from tfdp_layers.accounting.failures import without_failures
from tfdp_layers.accounting.gaussian_events import exact_gaussian
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.loss_distributions import pld_epsilon, quick
from tfdp_layers.accounting.releases import AnyRelease
from tfdp_layers.accounting.renyi import estimated_epsilon
from tfdp_layers.accounting.searching import OutOfReachError, least, most, near, slope_of, within
from tfdp_layers.accounting.truncated_draws import is_truncated
from tfdp_layers.accounting.wording import given_text, rounded_up
from tfdp_layers.caller import warn
from tfdp_layers.instances import refuse_class
from tfdp_layers.sampling import Sampling
from tfdp_layers.sampling.correlated import Correlated

__all__ = ["affordable_steps", "calibrate_noise_multiplier", "calibrate_release"]

_TOLERANCE = 5e-4  # Of the noise multiplier; epsilon then lies within about 1e-3 below its target.
_LEAST_LEFT = 0.01  # Of a budget: what is left of a spent one affords any release, with endless noise.
_COARSE = 4.0  # Interval of the privacy loss distributions while searching, in units of the final one.
_CLOSE = 2e-3  # Of epsilon: how near a search by these comes: they are about so far from the exact ones.


def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    sampling: Sampling,
    examples: int,
    steps: int,
    ledger: Ledger | None = None,
    noise: Correlated | None = None,
    records_per_owner: int = 1,
    owners: int = 0,
) -> float:
    """Returns the smallest noise multiplier, to about 1e-3, with which `steps` steps keep to the target.

    Guarantee: one-sided. The epsilon of `steps` steps with the returned multiplier, on top of what the ledger holds,
    was computed and is at most the target.

    Args:
        target_epsilon: finite and above 0.
        target_delta: in (0, 1); above 1 / examples (1 / owners) it protects little, and a UserWarning says so.
        sampling: how records are drawn; `examples` is their declared, public number.
        steps: of the optimizer, from a fresh start of the sampler.
        ledger: what was released before; None for nothing.
        noise: how it is correlated over the steps (`tfdp.noise.Correlated`); None where it is independent.
        records_per_owner: how many of the records one owner owns at most, as `fit(..., owners=...)` takes it.
        owners: how many owners there are, for that warning alone; 0 where records or units are protected, or nobody
            knows.

    Returns:
        Noise standard deviation over the bound on one record's contribution to the sum, all groups joined; at least
        0.01, also where the target asks for less.
    Raises:
        ValueError: an argument out of range, another relation in the ledger, a target that no noise reaches, or one of
            which the ledger leaves less than a thousandth.
    """
    delta = _check_target(target_epsilon, target_delta, sampling, examples, owners)
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or steps < 1:
        raise ValueError(f"steps must be an integer of at least 1. Received: {steps!r}.")
    before, noise = _before(ledger, sampling, examples), settled(sampling, noise, steps, examples)
    plan = _Plan(sampling, examples, delta, before, noise, records_per_owner=records_per_owner)
    spent = plan.epsilon(1.0, 0)
    if spent >= target_epsilon * (1.0 - 2.0 * _TOLERANCE):
        raise OutOfReachError(
            f"The ledger already holds epsilon={rounded_up(spent)} at delta={rounded_up(delta, 6)}: nothing is left of"
            f" target_epsilon={target_epsilon!r}, or less than a thousandth, for which no noise is searched."
            " Use a larger target."
        )
    enough = target_epsilon - _TOLERANCE * (target_epsilon - spent)
    guess, slope = _estimated(plan, (target_epsilon + enough) / 2.0, steps, close=0.006)
    cost = partial(plan.epsilon, steps=steps)
    guess, found = within(cost, enough, target_epsilon, guess, slope)
    return guess if found else least(cost, target_epsilon, guess, _TOLERANCE, stride=1.001)


def estimated_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    sampling: Sampling,
    examples: int,
    steps: int,
    noise: Correlated | None = None,
    records_per_owner: int = 1,
    guess: float | None = None,
) -> float:
    """About what `calibrate_noise_multiplier` returns, to about 1%, in a fraction of its time: for comparisons.

    NOT a guarantee. Raises ValueError for an argument out of range, or a target that no noise reaches.

    Args:
        guess: what it may be near, that of a run alike; the nearer, the sooner it is found.
    """
    delta = _check_target(target_epsilon, target_delta, sampling, examples)
    noise = settled(sampling, noise, steps, examples)
    run = _Plan(sampling, examples, delta, Counter(), noise, records_per_owner=records_per_owner)
    return _estimated(run, target_epsilon, steps, guess)[0]


def calibrate_release(target: Budget, release: Callable[[float], AnyRelease], ledger: Ledger | None = None) -> float:
    """Returns the smallest number, to about 1e-3, with which one release of a kind keeps to a budget.

    Guarantee: one-sided, as `calibrate_noise_multiplier`.

    Args:
        target: for the release and all that the ledger holds together.
        release: makes one from a number above 0; the larger it is, the less the release costs.
        ledger: what was released before; None for nothing.

    Raises:
        ValueError: another relation in the ledger, or no number reaches the target.
        BudgetExhausted: the ledger alone spends the target, or next to all of it.
    """
    first = release(1.0)
    before = Counter[DpEvent]()
    if ledger is not None:
        check_ledger(ledger)
        ledger.check(first)
        before = events_of(ledger)

    def cost(number: float) -> float:
        counts = before + Counter({release(number).event(): 1})
        return smallest_epsilon(counts, first.relation, target.delta)[0]

    spent = smallest_epsilon(before, first.relation, target.delta)[0]
    if spent >= target.epsilon * (1.0 - _LEAST_LEFT):
        raise BudgetExhausted(
            f"Next to nothing is left of the budget {given_text(target.epsilon, target.delta)}: the ledger"
            f" holds epsilon={rounded_up(spent)}. Use a larger budget."
        )
    guess = least(cost, target.epsilon, 1.0, tolerance=0.02)
    return least(cost, target.epsilon, guess, tolerance=_TOLERANCE, stride=1.02)


def affordable_steps(
    target_epsilon: float,
    target_delta: float,
    sampling: Sampling,
    examples: int,
    noise_multiplier: float,
    ledger: Ledger | None = None,
    maximum: int = 10_000_000,
    noise: Correlated | None = None,
    held: int = 0,
    records_per_owner: int = 1,
    owners: int = 0,
) -> int:
    """Returns the largest number of further steps, at most `maximum`, whose epsilon is at most the target.

    Guarantee: epsilon after the returned number of steps, on top of what the ledger holds, was computed and is at
    most the target; one more would exceed it (or `maximum`). 0 where nothing fits.

    Args:
        target_epsilon, target_delta, sampling, examples, ledger: see `calibrate_noise_multiplier`.
        noise_multiplier: finite and above 0.
        maximum: where the search ends.
        noise: how it is correlated over the steps, with its decay; None where it is independent.
        held: how many releases of the same segment the ledger holds: the further ones go on after them.
        records_per_owner, owners: see `calibrate_noise_multiplier`.

    Raises:
        ValueError: an argument out of range, or another neighbouring relation in the ledger.
    """
    delta = _check_target(target_epsilon, target_delta, sampling, examples, owners)
    if not 0.0 < float(noise_multiplier) < math.inf:
        raise ValueError(
            f"noise_multiplier must be finite and above 0. Received: {noise_multiplier!r}. Without noise epsilon is"
            " infinite and no budget affords a step; calibrate_noise_multiplier finds one that fits."
        )
    if isinstance(maximum, bool) or not hasattr(maximum, "__index__") or maximum < 0:
        raise ValueError(f"maximum must be an integer of at least 0. Received: {maximum!r}.")
    event = sampling.event(noise_multiplier, examples, noise, records_per_owner)
    charges = sampling.charges(held, examples, noise)
    before = without_segment(_before(ledger, sampling, examples), event, charges)
    plan = _Plan(sampling, examples, delta, before, noise, held, records_per_owner)

    def cost(steps: int, interval: float | None = None) -> float:
        return plan.epsilon(noise_multiplier, steps, interval)

    if cost(0) > target_epsilon:
        return 0
    guess = most(partial(cost, interval=math.inf), target_epsilon, 1, maximum)
    guess = most(partial(cost, interval=_COARSE), target_epsilon, guess, maximum, _CLOSE)
    return most(cost, target_epsilon, guess, maximum)


@dataclass(frozen=True)
class _Plan:
    """Steps to come, on top of what was released before."""

    sampling: Sampling
    examples: int
    delta: float
    before: Counter[DpEvent]
    noise: Correlated | None = None
    held: int = 0
    records_per_owner: int = 1

    def epsilon(self, noise_multiplier: float, steps: int, interval: float | None = None) -> float:
        """The smallest that an accountant proves after so many steps; with an interval near it, see `_estimate`."""
        event = self.sampling.event(noise_multiplier, self.examples, self.noise, self.records_per_owner)
        counts = self.before + Counter({event: self.sampling.charges(self.held + steps, self.examples, self.noise)})
        if interval is not None:
            return _estimate(counts, self.sampling.relation, self.delta, interval)
        return smallest_epsilon(counts, self.sampling.relation, self.delta)[0]


def _estimated(
    plan: _Plan, target: float, steps: int, guess: float | None = None, close: float = 0.02
) -> tuple[float, float]:
    """About the smallest noise multiplier that keeps to the target, and how epsilon falls there: see `near`.

    No answer rests on it alone.
    """
    slope = -1.0
    for interval in (math.inf, _COARSE) if guess is None else (_COARSE,):
        cost = partial(plan.epsilon, steps=steps, interval=interval)
        found = near(cost, target, guess or 1.0, slope, close)
        if found is not None:
            guess, slope = found
            continue
        # What is estimated above the target whatever the noise, the exact epsilon may still reach.
        with contextlib.suppress(OutOfReachError):
            guess = least(cost, target, guess or 1.0, tolerance=0.01, stride=1.1)
            slope = slope_of(cost, guess) if math.isinf(interval) else slope
    return guess or 1.0, slope


def settled(sampling: Sampling, noise: Correlated | None, steps: int, examples: int) -> Correlated | None:
    """The noise with its decay, for so many steps; None for independent noise."""
    return None if noise is None else sampling.settled(noise, steps, examples)


def _check_target(
    target_epsilon: float, target_delta: float, sampling: Sampling, examples: int, owners: int = 0
) -> float:
    refuse_class(sampling, "sampling", "256")
    if not isinstance(sampling, Sampling):
        raise ValueError(
            "sampling must be a sampler, which says how a step draws its records. Received:"
            f" sampling={sampling!r}. For batches of expected size 256: tfdp.sampling.Poisson(256). The order is:"
            " target_epsilon, target_delta, sampling, examples, then steps or the noise multiplier."
        )
    if isinstance(target_epsilon, Sampling | str | bool) or not 0.0 < float(target_epsilon) < math.inf:
        raise ValueError(
            f"target_epsilon must be finite and above 0. Received: {target_epsilon!r}. Values from 1 to 8 are common in"
            " the literature; smaller is more private."
        )
    delta = check_delta(target_delta)
    sampling.check(examples)
    if delta > 1.0 / (owners or examples):
        counted = "owners" if owners else "records (of units, where unit_ids are given)"
        warn(
            f"delta={rounded_up(delta, 6)} is above {1.0 / (owners or examples):g}, one over the number of {counted}: a"
            " mechanism that publishes a few of them as they are could meet it. Choose a smaller delta.",
        )
    return delta


def _before(ledger: Ledger | None, sampling: Sampling, examples: int) -> Counter[DpEvent]:
    if ledger is None:
        return Counter()
    check_ledger(ledger)
    # Whom it protects, a record, a unit or an owner, changes no number of what it holds.
    unit = ledger.unit if ledger.unit in ("unit", "owner") else "record"
    ledger.check(Release((GroupNoise("any", 1.0, 1.0),), sampling, examples, unit=unit))
    return events_of(ledger)


def _estimate(counts: Counter[DpEvent], relation: NeighboringRelation, delta: float, interval: float) -> float:
    """A fast stand-in for the exact epsilon, to start a search from: no answer rests on it.

    Args:
        interval: of the privacy loss distributions, in units of the exact one's; infinity leaves them out.
    """
    counts, delta = without_failures(counts, delta)
    plain = Counter[DpEvent]()
    for event, count in counts.items():
        if is_truncated(event):  # Only PLD knows it; the cap hardly matters to a search.
            event = PoissonSampledDpEvent(event.sampling_probability, GaussianDpEvent(event.noise_multiplier))
        plain[event] += count
    kept = tuple((event, count) for event, count in plain.items() if count)
    if not kept or any(isinstance(event, NonPrivateDpEvent) for event, _ in kept):
        return math.inf if kept else 0.0
    if exact_gaussian(kept) is not None:
        return smallest_epsilon(plain, relation, delta)[0]
    bound = estimated_epsilon(kept, relation, delta)
    if math.isfinite(interval) and (few := quick(kept, relation)) is not None:
        with contextlib.suppress(MemoryError):
            bound = min(bound, pld_epsilon(few, relation, delta, coarser=interval))
    return bound
