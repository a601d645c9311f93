"""What an object is: a class given in its place, and methods that it has in the place of its class's. Loads no
TensorFlow.
"""

from typing import Any

__all__ = ["refuse_class", "replaced"]


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


def replaced(thing: Any) -> list[str]:
    """The methods of its class that an object has others in the place of, by assignment: `thing.release = ...`."""
    return sorted(name for name in vars(thing) if callable(getattr(type(thing), name, None)))
