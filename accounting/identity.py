"""Whose ledger it is: its random name, the data set that it is kept for, and that data set's budget."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdp_layers.accounting.budget import Budget

__all__ = ["Identity", "checked_name"]

_LONGEST_NAME = 200


@dataclass(frozen=True)
class Identity:
    """Random name of a ledger, the data set it is kept for (None: it is one of a run), and the budget (None: none).

    Its secret is that of its groupings: see `grouping`. It is no part of a copy, and stands in no text but its file.
    What statements say of trainings that it counts is (kinds of `remarks`), and that an earlier file of its own was
    restored, which then lacks what was counted since: whoever merges it takes these over.

    A copy of a file's ledger, of no named data set, says so: by the file's name (`copy_of`; of what took over copies of
    several files by all of these), and in `apart` by the names of those which lack what was charged to it. A file's own
    ledger is no copy.
    """

    uid: str
    dataset: str | None = None
    budget: Budget | None = None
    secret: str = field(default="", repr=False)
    noted: frozenset[str] = frozenset()
    copy_of: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()

    def named(self, dataset: str | None, budget: Budget | None, path: Path | None) -> "Identity":
        """With this data set and budget where it has none; None keeps what it has.

        Raises:
            ValueError: it has others, or would have a budget without a data set; `path` is named in the message.
        """
        name = self.dataset if dataset is None else checked_name(dataset)
        if name is None:
            raise ValueError("A budget is kept for a data set: give dataset='name' with it.")
        if self.dataset not in (None, name):
            raise ValueError(f"{path} is the ledger of the data set {self.dataset!r}, not of {name!r}.")
        if budget is not None and self.budget not in (None, budget):
            raise ValueError(
                f"{path} keeps the data set {name!r} to {self.budget}, not to {budget}. To change it on purpose:"
                " ledger.set_budget(epsilon, delta)."
            )
        return replace(self, dataset=name, budget=budget or self.budget)

    def noting(self, kinds: Iterable[str]) -> "Identity":
        """With these kinds of remarks, too."""
        return replace(self, noted=self.noted.union(kinds))

    def copied(self, path: Path | None) -> "Identity":
        """Of a copy of the ledger, which is in this file, or (None) in memory."""
        copied = replace(self, secret="")
        if path is None or self.dataset is not None:
            return copied
        return replace(copied, copy_of=frozenset({path.name}), apart=frozenset())  # the file has all that is here

    def taking(self, other: "Identity", path: Path | None) -> "Identity":
        """With whose copy it becomes, in memory, by taking over what another one counts, which is in this file."""
        copied = other.copied(path)
        if self.dataset is None and other.dataset is not None:
            return replace(self, dataset=other.dataset, budget=other.budget)
        if self.dataset is None and copied.copy_of:
            return replace(self, copy_of=self.copy_of | copied.copy_of, apart=self.apart | copied.apart)
        return self

    def refuse_costs_of(self, other: "Identity", path: Path | None) -> None:
        """Raises ValueError where what was spent on another data set would be counted here."""
        if other.dataset is None or other.dataset == self.dataset:
            return
        if self.dataset is not None:
            raise ValueError(
                f"The ledger of the data set {self.dataset!r} cannot take over what was spent on {other.dataset!r}:"
                f" they protect different records. Where no person has records in both, weights of {other.dataset!r}"
                f" are public to those of {self.dataset!r}: write them with model.to_keras().save_weights(path), and"
                " in a process of its own load_weights(path, public=True) into a new private model, whose ledger is"
                f" that of {self.dataset!r}. Each ledger then states its own cost. Where somebody may be in both, keep"
                " one ledger, of one name, for the two data sets."
            )
        if path is not None:
            raise ValueError(
                f"What was spent on the data set {other.dataset!r} cannot move into {path}, which names no data set."
                f" Use the data set's own ledger, or name this one: Ledger(path, dataset={other.dataset!r})."
            )


def checked_name(name: Any) -> str:
    """Returns the name of a data set. Raises ValueError unless it is a line of printable text."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(
            f"dataset must name the data in 1 to {_LONGEST_NAME} printable characters. Received: dataset={name!r}."
        )
    return name
