"""An audit by many short runs on two neighbouring data sets: the worst case, chosen by the auditor."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tfdp_layers.accounting import Ledger, epsilon
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.choice import for_plans
from tfdp_layers.accounting.sightings import apart
from tfdp_layers.audit.guarantees import of_ledger
from tfdp_layers.audit.report import Audit
from tfdp_layers.audit.statistics import many_runs_bound
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.sampling import Sampling

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

__all__ = ["audit_steps", "matched_filter", "repeated_scores"]

Weights = list[np.ndarray]
Score = Callable[[Sequence[Weights]], float]
"""Weights before a run and after each of its steps -> a number, higher where the record seems to have been there."""


def audit_steps(
    model: "PrivateTraining",
    present: tuple[Any, Any],
    absent: tuple[Any, Any],
    sampling: Sampling,
    *,
    examples: int,
    steps: int = 1,
    runs: int = 1000,
    score: Score | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    nominal: bool = False,
    sampling_seed: int | None = None,
) -> Audit:
    """Makes many independent runs of a few steps on each of two neighbouring data sets, and says what they refute.

    A run starts from the model's weights and its optimizer's state as they are; both are put back after each. What a
    run gives to the attack is its weights, before and after each step, and nothing else.

    Args:
        model: private, compiled, with a wrapped optimizer whose steps show what was released:
            keras.optimizers.SGD(1.0).
        present, absent: (x, y) each: neighbours by the sampler's relation, chosen for the worst.
        sampling, examples: of both; as claimed.
        steps, runs: of a run, and how many on each data set.
        score: what tells the data sets apart; a `matched_filter` if left out.
        delta, confidence: of the result.
        nominal: the claim is what the publication of the method accounts with, where that is not what holds.
        sampling_seed: for tests.

    Returns: the claim for ONE run, and the largest epsilon that the scores refute, against the claimed mechanism itself
        (Clopper-Pearson bounds on how often the best threshold is passed; runs are independent).
    Raises: ValueError where the method has no nominal claim, and what `fit` raises.
    """
    score = matched_filter(model, present, absent) if score is None else score
    scores, claims = [], []
    for x, y in (present, absent):
        kept = repeated_scores(model, x, y, sampling, score, examples, steps, runs, sampling_seed)
        scores.append(kept.array())
        claims.append(kept.claim(steps))
    claim: Ledger | None = claims[0].as_published() if nominal else claims[0]
    if claim is None:
        raise ValueError(f"{type(model.optimizer).__name__} has no nominal claim beside what holds: leave nominal out.")
    return Audit(
        claimed_epsilon=float(epsilon(claim, delta)),
        audited_epsilon_lower=many_runs_bound(scores[0], scores[1], of_ledger(claim, delta), confidence),
        delta=delta,
        confidence=confidence,
        assumption="by rates over many runs, against the claimed mechanism with less noise",
        bounds={},
        canaries=1,
        included=1,
        guesses=2 * runs,
        correct=2 * runs - _errors(scores[0], scores[1]),
    )


def matched_filter(model: "PrivateTraining", present: tuple[Any, Any], absent: tuple[Any, Any]) -> Score:
    """The score <w_0 - w_T, Sigma^-1 (g - g')>: g, g' what the data sets add to a step at the model's weights.

    With one step, all records drawn and SGD of rate 1 it is the log-likelihood ratio, up to constants: by Neyman and
    Pearson no attack is stronger.
    """
    groups = model.sensitivities()
    scale = {id(v): s for g, s in zip(groups, model.optimizer.stddevs(groups), strict=True) for v in g.variables}
    sums = [model.bounded_gradient_sums(*data) for data in (present, absent)]
    filters = [
        (np.asarray(a, np.float64) - np.asarray(b, np.float64)) / max(scale[id(v)], 1e-12) ** 2
        for a, b, v in zip(*sums, model.trainable_variables, strict=True)
    ]
    size = max(np.max(np.abs(f)) for f in filters)

    def score(history: Sequence[Weights]) -> float:
        moved = [before - after for before, after in zip(history[0], history[-1], strict=True)]
        return float(sum(np.sum(m * f) for m, f in zip(moved, filters, strict=True))) / max(size, 1e-300)

    return score


def repeated_scores(
    model: "PrivateTraining",
    x: Any,
    y: Any,
    sampling: Sampling,
    score: Score,
    examples: int,
    steps: int = 1,
    runs: int = 1000,
    sampling_seed: int | None = None,
) -> "Repeats":
    """The scores of many runs of a few steps on one data set; see `audit_steps`."""
    keeper = Repeats(model, score, steps)
    batches = PrivateBatches(x, y, sampling, examples=examples, seed=sampling_seed)
    with apart(lambda ledger: ledger is model.ledger):
        model.fit(batches, steps_per_epoch=steps * runs, verbose=0, callbacks=[keeper])
    return keeper


class Repeats(keras.callbacks.Callback):
    """Cuts one long `fit` into runs: scores each, and puts the weights and the optimizer's state back."""

    def __init__(self, model: "PrivateTraining", score: Score, steps: int) -> None:
        super().__init__()
        optimizer = model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._score, self._steps = score, steps
        self._state = [v for v in optimizer.variables if v is not optimizer.releases]
        self._state += [v for v in model.trainable_variables]
        self._start = [np.copy(v) for v in self._state]
        self._history: list[Weights] = []
        self.scores: list[float] = []
        self._release: Any = None

    def _weights(self) -> Weights:
        return [np.asarray(v, np.float64) for v in self.model.trainable_variables]

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._release = self.model.current_release
        if not self._history:
            self._history = [self._weights()]

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._history.append(self._weights())
        if len(self._history) <= self._steps:
            return
        self.scores.append(self._score(self._history))
        self._history = []
        for variable, value in zip(self._state, self._start, strict=True):
            variable.assign(value)

    def array(self) -> np.ndarray:
        """(runs,) float64."""
        return np.asarray(self.scores, np.float64)

    def claim(self, steps: int) -> Ledger:
        """What one run is claimed to release."""
        ledger = for_plans(Ledger())
        charge(ledger, self._release, steps)
        return ledger


def _errors(present: np.ndarray, absent: np.ndarray) -> int:
    """Wrong guesses by the threshold in the middle between the medians."""
    middle = 0.5 * (np.median(present) + np.median(absent))
    return int(np.sum(present < middle) + np.sum(absent >= middle))
