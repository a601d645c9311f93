"""Which values each setting of a recipe takes, and which settings go together. No TensorFlow here."""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfdp_layers.zoo.recipes import MODELS, ON_FEATURES, OWN_STEPS, PER_RECORD, Recipe, recipe_for

__all__ = ["check_settings", "checked"]

_LEAST, _LARGEST = 1e-10, 1e10
"""Of a number: training computes with squares and sums of them, in 32 bits."""
_MOST = 10**6
"""Of a whole number: more fits in no memory, or never ends."""


@dataclass(frozen=True)
class _Kind:
    """What a setting takes, in words, and how that is told."""

    words: str
    takes: Callable[[Any], bool]


def _number(value: Any, least: float, below: float) -> bool:
    """Whether it is a number from `least` and below `below`. False for NaN, and for True."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and least <= float(value) < below


def _whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, numbers.Integral) and _number(value, least, _MOST + 1)


def _above_zero(value: Any) -> bool:
    return _number(value, _LEAST, math.inf) and value <= _LARGEST


def _each(takes: Callable[[Any], bool], count: int | None = None) -> Callable[[Any], bool]:
    """Of a tuple, whether all of it is so; `count` is its length, where that matters."""
    return lambda value: isinstance(value, tuple) and (count is None or len(value) == count) and all(map(takes, value))


_COUNT = _Kind(f"a whole number from 1 to {_MOST:,}", _whole)
_COUNT_OR_NONE = _Kind(f"a whole number from 0 to {_MOST:,}", lambda value: _whole(value, 0))
_SIZE = _Kind(f"a number above 0, from {_LEAST:g} to {_LARGEST:g}", _above_zero)
_SIZE_OR_NONE = _Kind(
    f"0 or a number above 0, from {_LEAST:g} to {_LARGEST:g}",
    lambda value: _number(value, 0, math.inf) and (value == 0 or _above_zero(value)),
)
_PART = _Kind("a number of at least 0 and below 1", lambda value: _number(value, 0, 1))
_SWITCH = _Kind("True or False", lambda value: isinstance(value, bool))
_SIZES = _Kind(f"a tuple of numbers above 0, from {_LEAST:g} to {_LARGEST:g}, such as (8.0, 40.0)", _each(_above_zero))
_NAME = _Kind("a name", lambda value: isinstance(value, str))
_TWO = _Kind("a tuple of two whole numbers above 0, such as (4, 3)", _each(_whole, 2))

_KINDS = {
    "epochs": _COUNT,
    "batch_size": _COUNT,
    "learning_rate": _SIZE,
    "scales": _SIZES,
    "upstream_clips": _SIZES,
    "activation": _NAME,
    "noise_allocation": _NAME,
    "bound": _NAME,
    "kernels": _TWO,
    "strides": _TWO,
    "feedback_norm": _SIZE,
    "l2_norm_clip": _SIZE,
    "active_range": _SIZE,
    "gradient_clip": _Kind(
        f"{_SIZE.words}, 'automatic' or None",
        lambda value: value is None or value == "automatic" or _above_zero(value),
    ),
    "feature_scales": _Kind("a tuple of whole numbers above 0, such as (2, 3)", _each(_whole)),
    "random_filters": _COUNT_OR_NONE,
    "mirrored": _SWITCH,
    "centering_noise": _SIZE_OR_NONE,
    "whitening_noise": _SIZE_OR_NONE,
    "views": _COUNT,
    "shift": _PART,
    "flips": _SWITCH,
    "momentum": _PART,
    "ema_momentum": _PART,
}
"""By the fields of `Recipe`. What is a name, and which sizes fit an image, the layers say when they are built."""
_FLOATS = (_SIZE, _SIZE_OR_NONE, _PART)

_OF_FEATURES = ("feature_scales", "random_filters", "mirrored", "centering_noise", "whitening_noise")
"""Settings that only `ON_FEATURES` have."""
_OF_IMAGES = ("views", "shift", "flips")
"""Settings that these do not have: features are computed once."""


def checked(name: str, value: Any) -> Any:
    """Returns the value of a setting, as a float where it is one. Raises ValueError for one out of range."""
    kind = _KINDS[name]
    if not kind.takes(value):
        raise ValueError(f"{name} takes {kind.words}. Received: {value!r}.")
    return float(value) if kind in _FLOATS else value


def check_settings(model: str, method: str, recipe: Recipe, dataset: str) -> None:
    """Raises ValueError for settings out of range, for those of features or of images where the model has none, for as
    many scales or clips as it has no layers, for momentum where the method has its own steps, and for views that it
    cannot bound.
    """
    for name in _KINDS:
        checked(name, getattr(recipe, name))
    _check_counts(recipe, recipe_for(model, dataset, method))
    on_features = model in ON_FEATURES
    plain = Recipe(1, 1, 1.0, (), ())
    others = [
        name for name in (_OF_IMAGES if on_features else _OF_FEATURES) if getattr(recipe, name) != getattr(plain, name)
    ]
    if others:
        trained, choice = ("features", MODELS[0]) if on_features else ("the images", ON_FEATURES[0])
        raise ValueError(
            f"Model {model!r} trains on {trained}: {', '.join(others)} would change nothing. Leave out what sets them,"
            f" or choose a model that has them, such as {choice!r}."
        )
    steps = [name for name in ("momentum", "ema_momentum") if method in OWN_STEPS and getattr(recipe, name)]
    if steps:
        raise ValueError(
            f"Method {method!r} has steps of its own: {' and '.join(steps)} would change nothing. Leave them out."
        )
    if recipe.views > 1 and method not in PER_RECORD:
        raise ValueError(
            f"Method {method!r} bounds each row by itself, so views={recipe.views} would add as many bounds. Choose one"
            f" that bounds all rows of a record together: {', '.join(PER_RECORD)}."
        )
    if on_features and not recipe.feature_blocks:
        raise ValueError(
            f"Model {model!r} has no features: feature_scales={recipe.feature_scales!r} and random_filters=0. Give one"
            " of them, such as feature_scales=(2, 3)."
        )


def _check_counts(recipe: Recipe, tuned: Recipe) -> None:
    """Raises ValueError where the model has another number of bounded layers than scales or clips were given for."""
    for name in ("scales", "upstream_clips"):
        given, layers = getattr(recipe, name), len(getattr(tuned, name))
        if layers and len(given) != layers:
            raise ValueError(
                f"{name} holds one number for each of the model's {layers} bounded layers. Received: {given!r}."
            )
