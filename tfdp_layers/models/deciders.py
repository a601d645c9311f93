"""What callbacks that are known to decide hold: whoever changes that decides in their place."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfdp_layers.callbacks.budget import PrivacyBudget
from tfdp_layers.callbacks.steering import decides_by, is_unknown
from tfdp_layers.models.steered import CHANGED

__all__ = ["Deciders"]

_DECIDING = (
    *(keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore),
    *(keras.callbacks.LearningRateScheduler, PrivacyBudget),
)
"""Beside those that decide by a metric: they decide which weights are kept, the rate, or when a training ends."""
_WITH_A_FUNCTION = keras.callbacks.LearningRateScheduler
"""Known but for the function that it calls, which is watched."""
Attributes = list[dict[str, Any]]
_OF_ALL = ("_model", "params")


class Deciders:
    """The callbacks of a training that are known to decide something, `EarlyStopping` say, and what they hold.

    What they decide by, `fit` has accepted. But an attribute of theirs that the code of others changes, a `patience` or
    a `best`, makes them decide by whatever that code read.

    Args:
        callbacks: of the training.
        note: called with a sentence where the weights that one of them puts back are others.
    """

    def __init__(self, callbacks: Sequence[Any], note: Callable[[str], None] = lambda _: None) -> None:
        self._note = note
        known = [one for one in callbacks if not is_unknown(one) or isinstance(one, _WITH_A_FUNCTION)]
        self._known = [one for one in known if isinstance(one, _DECIDING) or decides_by(one) is not None]

    def held(self) -> Attributes:
        """What each holds now, by attributes, but for hooks and what Keras gives all callbacks.

        Weights that they keep are read-only from here on: to write into them would be seen by nobody.
        """
        for one in self._known:
            for array in getattr(one, "best_weights", None) or ():
                if isinstance(array, np.ndarray):
                    array.flags.writeable = False
        return [
            {
                name: tuple(value) if type(value) is list else value
                for name, value in vars(one).items()
                if not name.startswith("on_") and name not in _OF_ALL
            }
            for one in self._known
        ]

    def compare(self, before: Attributes, now: Attributes, decided: Callable[[str], None]) -> None:
        """Calls `decided` with words for each callback with attributes that are others than they were."""
        for one, old, new in zip(self._known, before, now, strict=True):
            names = sorted(n for n in old.keys() | new.keys() if n not in old or n not in new or differ(old[n], new[n]))
            if names:
                if "best_weights" in names:
                    self._note(f"The weights that {type(one).__name__} puts back changed while fit ran. {CHANGED}")
                decided(f"changed {', '.join(map(repr, names))} of {type(one).__name__}, by which that decides")


def differ(old: Any, new: Any) -> bool:
    """Whether an attribute is another one: of numbers and texts by what they are, of all else by which object it is."""
    if old is new:
        return False
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) != len(new) or any(map(differ, old, new))
    plain = all(isinstance(one, bool | int | float | str | np.generic) for one in (old, new))
    return not plain or bool(old != new)
