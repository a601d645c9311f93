"""Which numbers in the logs of a training are public: the one place that goes by what they are called."""

from collections.abc import Callable, Iterable
from typing import Any

__all__ = [
    *("PUBLIC", "is_private", "is_unprotected", "mark_unprotected", "metric_of", "posing_names"),
    *("reads_as_validation", "validation_name"),
]

PUBLIC = ("epsilon", "nominal_epsilon", "learning_rate", "lr")
"""Names in the logs of numbers that are public."""

_PREFIX = "val_"


def is_private(name: str, validated: bool, posing: bool) -> bool:
    """Whether a number in the logs was computed from private records without noise, or may have been.

    Args:
        validated: whether there are validation data, which are public.
        posing: whether outputs or metrics of the model are named like validation metrics.
    """
    return name not in PUBLIC and not (reads_as_validation(name) and validated and not posing)


def reads_as_validation(name: str) -> bool:
    """Whether a name is like that of a validation metric. That it is one, `is_private` alone says."""
    return name.startswith(_PREFIX)


def validation_name(metric: str) -> str:
    """What Keras calls a metric of the validation data in the logs."""
    return _PREFIX + metric


def metric_of(name: str) -> str:
    """The metric that a name in the logs is of."""
    return name.removeprefix(_PREFIX)


def posing_names(logged: Iterable[str]) -> list[str]:
    """Those outputs and metrics of a model whose training metrics are named like validation metrics.

    Keras puts an output's name before those of its metrics: "val" and "mae" make "val_mae".
    """
    return sorted(name for name in logged if reads_as_validation(f"{name}_"))


def mark_unprotected(history: Any, private: Callable[[str], bool]) -> None:
    """Has a Keras `History` keep which of its numbers are private, in `unprotected`: it outlives what else knows it."""
    before = getattr(history, "unprotected", ())
    history.unprotected = tuple(dict.fromkeys([*before, *(name for name in history.history if private(name))]))


def is_unprotected(source: Any, name: str) -> bool:
    """Whether a number is private of those in a History, a model that has one, or a mapping of lists by name.

    A History of a `fit` of this library's knows it, see `mark_unprotected`; of anything else the name alone decides: it
    was computed from what the caller says, by calling it so.
    """
    held = getattr(source, "history", None)
    history = held if hasattr(held, "history") else source
    marked = getattr(history, "unprotected", None)
    if isinstance(marked, tuple):
        return name in marked
    asked = getattr(getattr(history, "model", None), "private_in_logs", None)
    return bool(asked(name)) if callable(asked) else is_private(name, validated=True, posing=False)
