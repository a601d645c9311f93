"""When a training's loop is about to make a step."""

from collections.abc import Callable
from typing import Any

import keras

__all__ = ["Turns"]


class Turns(keras.callbacks.Callback):
    """Tells the run, as the last callback before each call of its step, that the loop itself makes the next call.

    Between this and the call no code of the caller runs: a call at any other time is not the loop's. Functions of
    schedulers, generators of validation data and layers that are saved run in the loop's own thread, and outside of any
    hook that is watched.

    Args:
        run: gives what counts the steps, whose attribute `begun` becomes True; None where nothing is counted now.
    """

    comes_last = True

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__()
        self._run = run

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """See the class."""
        run = self._run()
        if run is not None:  # a list of callbacks may go on to another model
            run.begun = True
