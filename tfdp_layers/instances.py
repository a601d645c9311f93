"""What an object is: a class in its place, one of the caller's own class, one with methods put on it, names it lacks.
Loads no TensorFlow.
"""

import functools
from collections.abc import Collection
from typing import Any

__all__ = ["Elsewhere", "kind_of", "refuse_class", "refuse_other_kind", "refuse_own_code", "replaced", "shown"]


class Elsewhere:
    """In the place of an attribute that a class does not have, and that is looked for there: says where it is.

    Args:
        where: what to write, as a sentence.
    """

    def __init__(self, where: str) -> None:
        self._where, self._name = where, ""

    @classmethod
    def several(cls, count: int, where: str) -> "list[Elsewhere]":
        """As many of them, for names of one thing."""
        return [cls(where) for _ in range(count)]

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        """Raises AttributeError, of an object: `hasattr` is False, as of any name that is not there."""
        if thing is None:
            return self
        raise AttributeError(f"{type(thing).__name__!r} object has no attribute {self._name!r}. {self._where}")


def kind_of(given: Any) -> str:
    """What an error calls the thing that was given: its class; of a class, that it is one."""
    return f"{given.__name__}, a class" if isinstance(given, type) else type(given).__name__


def refuse_other_kind(given: Any, kinds: type | tuple[type, ...], argument: str, what: str) -> None:
    """Raises ValueError unless an argument is of one of these classes.

    Args:
        argument: how the caller calls it.
        what: what it must be, with an example.
    """
    if not isinstance(given, kinds):
        raise ValueError(f"{argument} must be {what}. Received: {kind_of(given)}.")


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


def refuse_own_code(given: Any, kinds: Collection[type], argument: str, of_keras: Collection[str] = ()) -> None:
    """Raises ValueError for an object that is charged as those of this library are, and may do another thing.

    Args:
        given: an object of one of these classes, or of one derived from them.
        kinds: what it must be exactly.
        argument: how the caller calls it.
        of_keras: methods that Keras itself puts on objects.
    """
    own = sorted(set(replaced(given)) - set(of_keras))
    if own or type(given) not in kinds:
        what = f"has a {own[0]}() that was put on the object" if own else "is of a class of your own"
        raise ValueError(
            f"{argument}, {type(given).__name__}, {what}: what it does is unknown, and it would be charged as what this"
            f" library does. Use {' or '.join(sorted(kind.__name__ for kind in kinds))} as it is."
        )


def shown(value: Any) -> str:
    """What an error shows of an argument: of an array, which may hold records, its shape; of long ones a beginning."""
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} of shape {shape}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{type(value).__name__} {text[:_LONGEST]}..."


_LONGEST = 80


def replaced(thing: Any) -> list[str]:
    """The methods of its class that an object has others in the place of, by assignment: `thing.release = ...`."""
    kind: Any = type(thing)  # mypy takes a class for nothing that can be hashed
    return sorted(vars(thing).keys() & methods_of(kind))


@functools.lru_cache(maxsize=256)
def methods_of(kind: type) -> frozenset[str]:
    """The names of a class's methods: looked up for each layer while `fit` runs, so looked for once."""
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name, None)))
