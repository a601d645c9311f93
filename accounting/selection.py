"""What a search releases that makes a random number of private trials and shows only the best one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.rdp import rdp_privacy_accountant

from tfdp_layers.accounting.events import Release
from tfdp_layers.accounting.fields import exactly, nonnegative
from tfdp_layers.sampling import TruncatedPoisson

__all__ = ["Part", "Selection", "SelectionDpEvent", "selected_rdp"]

Part = tuple[Release, int]
"""A release, and how often one trial makes it at most."""


@dataclass(frozen=True)
class SelectionDpEvent(DpEvent):
    """One search. With one candidate it is dp-accounting's `RepeatAndSelectDpEvent`.

    Attributes:
        candidates: what a trial may be: the events that it is composed of, each with a count.
        mean, shape: see `Selection`.
    """

    candidates: tuple[tuple[tuple[DpEvent, int], ...], ...]
    mean: float
    shape: float


def selected_rdp(orders: np.ndarray, trial: np.ndarray, mean: float, shape: float) -> np.ndarray:
    """Renyi divergence, at each order, of the best of a random number of trials.

    Args:
        orders: ascending, above 1.
        trial: of one trial, at each order; infinity (or no number) where it is not known.
        mean, shape: see `Selection`.
    Source: Papernot, Steinke 2022, arXiv:2110.03620, Theorems 2 (truncated negative binomial) and 6 (Poisson), by
      dp-accounting, which offers them on an event of its own only: see `Selection` for why that does not do here.
    """
    # A negative or undefined divergence is a numerical failure, and the theorem takes a minimum over all orders.
    trial = np.where(np.isfinite(trial) & (trial >= 0), trial, math.inf)
    return np.asarray(rdp_privacy_accountant._compute_rdp_repeat_and_select(orders, trial, mean, shape))


@dataclass(frozen=True)
class Selection:
    """A search: a random number of private trials, of which the best one is released and nothing else.

    The number of trials K is drawn first, from a truncated negative binomial distribution of this mean and shape, or
    from Poisson's. Each trial draws its settings from one public distribution, independently of everything else, makes
    one private training with them, and gets a score that depends on what this training released and on public data.
    The best trial (its settings, weights and score) is released; the others, and K, never are.

    Guarantee: let eps(a) be the largest Renyi divergence of order a of any candidate, over all settings that can be
    drawn. One trial, its draw of settings included, then has Renyi divergence at most eps(a): for settings s of
    distribution p, common to both neighbours, and outputs M_s,
    exp((a - 1) D_a) = sum_s p(s) exp((a - 1) D_a(M_s || M_s')) <= exp((a - 1) eps(a)). (The pointwise maximum is
    needed: candidates of equal (epsilon, delta) differ at other orders, and the theorem asks for several orders at
    once.) Trials are independent and equally distributed, so that Theorem 2 (Theorem 6 for Poisson's distribution) of
    the source bounds the release of the best. A trial that fails, or whose score is no number, is an output like any
    other, of the lowest score; equal scores are told apart by the order of trials, which is independent of them.

    Attributes:
        candidates: each a list of parts, what a trial of some settings releases at most. All under one relation.
        mean: of K, at least 1 (for Poisson's distribution above 0 would do; one convention for all).
        shape: of K: 0 logarithmic, 1 geometric, between and above truncated negative binomial, infinity Poisson, which
            alone may draw 0.
    Raises:
        ValueError: no candidates, relations or units that differ, a number out of range, or trials that draw by
            `TruncatedPoisson`, whose Renyi divergences nobody has bounded.
    Source: Papernot, Steinke 2022, arXiv:2110.03620.
    """

    candidates: tuple[tuple[Part, ...], ...]
    mean: float
    shape: float = 1.0
    kind: ClassVar[str] = "selection"
    purpose: ClassVar[str] = "selection"
    sequential: ClassVar[bool] = False

    def __post_init__(self) -> None:
        candidates = tuple(tuple((r, _count(n)) for r, n in parts) for parts in self.candidates)
        object.__setattr__(self, "candidates", candidates)
        if not candidates or not all(candidates):
            raise ValueError(f"A selection needs at least one candidate, each of at least one part: {candidates!r}.")
        mean = nonnegative("mean number of trials", self.mean)
        if mean < 1:
            raise ValueError(f"The mean number of trials must be at least 1. Received: {self.mean!r}.")
        infinite = isinstance(self.shape, float) and self.shape == math.inf
        shape = math.inf if infinite else nonnegative("shape of the number of trials", self.shape)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "shape", shape)
        if not all(isinstance(release, Release) for release in self.releases):
            raise ValueError("Trials are made of releases of records; a party's threshold tests cannot be searched.")
        kinds = {(release.relation, release.unit) for release in self.releases}
        if len(kinds) > 1:
            found = sorted(f"{relation.name.lower()} of a {unit}" for relation, unit in kinds)
            raise ValueError(
                f"All that the trials of a selection release needs one neighbouring relation and one unit. Received:"
                f" {' and '.join(found)}. Give all parts the same draw, and unit_ids (or owners) to fit and to the"
                " score, NoisyMean(..., unit_ids=ids), or to neither."
            )
        if any(isinstance(release.sampling, TruncatedPoisson) for release in self.releases):
            raise ValueError(
                "Trials of a selection cannot draw by TruncatedPoisson: a search is accounted for by Renyi divergences,"
                " and none are known for this draw. Use sampling.Poisson(batch_size), the same draw without a maximum"
                " (physical_batch_size bounds the memory), or FixedSize, whose batches all have one size."
            )
        if any(release.nominal_noise_multiplier is not None for release in self.releases):
            raise ValueError(
                "An algorithm used as printed (as_published=True) cannot be searched: its publication accounts for one"
                " training with a figure that does not hold. Use as_published=False."
            )

    @property
    def releases(self) -> tuple[Release, ...]:
        """All releases that some trial may make."""
        return tuple(release for parts in self.candidates for release, _ in parts)

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbouring relation of every candidate."""
        return self.releases[0].relation

    @property
    def unit(self) -> str:
        """Whose contribution is hidden: "record" or "unit"."""
        return self.releases[0].unit

    @property
    def drawn(self) -> str:
        """How trials draw their records."""
        return "+".join(sorted({release.drawn for release in self.releases}))

    @property
    def seeded(self) -> bool:
        """Whether a seeded source was used."""
        return any(release.seeded for release in self.releases)

    @property
    def declared(self) -> bool:
        """Whether the caller declared the sampling of a foreign pipeline."""
        return any(release.declared for release in self.releases)

    @property
    def updates(self) -> int:
        """Steps of an optimizer that the released trial made, at most."""
        return max(sum(n for release, n in parts if release.purpose == "step") for parts in self.candidates)

    def as_published(self) -> "Selection":
        """The selection itself: it is accounted as it holds."""
        return self

    def event(self) -> DpEvent:
        """What one search costs under `relation`."""
        candidates = tuple(
            tuple((release.event(), release.charges(steps)) for release, steps in parts) for parts in self.candidates
        )
        return SelectionDpEvent(candidates, self.mean, self.shape)

    def charges(self, steps: int) -> int:
        """How many events so many searches cost: as many."""
        return steps

    def to_json(self) -> dict[str, Any]:
        """Returns the selection as a dict of JSON values; `release_from_json` reads it. Poisson's shape is null."""
        candidates = [[{"release": r.to_json(), "steps": n} for r, n in parts] for parts in self.candidates]
        shape = None if self.shape == math.inf else self.shape
        return {"kind": self.kind, "candidates": candidates, "mean": self.mean, "shape": shape}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Selection":
        """Reads what `to_json` wrote. Raises ValueError for missing, unknown or invalid fields."""
        exactly("A selection", value, {"kind", "candidates", "mean", "shape"})
        if not isinstance(value["candidates"], list) or not all(isinstance(p, list) for p in value["candidates"]):
            raise ValueError("The candidates of a selection must be a list of lists.")
        for part in (part for parts in value["candidates"] for part in parts):
            exactly("A part of a trial", part, {"release", "steps"})
        candidates = tuple(
            tuple((Release.from_json(part["release"]), part["steps"]) for part in parts)
            for parts in value["candidates"]
        )
        return cls(candidates, value["mean"], math.inf if value["shape"] is None else value["shape"])


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value < 2**62:
        raise ValueError(f"A trial makes a release an integer number of times, at least once. Received: {value!r}.")
    return value
