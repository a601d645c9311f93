"""KerasTuner over private models: every trial is charged to one ledger; and its search spaces for `random_search`."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

try:
    import keras_tuner
except ImportError as error:
    raise ImportError(
        "This part of tfdp.tuning works with KerasTuner, which is not installed: pip install '.[tuning]' in the"
        " checkout, or pip install keras-tuner. tfdp.tuning.random_search needs nothing."
    ) from error

from tfdp_layers.accounting import BudgetExhausted, Ledger, epsilon
from tfdp_layers.callbacks import PrivacyBudget
from tfdp_layers.callbacks.steering import PUBLIC
from tfdp_layers.caller import warn
from tfdp_layers.instances import shown
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.tuning.space import Drawn

__all__ = ["PrivateTuner", "keras_tuner_space"]


class _BudgetEnded(keras_tuner.errors.FatalError):
    """KerasTuner goes on after any other error."""


class _Charged(keras_tuner.HyperModel):
    """A hypermodel whose models all count into one ledger."""

    def __init__(self, hypermodel: Any, ledger: Ledger) -> None:
        super().__init__()
        self._inner, self._ledger = hypermodel, ledger
        self.calibrates = True

    def build(self, hp: Any) -> Any:
        """The model. Raises TypeError for one that is not private."""
        model = self._inner.build(hp) if isinstance(self._inner, keras_tuner.HyperModel) else self._inner(hp)
        if not isinstance(model, PrivateTraining):
            raise keras_tuner.errors.FatalTypeError(
                "PrivateTuner trains private models: build must return tfdp.make_private(model), compiled. It returned"
                f" {type(model).__name__}."
            )
        model.ledger = self._ledger
        multiplier = getattr(getattr(model, "optimizer", None), "multiplier", None)
        self.calibrates = multiplier is None or multiplier.calibrates
        return model

    def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As the hypermodel's own. Raises TypeError where that gives a score of its own: the oracle would choose by it.

        Of which data a number was computed, only the `History` of `fit` says.
        """
        own = isinstance(self._inner, keras_tuner.HyperModel)
        found = self._inner.fit(hp, model, *args, **kwargs) if own else super().fit(hp, model, *args, **kwargs)
        if not isinstance(found, keras.callbacks.History):
            raise keras_tuner.errors.FatalTypeError(
                "fit of the hypermodel must return what model.fit gives, a History. It returned"
                f" {type(found).__name__}: the oracle would choose by it, and everybody may see it, and whether it was"
                " computed from the private records is unknown. Name a metric of the public validation data as the"
                " oracle's objective ('val_accuracy'); a number of your own on public data, a callback can put into"
                " the logs (logs['val_mine'] = ...)."
            )
        return found


class PrivateTuner(keras_tuner.Tuner):
    """A KerasTuner tuner of private models: all that its trials release is in one ledger, by composition.

    Every step of every trial is charged, so all trials may be looked at, any oracle may choose the next one, and the
    best model may be loaded. That costs more than `tfdp.tuning.random_search`, which shows the best trial alone.

    Guarantee: what the tuner shows is (epsilon, delta)-differentially private with the ledger's epsilon, which is at
    most the budget's: each trial trains under a `PrivacyBudget`. Where optimizers leave the noise open
    (`noise_multiplier="calibrate"`), trial k of n may bring the ledger's epsilon to
    sqrt(s^2 + (epsilon^2 - s^2) k / n), s being what it held before the search: trials then get about equal noise. A
    spent budget ends the search. Finding the noise takes longer from trial to trial, each being of its own noise.

    Args:
        oracle: of KerasTuner, for example `keras_tuner.oracles.RandomSearchOracle("val_accuracy", max_trials=10)`. Its
            objective must be a metric of validation data, which are PUBLIC; `fit` refuses others.
        hypermodel: builds a compiled private model of hyper-parameters.
        ledger: of the data set: `Ledger(path, dataset="name", budget=(epsilon, delta))`.
        kwargs: as in `keras_tuner.Tuner`.

    Raises:
        ValueError: the ledger has no data set or no budget, the oracle no number of trials, or an objective that is no
            metric of validation data, or several executions of a trial are asked for.
    """

    def __init__(self, oracle: Any, hypermodel: Any, *, ledger: Ledger, **kwargs: Any) -> None:
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
        _refuse_private(oracle.objective)
        if kwargs.get("executions_per_trial", 1) != 1:
            raise ValueError("Of PrivateTuner every execution is charged: give the oracle more trials instead.")
        self.ledger, self._spent, self._made = ledger, 0.0, 0
        super().__init__(oracle, _Charged(hypermodel, ledger), **kwargs)

    def search(self, *args: Any, **kwargs: Any) -> None:
        """As in KerasTuner; a spent budget ends it with a UserWarning.

        Raises: BudgetExhausted where the budget affords no trial.
        """
        assert self.ledger.budget is not None
        self._spent = float(epsilon(self.ledger, self.ledger.budget.delta))
        try:
            super().search(*args, **kwargs)
        except _BudgetEnded as ended:
            if self._made == 0:
                raise BudgetExhausted(str(ended)) from ended
            warn(f"The budget ended the search after {self._made} trials: {ended}")

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


def _refuse_private(objective: Any) -> None:
    """Raises ValueError for an oracle's objective that is not of validation data: any number could be its score."""
    names = [str(one.name) for one in getattr(objective, "objectives", [objective])]
    if not all(name.startswith("val_") or name in PUBLIC for name in names):
        raise ValueError(
            f"The oracle's objective must be a metric of validation data, which are public, such as 'val_accuracy'."
            f" Received: {names}. A number of the training data carries no noise: choosing by it would leak."
        )


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
