"""What a ledger holds, to look at."""

from collections import Counter
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent, NeighboringRelation

from tfdp_layers.accounting.budget import Budget
from tfdp_layers.accounting.entries import Entry
from tfdp_layers.accounting.grouping import refuse_regrouping
from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.accounting.releases import AnyRelease, groupings_in
from tfdp_layers.accounting.remarks import KEPT
from tfdp_layers.accounting.state import State
from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.instances import Elsewhere, kind_of

__all__ = ["View", "charged_beside", "no_ledger", "state_of"]


class View:
    """The part of a `Ledger` that changes nothing."""

    _state: State
    _threads: Any  # a lock that a thread may take again
    epsilon, get_epsilon, spent = Elsewhere.several(3, "What was spent is tfdp.accounting.epsilon(ledger, delta=1e-5).")
    privacy_statement, statement = Elsewhere.several(
        2, "It is tfdp.accounting.Statement.from_ledger(ledger, delta=1e-5)."
    )
    save, write = Elsewhere.several(
        2,
        "What Ledger('ledger.json') counts is in that file by itself; one in memory goes there by"
        " tfdp.accounting.Ledger('ledger.json').merge(ledger), and a model's by model.ledger = Ledger('ledger.json').",
    )
    delta = Elsewhere(
        "Delta is chosen by who asks: tfdp.accounting.epsilon(ledger, delta=1e-5); of a budget, ledger.budget."
    )

    @property
    def uid(self) -> str:
        """Random name of this ledger, kept by its copies and its file."""
        return self._state.identity.uid

    @property
    def dataset(self) -> str | None:
        """The data set that the ledger is kept for; None where it is one of a run."""
        return self._state.identity.dataset

    @property
    def budget(self) -> Budget | None:
        """What everything in the ledger together keeps to; None without a budget."""
        return self._state.identity.budget

    @property
    def secret(self) -> str:
        """The key of the digests that say which records belong to one unit, for `grouping_of`. Keep it secret."""
        return self._state.identity.secret

    @property
    def path(self) -> Path | None:
        """The file, or None in memory."""
        return self._state.path

    def is_same(self, other: "View") -> bool:
        """Whether both are names of one ledger, as those of joined models are."""
        return self.__dict__ is other.__dict__

    @property
    def is_copy(self) -> bool:
        """Whether it is one of a data set's ledger, a fork's of one in memory, or that of a worker which is not the
        chief: to read and merge, not to charge."""
        return self._state.is_copy

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._seen().entries)

    @property
    def broken_off(self) -> bool:
        """Whether an error ended a training that it counts: how far that got may tell of a record. See statements."""
        return "broken_off" in self.noted

    @property
    def noted(self) -> frozenset[str]:
        """What statements say of trainings that it counts, beside the numbers: kinds of `accounting.remarks`."""
        return self._seen().identity.noted

    @property
    def apart(self) -> tuple[str, ...]:
        """The names of files whose copy this is, and which lack what was charged to the copy."""
        identity = self._seen().identity
        return tuple(sorted(identity.apart)) if identity.dataset is None else ()

    @property
    def releases(self) -> tuple[AnyRelease, ...]:
        """The distinct releases of all entries."""
        return tuple(row.release for row in self._seen().entries.rows)

    @property
    def relation(self) -> NeighboringRelation | None:
        """The neighbouring relation of all entries; None while the ledger is empty."""
        return next((row.release.relation for row in self._seen().entries.rows), None)

    @property
    def unit(self) -> str | None:
        """Whom the entries protect: "record", "unit", "owner", "party" (its whole data set), None while empty."""
        return next((row.release.unit for row in self._seen().entries.rows), None)

    @property
    def steps(self) -> int:
        """How many releases were made or reserved: of steps, metrics, tests, and sums beside them."""
        return self._seen().entries.steps

    @property
    def updates(self) -> int:
        """How many of them are steps of an optimizer, or tests of a party; of a search, those of its best trial."""
        return self._seen().entries.updates

    def events(self) -> Counter[DpEvent]:
        """How often each event was released: what the accountants compose."""
        return self._seen().entries.events()

    def check(self, release: AnyRelease) -> None:
        """Raises ValueError where the release has another relation or unit, or groups the same records otherwise."""
        self._seen().entries.refuse_mixing(release)
        refuse_regrouping(self.uid, groupings_in(release), release.unit)

    def holds(self, other: "View") -> bool:
        """Whether a merge of `other` would change nothing. Raises ValueError for anything but a ledger."""
        return self.counts(other) and state_of(other).identity.noted <= self.noted | {KEPT}

    def counts(self, other: "View") -> bool:
        """Whether it counts all that `other` does, whatever that says besides. Raises: as `holds`."""
        mine = self._seen().entries
        return all((found := mine.get(entry.uid)) and found.steps >= entry.steps for entry in state_of(other).entries)

    def _look(self) -> None:
        """Takes over what others wrote to the file, so that what is stated of this ledger is stated of the file.

        All that states or spends does so first. Raises LedgerError where the file is no whole ledger any more.
        """
        with self._threads:
            self._state.look()

    def _seen(self) -> State:
        """What is read of the ledger, whoever asks: what its file holds, as in a statement. Raises LedgerError."""
        self._look()
        return self._state

    def to_json(self) -> str:
        """Returns the ledger as JSON text, one entry a line."""
        return self._seen().text()

    def _look_if_free(self) -> str:
        """Looks, unless another thread is at it; says what hinders it where the file cannot be read."""
        if not self._threads.acquire(blocking=False):
            return ""
        try:
            self._state.look()
        except LedgerError as error:
            return f", as it was read last: {error}"
        finally:
            self._threads.release()
        return ""

    def __repr__(self) -> str:
        """What the file holds now, where there is one."""
        hindered, entries = self._look_if_free(), self._state.entries
        relation = next((row.release.relation.name for row in entries.rows), None)
        named = f", dataset={self.dataset!r}" if self.dataset is not None else ""
        counts = f"entries={len(entries)}, steps={entries.steps}"
        path = None if self.path is None else str(self.path)
        budget = (
            f", budget=({rounded_up(self.budget.epsilon, 6)}, {rounded_up(self.budget.delta, 6)})"
            if self.budget is not None
            else ""
        )
        return f"{type(self).__name__}(path={path!r}{named}{budget}, {counts}, relation={relation}{hindered})"


def state_of(ledger: Any) -> State:
    """What a ledger holds. Raises ValueError for anything else, such as the model that it is of."""
    if not isinstance(ledger, View):
        raise no_ledger(ledger)
    return ledger._seen()


def no_ledger(given: Any) -> ValueError:
    """The error of what is given in the place of a ledger."""
    return ValueError(
        "What was spent is in a ledger: give model.ledger, or tfdp.accounting.Ledger('ledger.json') of a file."
        f" Received: {kind_of(given)}."
    )


def charged_beside(ledger: Any, token: str | None) -> tuple[Any, ...]:
    """What changes with the releases that a ledger counts beside those of one segment, and with the budgets in force.

    It takes microseconds, and does not look at the file. Args: token: of the segment; None of none.
    """
    entries, segment = ledger._state.entries, ledger._segments.get(token)
    mine = None if segment is None else entries.get(segment.entry)
    return entries.steps - (0 if mine is None else mine.steps), *ledger._limits()
