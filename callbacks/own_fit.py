"""Keras' own `fit`, whatever a tool put in its place for all models, as `mlflow.autolog` does."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from tfdp_layers.caller import warn

__all__ = ["keras_fit", "own_fit"]

_TRAINER = "backend.tensorflow.trainer"
_FOLDER = Path(keras.__file__).parent


def _defined() -> Any:
    """`fit` as Keras' trainer for TensorFlow defines it; None where a tool replaced it there before this was loaded.

    It is known by what it is, a plain function of a file of Keras: wrappers pass on what they say of themselves.
    """
    kinds = [kind for kind in keras.Model.__mro__ if kind.__module__.endswith(_TRAINER) and "fit" in vars(kind)]
    found = vars(kinds[0] if kinds else keras.Model)["fit"]  # Keras 2 defines it in Model itself
    plain = type(found) is types.FunctionType and Path(found.__code__.co_filename).is_relative_to(_FOLDER)
    return found if plain else None


_FIT = _defined()


def keras_fit(model: Any) -> Callable[..., Any]:
    """Keras' `fit` of a model, in whose place another one may stand.

    Raises: ValueError where Keras' own is nowhere to be found.
    """
    if _FIT is None:
        raise ValueError(
            "Keras' own Model.fit was replaced before this library took it, and a private training runs no other: what"
            " that does with the records nobody checked. Switch the tool off that did it, before training and in a"
            " fresh process: leave out mlflow.autolog(), say."
        )
    return functools.partial(_FIT, model)


def own_fit(model: Any) -> Callable[..., Any]:
    """Keras' `fit` of a model, which does what was looked at; warns where another one is in its place.

    What stands there gets callbacks, data and losses behind all checks: a tool that logs by itself kept the weights of
    the epoch of the best loss, which carries no noise, saved every trial of a search, and read data without an end.

    Raises: ValueError as `keras_fit`.
    """
    found, own = inspect.getattr_static(keras.Model, "fit"), keras_fit(model)
    if found is not _FIT:
        code = getattr(found, "__code__", None)
        name = type(found).__name__ if code is None else f"a function of {code.co_filename}"
        warn(
            f"keras.Model.fit was replaced ({name}, {type(found).__module__}), as mlflow.autolog() and its like do. A"
            " private training runs Keras' own: what others add to it (checkpoints chosen by losses without noise,"
            " files of every trial, digests of the data) nobody checked. Log with a callback in its place, which is"
            " watched: fit(..., callbacks=[mlflow.tensorflow.MlflowCallback()]) say."
        )
    return own
