"""What a party releases where it tests before it uploads: a threshold test, and the noisy value that passed it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dp_accounting import DpEvent, NeighboringRelation

from tfdp_layers.accounting.fields import exactly, nonnegative
from tfdp_layers.accounting.pure import NumericSparseDpEvent

__all__ = ["NumericSparse"]


@dataclass(frozen=True)
class NumericSparse:
    """One threshold test on a party's clipped changes, and the noisy value that is released after it.

    Each test STARTED is one release in the ledger, whether it found a value or not.

    Guarantee: (test_epsilon + value_epsilon)-differential privacy when the party's WHOLE data set is replaced. Every
    change is clipped to [-bound, bound], whatever the data, so a magnitude moves by at most `bound` and a value by at
    most 2 bound. AboveThreshold: bound / threshold_scale + 2 bound / query_scale; Laplace: 2 bound / value_scale.

    Attributes:
        bound: of each change, in units of a weight's change; above 0.
        threshold_scale, query_scale, value_scale: scales of the Laplace noise on the threshold, on each magnitude that
            is compared with it, and on the value released; same units; above 0.
        seeded: a seeded noise source was used, which voids the statement.
    Raises:
        ValueError: a number that is not finite and above 0, or a flag that is no boolean.
    Source: Dwork, Roth 2014, Algorithms 1 and 3; the privacy of AboveThreshold for two scales is in the proof of its
      Theorem 3.23.
    """

    bound: float
    threshold_scale: float
    query_scale: float
    value_scale: float
    seeded: bool = False
    kind: ClassVar[str] = "numeric_sparse"
    purpose: ClassVar[str] = "test"
    unit: ClassVar[str] = "party"
    declared: ClassVar[bool] = False
    drawn: ClassVar[str] = "whole_data_set"
    relation: ClassVar[NeighboringRelation] = NeighboringRelation.REPLACE_ONE
    sequential: ClassVar[bool] = False
    updates: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for field in ("bound", "threshold_scale", "query_scale", "value_scale"):
            value = nonnegative(field, getattr(self, field))
            if value == 0:
                raise ValueError(f"{field} must be above 0: without noise a test has no guarantee. Received: 0.")
            object.__setattr__(self, field, value)
        if not isinstance(self.seeded, bool):
            raise ValueError(f"seeded must be True or False. Received: {self.seeded!r}.")

    @property
    def test_epsilon(self) -> float:
        """What a test costs, however many magnitudes it compares."""
        return self.bound / self.threshold_scale + 2.0 * self.bound / self.query_scale

    @property
    def value_epsilon(self) -> float:
        """What the value released after a test costs."""
        return 2.0 * self.bound / self.value_scale

    def as_published(self) -> "NumericSparse":
        """The release itself: it is accounted as it holds."""
        return self

    def event(self) -> DpEvent:
        """What one charge costs under `relation`, its one record being the party's whole data set."""
        return NumericSparseDpEvent(self.test_epsilon, self.value_epsilon)

    def charges(self, steps: int) -> int:
        """How many events `steps` tests cost: as many."""
        return steps

    def to_json(self) -> dict[str, Any]:
        """Returns the release as a dict of JSON values; `release_from_json` reads it."""
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "NumericSparse":
        """Reads what `to_json` wrote. Raises ValueError for missing, unknown or invalid fields."""
        fields = {"bound", "threshold_scale", "query_scale", "value_scale", "seeded"}
        exactly("A numeric_sparse release", value, {"kind", *fields})
        return cls(**{name: value[name] for name in fields})
