"""What was released: noise and bound per group, sampling, number of records. One typed value, never a bare z."""

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dp_accounting import DpEvent, NeighboringRelation

from tfdp_layers.accounting.fields import check_owners, exactly, nonnegative
from tfdp_layers.accounting.grouping import check_grouping
from tfdp_layers.sampling import Sampling, is_sampler, sampling_from_json
from tfdp_layers.sampling.correlated import Correlated

__all__ = [
    "GENERATORS",
    "KINDS",
    "GroupNoise",
    "MetricRelease",
    "Release",
    "UnitMetricRelease",
    "UnitRelease",
    "joint_noise_multiplier",
]


GENERATORS = {
    "default": "Philox, a counter-based generator in float32 keyed by the operating system, whose numbers end at 11.5"
    " standard deviations; sums and noise on a common grid (where noise multiplier x sqrt(weights) <= 131,072). Not a"
    " cryptographic generator, and no proof against attacks on the lowest bits of the noise (noise_source='secure' is"
    " for both)",
    "secure": "a cryptographic generator keyed by the operating system; sums of two Gaussians in double precision on a"
    " common grid, against attacks on the lowest bits of the noise",
    "tensorflow": "TensorFlow's own generators, which tensorflow-privacy draws from: not cryptographic ones, and no"
    " defence against attacks on the lowest bits of the noise. Their numbers end at 5.68 standard deviations, and the"
    " chance that a record shows beyond is not in delta (up to 0.05 in 60 epochs of noise 1.1 on 26,000 weights)",
    "custom": "a source of the caller's own, which this library does not know",
}
"""Where the noise may come from, in words for statements."""

_KINDS = {
    ("record", "step"): "step",
    ("unit", "step"): "unit_step",
    ("record", "whole_data"): "whole_data",
    ("unit", "whole_data"): "unit_whole_data",
    ("record", "metric"): "metric",
    ("unit", "metric"): "unit_metric",
    ("owner", "step"): "owner_step",
    ("owner", "whole_data"): "owner_whole_data",
    ("owner", "metric"): "owner_metric",
}
_COUNTS = ("records_per_unit", "views", "records_per_owner")
"""Fields of a release that files leave out where they are 1."""

# Files name kinds from this list, never modules to import.
KINDS = {kind: unit_and_purpose for unit_and_purpose, kind in _KINDS.items()}


@dataclass(frozen=True)
class GroupNoise:
    """The Gaussian noise on one group of weights.

    Attributes:
        name: of the group, for statements.
        bound: L2 bound on ONE record's contribution to the SUM of the group's gradients; per-record loss per weight.
        stddev: standard deviation of the noise added to that sum, same units.
    Raises:
        ValueError: a bound or stddev that is negative or not finite, or a name that is not text.
    """

    name: str
    bound: float
    stddev: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"A group's name must be text. Received: {self.name!r}.")
        for field in ("bound", "stddev"):
            object.__setattr__(self, field, nonnegative(f"{field} of group {self.name!r}", getattr(self, field)))


def joint_noise_multiplier(groups: Iterable[GroupNoise]) -> float:
    """Returns the noise multiplier of releasing all groups of one step together: (sum_g (S_g / sigma_g)^2) ** -1/2.

    The groups of a step share one draw of records, so they are joined before subsampling is accounted.

    Returns:
        0.0 where a group with a positive bound has no noise; infinity where no record contributes to any group.
    Source: scale each group by 1 / sigma_g; the sum is then one Gaussian mechanism of unit noise.
    """
    ratios = []
    for group in groups:
        if group.bound > 0:
            if group.stddev == 0:
                return 0.0
            ratios.append(group.bound / group.stddev)
    sensitivity = math.hypot(*ratios)
    return 1.0 / sensitivity if sensitivity > 0 else math.inf


@dataclass(frozen=True)
class Release:
    """One noisy sum over a draw of records: what it reveals of them, and for what it is made.

    Purposes: an optimizer's "step"; a sum over the "whole_data" that is released beside the steps (by
    `tfdp.layers.DPPCA`, say); a "metric", the mean over all records of a number of bounded range, which is centred
    first, so that a record moves the sum by at most half the range, or, where their number was counted and is not the
    same in both neighbouring data sets, as if by all of it (`tfdp.release_metric`).

    Where its records are units (people, say), a unit may own many: of each unit that is drawn one record enters, chosen
    at random, or several as one contribution (for a metric, the mean of the unit's own numbers). So a group's bound on
    one record bounds the unit, `examples` and `batch_size` count units, and neighbours differ in a whole unit.

    Where its records have owners, one or several each, steps draw records and `examples` counts them, and neighbours
    differ in all records that one owner owns, alone or with others: they hold the same, public records and owners, and
    in one of them each of these records is emptied, so that it contributes nothing. A sum over all records is then
    moved by at most `records_per_owner` times a group's bound, which equal records attain, and is accounted so.

    Attributes:
        groups: disjoint groups of weights that together hold every trainable weight, at least one; for a metric one,
            named as it.
        sampling: how the records were drawn: all of them, but for a step. It states the neighbouring relation.
        examples: the declared, public number of records.
        seeded: a seeded noise or sampling source was used, which voids the statement.
        declared: the caller declared the sampling of a foreign pipeline; the library did not perform it.
        nominal_noise_multiplier: what the publication of the method accounts with, where that is not true; None where
            the method has no other figure than `noise_multiplier`.
        generator: where the noise came from, one of `GENERATORS`.
        unit: "record", "unit", or "owner".
        purpose: "step", "whole_data" or "metric".
        independence: of a step, how it is known that a record's contribution depends on that record alone: "proved",
            "measured" (then also what stopped the proof), or empty where this library did not look.
        noise: how the noise of consecutive steps is correlated; None where it is independent.
        records_per_unit: of a step, how many records of a unit entered it at most, bounded together.
        views: of a step, how often each record of a draw entered it, bounded together.
        records_per_owner: how many of the records that are drawn from one owner owns at most.
        owners: how many owners these records have, which is public as whose they are is; 0 where that is not known.
        grouping: which records belong to one unit, or owner, as `grouping_of` gives it; empty where that is not known.
            It is no part of what was released: see `grouping`.

    Raises:
        ValueError: no groups, two of one name, a nominal noise multiplier that is negative or not finite, flags that
            are not booleans, an unknown generator, unit or purpose, a data set that the sampling refuses, noise that
            may not be correlated on its draws, draws that do not hide an owner, or counts of rows below 1 or of what
            has none.
    """

    groups: tuple[GroupNoise, ...]
    sampling: Sampling
    examples: int
    seeded: bool = False
    declared: bool = False
    nominal_noise_multiplier: float | None = None
    generator: str = "default"
    unit: str = "record"
    purpose: str = "step"
    independence: str = ""
    noise: Correlated | None = None
    records_per_unit: int = 1
    views: int = 1
    records_per_owner: int = 1
    grouping: str = dataclasses.field(default="", compare=False, repr=False)
    owners: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        self._check_groups()
        if not is_sampler(self.sampling):
            raise ValueError(
                "sampling must be one of tfdp_layers.sampling, no subclass and with no method put on it: what that"
                f" draws is not what is charged. Received: {self.sampling!r}."
            )
        self.sampling.check(self.examples)
        object.__setattr__(self, "examples", operator.index(self.examples))
        if (self.unit, self.purpose) not in list(_KINDS):
            raise ValueError(
                f"unit and purpose of a release must be one of {list(_KINDS)}. Received: {(self.unit, self.purpose)!r}."
            )
        if self.purpose != "step" and self.sampling.batch_size != self.examples:
            raise ValueError(
                f"A sum over all {self.examples} records is drawn with batch_size={self.examples}. Received:"
                f" {self.sampling!r}."
            )
        if self.nominal_noise_multiplier is not None:
            nominal = nonnegative("nominal noise multiplier", self.nominal_noise_multiplier)
            object.__setattr__(self, "nominal_noise_multiplier", nominal)
        if not isinstance(self.generator, str) or self.generator not in GENERATORS:
            raise ValueError(f"generator must be one of {sorted(GENERATORS)}. Received: {self.generator!r}.")
        if not isinstance(self.independence, str):
            raise ValueError(f"independence must be text. Received: {self.independence!r}.")
        check_grouping(self.grouping, self.unit)
        self._check_noise()
        self._check_rows()
        for field in ("seeded", "declared"):
            if not isinstance(getattr(self, field), bool):
                raise ValueError(f"{field} must be True or False. Received: {getattr(self, field)!r}.")

    def _check_groups(self) -> None:
        if not self.groups or not all(isinstance(group, GroupNoise) for group in self.groups):
            raise ValueError(f"A release needs at least one GroupNoise. Received: groups={self.groups!r}.")
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"Two groups of a release share a name: {names}. Give each group its own.")
        if self.purpose == "metric" and len(names) > 1:
            raise ValueError(f"A metric is one number, with one GroupNoise. Received: {names}.")

    def _check_noise(self) -> None:
        if self.noise is None:
            return
        if not isinstance(self.noise, Correlated) or self.purpose != "step":
            raise ValueError(
                "noise must be None, or tfdp.noise.Correlated for the steps of an optimizer. Received:"
                f" noise={self.noise!r} for {self.purpose!r}."
            )
        self.sampling.charges(1, self.examples, self.noise)

    def _check_rows(self) -> None:
        for field in _COUNTS:
            count = getattr(self, field)
            beside = self.purpose != "step" and field != "records_per_owner"
            if type(count) is not int or count < 1 or (count > 1 and beside):
                raise ValueError(f"{field} must be an integer of at least 1, and 1 but for steps. Received: {count!r}.")
        if self.records_per_unit > 1 and self.unit != "unit":
            raise ValueError(f"records_per_unit={self.records_per_unit} is for units. Received: unit={self.unit!r}.")
        if self.records_per_owner > 1 and self.unit != "owner":
            raise ValueError(f"records_per_owner={self.records_per_owner} is for owners, not for one {self.unit}.")
        if self.unit == "owner":
            self.sampling.refuse_owners()
        check_owners(self.owners, self.unit)

    @property
    def kind(self) -> str:
        """What files and statements call it: its purpose, after "unit_" or "owner_" where these are protected."""
        return _KINDS[self.unit, self.purpose]

    @property
    def counted(self) -> str:
        """What is drawn, and what `examples` counts: "record" or "unit"."""
        return "record" if self.unit == "owner" else self.unit

    @property
    def noise_multiplier(self) -> float:
        """Noise over one record's contribution, all groups joined; see `joint_noise_multiplier`."""
        return joint_noise_multiplier(self.groups)

    def as_published(self) -> "Release":
        """The release as its publication accounts it: NOT what holds, where `nominal_noise_multiplier` is given."""
        if self.nominal_noise_multiplier is None:
            return self
        group = GroupNoise("as published", 1.0, self.nominal_noise_multiplier)
        return replace(self, groups=(group,), nominal_noise_multiplier=None)

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbouring relation of `event`: that of the sampling, and for owners that of emptied records."""
        return NeighboringRelation.REPLACE_SPECIAL if self.unit == "owner" else self.sampling.relation

    @property
    def drawn(self) -> str:
        """The kind of sampling, for statements."""
        return self.sampling.kind

    @property
    def updates(self) -> int:
        """How many steps of an optimizer it is: 1 or 0."""
        return int(self.purpose == "step")

    @property
    def sequential(self) -> bool:
        """Whether a release costs more or less by where in an epoch it is, so that segments cannot be joined."""
        return self.noise is not None or self.charges(2) != 2 * self.charges(1)

    def event(self) -> DpEvent:
        """The accounting event of one charge, under `relation`."""
        return self.sampling.event(self.noise_multiplier, self.examples, self.noise, self.records_per_owner)

    def charges(self, steps: int) -> int:
        """How many events `steps` consecutive releases cost, from a fresh start of the sampler."""
        return self.sampling.charges(steps, self.examples, self.noise)

    def to_json(self) -> dict[str, Any]:
        """Returns the release as a dict of JSON values; `from_json` reads it."""
        nominal = self.nominal_noise_multiplier
        optional: dict[str, Any] = {} if nominal is None else {"nominal_noise_multiplier": nominal}
        optional |= {"generator": self.generator} if self.generator != "default" else {}
        optional |= {"independence": self.independence} if self.independence else {}
        optional |= {} if self.noise is None else {"decay": self.noise.decay}
        optional |= {name: getattr(self, name) for name in _COUNTS if getattr(self, name) != 1}
        optional |= {"owners": self.owners} if self.owners else {}
        return optional | {
            "kind": self.kind,
            "groups": [asdict(group) for group in self.groups],
            "sampling": self.sampling.to_json(),
            "examples": self.examples,
            "seeded": self.seeded,
            "declared": self.declared,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Release":
        """Reads what `to_json` wrote. Raises ValueError for missing, unknown or invalid fields."""
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"Unknown kind of release: {kind!r}. Known kinds: {[*KINDS]}.")
        unit, purpose = KINDS[kind]
        optional = {"nominal_noise_multiplier", "generator", "independence", "decay", "grouping", "owners", *_COUNTS}
        optional &= set(value)
        exactly("A release", value, {"kind", "groups", "sampling", "examples", "seeded", "declared"} | optional)
        if value.get("nominal_noise_multiplier", 0) is None:
            raise ValueError("A release's nominal_noise_multiplier must be a number, or left out. Received: None.")
        if not isinstance(value["groups"], list):
            raise ValueError(f"A release's groups must be a list. Received: {value['groups']!r}.")
        for group in value["groups"]:
            exactly("A group", group, {"name", "bound", "stddev"})
        return cls(
            groups=tuple(GroupNoise(**group) for group in value["groups"]),
            sampling=sampling_from_json(value["sampling"]),
            examples=value["examples"],
            seeded=value["seeded"],
            declared=value["declared"],
            nominal_noise_multiplier=value.get("nominal_noise_multiplier"),
            generator=value.get("generator", "default"),
            unit=unit,
            purpose=purpose,
            independence=value.get("independence", ""),
            grouping=value.get("grouping", ""),
            owners=value.get("owners", 0),
            noise=Correlated(nonnegative("decay", value["decay"])) if "decay" in value else None,
            **{name: value[name] for name in _COUNTS if name in value},
        )


UnitRelease = functools.partial(Release, unit="unit")
"""A `Release` whose records are units."""

MetricRelease = functools.partial(Release, purpose="metric")
"""A `Release` of a metric."""

UnitMetricRelease = functools.partial(Release, unit="unit", purpose="metric")
"""A `Release` of a metric whose records are units: the mean over units of each one's own mean."""
