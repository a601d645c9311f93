"""What a claim says about one event on two neighbouring data sets, and families of claims ordered by epsilon."""

import abc
from collections import Counter
from dataclasses import dataclass, replace

import dp_accounting
import numpy as np
from scipy import special

from tfdp_layers.accounting import Epsilon, Ledger, Release, epsilon, exact_multiplier, privacy_profile
from tfdp_layers.accounting.accountant import check_delta
from tfdp_layers.accounting.charging import charge, check_ledger
from tfdp_layers.accounting.choice import for_plans

__all__ = ["Family", "GaussianCurve", "GaussianFamily", "Guarantee", "PointFamily", "Points", "ReleaseFamily"]

_MOST = 64.0  # no search looks beyond this epsilon,
_RANGE = 16.0  # this much less noise,
_LEAST_NOISE = 0.3  # or this noise multiplier, where it is sampled


class Guarantee(abc.ABC):
    """A trade-off curve: what each of two neighbouring data sets says about the other."""

    @abc.abstractmethod
    def neighbour_at_least(self, probability: float) -> float:
        """The least probability that a neighbouring data set can give to an event of this probability.

        It is (1 - f)^-1 for a symmetric trade-off function f: convex, not decreasing, 0 at 0. An event of probability
        p on one data set and less than this on a neighbouring one refutes the claim.
        """


@dataclass(frozen=True, eq=False)
class Points(Guarantee):
    """(epsilons[j], deltas[j])-differential privacy for every j, both directions.

    Attributes:
        epsilons, deltas: (points,) float64; one point is plain (epsilon, delta)-differential privacy.

    Guarantee: from P(E) <= e^epsilon Q(E) + delta for E and for its complement,
        Q(E) >= max(0, e^-epsilon (P(E) - delta), 1 - delta - e^epsilon (1 - P(E))).
    Source: Dong, Roth, Su 2022, arXiv:1905.02383, proposition 2.4 and section 2.4.
    """

    epsilons: np.ndarray
    deltas: np.ndarray

    def neighbour_at_least(self, probability: float) -> float:
        factor = np.exp(self.epsilons)
        scaled = (probability - self.deltas) / factor
        complement = 1.0 - self.deltas - factor * (1.0 - probability)
        return float(max(0.0, np.max(scaled), np.max(complement)))


@dataclass(frozen=True)
class GaussianCurve(Guarantee):
    """What holds of a Gaussian mechanism whose bound is `mu` standard deviations: Q(E) >= Phi(Phi^-1(P(E)) - mu).

    Source: Dong, Roth, Su 2022, arXiv:1905.02383, definition 2.6.
    """

    mu: float

    def neighbour_at_least(self, probability: float) -> float:
        return float(special.ndtr(special.ndtri(probability) - self.mu))


class Family(abc.ABC):
    """Claims ordered by their epsilon at one delta: each follows from every stricter one.

    Attributes:
        delta: at which `epsilon` is stated.
        name: for reports.
    """

    delta: float
    name: str

    @abc.abstractmethod
    def at(self, parameter: float) -> Guarantee:
        """The claim of a parameter, which grows with epsilon."""

    @abc.abstractmethod
    def epsilon(self, parameter: float) -> float:
        """Epsilon of that claim at `delta`."""

    @abc.abstractmethod
    def range(self) -> tuple[float, float]:
        """The strictest and the loosest parameter to look at, both above 0."""


@dataclass(frozen=True)
class PointFamily(Family):
    """(epsilon, delta)-differential privacy, whatever the mechanism is."""

    delta: float
    name: str = "any mechanism"

    def at(self, parameter: float) -> Guarantee:
        return Points(np.array([parameter]), np.array([self.delta]))

    def epsilon(self, parameter: float) -> float:
        return parameter

    def range(self) -> tuple[float, float]:
        return 1e-3, _MOST


@dataclass(frozen=True)
class GaussianFamily(Family):
    """Gaussian mechanisms: a refuted `mu` says that the mechanism is not as private as a Gaussian one of that mu."""

    delta: float
    name: str = "Gaussian mechanisms"

    def at(self, parameter: float) -> Guarantee:
        return GaussianCurve(parameter)

    def epsilon(self, parameter: float) -> float:
        return float(dp_accounting.get_epsilon_gaussian(1.0 / parameter, self.delta))

    def range(self) -> tuple[float, float]:
        return 1e-2, 12.0


@dataclass(frozen=True)
class ReleaseFamily(Family):
    """The claimed mechanism itself, same sampling and steps, with its noise divided by the parameter.

    A refuted parameter says that the run was not as private as this mechanism with that much less noise; a parameter
    refuted at 1 refutes the claim itself, since every claim of the family follows from it for parameters above 1.

    Attributes:
        releases: what was released, with the number of updates; at one neighbouring relation.
    """

    releases: tuple[tuple[Release, int], ...]
    delta: float
    name: str = "the claimed mechanism"

    def ledger(self, parameter: float) -> Ledger:
        """What the run would have released with its noise divided by the parameter."""
        ledger = for_plans(Ledger())
        for release, steps in self.releases:
            groups = tuple(replace(g, stddev=g.stddev / parameter) for g in release.groups)
            charge(ledger, replace(release, groups=groups), steps)
        return ledger

    def at(self, parameter: float) -> Guarantee:
        ledger = self.ledger(parameter)
        multiplier = exact_multiplier(ledger)
        if multiplier is not None:
            return GaussianCurve(1.0 / multiplier)
        return Points(*privacy_profile(ledger))

    def epsilon(self, parameter: float) -> Epsilon:
        return epsilon(self.ledger(parameter), self.delta)

    def range(self) -> tuple[float, float]:
        if exact_multiplier(self.ledger(1.0)) is not None:
            return 1.0 / _RANGE, _RANGE
        # Privacy loss distributions of sampled steps with next to no noise take minutes, and no audit needs them.
        smallest = min(release.noise_multiplier for release, _ in self.releases)
        return 1.0 / _RANGE, max(2.0, min(_RANGE, smallest / _LEAST_NOISE))


def of_ledger(ledger: Ledger, delta: float) -> ReleaseFamily:
    """The family of what a ledger holds. Raises ValueError where nothing was released, or without noise."""
    check_ledger(ledger)
    joined: Counter[Release] = Counter()
    apart: list[tuple[Release, int]] = []  # what such steps cost depends on where each segment started
    for entry in ledger.entries:
        if not isinstance(entry.release, Release):
            raise ValueError(f"A claim is audited step by step, but the ledger holds a {type(entry.release).__name__}.")
        if entry.release.sequential:
            apart.append((entry.release, entry.steps))
        else:
            joined[entry.release] += entry.steps
    releases = tuple((release, steps) for release, steps in (*joined.items(), *apart) if steps)
    if not releases:
        raise ValueError("The ledger holds no release, so there is no claim to audit. Train first.")
    return ReleaseFamily(releases, check_delta(delta))
