"""A model's `train_step` where each step is counted: called by the counted step alone."""

from collections.abc import Callable
from typing import Any

__all__ = ["GuardedStep", "OwnTrainStep", "step_of"]


class GuardedStep:
    """A `train_step` that only the counted step may call, or trace.

    Args:
        step: what it calls.
        allowed: called before it; raises where nothing counts the step.
    """

    def __init__(self, step: Callable[[Any], Any], allowed: Callable[[], None]) -> None:
        self.step, self._allowed = step, allowed

    def __call__(self, data: Any) -> Any:
        """Raises RuntimeError outside of the counted step."""
        self._allowed()
        return self.step(data)


class OwnTrainStep:
    """In the place of a model's `train_step`, its class's or its own (DPModel compiles one): see `GuardedStep`.

    Args:
        allowed: of a model: raises RuntimeError unless the counted step is being made.
    """

    _HELD = "train_step"

    def __init__(self, allowed: Callable[[Any], None]) -> None:
        self._allowed = allowed
        self._owner: type = object

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self
        held = vars(model).get(self._HELD)
        step = super(self._owner, model).train_step if held is None else held  # type: ignore[misc, arg-type]
        return GuardedStep(step, lambda: self._allowed(model))

    def __set__(self, model: Any, step: Any) -> None:
        vars(model)[self._HELD] = step

    def __delete__(self, model: Any) -> None:
        vars(model).pop(self._HELD, None)


def step_of(model: Any) -> Any:
    """The model's own `train_step`, without a guard."""
    step = model.train_step
    return step.step if isinstance(step, GuardedStep) else step
