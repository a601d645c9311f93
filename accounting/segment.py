"""A segment of a ledger: equal releases, counted before they are made."""

from dataclasses import dataclass
from typing import Any

from tfdp_layers.accounting.budget import Affordability, Budget, BudgetExhausted
from tfdp_layers.accounting.entries import Entries
from tfdp_layers.accounting.releases import AnyRelease


@dataclass
class Segment:
    """An open segment.

    Attributes:
        release: what each of them reveals.
        entry: name of the entry that counts them.
        outstanding: how many are reserved and not settled.
    """

    release: AnyRelease
    entry: str
    outstanding: int = 0
    _afford: tuple[Any, Affordability] | None = None

    def restart(self, entry: str) -> None:
        """Counts in another entry from here on."""
        self.entry, self.outstanding, self._afford = entry, 0, None

    def affordable(self, entries: Entries, budget: Budget | None, steps: int) -> int:
        """How many of `steps` further releases the budget affords, beside all that is in `entries`."""
        if budget is None:
            return steps
        held = self._held(entries)
        return max(0, self._affordability(entries, budget).most(held + steps) - held)

    def require(self, entries: Entries, budget: Budget | None, steps: int, dataset: str | None) -> None:
        """Raises BudgetExhausted unless all of them are affordable."""
        affordable = self.affordable(entries, budget, steps)
        if budget is None or affordable >= steps:
            return
        spent = self._affordability(entries, budget).epsilon(self._held(entries))
        raise BudgetExhausted(
            f"The budget of the data set {dataset!r} is epsilon={budget.epsilon:g} at"
            f" delta={budget.delta:g}; {spent:.4g} of it is spent by all that was trained and released so far, and"
            f" {steps} more of these releases would exceed it ({affordable} fit). Nothing was released. Use more noise,"
            " or decide on a larger budget: ledger.set_budget(epsilon, delta)."
        )

    def _held(self, entries: Entries) -> int:
        entry = entries.get(self.entry)
        return entry.steps if entry else 0

    def _affordability(self, entries: Entries, budget: Budget) -> Affordability:
        history = (entries, budget, entries.changes(but=self.entry))
        if self._afford is None or self._afford[0] != history:
            self._afford = history, Affordability(budget, entries.events(but=self.entry), self.release)
        return self._afford[1]
