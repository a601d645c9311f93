"""Batch sizes and epochs of a training that is not made yet, compared by what a privacy budget buys with them."""

import math
import operator
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dp_accounting import NeighboringRelation

from tfdp_layers.accounting.budget import Budget
from tfdp_layers.accounting.calibration import estimated_noise_multiplier
from tfdp_layers.accounting.shown import Shown
from tfdp_layers.accounting.signal import signal_to_noise
from tfdp_layers.accounting.statement import protection
from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.sampling import Poisson, Sampling

__all__ = ["PlannedRun", "RunPlan", "plan"]

_SHARES = (128, 64, 32, 16, 8)  # of the records in a batch
_EPOCHS = (10, 20, 40, 80)
_ENOUGH_STEPS = 500
_ENOUGH_SIGNAL = 0.9
_WIDTH = 100


@dataclass(frozen=True)
class PlannedRun:
    """A row.

    Attributes:
        batch_size, epochs, steps: of the training.
        noise_multiplier: with which it keeps to the budget, to about 1%; `fit` finds it exactly.
        step_signal, signal: the most that the gradients of one step, and of the whole training, can stand out of the
            noise; see `signal_to_noise`.
        share: of the signal that a single step on all records has, which is the most that the budget buys.
        gain: of signal over half of the epochs, as a fraction, for twice the work; None where that is no row.
    """

    batch_size: int
    epochs: int
    steps: int
    noise_multiplier: float
    step_signal: float
    signal: float
    share: float
    gain: float | None


@dataclass(frozen=True)
class RunPlan(Shown):
    """A table, and the row to start from. Prints as text.

    Attributes:
        examples, epsilon, delta, weights: what it is for; `weights` None where they were not given: the signals are
            then those of a single weight, and hold for comparing rows alone.
        runs: the rows.
        recommended: the least epochs, then the smallest batch, with 90% of the signal that the budget can buy and 500
            steps; where no row has both, the most signal. A rule of thumb: what a network makes of the signal, no
            accounting knows.
        records_per_owner: how many of the records one owner owns at most; None where it is for one record.
        sampling: how the row to start from draws its records; None stands for Poisson sampling.
    """

    examples: int
    epsilon: float
    delta: float
    weights: int | None
    runs: tuple[PlannedRun, ...]
    recommended: PlannedRun
    records_per_owner: int | None = None
    sampling: Sampling | None = None

    @property
    def _drawn(self) -> Sampling:
        return Poisson(self.recommended.batch_size) if self.sampling is None else self.sampling

    @property
    def _relation(self) -> NeighboringRelation:
        return NeighboringRelation.REPLACE_SPECIAL if self.records_per_owner else self._drawn.relation

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        names = ("examples", "epsilon", "delta", "weights", "records_per_owner")
        given = {name: getattr(self, name) for name in names}
        given |= {"sampling": self._drawn.kind, "relation": self._relation.name.lower()}
        return given | {"runs": [asdict(run) for run in self.runs], "recommended": asdict(self.recommended)}

    def __str__(self) -> str:
        signals = ("step's signal", "run's signal", "of the most", "gain")
        head = ("batch size", "epochs", "steps", "noise multiplier", *signals)
        rows = [head, *(self._row(run) for run in self.runs)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        marked = [
            f"{'>' if run == self.recommended else ' '} {line}" for run, line in zip(self.runs, lines[1:], strict=True)
        ]
        best = self.recommended
        advice = (
            f"Start from batch_size={best.batch_size}, epochs={best.epochs}: {best.steps:,} steps, with"
            f" {best.share:.0%} of the signal that this budget can buy."
        )
        of = "one weight" if self.weights is None else f"{self.weights:,} weights"
        legend = (
            "Noise multiplier: to about 1%; fit finds it exactly.",
            f"Signal: how far gradients can stand out of the noise of {of} at most, in one step and in the whole run."
            " Of the most: compared with a step on all records, the most that this budget can buy. Gain: in the run's"
            " signal, over half of the epochs.",
            "Marked >: the fewest epochs, then the smallest batch, with 90% of the most and 500 steps. A rule of thumb:"
            " what a network makes of the signal, no accounting knows.",
        )
        owned = f" for each owner of at most {self.records_per_owner} of them" if self.records_per_owner else ""
        target = f"epsilon {rounded_up(self.epsilon, 6)} at delta {rounded_up(self.delta, 6)}"
        title = f"{self.examples:,} record{'' if self.examples == 1 else 's'}, {target}{owned}."
        kind = "owner" if self.records_per_owner else ""
        each = f"; an owner has at most {self.records_per_owner} of them" if owned else ""
        whom, relation = protection(self._relation, kind, kind or "record")
        drawn = (
            f"Sampling, in the row marked >: {self._drawn.describe(self.examples)}{each}",
            f"Protects {whom}; {relation}",
        )
        paragraphs = [textwrap.fill(text, _WIDTH) for text in legend]
        paragraphs += [textwrap.fill(text, _WIDTH, subsequent_indent="    ") for text in drawn]
        return "\n".join([title, textwrap.fill(advice, _WIDTH), "", f"  {lines[0]}", *marked, "", *paragraphs])

    def _row(self, run: PlannedRun) -> tuple[str, ...]:
        numbers = (rounded_up(run.noise_multiplier, 3), f"{run.step_signal:.3g}", f"{run.signal:.3g}")
        gain = "" if run.gain is None else f"{round(run.gain, 2) + 0.0:+.0%}"  # no -0%
        return (f"{run.batch_size:,}", str(run.epochs), f"{run.steps:,}", *numbers, f"{run.share:.0%}", gain)


def plan(
    examples: int,
    epsilon: float,
    delta: float,
    *,
    batch_sizes: Sequence[int] | None = None,
    epochs: Sequence[int] | None = None,
    weights: int | None = None,
    sampling: Callable[[int], Sampling] = Poisson,
    records_per_owner: int | None = None,
) -> RunPlan:
    """Compares trainings of several batch sizes and epochs that keep to one budget. Trains nothing; takes seconds.

    Args:
        examples: the declared, public number of records.
        epsilon, delta: the budget.
        batch_sizes: expected sizes; if left out, of 1/128 to 1/8 of the records.
        epochs: 10 to 80 if left out.
        weights: how many are trained; sets the scale of the signals.
        sampling: a kind of sampler.
        records_per_owner: how many of the records one owner owns at most, where `fit` gets `owners`.

    Raises: ValueError for an argument out of range.

    Example:
        print(tfdp.plan(60_000, epsilon=2.7, delta=1e-5))
    """
    budget = Budget(epsilon, delta)
    sampling(1).check(examples)
    sizes = _checked("batch_sizes", batch_sizes or [max(1, 2 ** round(math.log2(examples / s))) for s in _SHARES])
    lengths = _checked("epochs", epochs or _EPOCHS)
    d = 1 if weights is None else _checked("weights", [weights])[0]
    owned = 1 if records_per_owner is None else _checked("records_per_owner", [records_per_owner])[0]
    if records_per_owner is not None:
        sampling(1).refuse_owners()
    drawn = {size: sampling(size) for size in sizes if size <= examples}
    if not drawn:
        raise ValueError(f"No batch size of {sizes} fits into {examples} records. Give smaller batch_sizes.")

    def needed(sampler: Sampling, steps: int, guess: float | None = None) -> float:
        return estimated_noise_multiplier(epsilon, delta, sampler, examples, steps, None, owned, guess)

    found: list[tuple[int, float]] = []

    def run(size: int, length: int) -> PlannedRun:
        steps = length * drawn[size].steps_per_epoch(examples)
        noise = needed(drawn[size], steps, _guessed(found, size * length))
        found.append((size * length, noise))
        step, whole = (signal_to_noise(noise, size, count, d) for count in (1, steps))
        return PlannedRun(size, length, steps, noise, step, whole, whole / most, None)

    most = signal_to_noise(needed(sampling(examples), 1), examples, 1, d)
    runs = _with_gains([run(size, length) for size in drawn for length in lengths])
    best = _recommended(runs)
    given = (examples, budget.epsilon, budget.delta, weights, runs, best, records_per_owner)
    return RunPlan(*given, drawn[best.batch_size])


def _recommended(runs: Sequence[PlannedRun]) -> PlannedRun:
    """The row to start from, by the rule of thumb of `RunPlan`."""
    enough = [run for run in runs if run.share >= _ENOUGH_SIGNAL and run.steps >= _ENOUGH_STEPS]
    return min(enough, key=lambda run: (run.epochs, run.batch_size), default=max(runs, key=lambda run: run.signal))


def _guessed(found: Sequence[tuple[int, float]], work: int) -> float | None:
    """The noise of the row whose batch size times epochs is nearest, moved as noise roughly grows with that."""
    if not found:
        return None
    near, noise = min(found, key=lambda one: abs(math.log(one[0] / work)))
    return noise * float(work / near) ** 0.4


def _with_gains(runs: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
    signals = {(run.batch_size, run.epochs): run.signal for run in runs}
    halves = [signals.get((run.batch_size, run.epochs // 2)) if run.epochs % 2 == 0 else None for run in runs]
    return tuple(
        run if half is None else replace(run, gain=run.signal / half - 1.0)
        for run, half in zip(runs, halves, strict=True)
    )


def _checked(name: str, values: Sequence[int]) -> list[int]:
    """Whole numbers of at least 1, each once, in order. Raises ValueError for others."""
    try:
        found = sorted({operator.index(value) for value in values})
    except TypeError:
        found = []
    if not found or found[0] < 1:
        raise ValueError(f"{name} must be whole numbers of at least 1. Received: {values!r}.")
    return found
