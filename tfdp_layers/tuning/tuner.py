"""KerasTuner over private models: every trial is charged to one ledger; and its search spaces for `random_search`."""

import math
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

try:
    import keras_tuner
    from keras_tuner.src.engine import tuner_utils
except ImportError as error:
    raise ImportError(
        "This part of tfdp.tuning works with KerasTuner, which is not installed: pip install '.[tuning]' in the"
        " checkout, or pip install keras-tuner. tfdp.tuning.random_search needs nothing."
    ) from error

from tfdp_layers.accounting import BudgetExhausted, Ledger, epsilon
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.callbacks import PrivacyBudget
from tfdp_layers.caller import warn
from tfdp_layers.instances import replaced, shown
from tfdp_layers.models.finite import Diverged
from tfdp_layers.tuning.charged import MADE_UP, Charged
from tfdp_layers.tuning.oracles import (
    ELSEWHERE,
    known_of,
    note_paid,
    refuse_private,
    refuse_unpaid,
    states_in,
    trials_of,
)
from tfdp_layers.tuning.released import Releases, learns, note_chosen
from tfdp_layers.tuning.search import SearchFailed
from tfdp_layers.tuning.space import Drawn

__all__ = ["PrivateTuner", "keras_tuner_space"]


class _BudgetEnded(keras_tuner.errors.FatalError):
    """KerasTuner goes on after any other error."""


class _Broken(keras_tuner.errors.FatalError):
    """Of any other error KerasTuner writes the text, which may hold a record's value, into its folder."""


class PrivateTuner(keras_tuner.Tuner):
    """A KerasTuner tuner of private models: all that its trials release is in one ledger, by composition.

    Every step of every trial is charged, so all trials may be looked at, the oracle may choose the next one by them
    (any oracle with `max_trials`: `HyperbandOracle` has none), and the best model may be loaded. It may choose all but
    batch size, number of steps and noise, which that charge takes as settled beforehand. That costs more than
    `tfdp.tuning.random_search`, which shows the best trial alone.

    Guarantee: what the tuner shows is (epsilon, delta)-differentially private with the ledger's epsilon, which is at
    most the budget's: each trial trains under a `PrivacyBudget`. Where optimizers leave the noise open
    (`noise_multiplier="calibrate"`), trial k of n may bring the ledger's epsilon to
    sqrt(s^2 + (epsilon^2 - s^2) k / n), s being what it held before the search: trials then get about equal noise. A
    spent budget ends the search. Finding the noise takes longer from trial to trial, each being of its own noise.
    Assumed: batch size, epochs, and noise where it is given, are the same in all trials, or chosen by no score. Where
    they differ, and the oracle is not exactly KerasTuner's `RandomSearchOracle` or `GridSearchOracle`, delta can be
    larger: the search warns of it, and all statements of the ledger say so. What code of the caller's own chooses by
    earlier scores is not seen.

    Args:
        oracle: of KerasTuner, for example `keras_tuner.oracles.RandomSearchOracle("val_accuracy", max_trials=10)`. Its
            objective must be a metric of validation data, which are PUBLIC; `fit` refuses others.
        hypermodel: builds a compiled private model of hyper-parameters.
        ledger: of the data set: `Ledger(path, dataset="name", budget=(epsilon, delta))`.
        kwargs: as in `keras_tuner.Tuner`.

    Raises:
        ValueError: the ledger has no data set or no budget, the oracle no number of trials, or an objective that is no
            metric of validation data, or several executions of a trial are asked for; or the folder, or the oracle,
            holds a search that another ledger paid for, or none; or the oracle's trials cannot be read here: of
            KerasTuner's distributed search, KERASTUNER_ORACLE_IP, each process sees its own alone.
    """

    def __init__(self, oracle: Any, hypermodel: Any, *, ledger: Ledger, **kwargs: Any) -> None:
        check_ledger(ledger)
        if ledger.dataset is None or ledger.budget is None:
            raise ValueError(
                "PrivateTuner needs the ledger of the data set, with a budget for all trials together:"
                " tfdp.accounting.Ledger('ledger.json', dataset='name', budget=(3.0, 1e-5))."
            )
        if not getattr(oracle, "max_trials", None):
            raise ValueError(
                "PrivateTuner needs an oracle of KerasTuner with max_trials, since the budget is shared out among so"
                " many: keras_tuner.oracles.RandomSearchOracle('val_accuracy', max_trials=10). Received:"
                f" {shown(oracle)}."
            )
        refuse_private(oracle.objective)
        if kwargs.get("executions_per_trial", 1) != 1:
            raise ValueError("Of PrivateTuner every execution is charged: give the oracle more trials instead.")
        refuse_unpaid(oracle, ledger)
        self.ledger, self._spent, self._made, self._failed = ledger, 0.0, 0, False
        self._released, self._told = dict[str, int](), False
        self._last: Releases | None = None
        self._unbuilt: Exception | None = None
        super().__init__(oracle, Charged(hypermodel, ledger), **kwargs)
        known_of(oracle, ledger)

    def get_state(self) -> dict[str, Any]:
        """As in KerasTuner, with the ledger's name, whether an error ended a search, and what a trial released."""
        own = {"ledger": self.ledger.uid, "ended_by_an_error": self._failed, "released": self._released}
        return {**super().get_state(), **own}

    def set_state(self, state: dict[str, Any]) -> None:
        """As in KerasTuner: later trials are compared with what one of an earlier process released."""
        super().set_state(state)
        self._released = dict(state.get("released") or {})

    def reload(self) -> None:
        """As in KerasTuner, of a search that this ledger paid for.

        Raises: SearchFailed where an error ended that search. ValueError for one that another ledger paid for.
        """
        self._refuse_folder()
        super().reload()
        for trial in trials_of(self.oracle):
            note_paid(self.oracle, self.ledger, trial)

    def _populate_initial_space(self) -> None:
        """As in KerasTuner, where there is nothing to go on from: also of a tuner of another name."""
        self._refuse_folder()
        super()._populate_initial_space()

    def _refuse_folder(self) -> None:
        """Raises as `reload` for what any tuner left in the folder: the trials of all lie there under the same names.

        One of another name (KERASTUNER_TUNER_ID, `tuner_id`) left its state in a file of that name.
        """
        for path, held in states_in(self.project_dir, self._get_tuner_fname()):
            if held.get("ledger") != self.ledger.uid:
                raise ValueError(
                    f"The folder {self.project_dir!r} holds a search {ELSEWHERE} (That of {path}.) Give another"
                    " project_name, or overwrite=True; to go on with that search, the ledger that paid for it."
                )
            if held.get("ended_by_an_error"):
                raise SearchFailed(f"An earlier search in the folder {self.project_dir!r} failed by an error. {_ENDED}")

    def search(self, *args: Any, **kwargs: Any) -> None:
        """As in KerasTuner; a spent budget ends it with a UserWarning.

        Raises:
            BudgetExhausted: the budget affords no trial.
            SearchFailed: an error ended a trial elsewhere than in building its model. It may depend on what a record
                holds: so it ends the search, the oracle hears nothing of it, and the folder only that it was so.
                Another search with this oracle, or in this folder, is refused: what it has found ended by that error.
            ValueError: the oracle holds trials, or scores of trials, that this tuner did not make, or none that can
                be read here.
        """
        if self.oracle in _broken:
            raise SearchFailed(_broken[self.oracle])
        refuse_unpaid(self.oracle, self.ledger)
        assert self.ledger.budget is not None
        self._spent = float(epsilon(self.ledger, self.ledger.budget.delta))
        try:
            super().search(*args, **kwargs)
        except _Broken as broken:
            _broken[self.oracle], self._failed = f"An earlier search with this oracle failed. {broken}", True
            self.save()
            raise SearchFailed(str(broken)) from broken.__cause__
        except _BudgetEnded as ended:
            if self._made == 0:
                raise BudgetExhausted(str(ended)) from ended
            warn(f"The budget ended the search after {self._made} trials: {ended}")
        finally:
            self._compare()
        refuse_unpaid(self.oracle, self.ledger)  # it may show trials of others as the best by now

    def _run_and_update_trial(self, trial: Any, *args: Any, **kwargs: Any) -> None:
        """As in KerasTuner; a subclass may change what goes into `run_trial`, and not what comes out of it."""
        refuse_private(self.oracle.objective)
        refuse_unpaid(self.oracle, self.ledger)
        note_paid(self.oracle, self.ledger, trial)
        if type(self.hypermodel) is not Charged or set(replaced(self.hypermodel)) - {"build"}:  # which KerasTuner wraps
            raise keras_tuner.errors.FatalValueError(
                "tuner.hypermodel was exchanged: whether its models count into the ledger is unknown. Make another"
                " PrivateTuner."
            )
        self.hypermodel.scored = self._unbuilt = None
        found = self._tried(trial, *args, **kwargs)
        given, known = self.hypermodel.scored or (None, None)
        reported = self.oracle.get_trial(trial.trial_id).metrics.exists(self.oracle.objective.name)
        if (
            known is None
            or reported
            or any(one is not given for one in (found if isinstance(found, list) else [found]))
        ):
            raise keras_tuner.errors.FatalTypeError(
                f"The score of trial {trial.trial_id} is not what super().run_trial(trial, *args, **kwargs) gave:"
                f" {MADE_UP}"
            )
        metrics = tuner_utils.convert_to_metrics_dict(known, self.oracle.objective)
        step = tuner_utils.get_best_step(known, self.oracle.objective)
        self.oracle.update_trial(trial.trial_id, metrics, step=step)
        note_paid(self.oracle, self.ledger, trial)

    def _tried(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """What `run_trial` gives.

        Raises: a fatal error for all that it raises, but for what building the model did, and weights that are NaN.
        """
        try:
            self.hypermodel.releases = self._last = releases = Releases(self.ledger)
            found = self.run_trial(trial, *args, **kwargs)
            releases.whole = True
            return found
        except keras_tuner.errors.FatalError:
            raise
        except Diverged as error:  # without what it followed from
            raise keras_tuner.errors.FailedTrialError(str(error)) from None
        except Exception as error:
            if error is self._unbuilt:
                raise
            kind = type(error).__name__
            if isinstance(error, ModuleNotFoundError):
                kind += f": {error.name!r} is not installed"
            raise _Broken(_BROKEN.format(trial=trial.trial_id, kind=kind)) from error
        finally:
            self._unbuilt = None

    def on_trial_end(self, trial: Any) -> None:
        """As in KerasTuner, and before the oracle chooses the next trial `_compare`."""
        self._compare()
        super().on_trial_end(trial)

    def _compare(self) -> None:
        """Warns, and notes for statements, that trials differ in what they release, where the oracle may learn."""
        last, self._last = self._last, None
        released = {} if last is None else last.planned()
        self._released = self._released or released
        if last is None or last.agrees(self._released, released) or self._told or not learns(self.oracle):
            return
        self._told = True
        note_chosen(self.ledger, self.oracle, self._released, released)

    def _try_build(self, hp: Any) -> Any:
        """As in KerasTuner. A model is built of hyper-parameters alone, so that this failed says nothing of records."""
        try:
            return super()._try_build(hp)
        except Exception as error:
            self._unbuilt = error
            raise

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """One trial, under its share of the budget."""
        budget = self.ledger.budget
        assert budget is not None
        share = 1.0 if not self.hypermodel.calibrates else min(1.0, len(self.oracle.trials) / self.oracle.max_trials)
        most = math.sqrt(self._spent**2 + (budget.epsilon**2 - self._spent**2) * share)
        callbacks = [*kwargs.pop("callbacks", []), PrivacyBudget(min(most, budget.epsilon), budget.delta)]
        try:
            result = super().run_trial(trial, *args, callbacks=callbacks, **kwargs)
        except BudgetExhausted as exhausted:
            raise _BudgetEnded(str(exhausted)) from exhausted
        self._made += 1
        return result


_ENDED = (
    "Whether a trial fails, and what the error says, may depend on what a record holds, and no epsilon covers that: so"
    " the search ends here; KerasTuner's oracle was not told, and its folder only that it ended so. What it found so"
    " far (scores, models, the folder, how many trials and steps) is not to be published, as it ended because of this"
    " error. Find the cause, check or drop such records each by itself, and search anew in another folder; what was"
    " spent stays in the ledger. Hyper-parameters that make no model may fail: raise an error for them in build."
)
_BROKEN = "An error ({kind}) ended trial {trial}, elsewhere than in building its model. " + _ENDED
_broken: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
"""What an oracle's search failed by, in words."""


@dataclass(frozen=True)
class _Sampled(Drawn):
    """A hyper-parameter of KerasTuner, drawn as it draws it at random."""

    parameter: Any

    def draw(self, randomness: random.Random) -> Any:
        """One value."""
        return self.parameter.random_sample(randomness.getrandbits(32))


def keras_tuner_space(hypermodel: Any) -> tuple[Callable[[dict[str, Any]], Any], dict[str, Drawn]]:
    """What KerasTuner's `build(hp)` says it tunes, for `random_search(*keras_tuner_space(build), x, y, ...)`.

    The function is called once, on default values: hyper-parameters that it asks for only at other values of others
    are not found, and keep their defaults.

    Returns: a function of settings, and from what each is drawn.
    Raises: ValueError where nothing is tuned.
    """
    build = hypermodel.build if isinstance(hypermodel, keras_tuner.HyperModel) else hypermodel
    asked = keras_tuner.HyperParameters()
    build(asked)
    tuned = {one.name: _Sampled(one) for one in asked.space if type(one).__name__ != "Fixed"}
    if not tuned:
        raise ValueError("This function asks for no hyper-parameter: there is nothing to tune.")

    def built(settings: dict[str, Any]) -> Any:
        chosen = asked.copy()
        chosen.values.update(settings)
        return build(chosen)

    return built, dict(tuned)
