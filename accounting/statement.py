"""The privacy statement: what is guaranteed, to whom, under which assumptions, and what is not covered."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dp_accounting import NeighboringRelation

from tfdp_layers.accounting.accountant import epsilon as epsilon_of
from tfdp_layers.accounting.accountant import nominal_epsilon
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.events import GENERATORS
from tfdp_layers.accounting.holders import counted_since
from tfdp_layers.accounting.ledger import Entry, Ledger
from tfdp_layers.accounting.numeric_sparse import NumericSparse
from tfdp_layers.accounting.reach import assumptions, covered, exclusions
from tfdp_layers.accounting.releases import records_released
from tfdp_layers.accounting.remarks import told
from tfdp_layers.accounting.shown import Shown
from tfdp_layers.accounting.sightings import count_of, others_of, sum_of
from tfdp_layers.accounting.stated_releases import (
    Stated,
    StatedMetric,
    StatedRelease,
    StatedSelection,
    StatedTests,
    StatedVocabulary,
    stated,
)
from tfdp_layers.accounting.wording import (
    UNNAMED,
    cost_text,
    dataset_text,
    meaning,
    rounded_up,
    row,
    stated_by,
)
from tfdp_layers.instances import Elsewhere

__all__ = [
    "StatedMetric",
    "StatedRelease",
    "StatedSelection",
    "StatedTests",
    "StatedVocabulary",
    "Statement",
    "protection",
]

_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add or remove one {unit}: data sets are neighbours when one holds"
    " exactly one {unit} more than the other",
    NeighboringRelation.REPLACE_ONE: "replace one {unit}: data sets of the same, public size are neighbours when they"
    " differ in one {unit}",
    NeighboringRelation.REPLACE_SPECIAL: "zero out one {unit}: data sets of the same, public size are neighbours when"
    " one {unit} of the first is replaced in the second by an empty {unit} that contributes nothing, and all others"
    " stay where they were. (An epsilon of Poisson sampling is for another question, one {unit} more or less: the two"
    " do not compare)",
}

_OWNER_RELATION = (
    "empty all records of one {unit}: data sets of the same, public records and owners are neighbours when every"
    " record that one {unit} owns, alone or with others, is replaced in the second by an empty record that contributes"
    " nothing, and all others stay as they were. (That a record is there, and whose it is, is not hidden)"
)
_UNITS = {
    NumericSparse.unit: "one party's whole data set",
    "unit": "one {unit}, with all records it owns",
    "owner": "what all records hold that one {unit} owns, alone or with others",
}
_NAMES = re.compile(r"[^\W\d_][\w -]{0,39}")
_PARTY_RELATION = (
    "replace all its records: data sets are neighbours when this party's records are replaced by any others"
)


@dataclass(frozen=True)
class Statement(Shown):
    """A privacy statement; `str` gives a block of text for people, `to_json` one for programs.

    Attributes:
      epsilon, delta: the guarantee; epsilon is infinite where a group had no noise.
      accountant: what proved it.
      relation, meaning: the neighbouring relation, and what epsilon promises under it, in words.
      privacy_unit: whose contribution is hidden.
      steps: updates of all releases, metrics left out.
      releases: what was released.
      covered, assumptions, exclusions: the reach of the guarantee.
      void: why the statement does not hold at all; empty where it does.
      notes: what the reader should know besides.
      nominal_epsilon: what the publication of a method used as printed would state; not a guarantee. None without one.
      dataset: the data set whose ledger this is, so that all that was trained on it is included; None for a run's.
      budget: (epsilon, delta) that the data set's ledger keeps to; None without one.
      generators: where the noise came from, in words.
      unit: the word for whose contribution is hidden: "record", "unit", or what the caller calls a unit.
      stated: the day, and the versions of this library and of the accountants.
      copied: whether a copy of the data set's ledger was stated, as the one in a saved model.
    """

    save, write, to_file = Elsewhere.several(
        3,
        "Write pathlib.Path(path).write_text(str(statement)); for programs, statement.to_json() in the place of str.",
    )
    to_text, to_markdown, text = Elsewhere.several(3, "Its text is str(statement), for programs statement.to_json().")
    to_dict, json = Elsewhere.several(2, "For programs it is statement.to_json(), or dataclasses.asdict(statement).")

    epsilon: float
    delta: float
    accountant: str
    relation: str
    meaning: str
    privacy_unit: str
    steps: int
    releases: tuple[Stated, ...]
    covered: str
    assumptions: tuple[str, ...]
    exclusions: tuple[str, ...]
    void: tuple[str, ...]
    notes: tuple[str, ...]
    nominal_epsilon: float | None = None
    dataset: str | None = None
    budget: tuple[float, float] | None = None
    generators: tuple[str, ...] = ()
    unit: str = "record"
    stated: str = field(default="", compare=False)
    copied: bool = field(default=False, compare=False)

    @classmethod
    def from_ledger(
        cls, ledger: Ledger, delta: float, unit_name: str | None = None, remarks: Sequence[str] = ()
    ) -> "Statement":
        """States what the ledger holds.

        Args:
          ledger: `model.ledger`, or the data set's own.
          delta: below 1 / number of records, or of units.
          unit_name: what a unit or owner is, "patient" say, where the ledger protects these: it stands in the text in
            place of "unit" or "owner", and changes nothing else.
          remarks: what a model says of its own training, in the place of what its ledger says of the same.

        Raises:
          ValueError: delta is not in (0, 1); or a name that is no word, or for a ledger that protects records.
          NotImplementedError: no installed accountant can bound what was released.
        """
        check_ledger(ledger)
        word = _word(ledger, unit_name)
        spent, nominal = epsilon_of(ledger, delta), nominal_epsilon(ledger, delta)
        entries = [entry for entry in ledger.entries if entry.steps]
        purposes, kind = {entry.release.purpose for entry in entries}, ledger.unit or ""
        whom, relation = protection(spent.relation, kind, word)
        return cls(
            epsilon=float(spent),
            delta=spent.delta,
            accountant=spent.accountant,
            relation=relation,
            meaning=meaning(float(spent), spent.delta, word, _people(entries)),
            privacy_unit=whom,
            steps=ledger.updates,
            releases=stated(entries, word),
            covered=covered(kind, purposes),
            assumptions=assumptions(kind, word, purposes, spent.relation),
            exclusions=exclusions(kind, purposes),
            void=_void(entries, float(spent)),
            notes=(
                *_of_other_ledgers(ledger, spent.delta),
                *_of_later(ledger),
                *_of_file(ledger),
                *_notes(entries, spent.delta, word),
                *told(ledger.noted, remarks),
            ),
            nominal_epsilon=None if nominal is None else float(nominal),
            dataset=ledger.dataset,
            budget=None if ledger.budget is None else (ledger.budget.epsilon, ledger.budget.delta),
            generators=_generators(entries),
            unit=word,
            stated=stated_by(),
            copied=ledger.is_copy and ledger.dataset is not None,
        )

    def to_json(self) -> str:
        """Returns the statement as JSON text; an infinite number becomes null."""
        return json.dumps(_finite(asdict(self)), indent=2, allow_nan=False)

    def __str__(self) -> str:
        lines = [row("Privacy", f"{cost_text(self.epsilon, self.delta)} (by {self.accountant})")]
        if self.nominal_epsilon is not None:
            lines.append(
                row(
                    "Nominal",
                    f"epsilon = {rounded_up(self.nominal_epsilon)} by the publication's own accounting, which does not"
                    " hold: an algorithm was used as printed. The guarantee is the figure above.",
                )
            )
        if self.void:
            lines.insert(0, row("VOID", "THIS STATEMENT DOES NOT HOLD. " + " ".join(self.void)))
        if self.dataset is not None:
            lines.append(row("Data set", dataset_text(self.dataset, self.budget, self.copied)))
        lines += [row("Protects", f"{self.privacy_unit}; {self.relation}"), row("Meaning", self.meaning)]
        if self.dataset is None and self.privacy_unit != _UNITS[NumericSparse.unit]:
            lines.append(row("Data set", UNNAMED))
        lines.append(row("Steps", str(self.steps)))
        for release in self.releases:
            lines += release.rows(self.unit)
        lines += [row("Generator", text) for text in self.generators]
        lines += [row("Note", note) for note in self.notes]
        lines.append(row("Covered", self.covered))
        lines += [row("Not covered", text) for text in self.exclusions]
        lines += [row("Assumed", text) for text in self.assumptions]
        lines += [row("Stated", self.stated)] if self.stated else []
        return "\n".join(lines)


def protection(relation: NeighboringRelation | None, kind: str = "", word: str = "record") -> tuple[str, str]:
    """Whose contribution is hidden, and the neighbouring relation, in words.

    Args:
      relation: of what was released; None for nothing.
      kind: of the ledger's unit; `word` is what that is called.
    """
    text = "nothing was released" if relation is None else _RELATIONS[relation]
    text = {NumericSparse.unit: _PARTY_RELATION, "owner": _OWNER_RELATION}.get(kind, text)
    return _UNITS.get(kind, "one record").replace("{unit}", word), text.replace("{unit}", word)


def _generators(entries: list[Entry]) -> tuple[str, ...]:
    kinds = {release.generator for entry in entries for release in records_released(entry.release)}
    return tuple(f"noise from {GENERATORS[kind]}" for kind in sorted(kinds))


def _void(entries: list[Entry], epsilon: float) -> tuple[str, ...]:
    reasons = []
    if any(entry.release.seeded for entry in entries):
        reasons.append("A seeded noise or sampling source was used: who knows the seed can subtract the noise.")
    if not math.isfinite(epsilon):
        reasons.append("A group of weights was released without noise.")
    return tuple(reasons)


def _word(ledger: Ledger, unit_name: str | None) -> str:
    """The word for what a step draws. Raises ValueError for a name that is none, or not of units."""
    units = ledger.unit in ("unit", "owner")
    if unit_name is None:
        return str(ledger.unit) if units else "record"
    if not isinstance(unit_name, str) or not _NAMES.fullmatch(unit_name) or unit_name == "record":
        raise ValueError(
            "unit_name is what one unit is called, for example 'patient': up to 40 letters, digits, spaces, - and _,"
            f" beginning with a letter, and not 'record'. Received: {unit_name!r}."
        )
    if not units:
        raise ValueError(
            f"unit_name={unit_name!r}, and this ledger protects one {ledger.unit or 'record'}. To protect all records"
            f" of a {unit_name} together, train with model.fit(..., unit_ids=ids), one {unit_name}'s id a record, or"
            " owners=, where a record belongs to several."
        )
    return unit_name


def _of_other_ledgers(ledger: Ledger, delta: float) -> tuple[str, ...]:
    """What other ledgers of this process were charged for the same objects: see `sightings`, which says why no more."""
    others = others_of(ledger, content=False)
    if not others:
        return ()
    try:
        total = float(epsilon_of(sum_of(ledger, others), delta))
        cost = f"All together: {cost_text(total, delta)}."
    except (ValueError, NotImplementedError):
        cost = "Their guarantees are of different kinds and have no sum."
    count = count_of(others)
    return (
        f"These records, or some of them, were given to {count} other ledger{'s' * (count > 1)} of the same process,"
        f" which this statement does not count. {cost}",
    )


def _of_later(ledger: Ledger) -> tuple[str, ...]:
    """What a ledger of this process counted after this copy of it was made: a copy knows nothing of that."""
    if not (more := counted_since(ledger)):
        return ()
    return (
        f"The ledger of this process that counts these trainings has counted {more:,} more release{'s' * (more > 1)}"
        " since this copy of it was made. If they decided that these weights were kept, they count, too: state that"
        " ledger.",
    )


def _of_file(ledger: Ledger) -> tuple[str, ...]:
    """What a file lacks, where a copy of its ledger was charged."""
    if not (names := " and ".join(map(repr, ledger.apart))):
        return ()
    return (
        "Trainings, or other releases, that this ledger counts were charged to a copy of the ledger in the file"
        f" {names}, which counts them only once they are merged into it, tfdp.accounting.Ledger(path).merge(ledger):"
        " until then what is stated of the file, or of models on it, is too small.",
    )


def _most(entries: list[Entry]) -> int:
    """The most records, or units, that something was released of."""
    return max((release.examples for entry in entries for release in records_released(entry.release)), default=0)


def _people(entries: list[Entry]) -> int:
    """The most that ONE thing was released of, of what is protected: records, units or owners; 0 if not known.

    Several may be of different ones, and no ledger knows: what is said of this number is said of one release.
    """
    owned = [one.owners for entry in entries for one in records_released(entry.release) if one.unit == "owner"]
    return (max(owned) if all(owned) else 0) if owned else _most(entries)


def _notes(entries: list[Entry], delta: float, unit: str) -> tuple[str, ...]:
    notes = []
    if any(entry.release.declared for entry in entries):
        notes.append(
            "The sampling was declared by the caller about a data pipeline that this library did not perform: the"
            " guarantee holds only if each batch was drawn as declared."
        )
    people, records = _people(entries), _most(entries)
    counted, number = (unit, people) if people else ("record", records)
    if number and delta > 1.0 / number:
        notes.append(
            f"WARNING: delta = {rounded_up(delta, 6)} is above 1 / number of {counted}s = {1.0 / number:g}: a mechanism"
            f" that publishes a few {counted}s' data as they are could meet it."
        )
    if records and not people:
        notes.append(
            f"This ledger does not know how many {unit}s there are: delta was compared with the number of records,"
            f" {records}. Choose it well below 1 / number of {unit}s."
        )
    return tuple(notes)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
