"""What a privacy statement says of the releases: equal ones together, and in words."""

from dataclasses import dataclass
from typing import Any

from tfdp_layers.accounting.entries import Entry
from tfdp_layers.accounting.events import Release
from tfdp_layers.accounting.gaussian_events import exact_gaussian
from tfdp_layers.accounting.numeric_sparse import NumericSparse
from tfdp_layers.accounting.selection import Selection
from tfdp_layers.accounting.token_selection import TokenSelection
from tfdp_layers.accounting.wording import distribution, owners_in_words, rounded_up, row, rows_in_words, times


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
      kind: "step", "unit_step" or "owner_step", updates of an optimizer; "whole_data", "unit_whole_data" or
        "owner_whole_data", sums over all of them beside.
      independence: how it is known that records do not mix; see `Release`.
      decay: of correlated noise; None where the noise is independent.
      joint_noise_multiplier: of correlated noise, that of one mechanism which reveals as much as all these updates.
      records_per_unit, views: rows that entered together for each drawn one; see `Release`.
      records_per_owner: how many of the records one owner owns at most.
    """

    sampling: str
    batch_size: int
    examples: int
    steps: int
    noise_multiplier: float
    groups: tuple[tuple[str, float, float], ...]
    kind: str = "step"
    independence: str = ""
    decay: float | None = None
    joint_noise_multiplier: float | None = None
    records_per_unit: int = 1
    views: int = 1
    records_per_owner: int = 1

    def rows(self, unit: str = Release.unit) -> list[str]:
        """Lines of the text; `unit` is the word for whom it protects. Names of groups stay as they are."""
        owned = self.kind.startswith("owner_")
        owner, unit = unit, "record" if owned else unit
        whole = self.kind.endswith("whole_data")
        sums = "noisy sum" if self.steps == 1 else "noisy sums"
        what = f"{sums} over all {unit}s" if whole else sums.replace("noisy", "noisy gradient")
        rows = [
            row("Released", f"{self.steps} {what}, noise multiplier {self.noise_multiplier:.6g}"),
            row("Sampling", f"{self.sampling} (expected batch {self.batch_size} of {self.examples} {unit}s)"),
        ]
        if owned:
            rows.append(row("Owners", owners_in_words(self.records_per_owner, owner)))
        together = rows_in_words(self.records_per_unit, self.views)
        if together:
            rows.append(row("Together", together.format(unit=unit)))
        if self.decay is not None:
            rows.append(
                row(
                    "Noise",
                    f"correlated: of noise z_0, z_1, ... of the stated deviations, step t adds z_t - {self.decay:g}"
                    f" z_(t-1); all steps together reveal what one of noise multiplier"
                    f" {self.joint_noise_multiplier:.6g} does",
                )
            )
        if not whole:
            known = self.independence or "not stated in the ledger"
            rows.append(row("Mixing", f"that in the step no {unit} reaches another's contribution is {known}"))
        for name, bound, stddev in self.groups:
            rows.append(
                row(
                    "Group",
                    f"{name}: one {unit} moves the sum by at most {rounded_up(bound, 6)}, noise stddev {stddev:.6g}",
                )
            )
        return rows


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

    def rows(self, unit: str = Release.unit) -> list[str]:
        """Lines of the text, which names no unit: a party's whole data set is protected."""
        return [
            row(
                "Released",
                f"{self.tests} threshold tests, each with at most one noisy value after it (NumericSparse); epsilon"
                f" {rounded_up(self.test_epsilon)} a test and {rounded_up(self.value_epsilon)} a value",
            ),
            row(
                "Noise",
                f"Laplace, scale {self.threshold_scale:.6g} on the threshold, {self.query_scale:.6g} on magnitudes,"
                f" {self.value_scale:.6g} on values; changes are clipped to +-{self.bound:.6g} before",
            ),
        ]


@dataclass(frozen=True)
class StatedMetric:
    """What equal metrics released.

    Attributes:
      name: of the metric.
      releases: how often.
      examples: declared number of records that each is a mean over.
      stddev: of the noise on the mean, in the metric's units.
      noise_multiplier: noise over one record's contribution.
      records_per_owner: how many of the records one owner owns at most; None where none were given.
    """

    name: str
    releases: int
    examples: int
    stddev: float
    noise_multiplier: float
    records_per_owner: int | None = None

    def rows(self, unit: str = Release.unit) -> list[str]:
        """Lines of the text; `unit` is the word for whom it protects. The metric's name stays as it is."""
        counted, owned = _counted(self.records_per_owner, unit)
        text = (
            f"{times(self.releases)} the metric {self.name!r}, a mean over {self.examples} {counted}s with noise"
            f" of stddev {self.stddev:.6g}, noise multiplier {self.noise_multiplier:.6g}"
        )
        return [row("Released", text), *owned]


@dataclass(frozen=True)
class StatedVocabulary:
    """What equal vocabularies released.

    Attributes:
      releases: how often.
      examples: declared number of records.
      tokens, noise_multiplier, failure, threshold: see `TokenSelection`.
      records_per_owner: how many of the records one owner owns at most; None where none were given.
    """

    releases: int
    examples: int
    tokens: int
    noise_multiplier: float
    failure: float
    threshold: float
    records_per_owner: int | None = None

    def rows(self, unit: str = Release.unit) -> list[str]:
        """Lines of the text; `unit` is the word for whom it protects."""
        one, owned = _counted(self.records_per_owner, unit)
        text = (
            f"{times(self.releases)} the tokens of {self.examples} {one}s whose noisy weight passes"
            f" {self.threshold:.6g}; a {one} gives at most {self.tokens} tokens, of joint L2 norm 1, noise multiplier"
            f" {self.noise_multiplier:.6g}; tokens of one {unit} alone show with probability at most"
            f" {rounded_up(self.failure)}"
        )
        return [row("Released", text), *owned]


@dataclass(frozen=True)
class StatedSelection:
    """What equal searches released: of each the best one of a random number of trials.

    Attributes:
      searches: how many.
      mean, shape: of the number of trials; see `Selection`.
      trials: what a trial may be, in words: one text for each candidate.
    """

    searches: int
    mean: float
    shape: float
    trials: tuple[str, ...]

    def rows(self, unit: str = Release.unit) -> list[str]:
        """Lines of the text; `unit` is the word for what a step draws."""
        text = (
            f"{times(self.searches)} the best of a random number of trials and nothing else: {self.mean:g} on average,"
            f" by a {distribution(self.shape)} distribution"
        )
        return [row("Released", text), *(row("Trial", trial.replace("{unit}", unit)) for trial in self.trials)]


def _counted(records_per_owner: int | None, unit: str) -> tuple[str, list[str]]:
    """What is counted where this word is for whom it protects, and for owners a line of how much one owns."""
    if records_per_owner is None:
        return unit, []
    return "record", [row("Owners", owners_in_words(records_per_owner, unit))]


def _owned(release: Release | TokenSelection) -> int | None:
    return release.records_per_owner if release.unit == "owner" else None


Stated = StatedRelease | StatedTests | StatedMetric | StatedSelection | StatedVocabulary


def stated(entries: list[Entry], unit: str | None = None) -> tuple[Stated, ...]:
    """What the entries released: steps first, then searches, tests, metrics, vocabularies.

    Args:
        unit: the word for what a step draws, where it is another than the release's own.
    """
    steps: dict[tuple[Any, ...], list[Entry]] = {}
    tests: dict[NumericSparse, int] = {}
    metrics: dict[tuple[Any, ...], int] = {}
    searches: dict[Selection, int] = {}
    vocabularies: dict[TokenSelection, int] = {}
    for entry in entries:
        release = entry.release
        if isinstance(release, Selection):
            searches[release] = searches.get(release, 0) + entry.steps
            continue
        if isinstance(release, Release) and release.purpose == "metric":
            (group,) = release.groups
            noise = (group.stddev / release.examples, release.noise_multiplier)
            metric = (group.name, release.examples, *noise, _owned(release))
            metrics[metric] = metrics.get(metric, 0) + entry.steps
            continue
        if isinstance(release, TokenSelection):
            vocabularies[release] = vocabularies.get(release, 0) + entry.steps
            continue
        if isinstance(release, NumericSparse):
            tests[release] = tests.get(release, 0) + entry.steps
            continue
        groups = tuple((group.name, group.bound, group.stddev) for group in release.groups)
        counts = (release.records_per_unit, release.views, release.records_per_owner)
        what = (release.kind, release.unit, release.independence, *counts)
        key = (release.sampling, release.examples, release.noise, groups, *what)
        steps.setdefault(key, []).append(entry)
    updates = [_stated_release(entries, unit) for entries in steps.values()]
    return (
        *updates,
        *(StatedSelection(count, one.mean, one.shape, _trials(one)) for one, count in searches.items()),
        *(_stated_tests(release, count) for release, count in tests.items()),
        *(StatedMetric(name, count, *rest) for (name, *rest), count in metrics.items()),
        *(_stated_vocabulary(release, count) for release, count in vocabularies.items()),
    )


def _stated_vocabulary(one: TokenSelection, count: int) -> StatedVocabulary:
    numbers = (one.tokens, one.noise_multiplier, one.failure, one.threshold)
    return StatedVocabulary(count, one.examples, *numbers, _owned(one))


def _stated_release(entries: list[Entry], unit: str | None) -> StatedRelease:
    """What entries of releases that are equal in all that is stated released together."""
    release = entries[0].release
    assert isinstance(release, Release)
    joint = None
    if release.noise is not None:
        joint = exact_gaussian(((release.event(), sum(entry.charges for entry in entries)),))
    return StatedRelease(
        sampling=release.sampling.describe(
            release.examples, release.counted if release.unit == "owner" else unit or release.unit
        ),
        batch_size=release.sampling.batch_size,
        examples=release.examples,
        steps=sum(entry.steps for entry in entries),
        noise_multiplier=release.noise_multiplier,
        groups=tuple((group.name, group.bound, group.stddev) for group in release.groups),
        kind=release.kind,
        independence=release.independence,
        decay=None if release.noise is None else release.noise.decay,
        joint_noise_multiplier=joint,
        records_per_unit=release.records_per_unit,
        views=release.views,
        records_per_owner=release.records_per_owner,
    )


def _trials(selection: Selection) -> tuple[str, ...]:
    """Each candidate in words, with {unit} where the word for what a step draws belongs."""
    return tuple("; ".join(_part(release, steps) for release, steps in parts) for parts in selection.candidates)


def _part(release: Release, steps: int) -> str:
    what = "noisy gradient sums" if release.purpose == "step" else f"noisy means {release.groups[0].name!r}"
    owned = release.unit == "owner"
    word = "record" if owned else "{unit}"
    drawn = f"expected batch {release.sampling.batch_size} of {release.examples} {word}s"
    text = f"at most {steps} {what}, noise multiplier {release.noise_multiplier:.6g}, {release.drawn} ({drawn})"
    text += f"; {owners_in_words(release.records_per_owner, '{unit}')}" if owned else ""
    if release.purpose != "step":
        return text
    together = rows_in_words(release.records_per_unit, release.views).replace("{unit}", word)
    text += f"; {together}" if together else ""
    known = release.independence or "not stated"
    return f"{text}; that in the step no {word} reaches another's contribution is {known}"


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
