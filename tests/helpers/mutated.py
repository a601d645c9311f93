"""A function with one piece of its source replaced: the planted bug that a test must see."""

import inspect
import sys
import textwrap
from typing import Any


def mutated(function: Any, old: str, new: str) -> Any:
    """The function, of a source in which `old`, which must be there once, reads `new`."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} is not once in {function.__name__}"
    scope = dict(vars(sys.modules[function.__module__]))
    exec(source.replace(old, new), scope)
    return scope[function.__name__]
