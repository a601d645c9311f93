"""The learning rate of an optimizer that was given by the name "adam": `fit` finds it from public numbers."""

import math
from collections.abc import Sequence
from typing import Any

import keras

KERAS = 0.001
"""Of Keras' Adam, AdamW and Nadam."""
BEFORE_FIT = 0.00500001
"""Of those by their names, where no `fit` found another one: a number that nobody types."""
_KINDS = {
    kind.__name__.lower(): kind for kind in (keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.Nadam)
}
_TRAVEL = 4.4
_LEAST, _MOST = 1e-4, 0.03


def adam_rate(steps: int, shapes: Sequence[Sequence[int]]) -> float:
    """4.4 / (sqrt(steps layers) weights^(1/4)), two digits of it, between 0.0001 and 0.03.

    Where noise is most of a gradient, Adam's normalised steps are a random walk: after s steps of rate r each weight is
    about r sqrt(s) from where the signal alone would have it. A unit adds up that of its inputs, and where w weights
    are those of a square matrix, sqrt(w) enter it: what it computes is moved by about r sqrt(s) w^(1/4), and what
    several layers compute by more, which is held at one number. That number is from Fashion-MNIST (26,010 weights, 4
    layers, 1,200 steps, where 0.005 is best); docs/choosing.md has what the rule does elsewhere. A rule of thumb: rates
    don't enter the guarantee, and it reads no record.

    Args:
        steps: of the whole training, those of earlier `fit`s too.
        shapes: of the weights that are trained; those with two axes or more count as layers.
    """
    weights = max(1, sum(math.prod(shape) for shape in shapes))
    layers = max(1, sum(len(shape) > 1 for shape in shapes))
    found = _TRAVEL / (math.sqrt(max(1, steps) * layers) * weights**0.25)
    return float(f"{min(_MOST, max(_LEAST, found)):.2g}")


class LearningRate:
    """Whether `fit` finds the rate, and what it found last: a rate that somebody set, before or since, stays.

    `by_name` ends where the private optimizer's `learning_rate` is set; what was set in the wrapped optimizer, or in
    its variable, shows as another rate than the last one.

    Args:
        given: what the private optimizer wraps, as the user gave it.
        found: the last rate that a `fit` found, or the one before any.
    """

    def __init__(self, given: Any, found: float = BEFORE_FIT) -> None:
        self.by_name = isinstance(given, str) and given.lower() in _KINDS
        self.found = found

    def settle(self, inner: Any, steps: int, shapes: Sequence[Sequence[int]]) -> bool:
        """Sets the rate of a training of so many steps and such weights; False where it was set by somebody."""
        scheduled = isinstance(getattr(inner, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule)
        if not self.by_name or scheduled or not self._stands(inner.learning_rate):
            return False
        self.use(inner, adam_rate(steps, shapes))
        return True

    def use(self, inner: Any, rate: float) -> None:
        """Sets a rate that was found: here, or by the chief of several workers."""
        self.found = inner.learning_rate = rate

    def made(self, name: str) -> keras.optimizers.Optimizer:
        """The optimizer of a name that is known here."""
        return _KINDS[name.lower()](self.found)

    def is_kerases(self, inner: Any) -> bool:
        """Whether it is such an optimizer at Keras' own rate."""
        rate = getattr(inner, "_learning_rate", None)
        if rate is None or type(inner) not in _KINDS.values() or not hasattr(rate, "numpy"):
            return False
        return math.isclose(float(rate.numpy()), KERAS, rel_tol=1e-6)

    def _stands(self, rate: Any) -> bool:
        """Whether a variable holds the rate that was found last, as its type rounds it."""
        digits = {"float16": 2**-10, "bfloat16": 2**-7}
        return math.isclose(
            held(rate), self.found, rel_tol=digits.get(keras.backend.standardize_dtype(rate.dtype), 1e-6)
        )


def held(rate: Any) -> float:
    """What the variable of a rate holds, also where several devices have one each, which `float` knows nothing of."""
    return float(keras.ops.convert_to_numpy(rate))
