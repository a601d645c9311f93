"""A segment of a ledger: equal releases, counted before they are made."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdp_layers.accounting.budget import Affordability, Budget
from tfdp_layers.accounting.entries import Entries, Row
from tfdp_layers.accounting.limits import Limit, refuse_larger
from tfdp_layers.accounting.releases import AnyRelease


@dataclass
class Segment:
    """An open segment.

    Attributes:
        token: names it.
        release: what each of them reveals.
        entry: name of the entry that counts them.
        outstanding: how many are reserved and not settled.
        running: whether a training makes them, between two reservations too.
        within: the ledger's budget as that training knows it.
    """

    token: str
    release: AnyRelease
    entry: str
    outstanding: int = 0
    running: bool = False
    within: Budget | None = None
    _afford: dict[Limit, tuple[Any, Affordability]] = field(default_factory=dict)
    _row: tuple[Entries, Row] | None = None

    def row(self, entries: Entries) -> Row:
        """The row of its release in the ledger's entries; kept, since to look a release up takes as long as a write."""
        if self._row is None or self._row[0] is not entries:
            self._row = entries, entries.row(self.release)
        return self._row[1]

    def keep_within(self, budget: Budget | None) -> None:
        """Takes over the ledger's budget. Raises LedgerError where a training runs within a smaller one."""
        if self.running:
            refuse_larger(self.within, budget)
        self.within = budget

    def stop(self) -> None:
        """The training that made them is over, interrupted maybe: what it reserved and did not settle stays counted."""
        if self.running:
            self.running, self.outstanding = False, 0

    def restart(self, entry: str) -> None:
        """Counts in another entry from here on."""
        self.entry, self.outstanding, self.running, self._afford = entry, 0, False, {}

    def affordable(self, entries: Entries, limits: Sequence[Limit], steps: int) -> int:
        """How many of `steps` further releases all limits afford, beside all that is in `entries`."""
        return min((self._afforded(entries, limit, steps) for limit in limits), default=steps)

    def require(self, entries: Entries, limits: Sequence[Limit], steps: int) -> None:
        """Raises BudgetExhausted unless all of them are affordable."""
        for limit in limits:
            affordable = self._afforded(entries, limit, steps)
            if affordable < steps:
                spent = self._affordability(entries, limit).epsilon(self._held(entries))
                raise limit.refusal(self.token, steps, affordable, spent)

    def exhausted(self, entries: Entries, limits: Sequence[Limit], steps: int) -> Limit | None:
        """The limit that affords least, and no more than `steps` further releases; of equal ones its own. Or None."""
        found = [(self._afforded(entries, limit, steps + 1), limit.token != self.token, limit) for limit in limits]
        least = min(found, default=None, key=lambda one: one[:2])
        return None if least is None or least[0] > steps else least[2]

    def _afforded(self, entries: Entries, limit: Limit, steps: int) -> int:
        held = self._held(entries)
        return max(0, self._affordability(entries, limit).most(held + steps) - held)

    def _held(self, entries: Entries) -> int:
        entry = entries.get(self.entry)
        return entry.steps if entry else 0

    def _affordability(self, entries: Entries, limit: Limit) -> Affordability:
        history = (entries, entries.changes(but=self.entry))
        known = self._afford.get(limit)
        if known is None or known[0] != history:
            known = self._afford[limit] = history, limit.affordability(entries, self.entry, self.release)
        return known[1]
