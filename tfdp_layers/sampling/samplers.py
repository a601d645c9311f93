"""The samplers: how the records of a step are drawn. No TensorFlow here: numpy and dp-accounting only."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import dp_accounting
import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)

from tfdp_layers.instances import replaced
from tfdp_layers.sampling.base import Sampling, whole_number
from tfdp_layers.sampling.correlated import Correlated
from tfdp_layers.sampling.owners import OwnerDpEvent

# A cap this many standard deviations above the mean is exceeded with probability 1e-9: it costs nothing measurable.
_CAP_DEVIATIONS = 6.0


@dataclass(frozen=True)
class Poisson(Sampling):
    """Draws every record independently with probability batch_size / examples.

    Guarantee: add-or-remove one record; one step is a Poisson-subsampled Gaussian mechanism. An emptied record, which
    contributes nothing, changes as much as a removed one, so the same holds for all records of an owner emptied
    together: see `OwnerDpEvent`.
    Source: Abadi et al. 2016, arXiv:1607.00133; Mironov, Talwar, Zhang 2019, arXiv:1908.10530.
    """

    kind: ClassVar[str] = "poisson"
    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def _event(self, noise_multiplier: float, examples: int) -> DpEvent:
        return PoissonSampledDpEvent(float(self.batch_size / examples), GaussianDpEvent(noise_multiplier))

    def _event_of_owner(
        self, noise_multiplier: float, examples: int, noise: Correlated | None, records: int
    ) -> DpEvent:
        self.charges(1, examples, noise)
        if self.batch_size == examples:  # all of them, always
            return GaussianDpEvent(noise_multiplier / records)
        return OwnerDpEvent(float(self.batch_size / examples), records, noise_multiplier)

    def refuse_owners(self) -> None:
        """All records of an owner are drawn independently of all others."""

    def _check_rows(self, rows: int, examples: int) -> None:
        """Any number: each row is drawn with the declared probability, whatever the others do."""

    def _draws(self, rows: int, examples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        while True:
            yield _poisson_draw(rows, self.batch_size / examples, rng)

    def describe(self, examples: int, unit: str = "record") -> str:
        return (
            f"Poisson: each step draws every {unit} independently with probability {self.batch_size}/{examples}"
            f" = {self.batch_size / examples:.6g}"
        )


@dataclass(frozen=True)
class TruncatedPoisson(Sampling):
    """Poisson sampling whose draws above `maximum` are cut to a uniformly chosen subset: constant batch shapes.

    Guarantee: add-or-remove one record; the cut is accounted. `examples` is the size of the larger of two neighbours.
    Attributes:
        maximum: the cap; None takes ceil(mean + 6 standard deviations) of the draw's size, at most the number of
            records. That costs nothing measurable, a cap at the mean is ruinous.
    Source: Ganesh 2025, arXiv:2508.15089.
    """

    maximum: int | None = None
    kind: ClassVar[str] = "truncated_poisson"
    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.maximum is None:
            return
        object.__setattr__(self, "maximum", whole_number("maximum", self.maximum, minimum=1))
        if self.maximum < self.batch_size:
            raise ValueError(
                f"maximum={self.maximum} is below batch_size={self.batch_size}: the expected batch would be cut, which"
                " biases the gradient and ruins the privacy. Leave maximum=None (mean + 6 standard deviations)."
            )

    def largest(self, examples: int) -> int:
        self.check(examples)
        if self.maximum is not None:
            return min(self.maximum, int(examples))
        deviation = math.sqrt(self.batch_size * (1.0 - self.batch_size / examples))
        return min(math.ceil(self.batch_size + _CAP_DEVIATIONS * deviation), int(examples))

    def _event(self, noise_multiplier: float, examples: int) -> DpEvent:
        if not hasattr(dp_accounting, "TruncatedSubsampledGaussianDpEvent"):
            raise NotImplementedError(
                "The installed dp-accounting cannot account TruncatedPoisson sampling. Install dp-accounting >= 0.6, or"
                " use sampling.Poisson."
            )
        return dp_accounting.TruncatedSubsampledGaussianDpEvent(
            dataset_size=examples,
            sampling_probability=float(self.batch_size / examples),
            truncated_batch_size=self.largest(examples),
            noise_multiplier=noise_multiplier,
        )

    def _draws(self, rows: int, examples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        cap = self.largest(examples)
        while True:
            yield _poisson_draw(rows, self.batch_size / examples, rng, cap)

    def describe(self, examples: int, unit: str = "record") -> str:
        return (
            f"truncated Poisson: each step draws every {unit} independently with probability"
            f" {self.batch_size}/{examples} = {self.batch_size / examples:.6g}, and cuts draws above"
            f" {self.largest(examples)} {unit}s to a random subset of that size"
        )


@dataclass(frozen=True)
class FixedSize(Sampling):
    """Draws exactly batch_size records without replacement, afresh at every step.

    Guarantee: replace one record (the number of records is public). Replacing a record moves the sum by up to twice
    what one record contributes; that factor 2 is here and nowhere else.
    Source: Balle, Barthe, Gaboardi 2018, arXiv:1807.01647; Wang, Balle, Kasiviswanathan 2019, arXiv:1808.00087, Theorem
    27 (for RDP).
    """

    kind: ClassVar[str] = "without_replacement"
    relation: ClassVar[NeighboringRelation] = NeighboringRelation.REPLACE_ONE

    def _event(self, noise_multiplier: float, examples: int) -> DpEvent:
        # Multipliers are relative to the sensitivity under REPLACE_ONE, which is 2S.
        return SampledWithoutReplacementDpEvent(examples, self.batch_size, GaussianDpEvent(noise_multiplier / 2.0))

    def _draws(self, rows: int, examples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        while True:
            yield _subset(rows, self.batch_size, rng)

    def largest(self, examples: int) -> int:
        self.check(examples)
        return self.batch_size

    def describe(self, examples: int, unit: str = "record") -> str:
        return f"without replacement: each step draws exactly {self.batch_size} of {examples} {unit}s, afresh"


class _InPasses(Sampling):
    """Disjoint batches of all records, pass after pass: one Gaussian mechanism for each pass STARTED, by zero-out.

    Several records of one owner, k at most, all zeroed out: given the order, which is the same for both data sets, what
    the owner adds to the releases is the sum of what k single records add, so by the triangle inequality it is at most
    k times as long: the noise multiplier counts as z / k. That is attained by equal records that come in one batch.
    """

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.REPLACE_SPECIAL

    def _event(self, noise_multiplier: float, examples: int) -> DpEvent:
        return GaussianDpEvent(noise_multiplier)

    def _event_of_owner(
        self, noise_multiplier: float, examples: int, noise: Correlated | None, records: int
    ) -> DpEvent:
        return self.event(noise_multiplier / records, examples, noise)

    def refuse_owners(self) -> None:
        """Zeroing out several records is zeroing them out one after the other."""

    def _charges(self, steps: int, examples: int) -> int:
        """How many passes `steps` consecutive updates start: the visits of a record that is in the first batch of each.

        Counted from the start of a pass.
        """
        return -(-steps // self.steps_per_epoch(examples))

    def largest(self, examples: int) -> int | None:
        self.check(examples)
        return None if examples % self.batch_size else self.batch_size


@dataclass(frozen=True)
class Partition(_InPasses):
    """Cuts a fresh permutation into disjoint batches, every epoch; the last batch may be short.

    Guarantee: zero-out (one record is replaced by an empty one that contributes nothing; the number of records is
    public). A record is in one batch of an epoch, so an epoch STARTED costs one Gaussian mechanism. Under add-or-remove
    this would be false: taking a record out shifts others into other batches.
    Source: parallel composition; the relation is that of Kairouz et al. 2021, arXiv:2103.00039, Definition 1.1.
    """

    kind: ClassVar[str] = "partition"

    def _squared_sensitivity(self, noise: Correlated, steps: int, examples: int) -> float:
        """The smaller of two bounds for a record that comes once in each epoch of b steps, anywhere in it.

        1. Visits of every other epoch are at least b + 1 steps apart. Split its visits into those of epochs 0, 2, ...
           and those of 1, 3, ..., which start at step b at the earliest: the shifts of the record are the sum of two
           such streams', so by the triangle inequality Delta is at most the sum of theirs.
        2. All visits are at least 1 step apart.
        """
        b = self.steps_per_epoch(examples)
        epochs = self._charges(steps, examples)
        even = noise.squared_sensitivity((epochs + 1) // 2, b + 1, steps)
        odd = noise.squared_sensitivity(epochs // 2, b + 1, steps - b)
        return min((math.sqrt(even) + math.sqrt(odd)) ** 2, noise.squared_sensitivity(epochs, 1, steps))

    def _draws(self, rows: int, examples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        while True:
            order = rng.permutation(rows)
            for start in range(0, rows, self.batch_size):
                yield order[start : start + self.batch_size].copy()

    def describe(self, examples: int, unit: str = "record") -> str:
        return (
            f"partition: every epoch cuts a fresh permutation of {examples} {unit}s into disjoint batches of"
            f" {self.batch_size}"
        )


@dataclass(frozen=True)
class Cyclic(_InPasses):
    """Cuts one permutation, drawn once and kept secret, into disjoint batches, and goes round them: ordinary epochs.

    Every record is at the same place of each pass, so its visits are exactly b = ceil(examples / batch_size) steps
    apart: with `tfdp.noise.Correlated` that makes epochs about as cheap as Poisson sampling. The last batch of a pass
    may be short; sums are divided by the constant batch_size all the same.

    Guarantee: zero-out (one record is replaced by an empty one that contributes nothing; the number of records and all
    places are the same). With independent noise a pass STARTED costs one Gaussian mechanism, as for `Partition`; with
    correlated noise see `Correlated`: visits in steps 0, b, 2 b, ... are the worst. Under add-or-remove this would be
    false: taking a record out moves others to other batches, in every pass.
    Source: see `Correlated`; the relation is that of Kairouz et al. 2021, arXiv:2103.00039, Definition 1.1.
    """

    kind: ClassVar[str] = "cyclic"
    fixed: ClassVar[bool] = True

    def _squared_sensitivity(self, noise: Correlated, steps: int, examples: int) -> float:
        return noise.squared_sensitivity(self._charges(steps, examples), self.steps_per_epoch(examples), steps)

    def _draws(self, rows: int, examples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        order = rng.permutation(rows)
        while True:
            for start in range(0, rows, self.batch_size):
                yield order[start : start + self.batch_size].copy()

    def describe(self, examples: int, unit: str = "record") -> str:
        return (
            f"cyclic: one secret order of {examples} {unit}s, cut into disjoint batches of {self.batch_size}, is"
            f" followed in every pass, so a {unit} comes back every {self.steps_per_epoch(examples)} steps"
        )


_KINDS: dict[str, type[Sampling]] = {cls.kind: cls for cls in (Poisson, TruncatedPoisson, FixedSize, Partition, Cyclic)}


def drawing_all(relation: NeighboringRelation, examples: int) -> Sampling:
    """The sampling that draws every record, once, for what is released of all of them under this relation.

    Raises: ValueError unless `examples` is a whole number, 1 or more.
    """
    examples = whole_number("examples, the number of records (or units),", examples, minimum=1)
    kinds: dict[NeighboringRelation, type[Sampling]] = {
        NeighboringRelation.ADD_OR_REMOVE_ONE: Poisson,
        NeighboringRelation.REPLACE_ONE: FixedSize,
        NeighboringRelation.REPLACE_SPECIAL: Partition,
    }
    return kinds[relation](examples)


def is_sampler(value: Any) -> bool:
    """Whether it is of exactly one of these types, without methods of its own, and so draws as it is charged."""
    return type(value) in _KINDS.values() and not replaced(value)


def sampling_from_json(value: Mapping[str, Any]) -> Sampling:
    """Reads what `Sampling.to_json` wrote.

    Raises:
        ValueError: not a mapping, an unknown kind, or missing, unknown or invalid fields.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"A sampling must be a JSON object. Received: {value!r}.")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"Unknown sampling kind {kind!r}. Known kinds: {sorted(_KINDS)}.")
    fields = {field.name for field in dataclasses.fields(_KINDS[kind])}
    given = set(value) - {"kind"}
    if given != fields:
        raise ValueError(f"Sampling {kind!r} needs exactly the fields {sorted(fields)}. Received: {sorted(given)}.")
    return _KINDS[kind](**{name: value[name] for name in fields})


def _poisson_draw(rows: int, probability: float, rng: np.random.Generator, cap: int | None = None) -> np.ndarray:
    """A binomial size, then a uniform subset of that size: the distribution of independent coins, in O(size).

    In random order, as all draws: a float32 sum can be made to round badly by the order of its records.
    """
    size = int(rng.binomial(rows, min(probability, 1.0)))
    return _subset(rows, size if cap is None else min(size, cap), rng)


def _subset(rows: int, size: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(rows, size=size, replace=False).astype(np.int64, copy=False)
