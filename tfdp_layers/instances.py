"""What an object is: a class given in its place, and methods that it has in the place of its class's. Loads no
TensorFlow.
"""

import functools
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
    kind: Any = type(thing)  # mypy takes a class for nothing that can be hashed
    return sorted(vars(thing).keys() & methods_of(kind))


@functools.lru_cache(maxsize=256)
def methods_of(kind: type) -> frozenset[str]:
    """The names of a class's methods: looked up for each layer while `fit` runs, so looked for once."""
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name, None)))
