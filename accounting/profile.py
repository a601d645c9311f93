"""Everything that a ledger proves: delta at many epsilons, not at one."""

import contextlib
import math

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, NonPrivateDpEvent

from tfdp_layers.accounting.accountant import events_of
from tfdp_layers.accounting.composition import smallest_epsilon
from tfdp_layers.accounting.failures import FailingDpEvent
from tfdp_layers.accounting.fixed_size import gaussian_profile
from tfdp_layers.accounting.gaussian_events import Counts, canonical, exact_gaussian
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.loss_distributions import composed_pld, pld_interval, quick
from tfdp_layers.accounting.rounding import rounded_away

__all__ = ["exact_multiplier", "privacy_profile"]

_POINTS = 96
_COARSE = 8.0  # times the interval of the exact epsilon: a profile is for tests of claims, where speed counts
_TAIL = 1e-7
_LARGEST = 300.0  # e^epsilon must be a number
_DELTAS = np.geomspace(1e-9, 0.5, 24)


def privacy_profile(ledger: Ledger) -> tuple[np.ndarray, np.ndarray]:
    """Returns epsilons and deltas, (points,) each, such that everything in the ledger is (epsilon, delta)-private for
    every one of the points, in both directions of the neighbouring relation.

    Guarantee: each point is proved, like `epsilon`; a curve through them is not. Points of no use (delta 1) are left
    out, and an empty ledger or one without noise gives none.
    """
    counts = canonical(events_of(ledger))
    relation = ledger.relation
    if relation is None or not counts or any(isinstance(event, NonPrivateDpEvent) for event, _ in counts):
        return np.zeros(0), np.zeros(0)
    failures = sum(count * event.failure for event, count in counts if isinstance(event, FailingDpEvent))
    multiplier = None if failures else exact_gaussian(counts)
    found = None
    if multiplier is not None:
        found = _of_gaussian(multiplier)
    elif not failures and (few := quick(counts, relation)) is not None:
        found = _of_losses(few, relation)
    if found is None:
        deltas = _DELTAS[1.1 * failures < _DELTAS]
        return np.asarray([smallest_epsilon(dict(counts), relation, delta)[0] for delta in deltas]), deltas.copy()
    epsilons, deltas = found
    kept = (deltas >= 0.0) & (deltas < 1.0)
    return epsilons[kept], deltas[kept]


def _of_gaussian(multiplier: float) -> tuple[np.ndarray, np.ndarray]:
    """By the closed form, in any relation; a hair above it, by more than it may be rounded down."""
    counts = {GaussianDpEvent(multiplier): 1}
    epsilons = _spread(smallest_epsilon(counts, NeighboringRelation.ADD_OR_REMOVE_ONE, _TAIL)[0])
    return epsilons, gaussian_profile(epsilons, multiplier) * (1.0 + 1e-9) + 1e-15


def _of_losses(counts: Counts, relation: NeighboringRelation) -> tuple[np.ndarray, np.ndarray] | None:
    """By privacy loss distributions; None where they bound nothing, or take more memory than there is."""
    with np.errstate(all="ignore"), contextlib.suppress(MemoryError):
        composed = composed_pld(counts, relation, _COARSE * pld_interval(counts))
        if composed is not None:
            epsilons = _spread(float(composed.get_epsilon_for_delta(_TAIL)))
            deltas = np.asarray(composed.get_delta_for_epsilon(list(epsilons)), dtype=np.float64)
            return epsilons, deltas + rounded_away(sum(count for _, count in counts))
    return None


def _spread(largest: float) -> np.ndarray:
    """Epsilons up to this one, denser near zero, where a strict claim is told from a loose one."""
    return np.asarray(min(max(1e-3, largest), _LARGEST) * np.linspace(0.0, 1.0, _POINTS) ** 2)


def exact_multiplier(ledger: Ledger) -> float | None:
    """The noise multiplier of the one Gaussian mechanism that equals the ledger; None where a release is subsampled,
    has no noise, or there is none.
    """
    counts = canonical(events_of(ledger))
    if not counts or any(isinstance(event, NonPrivateDpEvent) for event, _ in counts):
        return None
    multiplier = exact_gaussian(counts)
    return multiplier if multiplier is None or math.isfinite(multiplier) else None
