"""What a composition of events costs: each accountant of dp-accounting that can bound it, and the smallest bound.

Every bound here is a valid upper bound, so the smallest is one too. Counts are composed, never single releases. What
accountants bound one by one has a bound together: where none of them knows all events, their bounds are added.
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
from tfdp_layers.accounting.loss_distributions import pld_epsilon, pld_knows, quick
from tfdp_layers.accounting.quiet import quiet
from tfdp_layers.accounting.renyi import ZCDP_ORDERS, convert_rdp, rdp_epsilon, zcdp_epsilon

__all__ = ["smallest_epsilon"]

_Proofs = dict[str, Callable[[], float]]
"""By the name of an accountant, what computes the epsilon that it proves."""

_DECLARED_RELATIONS_SINCE = (0, 6)
_ADDED = ", each at a part of delta"
"""Behind the names of accountants whose bounds were added."""


def smallest_epsilon(counts: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> tuple[float, str]:
    """Returns the smallest valid epsilon of a composition, and the name of the accountant that proved it.

    Args:
        counts: how often each event was released.
        relation: the neighbouring relation that all events are stated under.
        delta: in (0, 1).

    Raises:
        NotImplementedError: one of these events no accountant of the installed dp-accounting can bound under this
            relation, even alone, or they fail with probability delta.
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
        few = quick(counts, relation)
        proofs = {} if few is None else {"PLD": partial(pld_epsilon, few, relation, delta)}
        proofs["RDP"] = partial(rdp_epsilon, counts, relation, delta)
    epsilon, name = _smallest(proofs)
    return (epsilon, name) if math.isfinite(epsilon) else _in_parts(counts, relation, delta)


def _in_parts(counts: Counts, relation: NeighboringRelation, delta: float) -> tuple[float, str]:
    """The bound of a composition that no accountant bounds as a whole in little time, and who proved it.

    All events with privacy loss distributions are composed, however many, and the rest is bounded by another accountant
    (a search by its Renyi divergences); where that does not do, each event by itself. Parts have equal shares of delta.

    Guarantee: epsilon is the sum of those of the parts, their deltas add up to delta. Proof: an accountant's bound
    holds whatever is chosen by what its events released before, so each part is an interactive mechanism that is
    (e_i, d_i)-differentially private. Releases of several parts may take turns, each chosen by all before it, and such
    concurrent composition costs what the composition of non-interactive (e_i, d_i) mechanisms does (Vadhan, Zhang 2022,
    arXiv:2207.08335; Lyu 2022, arXiv:2207.09397), which is at most (sum of e_i, sum of d_i) (Dwork, Roth 2014, Theorem
    3.16; Kairouz, Oh, Viswanath 2015, arXiv:1311.0776). The parts are decided by counts alone, which are public.

    Raises: NotImplementedError where an event alone has no bound.
    """
    known = tuple(one for one in counts if pld_knows(one[0], relation))
    if known == counts and quick(counts, relation) != counts:
        epsilon, name = _smallest({"PLD": partial(pld_epsilon, counts, relation, delta)})
        if math.isfinite(epsilon):
            return epsilon, name
    rest = tuple(one for one in counts if one not in known)
    parts = (known, rest) if known and rest else tuple((one,) for one in counts)
    if len(parts) == 1:
        event, count = counts[0]
        raise NotImplementedError(
            f"No accountant can bound {count} times {event} under {relation.name} at delta={delta!r}, even alone. Use"
            " a larger delta, or make these releases with more noise, or by another sampling."
        )
    share = math.nextafter(delta / len(parts), 0.0)  # a quotient may be rounded up
    found = [_smallest_epsilon(part, relation, share) for part in parts]
    names = dict.fromkeys(name.removesuffix(_ADDED) for _, name in found)
    return math.fsum(epsilon for epsilon, _ in found), " and ".join(names) + _ADDED


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
