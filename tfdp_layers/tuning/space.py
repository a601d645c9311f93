"""Settings and how they are drawn: independently, from a public distribution."""

import abc
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Choice", "Drawn", "LogUniform", "Space", "Uniform", "checked_space", "draw_settings"]


class Drawn(abc.ABC):
    """What a setting is drawn from."""

    @abc.abstractmethod
    def draw(self, randomness: random.Random) -> Any:
        """One value."""


@dataclass(frozen=True, init=False)
class Choice(Drawn):
    """One of these values, each as likely as the others. Raises ValueError where there are none."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        if not values:
            raise ValueError("Choice needs at least one value, for example Choice(16, 32, 64).")
        object.__setattr__(self, "values", values)

    def draw(self, randomness: random.Random) -> Any:
        """One value."""
        return self.values[randomness.randrange(len(self.values))]


@dataclass(frozen=True)
class Uniform(Drawn):
    """A number between `low` and `high`, uniformly. Raises ValueError unless low < high, both finite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"{type(self).__name__} needs two finite numbers, low < high. Received: {self!r}.")

    def draw(self, randomness: random.Random) -> float:
        """One number."""
        return self.low + (self.high - self.low) * randomness.random()


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A number between `low` and `high`, its logarithm uniformly: for rates and clips. Also raises unless low > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise ValueError(f"LogUniform needs low above 0: no logarithm is uniform down to it. Received: {self!r}.")

    def draw(self, randomness: random.Random) -> float:
        """One number."""
        return math.exp(math.log(self.low) + (math.log(self.high) - math.log(self.low)) * randomness.random())


Space = Mapping[str, Drawn]
"""What each setting is drawn from, by its name."""


def checked_space(space: Any) -> dict[str, Drawn]:
    """The space; a list or tuple of values becomes a `Choice`. Raises ValueError for anything else."""
    if not isinstance(space, Mapping) or not space or not all(isinstance(name, str) for name in space):
        raise ValueError(
            "space says from what each setting is drawn, by its name: {'learning_rate': tfdp.tuning.LogUniform(1e-3,"
            f" 0.1), 'units': [32, 64]}}. Received: {space!r}."
        )
    ranges = [name for name, of in space.items() if isinstance(of, tuple) and len(of) == 2 and float in map(type, of)]
    if ranges:
        raise ValueError(
            f"The settings {ranges} are given as two numbers in a tuple, which would be drawn as two values. Write a"
            " range as tfdp.tuning.LogUniform(low, high) or Uniform(low, high), and two values as a list."
        )
    found = {
        name: Choice(*of) if isinstance(of, Sequence) and not isinstance(of, str) else of for name, of in space.items()
    }
    wrong = [name for name, of in found.items() if not isinstance(of, Drawn)]
    if wrong:
        raise ValueError(
            f"The settings {wrong} are drawn from nothing known. Use tfdp.tuning.Choice, Uniform or LogUniform, or a"
            " list of values."
        )
    return found


def draw_settings(space: Space, randomness: random.Random) -> dict[str, Any]:
    """One value of each setting, drawn independently."""
    return {name: of.draw(randomness) for name, of in space.items()}
