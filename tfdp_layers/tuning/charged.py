"""What a trial of `PrivateTuner` builds and trains: models of one ledger, scored by what their `fit` logged."""

from typing import Any

import keras
import keras_tuner

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.logs import is_private, reads_as_validation
from tfdp_layers.models import fit_arguments, validation
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.tuning.released import Releases
from tfdp_layers.tuning.trial_ledger import refuse_paid

__all__ = ["MADE_UP", "Charged"]


class _Recorder(keras.callbacks.Callback):
    """Notes what the last `fit` of a trial's model logged of public numbers: whatever a `History` says of it later.

    KerasTuner copies callbacks, and a hypermodel's own `fit` may hand them to another model.
    """

    comes_last = True  # what callbacks put into the logs is among it

    def __init__(self, model: Any, releases: Releases) -> None:
        super().__init__()
        self._of, self._epochs, self._releases = model, list[dict[str, float]](), releases

    def __deepcopy__(self, memo: Any) -> "_Recorder":
        return self

    def on_train_begin(self, logs: Any = None) -> None:
        if self.model is self._of:
            self._epochs.clear()
            self._releases.note(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model is self._of:
            posing = self.model._privacy.posing
            known = {n: v for n, v in (logs or {}).items() if not is_private(n, validated=True, posing=posing)}
            self._epochs.append(known)

    def history(self) -> keras.callbacks.History:
        """The public numbers, as `fit` gives them."""
        made = keras.callbacks.History()
        made.epoch, made.history = list(range(len(self._epochs))), {}
        for logs in self._epochs:
            for name, value in logs.items():
                made.history.setdefault(name, []).append(value)
        return made


class Charged(keras_tuner.HyperModel):
    """A hypermodel whose models all count into one ledger, and whose scores are those that their `fit` recorded.

    Attributes:
        calibrates: whether the model that was built last leaves its noise to `fit`.
        scored: what the last `fit` gave, and what is known of it.
        releases: what the trial that runs releases.
    """

    def __init__(self, hypermodel: Any, ledger: Ledger) -> None:
        super().__init__()
        self._inner, self._ledger = hypermodel, ledger
        self.calibrates, self.releases = True, Releases(ledger)
        self.scored: tuple[Any, keras.callbacks.History] | None = None

    def build(self, hp: Any) -> Any:
        """The model. Raises TypeError for one that is not private, ValueError for weights that were paid elsewhere."""
        model = self._inner.build(hp) if isinstance(self._inner, keras_tuner.HyperModel) else self._inner(hp)
        if not isinstance(model, PrivateTraining):
            raise keras_tuner.errors.FatalTypeError(
                "PrivateTuner trains private models: build must return tfdp.make_private(model), compiled. It returned"
                f" {type(model).__name__}."
            )
        try:
            refuse_paid(model.ledger, self._ledger)
        except ValueError as error:
            raise keras_tuner.errors.FatalValueError(str(error)) from None
        model.ledger = self._ledger
        multiplier = getattr(getattr(model, "optimizer", None), "multiplier", None)
        self.calibrates = multiplier is None or multiplier.calibrates
        return model

    def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As the hypermodel's own, which must give what `fit` of this very model logged.

        `scored` is then what it gave, and a `History` of the public numbers alone: training metrics carry no noise, and
        scores go into files.

        Raises: TypeError where the hypermodel gives anything else: the oracle would choose by it. ValueError for
            arguments that `fit` refuses: it would refuse them in every trial.
        """
        if getattr(model, "ledger", None) is not self._ledger:
            raise keras_tuner.errors.FatalValueError(
                f"A trial was about to train a model ({type(model).__name__}) that does not count into the ledger of"
                " this tuner. Leave hypermodel.build as it is, and the ledger of its model."
            )
        own, recorder = isinstance(self._inner, keras_tuner.HyperModel), _Recorder(model, self.releases)
        kwargs["callbacks"] = [*kwargs.get("callbacks", []), recorder]
        fit = self._inner.fit if own else super().fit
        try:
            found = fit(hp, model, *args, **kwargs)
        except ValueError as error:
            if _of_arguments(error):  # KerasTuner would go on to the next trial, and `search` end as if it had trained
                raise keras_tuner.errors.FatalValueError(str(error)) from error
            raise
        if not isinstance(found, keras.callbacks.History):
            raise keras_tuner.errors.FatalTypeError(
                "fit of the hypermodel must return what model.fit gives, a History. It returned"
                f" {type(found).__name__}: {MADE_UP}"
            )
        known = recorder.history()
        _refuse_edited(found.history, known.history)
        self.scored = found, known
        return found


def _of_arguments(error: ValueError) -> bool:
    """Whether what was refused are arguments of `fit`, before it trained."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") not in _ARGUMENTS:
        trace = trace.tb_next
    return trace is not None


_ARGUMENTS = (fit_arguments.__name__, validation.__name__)
MADE_UP = (
    "the oracle would choose by it, and everybody may see it, and whether it was computed from the private records is"
    " unknown. Name a metric of the public validation data as the oracle's objective ('val_accuracy'); a number of your"
    " own on public data, a callback can put into the logs (logs['val_mine'] = ...)."
)


def _refuse_edited(found: dict[str, Any], known: dict[str, Any]) -> None:
    """Raises FatalTypeError where a History says other public numbers than `fit` of the trial's model logged."""
    if not known:
        raise keras_tuner.errors.FatalTypeError(
            "fit of the hypermodel did not train the model of its trial with the callbacks that it got, so that nothing"
            " is known of its score. Write return model.fit(*args, **kwargs); to add callbacks, append to"
            " kwargs['callbacks']."
        )
    wrong = [name for name, values in known.items() if list(found.get(name, ())) != list(values)]
    wrong += [name for name in found if reads_as_validation(name) and name not in known]
    if wrong:
        raise keras_tuner.errors.FatalTypeError(
            f"fit of the hypermodel returned a History whose {wrong[0]!r} is not what the last model.fit of the trial's"
            f" model logged: {MADE_UP}"
        )
