"""What the trials of a search release, as it was planned; and what is said where an oracle may have chosen that."""

import contextlib
from collections import Counter
from typing import Any

from keras_tuner.oracles import GridSearchOracle, RandomSearchOracle

from tfdp_layers.accounting import Ledger, LedgerError, Release
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.releases import AnyRelease
from tfdp_layers.accounting.remarks import SEARCHED
from tfdp_layers.caller import warn
from tfdp_layers.instances import replaced

__all__ = ["Releases", "learns", "note_chosen"]


class Releases:
    """What one trial releases, by kinds of releases in words: how many of each its settings plan.

    Of a training that a budget or early stopping cuts short these are the planned steps, and of noise that `fit` finds
    the number is left out: both follow from what was settled beforehand. What the ledger counts beside that is as made.

    Args:
        ledger: that counts the trial, before it begins.
    Attributes:
        whole: whether it came to its end: else what it planned beyond that is not known.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._before, self.whole = ledger, _counted(ledger), False
        self._runs: list[tuple[Any, bool]] = []

    def note(self, model: Any) -> None:
        """Notes a `fit` of the trial's model, as it begins."""
        self._runs.append((model._privacy.run, model.optimizer.multiplier.calibrates))

    def planned(self) -> dict[str, int]:
        """By kinds, how many."""
        beside = _counted(self._ledger) - self._before if self.whole else Counter[str]()
        found = Counter[str]()
        for run, finds in self._runs:
            beside[_words(run.release)] -= run.made
            found[_words(run.release, finds)] += run.plan.steps
        return dict(found + +beside)  # without what is 0

    def agrees(self, first: dict[str, int], released: dict[str, int]) -> bool:
        """Whether a trial releases what the first one does; nothing agrees with all, as a model that failed does."""
        one, other = Counter(first), Counter(released)
        return not other or (other == one if self.whole else other <= one)


def learns(oracle: Any) -> bool:
    """Whether an oracle may choose by scores: all but KerasTuner's own of random search and of a grid."""
    return type(oracle) not in (RandomSearchOracle, GridSearchOracle) or bool(replaced(oracle))


def note_chosen(ledger: Ledger, oracle: Any, first: dict[str, int], other: dict[str, int]) -> None:
    """Has all statements of the ledger say that a search chose what its trials release, and warns of it."""
    with contextlib.suppress(LedgerError):  # the next that is written to its file brings it
        Account(ledger).note([SEARCHED])
    one, another = (", ".join(f"{steps:,} of {kind}" for kind, steps in each.items()) for each in (first, other))
    warn(
        f"Trials of this search release different things ({one}; {another}), and its oracle, {type(oracle).__name__},"
        " may choose that by the released scores of earlier trials. Epsilon adds up what was made, as though it had"
        " been settled beforehand: over all that the search might have chosen, delta can be larger (docs/guarantee.md,"
        " 'What a later fit does'). Give all trials one batch size, number of epochs and noise, or take"
        " RandomSearchOracle or GridSearchOracle, which choose by no score. All statements of this ledger say so, too."
    )


def _counted(ledger: Ledger) -> Counter[str]:
    """How many releases of each kind a ledger counts."""
    found = Counter[str]()
    for entry in ledger.entries:
        found[_words(entry.release)] += entry.steps
    return found


def _words(release: AnyRelease, finds: bool = False) -> str:
    """All that the cost of a release follows from, without the noise where `fit` finds it; not bounds or layers."""
    if not isinstance(release, Release):
        return f"{release.kind} ({release.event()!r})"
    noise = "as found" if finds else f"{release.noise_multiplier:.5g}"
    correlated = "" if release.noise is None else f" {release.noise!r}"
    owned = "" if release.records_per_owner == 1 else f", up to {release.records_per_owner} of one owner"
    return f"{release.kind} by {release.sampling!r} from {release.examples}{owned}, noise {noise}{correlated}"
