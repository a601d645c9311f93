"""Parameters of tests most of which are variants: only a few of them run where the slow tests are left out."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], values: Iterable[Any], *, several: bool = False) -> list[Any]:
    """The values as parameters of a test, each marked slow unless it is one of `quick`: the same object, or text.

    Args:
        several: each value is a tuple of several arguments.
    """
    chosen = list(quick)

    def marked(value: Any) -> Any:
        if any(value is one or (isinstance(value, str) and value == one) for one in chosen):
            return value
        return pytest.param(*(value if several else (value,)), marks=pytest.mark.slow)

    values = list(values)
    found = [marked(value) for value in values]
    assert sum(a is b for a, b in zip(found, values, strict=True)) >= len(chosen), "a quick one is none of the values"
    return found
