"""When a training's loop is about to make a step, and which function it calls for it."""

from collections.abc import Callable
from typing import Any

import keras

__all__ = ["Epochs", "HookLooks", "OwnStep", "Turns"]

_ANOTHER = (
    "another function than the step that was proved and is counted: what that takes from records is in no ledger, and"
    " without noise. Leave model.train_function to fit; what a training does besides belongs in a callback, a layer or"
    " the loss."
)
_NONE = (
    "None while fit runs, set so by a callback, say: the training keeps to the step that it began with, which was"
    " proved and is counted. Change what that is made of between two calls of fit."
)


class Turns(keras.callbacks.Callback):
    """Tells the run, as the last callback before each call of its step, that the loop itself makes the next call.

    Between this and the call no code of the caller runs: a call at any other time is not the loop's. Functions of
    schedulers, generators of validation data and layers that are saved run in the loop's own thread, and outside of any
    hook that is watched. And where the step was not called by the next turn, the loop called something else.

    Args:
        run: gives what counts the steps, whose attribute `begun` becomes True, and False once the step is called; None
            where nothing is counted now.
        note: called with a sentence where the loop called something else.

    Raises: RuntimeError, from a hook, where the loop called something else.
    """

    comes_last = True

    def __init__(self, run: Callable[[], Any], note: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self._run, self._note = run, note

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """See the class."""
        run = self._run()
        if run is not None:  # a list of callbacks may go on to another model
            self._refuse_another(run)
            run.begun = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """See the class."""
        run = self._run()
        if run is not None:
            self._refuse_another(run)

    def _refuse_another(self, run: Any) -> None:
        if run.begun:
            run.begun = False
            self._note(f"The loop of fit called {_ANOTHER}")
            raise RuntimeError(f"In the turn before, the loop of fit called {_ANOTHER}")


class Epochs(keras.callbacks.Callback):
    """Tells when the last step of an epoch was made, and when its validation is over, before any other callback.

    Args:
        watch: gives what is told, by its methods `stepped` and `over`; None where nothing is watched now.
    """

    adds_to_logs = True  # so that it comes first

    def __init__(self, watch: Callable[[], Any]) -> None:
        super().__init__()
        self._watch = watch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """See the class."""
        watch = self._watch()
        if watch is not None and (self.model.stop_training or batch + 1 >= (self.params.get("steps") or 0)):
            watch.stepped()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See the class."""
        watch = self._watch()
        if watch is not None:
            watch.over()


class HookLooks(keras.callbacks.Callback):
    """Has hooks looked at that were set since the last look, before any other callback's hook of a turn runs.

    `set_model`, a property, a generator of validation data or a thread may set one outside of any hook.

    Args:
        watch: gives what looks, by its method `look`; None where nothing is watched now.
    """

    adds_to_logs = True  # so that it comes first

    def __init__(self, watch: Callable[[], Any]) -> None:
        super().__init__()
        self._watch = watch

    def _look(self, *args: Any, **kwargs: Any) -> None:
        watch = self._watch()
        if watch is not None:
            watch.look()

    def _look_of_batch(self, *args: Any, **kwargs: Any) -> None:
        watch = self._watch()
        if watch is not None and watch.looks:
            watch.look()

    on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = _look
    on_train_batch_begin = on_train_batch_end = _look_of_batch


class OwnStep:
    """In the place of a model's `train_function`: while a training runs, Keras' loop calls its own step, or none.

    Args:
        foreign: of a model and what lies there, whether a training runs and that is not its step.

    Raises: RuntimeError, where it is asked for, while another function lies there and a training runs.
    """

    _HELD = "_train_function"

    def __init__(self, foreign: Callable[[Any, Any], bool]) -> None:
        self._foreign = foreign

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self
        held = vars(model).get(self._HELD)
        if self._foreign(model, held):
            raise RuntimeError(f"model.train_function is {_NONE if held is None else _ANOTHER}")
        return held

    def __set__(self, model: Any, step: Any) -> None:
        vars(model)[self._HELD] = step

    def __delete__(self, model: Any) -> None:
        vars(model).pop(self._HELD, None)
