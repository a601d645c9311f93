"""When a training's loop is about to make a step."""

from typing import Any

import keras

from tfdp_layers.models.run import PrivacyState


class Turns(keras.callbacks.Callback):
    """Tells the run, as the last callback before each call of its step, that the loop itself makes the next call.

    Between this and the call no code of the caller runs: a call at any other time is not the loop's. Functions of
    schedulers, generators of validation data and layers that are saved run in the loop's own thread, and outside of any
    hook that is watched.

    Args:
        state: of the model.
    """

    comes_last = True

    def __init__(self, state: PrivacyState) -> None:
        super().__init__()
        self._state = state

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """See the class."""
        if self._state.run is not None:  # a list of callbacks may go on to another model
            self._state.run.begun = True
