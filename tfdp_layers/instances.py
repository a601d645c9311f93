"""An object where a class of it was given: the commonest slip of those who write Keras. Loads no TensorFlow."""

from typing import Any

__all__ = ["refuse_class"]


def refuse_class(given: Any, argument: str, example: str = "...", otherwise: str = "") -> None:
    """Raises ValueError where an argument is a class and not an object of it.

    Args:
        argument: how the caller calls it.
        example: what a call of the class takes.
        otherwise: what may be given in its place, as the end of the message.
    """
    if isinstance(given, type):
        raise ValueError(
            f"{argument} is {given.__name__}, a class, and not an object of it. Call it:"
            f" {given.__name__}({example}){otherwise}."
        )
