"""The privacy statement: what is guaranteed, to whom, under which assumptions, and what is not covered."""

import json
import math
import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from dp_accounting import NeighboringRelation

from tfdp_layers.accounting.accountant import epsilon as epsilon_of
from tfdp_layers.accounting.accountant import nominal_epsilon
from tfdp_layers.accounting.events import (
    GENERATORS,
    MetricRelease,
    NumericSparse,
    Release,
    UnitRelease,
    WholeDataRelease,
)
from tfdp_layers.accounting.ledger import Entry, Ledger

__all__ = ["StatedMetric", "StatedRelease", "StatedTests", "Statement"]

_WIDTH = 96

_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add or remove one record: data sets are neighbours when one holds"
    " exactly one record more than the other",
    NeighboringRelation.REPLACE_ONE: "replace one record: data sets of the same, public size are neighbours when they"
    " differ in one record",
    NeighboringRelation.REPLACE_SPECIAL: "zero out one record: data sets of the same, public size are neighbours when"
    " one record of the first is replaced in the second by an empty record that contributes nothing",
}

_ASSUMPTIONS = (
    "One record is one person; someone with several records is protected less.",
    "The number of records and the batch size are declared constants, not counted from private data.",
    "The initial weights are public, or their own privacy cost is in this ledger.",
    "Scaling constants, class weights and sample weights were not computed from the private data.",
    "Validation data are public.",
    "The seeds of sampling and noise are secret and were used once.",
    "No setting was chosen by looking at unprotected numbers of this or an earlier run on the same data.",
)
_UNIT_ASSUMPTIONS = (
    "One unit is one person, and the units of the records are as declared.",
    "The number of units and the batch size, in units, are declared constants, not counted from private data.",
    *_ASSUMPTIONS[2:],
)
_UNITS = {NumericSparse.unit: "one party's whole data set", UnitRelease.unit: "one unit, with all records it owns"}
_COVERED = "the released weights, the optimizer's state, the noise multiplier, the number of steps, and epsilon"
_COVERED_METRICS = "; and the metrics released with noise"
_METRIC_ASSUMPTION = "Each number in a released metric was computed from one record and from what was released before."
_EXCLUSIONS = (
    "Training loss and training metrics, also in the progress bar and in logs.",
    "Gradient norms and clipped fractions.",
    "The number of records drawn in a step, also where padded sizes or step times show it.",
    "Error messages about records.",
)

_PARTY_RELATION = (
    "replace all its records: data sets are neighbours when this party's records are replaced by any others"
)
_PARTY_ASSUMPTIONS = (
    "That this party takes part, in how many rounds, and how many records it declares is public.",
    "Bound, threshold, fraction and epsilon of an upload were chosen without looking at the party's data.",
    "The initial weights do not depend on the party's data, or their own privacy cost is in this ledger.",
    "The keys of noise and selection are secret and were used once.",
)
_PARTY_COVERED = "every upload of this party, what the server and the other parties compute from them, and epsilon"
_PARTY_EXCLUSIONS = (
    "The party's local weights, and its training loss and metrics.",
    "How long its training and selection take.",
    "Error messages about its records.",
)


@dataclass(frozen=True)
class StatedRelease:
    """What equal updates released.

    Attributes:
      sampling: in words.
      batch_size: expected number of records in a step.
      examples: declared number of records.
      steps: updates made.
      noise_multiplier: noise over one record's contribution, all groups joined.
      groups: (name, bound, stddev) of each group; see `GroupNoise` for the units.
      kind: "step" or "unit_step", updates of an optimizer; "whole_data", sums over all records beside them.
    """

    sampling: str
    batch_size: int
    examples: int
    steps: int
    noise_multiplier: float
    groups: tuple[tuple[str, float, float], ...]
    kind: str = Release.kind


@dataclass(frozen=True)
class StatedTests:
    """What a party's equal threshold tests released.

    Attributes:
      tests: started, each followed by at most one released value.
      test_epsilon, value_epsilon: what one test, and the value after it, cost alone.
      bound, threshold_scale, query_scale, value_scale: see `NumericSparse`.
    """

    tests: int
    test_epsilon: float
    value_epsilon: float
    bound: float
    threshold_scale: float
    query_scale: float
    value_scale: float


@dataclass(frozen=True)
class StatedMetric:
    """What equal metrics released.

    Attributes:
      name: of the metric.
      releases: how often.
      examples: declared number of records that each is a mean over.
      stddev: of the noise on the mean, in the metric's units.
      noise_multiplier: noise over one record's contribution.
    """

    name: str
    releases: int
    examples: int
    stddev: float
    noise_multiplier: float


@dataclass(frozen=True)
class Statement:
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
    """

    epsilon: float
    delta: float
    accountant: str
    relation: str
    meaning: str
    privacy_unit: str
    steps: int
    releases: tuple[StatedRelease | StatedTests | StatedMetric, ...]
    covered: str
    assumptions: tuple[str, ...]
    exclusions: tuple[str, ...]
    void: tuple[str, ...]
    notes: tuple[str, ...]
    nominal_epsilon: float | None = None
    dataset: str | None = None
    budget: tuple[float, float] | None = None
    generators: tuple[str, ...] = ()

    @classmethod
    def from_ledger(cls, ledger: Ledger, delta: float) -> "Statement":
        """States what the ledger holds.

        Raises:
          ValueError: delta is not in (0, 1).
          NotImplementedError: no installed accountant can bound what was released.
        """
        spent, nominal = epsilon_of(ledger, delta), nominal_epsilon(ledger, delta)
        entries = [entry for entry in ledger.entries if entry.steps]
        party, unit = ledger.unit == NumericSparse.unit, ledger.unit == UnitRelease.unit
        metrics = any(isinstance(entry.release, MetricRelease) for entry in entries)
        assumptions = _PARTY_ASSUMPTIONS if party else _UNIT_ASSUMPTIONS if unit else _ASSUMPTIONS
        relation = "nothing was released" if spent.relation is None else _RELATIONS[spent.relation]
        return cls(
            epsilon=float(spent),
            delta=spent.delta,
            accountant=spent.accountant,
            relation=_PARTY_RELATION if party else relation.replace("record", "unit") if unit else relation,
            meaning=_meaning(float(spent), spent.delta),
            privacy_unit=_UNITS.get(ledger.unit or "", "one record"),
            steps=ledger.updates,
            releases=_stated(entries),
            covered=_PARTY_COVERED if party else _COVERED + _COVERED_METRICS * metrics,
            assumptions=assumptions + (_METRIC_ASSUMPTION,) * metrics,
            exclusions=_PARTY_EXCLUSIONS if party else _EXCLUSIONS,
            void=_void(entries, float(spent)),
            notes=_notes(entries, spent.delta),
            nominal_epsilon=None if nominal is None else float(nominal),
            dataset=ledger.dataset,
            budget=None if ledger.budget is None else (ledger.budget.epsilon, ledger.budget.delta),
            generators=_generators(entries),
        )

    @property
    def _per_unit(self) -> bool:
        return self.privacy_unit == _UNITS[UnitRelease.unit]

    def to_json(self) -> str:
        """Returns the statement as JSON text; an infinite number becomes null."""
        return json.dumps(_finite(asdict(self)), indent=2, allow_nan=False)

    def __str__(self) -> str:
        lines = [
            _row("Privacy", f"epsilon = {_rounded_up(self.epsilon)} at delta = {self.delta:g} (by {self.accountant})")
        ]
        if self.nominal_epsilon is not None:
            lines.append(
                _row(
                    "Nominal",
                    f"epsilon = {_rounded_up(self.nominal_epsilon)} by the publication's own accounting, which does not"
                    " hold: an algorithm was used as printed. The guarantee is the figure above.",
                )
            )
        if self.void:
            lines.insert(0, _row("VOID", "THIS STATEMENT DOES NOT HOLD. " + " ".join(self.void)))
        if self.dataset is not None:
            lines.append(_row("Data set", _dataset_text(self.dataset, self.budget)))
        lines += [
            _row("Protects", f"{self.privacy_unit}; {self.relation}"),
            _row("Meaning", self.meaning),
            _row("Steps", str(self.steps)),
        ]
        for release in self.releases:
            rows = _rows(release)
            lines += [row.replace("record", "unit") for row in rows] if self._per_unit else rows
        lines += [_row("Generator", text) for text in self.generators]
        lines += [_row("Note", note) for note in self.notes]
        lines.append(_row("Covered", self.covered))
        lines += [_row("Not covered", text) for text in self.exclusions]
        lines += [_row("Assumed", text) for text in self.assumptions]
        return "\n".join(lines)


def _meaning(epsilon: float, delta: float) -> str:
    if not math.isfinite(epsilon):
        return "no bound on what the output reveals about a record"
    ratio = _rounded_up(math.exp(epsilon)) if epsilon < 700 else "e^epsilon"
    return (
        f"whatever is observed of the covered output, its probability under two neighbouring data sets differs by at"
        f" most a factor e^epsilon = {ratio}, up to an additional delta = {delta:g}"
    )


def _dataset_text(dataset: str, budget: tuple[float, float] | None) -> str:
    kept = f"; its budget is epsilon = {budget[0]:g} at delta = {budget[1]:g}" if budget else ""
    return f"{dataset!r}: all that was charged to its ledger, over all models, runs and released metrics{kept}"


def _generators(entries: list[Entry]) -> tuple[str, ...]:
    kinds = {entry.release.generator for entry in entries if isinstance(entry.release, Release)}
    return tuple(f"noise from {GENERATORS[kind]}" for kind in sorted(kinds))


def _stated(entries: list[Entry]) -> tuple[StatedRelease | StatedTests | StatedMetric, ...]:
    steps: dict[tuple[Any, ...], int] = {}
    tests: dict[NumericSparse, int] = {}
    metrics: dict[tuple[str, int, float, float], int] = {}
    for entry in entries:
        release = entry.release
        if isinstance(release, MetricRelease):
            (group,) = release.groups
            metric = (group.name, release.examples, group.stddev / release.examples, release.noise_multiplier)
            metrics[metric] = metrics.get(metric, 0) + entry.steps
            continue
        if isinstance(release, NumericSparse):
            tests[release] = tests.get(release, 0) + entry.steps
            continue
        groups = tuple((group.name, group.bound, group.stddev) for group in release.groups)
        key = (release.sampling, release.examples, release.noise_multiplier, groups, release.kind)
        steps[key] = steps.get(key, 0) + entry.steps
    stated = [
        StatedRelease(sampling.describe(examples), sampling.batch_size, examples, count, multiplier, groups, kind)
        for (sampling, examples, multiplier, groups, kind), count in steps.items()
    ]
    return (
        *stated,
        *(_stated_tests(release, count) for release, count in tests.items()),
        *(StatedMetric(name, count, examples, *noise) for (name, examples, *noise), count in metrics.items()),
    )


def _stated_tests(release: NumericSparse, count: int) -> StatedTests:
    return StatedTests(
        tests=count,
        test_epsilon=release.test_epsilon,
        value_epsilon=release.value_epsilon,
        bound=release.bound,
        threshold_scale=release.threshold_scale,
        query_scale=release.query_scale,
        value_scale=release.value_scale,
    )


def _void(entries: list[Entry], epsilon: float) -> tuple[str, ...]:
    reasons = []
    if any(entry.release.seeded for entry in entries):
        reasons.append("A seeded noise or sampling source was used: who knows the seed can subtract the noise.")
    if not math.isfinite(epsilon):
        reasons.append("A group of weights was released without noise.")
    return tuple(reasons)


def _notes(entries: list[Entry], delta: float) -> tuple[str, ...]:
    notes = []
    if any(entry.release.declared for entry in entries):
        notes.append(
            "The sampling was declared by the caller about a data pipeline that this library did not perform: the"
            " guarantee holds only if each batch was drawn as declared."
        )
    examples = max((entry.release.examples for entry in entries if isinstance(entry.release, Release)), default=0)
    if examples and delta > 1.0 / examples:
        notes.append(
            f"WARNING: delta = {delta:g} is above 1/examples = {1.0 / examples:g}: a mechanism that publishes a few"
            " whole records could meet it."
        )
    return tuple(notes)


def _rows(release: StatedRelease | StatedTests | StatedMetric) -> list[str]:
    if isinstance(release, StatedMetric):
        text = (
            f"{release.releases} times the metric {release.name!r}, a mean over {release.examples} records with noise"
            f" of stddev {release.stddev:.6g}, noise multiplier {release.noise_multiplier:.6g}"
        )
        return [_row("Released", text)]
    return _test_rows(release) if isinstance(release, StatedTests) else _release_rows(release)


def _release_rows(release: StatedRelease) -> list[str]:
    whole = release.kind == WholeDataRelease.kind
    what = "noisy sums over all records" if whole else "noisy gradient sums"
    rows = [
        _row("Released", f"{release.steps} {what}, noise multiplier {release.noise_multiplier:.6g}"),
        _row("Sampling", f"{release.sampling} (expected batch {release.batch_size} of {release.examples} records)"),
    ]
    for name, bound, stddev in release.groups:
        rows.append(
            _row("Group", f"{name}: one record moves the sum by at most {bound:.6g}, noise stddev {stddev:.6g}")
        )
    return rows


def _test_rows(release: StatedTests) -> list[str]:
    return [
        _row(
            "Released",
            f"{release.tests} threshold tests, each with at most one noisy value after it (NumericSparse); epsilon"
            f" {_rounded_up(release.test_epsilon)} a test and {_rounded_up(release.value_epsilon)} a value",
        ),
        _row(
            "Noise",
            f"Laplace, scale {release.threshold_scale:.6g} on the threshold, {release.query_scale:.6g} on magnitudes,"
            f" {release.value_scale:.6g} on values; changes are clipped to +-{release.bound:.6g} before",
        ),
    ]


def _row(label: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"{label + ':':13}", subsequent_indent=" " * 13)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rounded_up(value: float) -> str:
    """Four significant digits, never below the value: a statement may not say less than the truth."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    text = f"{value:.4g}"
    return text if float(text) >= value else f"{float(text) + unit:.4g}"
