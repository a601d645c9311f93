"""What bounds the releases of a ledger: its data set's budget, and those of the trainings that run on it."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tfdp_layers.accounting.budget import Affordability, Budget, BudgetExhausted
from tfdp_layers.accounting.entries import Entries
from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.accounting.releases import AnyRelease
from tfdp_layers.accounting.wording import given_text, rounded_up

__all__ = ["Limit", "Sparing", "refuse_larger"]


@dataclass(frozen=True)
class Limit:
    """A budget in force: whatever is reserved, everything in the ledger together keeps to it.

    Attributes:
        budget: of all releases together.
        dataset: whose budget it is, where it is that of a data set.
        token: the segment of the training whose budget it is.
        nominal: whether algorithms used as printed count as their publications state, which is no guarantee.
    """

    budget: Budget
    dataset: str | None = None
    token: str | None = None
    nominal: bool = False

    def whose(self, token: str) -> str:
        """The budget, in words, for whoever reserves in the segment `token`."""
        if self.dataset is not None:
            return f"The budget of the data set {self.dataset!r}"
        if self.token == token:
            return "The budget of this training"
        return "The budget of another training that runs on this ledger"

    @property
    def _given(self) -> str:
        return given_text(self.budget.epsilon, self.budget.delta)

    def affordability(self, entries: Entries, entry: str, release: AnyRelease) -> Affordability:
        """What it affords of a release, beside all entries but the one that counts it."""
        if self.nominal:
            entries, release = entries.as_published() or entries, release.as_published()
        return Affordability(self.budget, entries.events(but=entry), release)

    def refuse(self, entries: Entries, more: Entries) -> None:
        """Raises BudgetExhausted unless all entries keep to the budget, with those that are about to be released."""
        both = Entries()
        for each in (entries, more):
            both.absorb(each)
        release = next((row.release for row in more.rows), None)
        if release is None:
            return
        found = self.affordability(both, "", release)
        if found.most(0) < 0:
            raise BudgetExhausted(
                f"{self.whose('')} is {self._given}, and what was"
                f" about to be released would make it {rounded_up(found.epsilon(0))}. Nothing was released. Use more"
                " noise (noise_multiplier), or decide on a larger budget."
            )

    def refusal(self, token: str, steps: int, affordable: int, spent: float) -> BudgetExhausted:
        """Says that `steps` releases are too many in the segment `token`."""
        others = "" if self.dataset or self.token == token else " Or let the other training end before."
        fix = (
            "Use more noise, or decide on a larger budget: ledger.set_budget(epsilon, delta)."
            if self.dataset is not None
            else "Use more noise, or a larger PrivacyBudget."
        )
        return BudgetExhausted(
            f"{self.whose(token)} is {self._given};"
            f" {rounded_up(spent)} of it is spent by all that was trained and released so far, and {steps} more of"
            f" these releases would exceed it ({affordable} fit). Nothing was released. {fix}{others}"
        )


def refuse_larger(old: Budget | None, new: Budget | None) -> None:
    """Raises LedgerError for a larger budget while a training runs: its best weights count what the old one affords."""
    if old is not None and new is not None and (new.epsilon > old.epsilon or new.delta > old.delta):
        raise LedgerError(
            f"A training runs on this ledger, within its budget ({old.epsilon}, {old.delta}): what is said of its best"
            " weights counts on that. Raise the budget when it has ended, and train on."
        )


class Sparing:
    """Keeps threads from charging a ledger while code of the caller runs whose number of runs must not show in it."""

    def __init__(self) -> None:
        self._why: dict[int, str] = {}

    @contextlib.contextmanager
    def by(self, why: str) -> Iterator[None]:
        """Inside, this thread reserves and merges nothing: both raise ValueError, which says why. It may settle."""
        here = threading.get_ident()
        before = self._why.get(here)
        self._why[here] = why
        try:
            yield
        finally:
            del self._why[here]
            if before is not None:
                self._why[here] = before

    def refuse(self) -> None:
        """Raises ValueError in a thread that may not charge now."""
        why = self._why.get(threading.get_ident())
        if why is not None:
            raise ValueError(why)
