"""What moved a model otherwise than a counted `fit`: its weights, and the steps that its optimizer made."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.left import CHANGED_ELSEWHERE, are_changed, are_watched, leave, leave_elsewhere
from tfdp_layers.accounting.locked_file import LedgerError

__all__ = ["UNCOUNTED", "Outside"]

UNCOUNTED = (
    "The optimizer made steps outside of a counted fit, by minimize or apply_gradients in a loop say: what it took from"
    " records there is in no ledger. Train a new model, by fit alone."
)
"""Why a statement is void."""

_BEFORE = (
    "Before the first counted fit something else trained the weights, such as fit of a model around this one, or a"
    " loop. What it took from records is not in this statement; if those were public, nothing is lost."
)

_WHILE = (
    "While fit ran, something else than its counted steps changed the weights, such as another optimizer in a callback."
    " What it took from records is not in this statement; if those were public, nothing is lost."
)

_KNOWN = "_tfdp_steps"
"""Of an optimizer: how many of its steps are known, counted by whichever model, or there before it came to one."""


class Outside:
    """Compares a model with what the last counted `fit` left, by digests of its weights and its optimizer's steps.

    What may be loaded without a note: whatever `load_weights` reads, weights that a training ended with, had at the end
    of an epoch or gave by `get_weights`, those that the model began with; and before the first counted `fit` anything,
    by whichever call, unless the model was called meanwhile where gradients are taken. Not seen is, before that `fit`,
    what trains the model's layers without a call of it, and an optimizer with which it is not compiled then. While a
    `fit` runs, hooks of callbacks that are not Keras' own are watched, from step to step; other code is not, such as a
    generator of validation data.

    Attributes:
        trained: whether the model was called, but for the counted steps, where gradients are taken.
    """

    def __init__(self, model: Any, ledger: Ledger) -> None:
        self._account = Account(ledger)
        self._fitted = self.trained = self._hooked = False
        leave(one for one in _weights(model) if not are_watched([one]))
        leave_elsewhere(_weights(model))
        self.see(model)

    @property
    def fitted(self) -> bool:
        """Whether a counted `fit` ended."""
        return self._fitted

    def see(self, model: Any, counted: int = 0) -> None:
        """Takes the steps that the optimizer made so far as known, but for those that the running `fit` counts."""
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            vars(optimizer)[_KNOWN] = _steps(optimizer) - counted

    def loaded(self, model: Any) -> None:
        """The weights are from a file, or those to begin with, on the caller's word."""
        leave(_weights(model))
        leave_elsewhere(_weights(model))

    def handed_out(self, arrays: Any) -> None:
        """Somebody has these weights of a counted `fit`, and may put them back."""
        leave_elsewhere(arrays)

    def epochs(self, model: Any) -> keras.callbacks.Callback:
        """Sees the ends of epochs: whose weights somebody may save, and restore later.

        Not those that a hook has changed by then, which `steps` or `ends` sees, if they stay.
        """

        def ended() -> None:
            if not (self._hooked and self._moved(model)):
                leave_elsewhere(_weights(model))

        return _Epochs(ended)

    def remarks(self, model: Any, counted: int | None = None) -> list[str]:
        """What statements say now of what was not counted.

        Args:
            counted: steps that the running `fit` made; None outside of one.
        """
        running = counted is not None
        found = list(self._account.remarks)
        if self._uncounted(model, counted or 0):
            found.append(UNCOUNTED)
        elif (self._hooked or not running) and (self._fitted or self.trained or counted) and self._moved(model):
            found.append(_WHILE if running else CHANGED_ELSEWHERE if self._fitted else _BEFORE)
        return list(dict.fromkeys(found))

    def keep(self, model: Any, counted: int | None = None) -> None:
        """Has all later statements say what is said now, and the ledger's file; see `remarks`."""
        for one in self.remarks(model, counted):
            with contextlib.suppress(LedgerError):  # a file that cannot be written: the next that is brings it
                self._account.remark(one)

    def begins(self, model: Any, hooked: bool) -> None:
        """A counted `fit` is about to begin. Raises ValueError where the optimizer made steps that nothing counted.

        Args:
            hooked: whether code that this library does not know runs between its steps, in hooks of callbacks.
        """
        self.keep(model)
        if UNCOUNTED in self._account.remarks:
            raise ValueError(
                f"{UNCOUNTED} A budget would not hold for this one's weights: they took steps that the ledger lacks."
            )
        self.see(model)
        leave_elsewhere(_weights(model))
        self._hooked = hooked

    def steps(self, model: Any, made: int) -> None:
        """A counted step is about to be made, after so many."""
        if self._hooked and self._moved(model):
            self.keep(model, made)

    def stepped(self, model: Any) -> None:
        """A counted step was made: its weights, and their moving averages, are what it released."""
        if self._hooked:
            self.loaded(model)
            leave_elsewhere(getattr(model.optimizer, "_model_variables_moving_average", None) or ())

    def ends(self, model: Any, counted: int) -> None:
        """A counted `fit` ended, if by an error, after so many steps."""
        self.keep(model, counted)
        self.see(model)
        self._fitted, self._hooked = True, False
        self.loaded(model)

    def _moved(self, model: Any) -> bool:
        """Whether the weights are none that were left anywhere."""
        return are_changed(_weights(model))

    def _uncounted(self, model: Any, counted: int) -> bool:
        """Whether the optimizer made more steps than are known. A restored checkpoint may bring some, too."""
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None or not (self._fitted or self.trained or counted):
            return False
        made = _steps(optimizer)
        return made > vars(optimizer).get(_KNOWN, made) + counted


class _Epochs(keras.callbacks.Callback):
    def __init__(self, ended: Callable[[], None]) -> None:
        super().__init__()
        self._ended = ended

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._ended()


def _steps(optimizer: Any) -> int:
    return int(np.asarray(getattr(optimizer, "iterations", 0)))


def _weights(model: Any) -> list[Any]:
    """Those of real numbers: what random layers count with moves at every look. None before the model is built."""
    return [one for one in model.weights if one.dtype.is_floating] if model.built else []
