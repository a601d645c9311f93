"""From guesses about who was there to lower bounds on epsilon. NumPy and SciPy alone.

All bounds are one-sided confidence bounds: with the stated confidence, whatever the mechanism is, epsilon is at least
what is returned, if every canary was included by its own fair coin, and the guesses were made without the coins.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from tfdp_layers.audit.guarantees import Family, Guarantee
from tfdp_layers.sampling.base import entropy_generator

__all__ = [
    "FRACTIONS",
    "Guesses",
    "clopper_pearson",
    "family_bound",
    "guess",
    "many_runs_bound",
    "one_run_bound",
    "one_run_epsilon",
    "one_run_p_value",
    "one_run_refutes",
    "rates_refute",
]

FRACTIONS = (1.0, 0.5, 0.2)
"""Of the canaries, for how many the attack guesses: fixed beforehand, each tested at its share of the error."""

_PRECISION = 1.01  # of a family's parameter


@dataclass(frozen=True)
class Guesses:
    """What an attack guessed in one run.

    Attributes:
        canaries: m, each included by a fair coin of its own.
        made: r, for how many it guessed; it abstained for the others. Fixed before the run.
        correct: v, how many of those were right.
    Raises:
        ValueError: unless 0 <= correct <= made <= canaries.
    """

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.made <= self.canaries or self.canaries < 1:
            raise ValueError(f"Guesses need 0 <= correct <= made <= canaries, canaries at least 1. Received: {self}.")


def guess(scores: np.ndarray, included: np.ndarray, made: int, rng: np.random.Generator | None = None) -> Guesses:
    """Guesses "in" for the canaries of the highest scores and "out" for those of the lowest, `made` in all.

    Guarantee: guesses are made by the scores alone. Equal scores come in a random order: in that of the canaries, coins
    that lie sorted in it would be read out of their places, and a score that says nothing would be right each time.

    Args:
        scores: (canaries,), higher for canaries that seem to have been there. NaN counts as the lowest.
        included: (canaries,) boolean, the coins. They decide which guesses are right, never which are made.
        rng: orders equal scores; independent of the coins. The operating system keys one if left out.
    Raises: ValueError for scores and coins of other shapes, or more guesses than canaries.
    """
    scores, included = np.asarray(scores, np.float64), np.asarray(included, bool)
    if scores.ndim != 1 or scores.shape != included.shape or not 0 <= made <= len(scores):
        raise ValueError(
            "Scores and coins must be vectors of one length, at least the number of guesses. Received: scores of shape"
            f" {scores.shape}, coins of shape {included.shape}, {made} guesses."
        )
    rng = entropy_generator() if rng is None else rng
    order = np.lexsort((rng.permutation(len(scores)), np.where(np.isnan(scores), -np.inf, scores)))
    low, high = order[: made // 2], order[len(order) - (made - made // 2) :]
    return Guesses(len(scores), made, int(np.sum(included[high]) + np.sum(~included[low])))


# One run, (epsilon, delta) --------------------------------------------------------------------------------------------


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """How probable as many right guesses are, at most, if the run was (epsilon, delta)-differentially private.

    Theorem: with q = e^epsilon / (1 + e^epsilon), B ~ Binomial(r, q) and beta = P[B >= v],
        P[V >= v] <= beta + 2 m delta max_{1 <= i <= m} (P[B >= v - i] - beta) / i.
    Holds for every attack, also where records interact. Neighbours: one canary in or out.
    Source: Steinke, Nasr, Jagielski 2023, arXiv:2305.08846, theorem 5.2 (for delta = 0: theorem 5.1, corollary 4.3).
    """
    q = special.expit(epsilon)
    beta = float(stats.binom.sf(guesses.correct - 1, guesses.made, q))
    if delta == 0.0:
        return beta
    i = np.arange(1, guesses.correct + 1)
    tails = stats.binom.sf(guesses.correct - i - 1, guesses.made, q) - beta
    alpha = float(np.max(tails / i, initial=0.0))
    return min(1.0, beta + 2.0 * guesses.canaries * delta * alpha)


def one_run_epsilon(guesses: Guesses, delta: float = 0.0, confidence: float = 0.95) -> float:
    """The largest epsilon that the guesses refute at this delta; 0.0 if they refute none.

    With all of m guesses right it is ln(c / (1 - c)), c = (1 - confidence)^(1/m): 5.1 for 500 canaries at 95%,
    however little the run protects.
    Source: see `one_run_p_value`.
    """
    level = _level(confidence)

    def excess(epsilon: float) -> float:
        return one_run_p_value(guesses, epsilon, delta) - level

    if excess(0.0) >= 0.0:
        return 0.0
    high = 1.0
    while excess(high) < 0.0:
        high *= 2.0
    return max(0.0, float(optimize.brentq(excess, 0.0, high, xtol=1e-7)) - 1e-6)


# One run, any trade-off curve -----------------------------------------------------------------------------------------


def one_run_refutes(guesses: Guesses, claim: Guarantee, level: float) -> bool:
    """Whether as many right guesses have probability below `level` in every run that keeps to the claim.

    Theorem: let p_c be the probability of exactly c right guesses among r about m canaries with fair coins, and g the
    claim's `neighbour_at_least`. For every set T of numbers, flipping one coin turns a right guess into a wrong one, so
        g(sum_{c in T} (c / m) p_c) <= sum_{c in T} ((r - c + 1) / m) p_{c-1}
    (average over coins and canaries; g is convex, and Jensen's inequality applies).
    With T = {i + 1, ..., r} and the tails q_j = P[V >= j], summation by parts makes this
        ((r - i) / m) q_i >= g((i q_{i+1} + S) / m) + S / m,    S = sum_{j > i} q_j,
    whose right side grows with every tail. So the least tails that q_v >= level allows follow from above, i = v - 1
    to 0; the claim is refuted if q_0 would have to exceed 1.
    Source: Mahloujifar, Melis, Chaudhuri 2024, arXiv:2410.22235, theorem 9 and algorithm 3; the derivation with tails,
        which shows that starting from exactly `level` is the worst case, is ours.
    """
    m, r, v = guesses.canaries, guesses.made, guesses.correct
    tail = total = level
    if v == 0:
        return False
    for i in range(v - 1, -1, -1):
        least = (m * claim.neighbour_at_least(min(1.0, (i * tail + total) / m)) + total) / (r - i)
        if least <= tail:  # then no further tail grows: g's argument stays, S and r - i grow by q and 1
            return False
        tail = least
        if tail > 1.0:
            return True
        total += tail
    return False


def one_run_bound(all_guesses: Sequence[Guesses], family: Family, confidence: float = 0.95) -> float:
    """The largest epsilon of a family of claims that the guesses of one run refute; 0.0 if they refute none.

    Args:
        all_guesses: several numbers of guesses from one run; each is tested at its share of 1 - confidence.

    Guarantee: if the run keeps to a claim of the family, the bound exceeds that claim's epsilon with probability at
        most 1 - confidence: claims are ordered, so that takes refuting a claim that holds.
    """
    level = _level(confidence) / len(all_guesses)
    return family_bound(family, lambda claim: any(one_run_refutes(one, claim, level) for one in all_guesses))


# Many runs ------------------------------------------------------------------------------------------------------------


def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """A lower and an upper bound on a probability, each holding with `confidence` by itself.

    Args:
        hits: of independent trials.
    Source: Clopper, Pearson 1934, The use of confidence or fiducial limits.
    """
    if not 0 <= hits <= trials or trials < 1:
        raise ValueError(f"Clopper-Pearson needs 0 <= hits <= trials. Received: hits={hits}, trials={trials}.")
    level = _level(confidence)
    low = 0.0 if hits == 0 else float(stats.beta.ppf(level, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(stats.beta.ppf(1.0 - level, hits + 1, trials - hits))
    return low, high


def rates_refute(claim: Guarantee, frequent: tuple[int, int], rare: tuple[int, int], level: float) -> bool:
    """Whether an event is too frequent on one data set and too rare on a neighbouring one for the claim.

    Args:
        frequent, rare: (how often it occurred, independent runs) on the one and on the other.

    Guarantee: true with probability at most `level` if the claim holds: two bounds, each wrong with at most level / 2.
        The event must be fixed before these runs.
    Source: Jagielski, Ullman, Oprea 2020, arXiv:2006.07709; for trade-off curves Nasr et al. 2023, arXiv:2302.07956.
    """
    low, _ = clopper_pearson(*frequent, 1.0 - level / 2.0)
    _, high = clopper_pearson(*rare, 1.0 - level / 2.0)
    return claim.neighbour_at_least(low) > high


def many_runs_bound(present: np.ndarray, absent: np.ndarray, family: Family, confidence: float = 0.95) -> float:
    """The largest epsilon of a family of claims that many independent runs refute; 0.0 if they refute none.

    Args:
        present, absent: (runs,) each: scores of runs on a data set, and on a neighbouring one. A score is any number
            computed from what a run released; three quarters of the runs of each go into the bound.

    The event is "the score is at least t": t is chosen on the first quarter of the runs, the bound on the rest.
    Guarantee and source: see `rates_refute`.
    """
    present, absent = np.asarray(present, np.float64), np.asarray(absent, np.float64)
    if present.ndim != 1 or absent.ndim != 1 or min(len(present), len(absent)) < 10:
        raise ValueError(
            f"Scores must be vectors, one number for each of at least 10 runs. Received: shapes {present.shape} and"
            f" {absent.shape}."
        )
    first, second = len(present) // 4, len(absent) // 4
    threshold = best_threshold(present[:first], absent[:second])
    counts = [(int(np.sum(s >= threshold)), len(s)) for s in (present[first:], absent[second:])]
    level = _level(confidence)
    return family_bound(family, lambda claim: rates_refute(claim, counts[0], counts[1], level))


def best_threshold(present: np.ndarray, absent: np.ndarray) -> float:
    """Where the two rates of passing differ by the most of their standard deviations."""

    def significance(threshold: float) -> float:
        # One more success and failure each: no rate is taken for certain.
        rates = [(np.sum(s >= threshold) + 1.0) / (len(s) + 2.0) for s in (present, absent)]
        deviation = math.sqrt(sum(r * (1.0 - r) / len(s) for r, s in zip(rates, (present, absent), strict=True)))
        return float(rates[0] - rates[1]) / deviation

    scores = np.concatenate([present, absent])
    return float(max(np.quantile(scores, np.linspace(0.1, 0.9, 9)), key=significance))


# Families of claims ---------------------------------------------------------------------------------------------------


def family_bound(family: Family, refutes: Callable[[Guarantee], bool]) -> float:
    """The largest epsilon of a family that is refuted, to about a percent and from below; 0.0 if none is."""
    low, high = family.range()
    if not refutes(family.at(low)):
        return 0.0
    if refutes(family.at(high)):
        return float(family.epsilon(high))
    while high > low * _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if refutes(family.at(middle)) else (low, middle)
    return float(family.epsilon(low))


def _level(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"`confidence` must be between 0 and 1. Received: {confidence!r}.")
    return 1.0 - confidence
