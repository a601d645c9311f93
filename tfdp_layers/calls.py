"""Calls with too few arguments, too many, or unknown ones: said in a sentence that says what they mean.

Loads no TensorFlow.
"""

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["explain", "explained"]

_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LONGEST = 240


def explain(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Has what a module hands out say what a call lacks: each public class and function of these names.

    One rule for all of them, which reads the signature and the docstring that are there, so that none is written twice.
    """
    for name in names:
        namespace[name] = explained(namespace[name])


def explained(thing: Any) -> Any:
    """Returns a class, changed, or a function, wrapped, whose TypeError of a call that does not fit is a sentence.

    What fits is called as it is, and every other error passes. A function is replaced where it is defined, too: it has
    one object, by which it can be pickled. Anything else is returned as it came.
    """
    if isinstance(thing, type) and not getattr(thing, "_is_protocol", False):
        owner = next((one for one in thing.__mro__ if "__init__" in vars(one)), object)
        if owner.__module__.startswith("tfdp_layers."):  # of others' classes nothing is changed
            owner.__init__ = _wrapped(vars(owner)["__init__"], thing)  # type: ignore[misc]
    elif inspect.isfunction(thing) and thing.__module__.startswith("tfdp_layers."):
        defined = vars(sys.modules[thing.__module__])
        if not hasattr(defined[thing.__name__], "_explained"):
            defined[thing.__name__] = _wrapped(thing, thing)
        return defined[thing.__name__]
    return thing


def _wrapped(function: Callable[..., Any], called: Any) -> Callable[..., Any]:
    if hasattr(function, "_explained"):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            said = _said(function, called, args, kwargs, str(error))
            if said is None:
                raise
        raise TypeError(said)

    call._explained = True  # type: ignore[attr-defined]
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # for what follows no `__wrapped__`
    return call


def _said(
    function: Callable[..., Any], called: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: str
) -> str | None:
    """What is wrong with a call; None where it fits, and the error came from within."""
    parameters = list(inspect.signature(function).parameters.values())
    if isinstance(called, type):
        called, args, parameters = type(args[0]), args[1:], parameters[1:]
    name, free = called.__name__, {one.kind for one in parameters}
    placed = [one.name for one in parameters if one.kind in _PLACED]
    named = [one.name for one in parameters if one.kind not in _ANY_NUMBER]
    unknown = [] if inspect.Parameter.VAR_KEYWORD in free else [one for one in kwargs if one not in named]
    surplus = 0 if inspect.Parameter.VAR_POSITIONAL in free else len(args) - len(placed)
    if unknown:
        close = difflib.get_close_matches(unknown[0], named, 1, 0.6)
        meant = f"Did you mean {close[0]!r}?" if close else f"It takes: {', '.join(named) or 'none'}."
        return f"{name} has no argument {unknown[0]!r}. {meant}"
    if surplus > 0:
        takes = f"only {', '.join(placed)} by place" if placed else "no arguments by place"
        others = f" Give the others by name: {', '.join(named[len(placed) :])}." if named[len(placed) :] else ""
        return f"{name} takes {takes}, and got {len(args)}.{others}{_example(name, parameters, surplus)}"
    needed = [one.name for one in parameters if one.kind not in _ANY_NUMBER and one.default is one.empty]
    missing = [one for one in needed if one not in {*placed[: len(args)], *kwargs}]
    if missing:
        return f"{_needs(called, missing)}{_example(name, parameters)}"
    above = _missing_above(called, error)
    return _needs(called, above) if above else None


def _needs(called: Any, missing: list[str]) -> str:
    """The sentence that names what a call lacks, with what each means, said once where several mean the same."""
    meanings: dict[str, list[str]] = {}
    for one in missing:
        meanings.setdefault(_meaning(called, one), []).append(one)
    said = "".join(f" {', '.join(names)}: {meaning}" for meaning, names in meanings.items() if meaning)
    *others, last = missing
    return f"{called.__name__} needs {', '.join(others)}{' and ' if others else ''}{last}.{said}"


def _example(name: str, parameters: Iterable[inspect.Parameter], surplus: int = 0) -> str:
    """A call with all that is needed, and of what is given by name as many as were given by place too many."""
    shown = []
    for one in parameters:
        if one.kind in _PLACED and (one.default is one.empty or surplus > 0):
            shown.append(one.name)
        elif one.kind is one.KEYWORD_ONLY and (one.default is one.empty or surplus > 0):
            shown.append(f"{one.name}=...")
            surplus -= one.default is not one.empty
    return f" Write {name}({', '.join(shown)})." if shown else ""


def _missing_above(called: Any, error: str) -> list[str]:
    """What a class of Keras' lacks that one of ours comes from, and hands all its arguments to."""
    found = re.match(r"(\w+)\.__init__\(\) missing \d+ required [\w-]+ arguments?: (.+)", error)
    kinds = [one.__name__ for one in called.__mro__] if isinstance(called, type) else []
    return re.findall(r"'(\w+)'", found[2]) if found and found[1] in kinds else []


def _meaning(called: Any, argument: str) -> str:
    """The first sentence that a docstring has of an argument: of a class, or of one that it comes from; or nothing."""
    for one in called.__mro__ if isinstance(called, type) else (called,):
        for names, text in _described(vars(one).get("__doc__") or "" if isinstance(one, type) else one.__doc__ or ""):
            if argument in names and not text.startswith(("see ", "as ")):
                sentence = re.split(r"(?<=[.;])\s", f"{text}.", maxsplit=1)[0].rstrip(".;")
                return f"{sentence}." if len(sentence) <= _LONGEST else ""
    return ""


def _described(docstring: str) -> list[tuple[list[str], str]]:
    """The names and the text of each entry of a docstring's `Args:` or `Attributes:`."""
    found: list[tuple[list[str], str]] = []
    inside = False
    for line in inspect.cleandoc(docstring).splitlines():
        head = re.match(r" {4}(\w+(?:, \w+)*): (.+)", line)
        if line[:1].strip():
            inside = line.startswith(("Args:", "Attributes:"))
        elif inside and head:
            found.append((head[1].split(", "), head[2]))
        elif inside and found and line.startswith(" " * 8):
            found[-1] = found[-1][0], f"{found[-1][1]} {line.strip()}"
    return found
