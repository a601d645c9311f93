"""The noise multiplier of an optimizer: a number, or "calibrate" until `fit` finds one."""

import math
from typing import Any

CALIBRATE = "calibrate"


class NoiseMultiplier:
    """What an optimizer was given, and the number in use.

    Attributes:
        given: a finite number of at least 0, or "calibrate".
        found: for "calibrate", what the last `fit` found; None before.
        kept: whether a `fit` without a budget keeps to what was found: a search found it, and no callback did.

    Raises: ValueError for anything else.
    """

    def __init__(self, given: float | str) -> None:
        self.given: float | str = given if isinstance(given, str) and given == CALIBRATE else checked(given)
        self.found: float | None = None
        self.kept = False

    @classmethod
    def of_search(cls, found: float) -> "NoiseMultiplier":
        """What a search found: a later `fit` finds another for a budget of its own, and keeps to this one without."""
        made = cls(CALIBRATE)
        made.found, made.kept = found, True
        return made

    @property
    def calibrates(self) -> bool:
        """Whether `fit` finds the number."""
        return self.given == CALIBRATE

    @property
    def shown(self) -> float | str:
        """The number in use, or "calibrate" where none was found yet."""
        return self.given if self.found is None else self.found

    @property
    def number(self) -> float:
        """The number in use. Raises ValueError where none was found yet."""
        if isinstance(self.shown, str):
            raise ValueError(
                "The noise multiplier is 'calibrate': how much noise there is, is known once fit has found it, from the"
                " PrivacyBudget among its callbacks. To know it before, give a number:"
                " tfdp.accounting.calibrate_noise_multiplier finds one."
            )
        return self.shown


def checked(value: Any) -> float:
    """A noise multiplier as a float. Raises ValueError unless it is a finite number, 0 or more."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(
            "`noise_multiplier` is the noise's standard deviation over a record's bound: a finite number, 0 or"
            f" more, or 'calibrate'. Received: noise_multiplier={value!r}. With 'calibrate' fit finds it from its"
            " PrivacyBudget; tfdp.accounting.calibrate_noise_multiplier finds it without a fit."
        )
    return number


def refuse_calibrating_printed(noise_multiplier: Any, as_published: bool) -> None:
    """Raises ValueError for an algorithm as printed without the noise multiplier that its publication prints."""
    if as_published and noise_multiplier == CALIBRATE:
        raise ValueError(
            "as_published=True runs an algorithm as printed, with the noise that its publication prints, which keeps to"
            " no budget: 'calibrate' has nothing to keep to. Give a number, for example noise_multiplier=1.0."
        )
