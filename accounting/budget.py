"""A budget for everything that is ever released from one data set, and how much more of it fits."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from tfdp_layers.accounting.composition import smallest_epsilon
from tfdp_layers.accounting.failures import FailsTooOften, without_failures
from tfdp_layers.accounting.releases import AnyRelease
from tfdp_layers.accounting.renyi import rdp_epsilon

__all__ = ["Affordability", "Budget", "BudgetExhausted"]


class BudgetExhausted(RuntimeError):  # noqa: N818 (named as the attribute of PrivacyBudget that tells of it)
    """Not one more release fits into the budget."""


@dataclass(frozen=True)
class Budget:
    """The epsilon that all releases of a ledger together may reach at this delta.

    Attributes:
        epsilon: finite and above 0.
        delta: in (0, 1); choose at most 1 / number of records.
    Raises:
        ValueError: a number out of range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for field, above in (("epsilon", math.inf), ("delta", 1.0)):
            given = getattr(self, field)
            try:
                value = math.nan if isinstance(given, bool | str) else float(given)
            except (TypeError, ValueError, OverflowError):
                value = math.nan
            if not 0.0 < value < above:
                raise ValueError(
                    f"A budget's {field} must be a number above 0 and below {above:g}. Received: {field}={given!r}. For"
                    " example budget=(3.0, 1e-5): epsilon 3 at delta 1e-5, at most 1 / number of records."
                )
            object.__setattr__(self, field, value)

    @classmethod
    def of(cls, value: Any) -> "Budget":
        """A `Budget`, or a pair (epsilon, delta). Raises ValueError for anything else."""
        if isinstance(value, Budget):
            return value
        if not isinstance(value, list | tuple) or len(value) != 2:
            numbers = " Give its numbers: (budget.epsilon, budget.delta)." if hasattr(value, "delta") else ""
            raise ValueError(
                f"budget must be a pair (epsilon, delta), for example (3.0, 1e-5). Received: {value!r}.{numbers}"
            )
        return cls(*value)

    def to_json(self) -> dict[str, float]:
        """Returns the budget as a dict of JSON values."""
        return {"epsilon": self.epsilon, "delta": self.delta}

    @classmethod
    def from_json(cls, value: Any) -> "Budget":
        """Reads what `to_json` wrote. Raises ValueError for missing, unknown or invalid fields."""
        if not isinstance(value, Mapping) or set(value) != {"epsilon", "delta"}:
            raise ValueError(f"A budget needs exactly the fields epsilon and delta. Received: {value!r}.")
        return cls(value["epsilon"], value["delta"])


class Affordability:
    """How many equal releases a budget affords on top of a fixed history.

    Exact: the answer's epsilon was computed and is at most the budget, one more release exceeds it. The counts probed
    double until one does not fit, so that n questions cost about 2 log2(n) evaluations, of a
    millisecond each, and near the end of the budget of tens of milliseconds.

    Args:
        budget: for all releases together.
        before: how often each event of the rest of the ledger was released.
        release: what each of them reveals, counted from a fresh start of its sampler.
    """

    def __init__(self, budget: Budget, before: Mapping[DpEvent, int], release: AnyRelease) -> None:
        self._budget, self._before, self._release = budget, Counter(dict(before)), release
        self._event = release.event()
        self._fits = 0 if self._within(0) else -1
        self._exceeds: int | None = None if self._fits == 0 else 0

    def epsilon(self, steps: int) -> float:
        """The smallest epsilon that an accountant proves after `steps` releases.

        Raises:
            NotImplementedError: no installed accountant can bound what was released.
        """
        return smallest_epsilon(self._counts(steps), self._release.relation, self._budget.delta)[0]

    def _counts(self, steps: int) -> Counter[DpEvent]:
        return self._before + Counter({self._event: self._release.charges(steps)})

    def _within(self, steps: int) -> bool:
        # A Renyi bound is a bound too, in a millisecond: it spares the exact one until the budget is nearly spent.
        try:
            rest, left = without_failures(self._counts(steps), self._budget.delta)
        except FailsTooOften:
            return False
        quick = rdp_epsilon(tuple(rest.items()), self._release.relation, left)
        return quick <= self._budget.epsilon or self.epsilon(steps) <= self._budget.epsilon

    def most(self, steps: int) -> int:
        """The largest number of releases, at most `steps`, that fits; -1 where the history alone exceeds the budget."""
        while self._fits < steps and self._exceeds is None:
            self._probe(max(steps, 2 * self._fits))
        while self._exceeds is not None and self._fits < steps and self._exceeds - self._fits > 1:
            self._probe((self._fits + self._exceeds) // 2)
        return min(self._fits, steps)

    def _probe(self, steps: int) -> None:
        if self._within(steps):
            self._fits = steps
        else:
            self._exceeds = steps
