"""Checks of the fields of a release, whether a caller or a file gave them."""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["check_owners", "exactly", "nonnegative"]


def exactly(what: str, value: Any, fields: set[str]) -> None:
    """Raises ValueError unless the value, read from a file, is a mapping with these fields and no others."""
    if not isinstance(value, Mapping) or set(value) != fields:
        received = sorted(value) if isinstance(value, Mapping) else value
        raise ValueError(f"{what} needs exactly the fields {sorted(fields)}. Received: {received!r}.")


def nonnegative(name: str, value: Any) -> float:
    """Returns the value as a float. Raises ValueError unless it is a finite number of at least 0; text is none."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"The {name} must be a finite number of at least 0. Received: {value!r}.")
    return number


def check_owners(owners: Any, unit: str) -> None:
    """Raises ValueError unless it is a number of owners, 0 for one that is not known, and of what protects these."""
    if type(owners) is not int or owners < 0 or (owners and unit != "owner"):
        raise ValueError(
            f"owners, how many there are, must be an integer of at least 0, and 0 but for owners. Received: {owners!r}"
            f" for one {unit}."
        )
