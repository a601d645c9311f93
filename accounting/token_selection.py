"""What the release of a vocabulary reveals: the tokens whose noisy weight over all records passes a threshold."""

import dataclasses
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, ClassVar

from dp_accounting import DpEvent, NeighboringRelation

from tfdp_layers.accounting.failures import failing
from tfdp_layers.accounting.fields import check_owners, exactly, nonnegative
from tfdp_layers.accounting.grouping import check_grouping
from tfdp_layers.sampling import Sampling, sampling_from_json

__all__ = ["TokenSelection"]

_LEAST_NOISE, _LEAST_FAILURE = 1e-30, 1e-300
"""Below these thresholds are no plain numbers."""


@dataclass(frozen=True)
class TokenSelection:
    """The tokens of all records whose weight, with noise, lies above `threshold`; and these noisy weights.

    A record gives each of its t distinct tokens, at most `tokens` of them, a weight of at most 1 / sqrt(t); the weight
    of a token is the sum over the records. Only tokens that some record has get noise, N(0, noise_multiplier^2) each.

    Guarantee: for data sets D and D + r that differ in one record r, it is a Gaussian mechanism of this noise
    multiplier, composed with an independent event of total variation distance at most `failure`.
    Proof: let N be the tokens of r that no record of D has, n <= t of them. What is released of the other tokens is
    post-processing of the vector of their noisy weights: the same tokens in both data sets, and r moves the vector by
    at most sqrt(t (1 / sqrt(t))^2) = 1 in the L2 norm. What is released of N is independent of that, since the noises
    are. Under D it is nothing; under D + r too, unless the noisy weight of one of n tokens, each of weight at most
    1 / sqrt(t), passes: with probability at most 1 - Phi((threshold - 1 / sqrt(t)) / sigma)^t <= failure, by the choice
    of the threshold for every t. So the two together are what is released, and independent.
    Replacing a record removes one and adds one: the vector moves by at most 2, and it fails twice as often.

    Where records have owners, of at most k records each, neighbours differ in that all records of one owner have no
    tokens. The vector of the other tokens then moves by at most k, the sum of k of norm 1, which equal records attain.
    A token j of N, those that the owner's records alone have, weighs w_j = sum_i v_ij, v_ij <= 1 / sqrt(t_i) for the
    t_i tokens of record i and 0 for others. The cost of a weight, g(w) = -log Phi((threshold - w) / sigma), rises, and
    is convex since Phi is log-concave; so with w_j the mean over i of k v_ij

        sum_j g(w_j) <= 1/k sum_i sum_j g(k v_ij) <= 1/k sum_i (t_i g(k / sqrt(t_i)) + g(0) sum_(l != i) t_l)
                     = 1/k sum_i t_i (g(k / sqrt(t_i)) + (k - 1) g(0)) <= max_t k t g(k / sqrt(t)),

    as tokens of N that record i lacks are of the other records. N shows with probability 1 - exp(-sum_j g(w_j)), at
    most that of k t tokens of weight k / sqrt(t), which the threshold keeps at `failure` for every t.

    Attributes:
        tokens: the most distinct tokens that a record counts with.
        noise_multiplier: sigma, above 0.
        failure: in (0, 1), an addition to delta.
        sampling: draws all records, once; it states the neighbouring relation.
        examples: the declared, public number of records, or of units.
        seeded, generator, unit, records_per_owner, grouping, owners: as in `Release`.
    Raises:
        ValueError: a field out of range.
    Source: Gopi, Gulhane, Kulkarni, Shen, Shokouhi, Yekhanin 2020, arXiv:2002.09745, the weighted Gaussian mechanism of
      section 4, with its threshold; there the failure is half of delta.
    """

    tokens: int
    noise_multiplier: float
    failure: float
    sampling: Sampling
    examples: int
    seeded: bool = False
    generator: str = "default"
    unit: str = "record"
    records_per_owner: int = 1
    grouping: str = dataclasses.field(default="", compare=False, repr=False)
    owners: int = 0
    kind: ClassVar[str] = "token_selection"
    purpose: ClassVar[str] = "vocabulary"
    declared: ClassVar[bool] = False
    sequential: ClassVar[bool] = False
    updates: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for field in ("tokens", "examples", "records_per_owner"):
            value = getattr(self, field)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
                raise ValueError(f"{field} must be an integer of at least 1. Received: {value!r}.")
            object.__setattr__(self, field, operator.index(value))
        for field in ("noise_multiplier", "failure"):
            object.__setattr__(self, field, nonnegative(field, getattr(self, field)))
        if self.noise_multiplier < _LEAST_NOISE or not _LEAST_FAILURE <= self.failure < 1.0:
            raise ValueError(
                f"noise_multiplier must be {_LEAST_NOISE} or more, and failure in [{_LEAST_FAILURE}, 1): without both"
                " a token that one record alone"
                f" has would show. Received: noise_multiplier={self.noise_multiplier}, failure={self.failure}."
            )
        if not isinstance(self.sampling, Sampling) or self.sampling.batch_size != self.examples:
            raise ValueError(f"sampling must draw all {self.examples} records. Received: {self.sampling!r}.")
        if not isinstance(self.seeded, bool) or not isinstance(self.generator, str):
            raise ValueError(f"seeded must be True or False, generator text. Received: {self.seeded!r}.")
        if self.unit not in ("record", "unit", "owner"):
            raise ValueError(f"unit must be 'record', 'unit' or 'owner'. Received: {self.unit!r}.")
        if self.unit == "owner":
            self.sampling.refuse_owners()
        elif self.records_per_owner > 1:
            raise ValueError(f"records_per_owner={self.records_per_owner} is for owners, not for one {self.unit}.")
        check_grouping(self.grouping, self.unit)
        check_owners(self.owners, self.unit)

    @property
    def threshold(self) -> float:
        """max over t of k / sqrt(t) + sigma Phi^-1((1 - failure)^(1 / (k t))), k records of an owner, rounded up."""
        kept, owned = math.log1p(-self.failure), self.records_per_owner
        normal = NormalDist()
        of_each = (
            owned / math.sqrt(t) - self.noise_multiplier * normal.inv_cdf(-math.expm1(kept / (owned * t)))
            for t in range(1, self.tokens + 1)
        )
        return max(of_each) * (1.0 + 1e-9) + 1e-9 * self.noise_multiplier

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbouring relation of `event`: that of the sampling, and for owners that of emptied records."""
        return NeighboringRelation.REPLACE_SPECIAL if self.unit == "owner" else self.sampling.relation

    @property
    def drawn(self) -> str:
        """The kind of sampling, for statements."""
        return self.sampling.kind

    def as_published(self) -> "TokenSelection":
        """The release itself: it is accounted as it holds."""
        return self

    def event(self) -> DpEvent:
        """What one release costs, under `relation`."""
        event = self.sampling.event(self.noise_multiplier, self.examples, None, self.records_per_owner)
        return failing(event, self.failure, self.relation)

    def charges(self, steps: int) -> int:
        """How many events `steps` releases cost: as many."""
        return self.sampling.charges(steps, self.examples)

    def to_json(self) -> dict[str, Any]:
        """Returns the release as a dict of JSON values; `release_from_json` reads it."""
        value = {"kind": self.kind, **asdict(self), "sampling": self.sampling.to_json()}
        if self.records_per_owner == 1:
            del value["records_per_owner"]
        if not value["owners"]:
            del value["owners"]
        del value["grouping"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "TokenSelection":
        """Reads what `to_json` wrote. Raises ValueError for missing, unknown or invalid fields."""
        fields = {"tokens", "noise_multiplier", "failure", "sampling", "examples", "seeded", "generator", "unit"}
        fields |= {"records_per_owner", "grouping", "owners"} & set(value)
        exactly("A token_selection release", value, {"kind", *fields})
        given = {name: value[name] for name in fields}
        return cls(**(given | {"sampling": sampling_from_json(value["sampling"])}))
