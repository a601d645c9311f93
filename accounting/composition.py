"""What a composition of events costs: each accountant of dp-accounting that can bound it, and the smallest bound.

Every bound here is a valid upper bound, so the smallest is one too. Counts are composed, never single releases.
"""

import contextlib
import functools
import importlib.metadata
import math
from collections.abc import Callable, Mapping
from functools import partial

import dp_accounting
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, NonPrivateDpEvent

from tfdp_layers.accounting import pure
from tfdp_layers.accounting.failures import without_failures
from tfdp_layers.accounting.gaussian_events import Counts, canonical, exact_gaussian, of_draws
from tfdp_layers.accounting.loss_distributions import pld_epsilon
from tfdp_layers.accounting.quiet import quiet
from tfdp_layers.accounting.renyi import ZCDP_ORDERS, convert_rdp, rdp_epsilon, zcdp_epsilon

__all__ = ["smallest_epsilon"]

_Proofs = dict[str, Callable[[], float]]
"""By the name of an accountant, what computes the epsilon that it proves."""

_DECLARED_RELATIONS_SINCE = (0, 6)


def smallest_epsilon(counts: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> tuple[float, str]:
    """Returns the smallest valid epsilon of a composition, and the name of the accountant that proved it.

    Args:
        counts: how often each event was released.
        relation: the neighbouring relation that all events are stated under.
        delta: in (0, 1).

    Raises:
        NotImplementedError: no accountant of the installed dp-accounting can bound these events under this relation, or
            they fail with probability delta.
    """
    rest, left = without_failures(counts, delta)
    return _smallest_epsilon(canonical(rest), relation, left)


@functools.lru_cache(maxsize=4096)
def _smallest_epsilon(counts: Counts, relation: NeighboringRelation, delta: float) -> tuple[float, str]:
    if not counts:
        return 0.0, "nothing released"
    if any(isinstance(event, NonPrivateDpEvent) for event, _ in counts):
        return math.inf, "no noise"
    if all(isinstance(event, pure.NumericSparseDpEvent) for event, _ in counts):
        return _smallest_of_tests(counts, delta)
    multiplier = exact_gaussian(counts)
    if multiplier is not None:  # by formulas that know no relation: every version has them
        proofs: _Proofs = {
            "analytic Gaussian": partial(_analytic_epsilon, multiplier, delta),
            "zCDP": partial(zcdp_epsilon, multiplier, delta),
        }
    else:
        _require_relation(relation)
        proofs = {
            "PLD": partial(pld_epsilon, counts, relation, delta),
            "RDP": partial(rdp_epsilon, counts, relation, delta),
        }
    epsilon, name = _smallest(proofs)
    if not math.isfinite(epsilon):
        raise NotImplementedError(
            f"No accountant can bound {[event for event, _ in counts]} under {relation.name} at delta={delta!r}. Use"
            " a larger delta, more noise, or another sampling."
        )
    return epsilon, name


def _smallest_of_tests(counts: pure.Tests, delta: float) -> tuple[float, str]:
    proofs: _Proofs = {
        "basic composition": partial(pure.basic_epsilon, counts),
        "zCDP": lambda: convert_rdp(ZCDP_ORDERS, pure.renyi(counts, ZCDP_ORDERS), delta),
        "PLD": partial(pure.pld_epsilon, counts, delta),
    }
    return _smallest(proofs)


def _smallest(proofs: _Proofs) -> tuple[float, str]:
    """The smallest bound, and whose it is. Raises MemoryError where the memory ends and nobody else has a finite one.

    Each bound is valid by itself, so what one accountant has no memory for, another may answer.
    """
    bounds: dict[str, float] = {}
    ended: MemoryError | None = None
    for name, bound in proofs.items():
        try:
            with quiet():
                bounds[name] = bound()
        except MemoryError as error:
            ended = error
    best = min(bounds, key=lambda name: bounds[name], default="")
    if ended is not None and not math.isfinite(bounds.get(best, math.inf)):
        raise ended
    return bounds[best], best


def _analytic_epsilon(multiplier: float, delta: float) -> float:
    if not hasattr(dp_accounting, "get_epsilon_gaussian"):  # before 0.6; a hair above, by its discretisation
        one: Counts = ((GaussianDpEvent(multiplier), 1),)
        return pld_epsilon(one, NeighboringRelation.ADD_OR_REMOVE_ONE, delta)
    with contextlib.suppress(ValueError, RuntimeError):
        epsilon = float(dp_accounting.get_epsilon_gaussian(multiplier, delta))
        return epsilon if epsilon >= 0 else math.inf
    return math.inf


def _require_relation(relation: NeighboringRelation) -> None:
    relation = of_draws(relation)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        return
    installed = importlib.metadata.version("dp-accounting")
    if tuple(int(part) for part in installed.split(".")[:2]) < _DECLARED_RELATIONS_SINCE:
        raise NotImplementedError(
            f"dp-accounting {installed} reads noise multipliers under {relation.name} by another convention, so an"
            " epsilon of these draws would be wrong. Install dp-accounting >= 0.6, or use Poisson sampling"
            " (add-or-remove) or Partition (one Gaussian an epoch)."
        )
