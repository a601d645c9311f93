"""Random search over settings of private trainings, paid for as one release of the ledger."""

import contextlib
import gc
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from tfdp_layers.accounting import Budget, Ledger, Selection
from tfdp_layers.accounting.calibration import calibrate_release
from tfdp_layers.accounting.charging import charge, check_ledger
from tfdp_layers.accounting.selection import Part
from tfdp_layers.accounting.sightings import apart
from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.certificates.independence import in_words
from tfdp_layers.instances import refuse_own_code
from tfdp_layers.models.accounts import charge_elsewhere, disown_released, forget_released, released_values
from tfdp_layers.models.finite import Diverged
from tfdp_layers.models.fit_arguments import refuse_unsound_fit
from tfdp_layers.models.looking import forget_logs
from tfdp_layers.models.prospects import warn_of_hopeless
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.optimizers.noise_multiplier import NoiseMultiplier
from tfdp_layers.tuning.best_of import Best, Broken, NumberOfTrials, best_of
from tfdp_layers.tuning.candidates import Candidate, candidates_of
from tfdp_layers.tuning.data import check_data
from tfdp_layers.tuning.objective import Objective, objective_of
from tfdp_layers.tuning.silence import counting_nothing, silence
from tfdp_layers.tuning.space import Space, checked_space, draw_settings
from tfdp_layers.tuning.trial_ledger import TrialLedger, refuse_paid

__all__ = ["Found", "SearchFailed", "random_search"]

Build = Callable[[dict[str, Any]], PrivateTraining]


class SearchFailed(RuntimeError):  # noqa: N818 (named as what happened)
    """A search has nothing to show: no trial got a score, or an error out of a training ended it. It is paid for."""


@dataclass(frozen=True)
class Found:
    """What a search released.

    Attributes:
        model: of the best trial, trained; its ledger is that of the search. A further `fit` finds the noise for its
            `PrivacyBudget`; without one it keeps to that of the search.
        settings: that were drawn for it.
        score: of it, as the objective gives it.
        noise_multiplier: of its training.
    """

    model: PrivateTraining
    settings: dict[str, Any]
    score: float
    noise_multiplier: float


def random_search(
    build: Build,
    space: Mapping[str, Any],
    x: Any,
    y: Any = None,
    *,
    budget: Budget | tuple[float, float],
    objective: str | Callable[[Any], float],
    validation_data: Any = None,
    mode: str = "auto",
    trials: NumberOfTrials | float = 10.0,
    ledger: Ledger | None = None,
    verbose: int = 1,
    randomness: random.Random | None = None,
    **fit: Any,
) -> Found:
    """Trains a random number of private models with settings drawn at random, and returns the best one, and only it.

    The search is ONE release in the ledger, counted before the first trial: see `tfdp.accounting.Selection` for what
    it costs and why. It finds the noise with which the whole search keeps to the budget. Nothing that counts the
    trials is printed or saved: their number is as secret as the other models. Of those, digests stay in the memory of
    the process: whoever kept the weights of one aside, and puts them into a model, gets no statement of it.

    Args:
        build: makes a compiled private model from a dict of settings. Its optimizer leaves the noise open
            (`noise_multiplier="calibrate"`, the default). It must make new layers at each call, and depend on its
            argument alone.
        space: from what each setting is drawn, by name: `tfdp.tuning.Choice` (or a list), `Uniform`, `LogUniform`.
            "batch_size" and "epochs" may be among them, as choices: then every pair is paid for as the worst of them.
        x, y: the private training data, as for `fit`.
        budget: (epsilon, delta) of the whole search, with all that the ledger holds.
        objective: name of a metric that `evaluate` gives on `validation_data` ("val_accuracy"); or a function of the
            trained model, which may look at it and at public data: the higher the better. Of the training records the
            model tells it nothing: `NoisyMean` is a score of private ones.
        validation_data: (x, y), PUBLIC.
        mode: "max" or "min", for a metric by name; "auto" knows accuracies and losses.
        trials: the distribution of their number, or the mean of a geometric one.
        ledger: that pays; a new one in memory if left out.
        verbose: 0 prints nothing.
        randomness: for tests; voids the statement. The default is the operating system's.
        fit: further arguments of `fit`: epochs, batch_size or sampling, sample_weight, class_weight, examples,
            unit_ids, records_per_unit, views, owners, records_per_owner, physical_batch_size.

    Raises, before anything is spent:
        ValueError: an argument out of range, or a model that cannot be searched; what `build`, `fit` and `evaluate`
            raise on made-up records.
        BudgetExhausted, LedgerError: the ledger cannot take the charge.
    Raises, after the charge:
        SearchFailed: no trial got a score; or the training of one, or a score of private records, raised an error,
            which may depend on what a record holds: then neither that, nor what was found so far, is covered, and
            no best is shown. (Weights that became NaN are no such error: that trial has no score.)
    """
    target, number = Budget.of(budget), _number_of(trials)
    chosen, ledger = checked_space(space), Ledger() if ledger is None else ledger
    check_ledger(ledger)
    refuse_unsound_fit({"x": x, "validation_data": validation_data})
    judge = objective_of(objective, validation_data, mode)
    candidates = candidates_of(chosen, x, y, fit, target)
    search = _Search(build, chosen, candidates, judge, randomness or random.SystemRandom(), validation_data)
    for one in candidates:
        one.known["seeded"] = randomness is not None
    search.find_noise(number, target, ledger)
    with counting_nothing() as fresh:
        with apart(_of_trial), ledger.spared.by(_CHARGED):
            search.rehearse(fresh)
        if verbose:
            print(_said(number, target, candidates), flush=True)
        best = search.paid(number, ledger, fresh)
    if best is None:
        raise SearchFailed(
            "No trial gave a score, so the search has nothing to show; it is paid for all the same. Trials that fail"
            " are not told of, as how many there were is secret: try `build` and the objective on public data."
        )
    model, settings, noise = best.output
    charge_elsewhere(model, ledger)
    return Found(model, settings, judge.shown(best.score), noise)


def _number_of(trials: NumberOfTrials | float) -> NumberOfTrials:
    """The distribution of the number of trials. Raises ValueError for one that draws otherwise than it is charged."""
    number = trials if isinstance(trials, NumberOfTrials) else NumberOfTrials(trials)
    refuse_own_code(number, [NumberOfTrials], "`trials`")
    return number


Output = tuple[PrivateTraining, dict[str, Any], float]
"""Of a trial: its model, the settings that were drawn for it, and its noise multiplier."""


_BROKEN = (
    "The training of a trial, or its score of private records, ended by an error. Whether that happens may depend on"
    " what a record holds, and no epsilon covers it: so the search ends here, and shows no best of the other trials."
    " That it failed, the error, and what your code saw of the trials are not to be published. The search is paid for"
    " all the same. Find the cause, check or drop such records each by itself, and search anew. Settings that make no"
    " model may fail: raise an error for them in build."
)
_CHARGED = (
    "build or the objective charged the ledger of the search: with every trial it would be charged again, beyond the"
    " budget, and its entries would count the trials, which is secret. Release such numbers before the search."
)


@dataclass(frozen=True)
class _Search:
    build: Build
    space: Space
    candidates: tuple[Candidate, ...]
    judge: Objective
    randomness: random.Random
    validation: Any = None

    def selection(self, number: NumberOfTrials, scale: float | None = None) -> Selection:
        """The release that pays for the search, with the noise that was found or that of another scale."""
        return Selection(tuple(self._parts(one, scale) for one in self.candidates), number.mean, number.shape)

    def _parts(self, candidate: Candidate, scale: float | None = None) -> tuple[Part, ...]:
        """What one trial releases at most."""
        release = candidate.release(candidate.scale if scale is None else scale)
        return ((release, candidate.steps), *self.judge.parts(candidate.batches, candidate.secret))

    def find_noise(self, number: NumberOfTrials, target: Budget, ledger: Ledger) -> None:
        """Sets the least noise with which the search keeps to the budget, and to the ledger's own."""
        ledger.lock()  # what it holds stays what the noise is found for
        for one in self.candidates:
            one.secret = ledger.secret
            one.known["grouping"] = one.batches.grouping(ledger.secret)
        targets = [target, *([ledger.budget] if ledger.budget else [])]
        scale = max(calibrate_release(one, lambda scale: self.selection(number, scale), ledger) for one in targets)
        for candidate in self.candidates:
            candidate.scale = scale

    def rehearse(self, fresh: Callable[[], None]) -> None:
        """One trial on made-up records, and one model more: raises what is wrong with the arguments.

        Notes what is known of the noise, and whether it is proved that records do not mix. Warns of the real records
        what `fit` warns of: within a trial nobody would hear it.
        """
        settings = draw_settings(self.space, self.randomness)
        fresh()
        model, candidate = self._built(settings), self._candidate(settings)
        source = model.optimizer.noise_source
        for one in self.candidates:
            one.known |= {"generator": source.generator, "seeded": source.seeded or one.known["seeded"]}
        made_up = candidate.made_up()
        self._charge(model, made_up)
        made_up.fit(model)
        warn_of_hopeless(candidate.release(candidate.scale), model.sensitivities(), candidate.steps)
        report = model._privacy.independence
        if report is not None:
            for one in self.candidates:
                one.known["independence"] = in_words(report)
        try:
            beginning = self._built(settings)
            self._charge(beginning, candidate)  # refuses a build that goes on from an earlier trial
        finally:
            forget_released(released_values(model))
        check_data(candidate.batches, self.validation, tried=model, beginning=beginning)
        self.judge.rehearse(model, candidate.batches)

    def paid(self, number: NumberOfTrials, ledger: Ledger, fresh: Callable[[], None]) -> Best[Output] | None:
        """Charges the ledger for the search, then makes it. Raises as `Ledger.reserve`; SearchFailed: see `trial`."""
        token = charge(ledger, self.selection(number), records=self.candidates[0].batches.footprint())
        ended: set[bytes] = set()
        try:
            with silence(), apart(_of_trial), ledger.spared.by(_CHARGED):
                best = best_of(number.draw(self.randomness), lambda: self.trial(fresh, ended))
                keras.utils.set_random_seed(self.randomness.getrandbits(32))
        except Broken as broken:
            raise SearchFailed(_BROKEN) from broken.__cause__
        finally:
            disown_released(ended)
            ledger.settle(token, 1)
        return best

    def trial(self, fresh: Callable[[], None], ended: set[bytes]) -> tuple[float, Output]:
        """One private training with settings of its own: its score and its output.

        Args:
            ended: gets the values that it ends with: a later trial that starts from them is refused.

        Raises: `Broken` for what its `fit` raises, or a score that looks at private records.
        """
        gc.collect()
        fresh()
        keras.utils.set_random_seed(self.randomness.getrandbits(32))
        settings = draw_settings(self.space, self.randomness)
        model, candidate = self._built(settings), self._candidate(settings)
        self._charge(model, candidate)
        try:
            with _fatal():
                candidate.fit(model)
            with _fatal() if self.judge.paid else contextlib.nullcontext():
                score = self.judge.score(model, candidate.batches)
            forget_logs(model)  # also what the score asked for
        finally:
            if model.ledger.updates:  # else it holds what build gave it, and other models may hold that, too
                ended |= released_values(model)
            model._privacy.unpaid = True  # for whoever kept it: the search pays for the best alone
        noise = model.optimizer.multiplier.number
        model.optimizer.multiplier = NoiseMultiplier.of_search(noise)
        return score, (model, settings, noise)

    def _candidate(self, settings: Mapping[str, Any]) -> Candidate:
        return next(one for one in self.candidates if one.is_for(settings))

    def _built(self, settings: dict[str, Any]) -> PrivateTraining:
        """A new model. Raises ValueError for one that cannot be searched."""
        model = self.build(dict(settings))
        if not isinstance(model, PrivateTraining) or getattr(model, "optimizer", None) is None:
            raise ValueError(f"build must return a compiled private model. It returned {type(model).__name__}.")
        refuse_paid(model.ledger)
        if not model.optimizer.multiplier.calibrates:
            raise ValueError(
                "The search finds the noise that its budget needs: build must leave it open"
                f" (noise_multiplier='calibrate', the default). Received: {model.optimizer.multiplier.given!r}."
            )
        return model

    def _charge(self, model: PrivateTraining, candidate: Candidate) -> None:
        """Lets a model count into a ledger of its own. Raises ValueError for one that would make other steps."""
        candidate.refuse_leaps(model)
        model.ledger = ledger = TrialLedger(self._parts(candidate))
        refuse_paid(ledger)


@contextlib.contextmanager
def _fatal() -> Iterator[None]:
    """Inside, private records are looked at: raises `Broken` for any error but that weights are no numbers any more."""
    try:
        yield
    except Diverged:
        raise
    except Exception as error:
        raise Broken from error


def _of_trial(ledger: Ledger) -> bool:
    return isinstance(ledger, TrialLedger)


def _said(number: NumberOfTrials, target: Budget, candidates: tuple[Candidate, ...]) -> str:
    noises = sorted({candidate.noise_multiplier for candidate in candidates})
    noise = " to ".join(rounded_up(one, 6) for one in sorted({noises[0], noises[-1]}))
    return (
        f"Noise multiplier {noise}: epsilon {rounded_up(target.epsilon, 6)} at delta {rounded_up(target.delta, 6)} for"
        f" a whole search of {number.mean:g} trials on average. How many, is secret: nothing is said before the"
        " best one is shown."
    )
