"""What every sampler owns: its neighbouring relation, its cost and its draws, so that they cannot drift apart."""

import abc
import dataclasses
import math
import operator
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation, NonPrivateDpEvent, NoOpDpEvent

from tfdp_layers.instances import shown
from tfdp_layers.sampling.correlated import Correlated

_LEAST_NOISE, _MOST_NOISE = 1e-12, 1e7


def entropy_generator(seed: int | None = None) -> np.random.Generator:
    """Returns a counter-based generator (Philox) keyed by the operating system's entropy.

    Args:
        seed: for tests only. The guarantee assumes that nobody can predict the draws: a seed voids the privacy
            statement.

    Raises:
        ValueError: the seed is not a non-negative integer.
    """
    if seed is None:
        return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
    return np.random.Generator(np.random.Philox(whole_number("seed", seed, minimum=0)))


@dataclass(frozen=True)
class Sampling(abc.ABC):
    """Draws record indices, and says what one step on them costs.

    Attributes:
        batch_size: EXPECTED number of records in a step; public, and what the noisy sum is divided by.
        kind: name in files and statements.
        relation: the neighbouring relation under which `event` is stated.
        fixed: whether one order is drawn once, and every pass over the data follows it.
    """

    batch_size: int
    kind: ClassVar[str]
    relation: ClassVar[NeighboringRelation]
    fixed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole_number("batch_size", self.batch_size, minimum=1))

    def check(self, examples: int) -> None:
        """Raises ValueError unless this sampler can draw from `examples` records (a declared, public number)."""
        examples = whole_number("examples", examples, minimum=1)
        if self.batch_size > examples:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the data (examples={examples}; units, where"
                f" unit_ids are given): no step can draw so many. Use a smaller batch_size (32 is Keras' default), at"
                f" most {examples}; the smaller a part of the data a step draws, the less it costs."
            )

    def steps_per_epoch(self, examples: int) -> int:
        """Steps that draw every record once on average: ceil(examples / batch_size)."""
        self.check(examples)
        return -(-int(examples) // self.batch_size)

    def event(
        self, noise_multiplier: float, examples: int, noise: Correlated | None = None, records_per_owner: int = 1
    ) -> DpEvent:
        """Returns what ONE charge costs, to be accounted under `relation`.

        Args:
            noise_multiplier: noise standard deviation over the L2 bound on ONE record's contribution to the released
                SUM, all groups of a step already joined. 0 gives NonPrivateDpEvent, infinity (nothing released)
                NoOpDpEvent. Beyond 1e-12 to 1e7 accountants overflow: less counts as 0, and more as 1e7, which is never
                less than it costs, since less noise costs more.
            examples: the declared, public number of records.
            noise: how the noise of the steps is correlated; None where it is independent.
            records_per_owner: how many of the records, at most, change together between neighbours: all that one
                person owns, alone or with others. Above 1 for samplers that `refuse_owners` lets pass.

        Raises:
            ValueError: a negative multiplier or NaN, a data set that `check` refuses, noise that may not be
                correlated on these draws, or several records of an owner on draws that do not hide them.
        """
        self.check(examples)
        # int and numpy scalars inside dp-accounting's events silently lose compositions: Python floats only.
        multiplier = float(noise_multiplier)
        if math.isnan(multiplier) or multiplier < 0:
            raise ValueError(
                f"noise_multiplier must be at least 0. Received: {noise_multiplier!r}. Use the ratio of the noise's"
                " standard deviation to the bound on one record's contribution."
            )
        if multiplier < _LEAST_NOISE:
            return NonPrivateDpEvent()
        if math.isinf(multiplier):
            return NoOpDpEvent()
        multiplier = min(multiplier, _MOST_NOISE)
        if records_per_owner != 1:
            self.refuse_owners()
            records = whole_number("records_per_owner", records_per_owner, minimum=1)
            return self._event_of_owner(multiplier, int(examples), noise, records)
        if noise is not None:
            self.charges(1, examples, noise)
            return noise.event(multiplier)
        return self._event(multiplier, int(examples))

    @abc.abstractmethod
    def _event(self, noise_multiplier: float, examples: int) -> DpEvent:
        """`event` for a finite positive multiplier."""

    def _event_of_owner(
        self, noise_multiplier: float, examples: int, noise: Correlated | None, records: int
    ) -> DpEvent:
        """`event` for a finite positive multiplier, and several records of an owner."""
        raise NotImplementedError

    def refuse_owners(self) -> None:
        """Raises ValueError where it is not known what a draw hides of all records of an owner, emptied together."""
        raise ValueError(
            f"What {type(self).__name__} sampling hides of all records of one owner together is not known here: it is"
            " accounted for one record in another relation than emptied ones. Where records have owners, use"
            " tfdp.sampling.Poisson (the cheapest), Partition or Cyclic."
        )

    def charges(self, steps: int, examples: int, noise: Correlated | None = None) -> int:
        """How many events `steps` consecutive updates cost, counted from a fresh start of the sampler and the noise.

        Raises: ValueError for noise that may not be correlated on these draws.
        """
        self.check(examples)
        steps = whole_number("steps", steps, minimum=0)
        if noise is None:
            return self._charges(steps, int(examples))
        visits = -(-steps // self.steps_per_epoch(examples))
        return noise.charges(self._squared_sensitivity(noise, steps, int(examples)), visits)

    def _charges(self, steps: int, examples: int) -> int:
        """`charges` of independent noise."""
        return steps

    def _squared_sensitivity(self, noise: Correlated, steps: int, examples: int) -> float:
        """Delta^2 of a stream of so many releases, from the start of a pass: see `Correlated`."""
        raise ValueError(
            f"{type(self).__name__} draws every step by chance, and what its chance hides holds for independent noise"
            " alone: with correlated noise a record that is drawn twice in a row would not be paid for. Use"
            " tfdp.sampling.Cyclic or Partition with tfdp.noise.Correlated, or leave noise= out."
        )

    def settled(self, noise: Correlated, steps: int, examples: int) -> Correlated:
        """The noise with its decay: the given one, or the best for so many steps. Raises ValueError as `charges`."""
        self.charges(1, examples, replace(noise, decay=0.0))
        steps = max(1, steps)
        return noise.settled(lambda one: self._squared_sensitivity(one, steps, int(examples)), steps)

    def draws(self, examples: int, rng: np.random.Generator, *, rows: int | None = None) -> Iterator[np.ndarray]:
        """Returns an endless iterator over draws.

        Args:
            examples: the declared, public number of records.
            rng: see `entropy_generator`. Two iterators must not share a copy of its state: draws would be replayed.
            rows: how many records there really are, where that differs from `examples` (`Poisson` only).

        Returns:
            int64 vectors of distinct indices into the rows, in no particular order, sometimes empty (`Poisson`).

        Raises:
            ValueError: what `check` refuses, or `rows` differing from `examples` where the guarantee needs them equal.
        """
        self.check(examples)
        count = int(examples) if rows is None else whole_number("rows", rows, minimum=1)
        self._check_rows(count, int(examples))
        return self._draws(count, int(examples), rng)

    def _check_rows(self, rows: int, examples: int) -> None:
        if rows != examples:
            raise ValueError(
                f"The data have {rows} rows but examples={examples} was declared: the cost of {type(self).__name__}"
                " sampling depends on the number of records. Declare the real number, or use sampling.Poisson."
            )

    @abc.abstractmethod
    def _draws(self, rows: int, examples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """`draws` after its checks."""

    def largest(self, examples: int) -> int | None:
        """The constant batch shape that every draw fits into, or None where there is none."""
        return None

    @abc.abstractmethod
    def describe(self, examples: int, unit: str = "record") -> str:
        """One sentence for people: how records are drawn, or what else `unit` is the word for."""

    def to_json(self) -> dict[str, Any]:
        """Returns the sampler as a dict of JSON values; `sampling_from_json` reads it."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


def whole_number(name: str, value: Any, minimum: int) -> int:
    """The value as an integer. Raises ValueError for another type, or below the minimum."""
    if isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be an integer. Received: {value!r}.")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(
            f"{name} must be an integer. Received: {shown(value)} of type {type(value).__name__}."
        ) from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}. Received: {value!r}.")
    return number
