"""Keras' own `fit`, whatever a tool put in its place for all models, as `mlflow.autolog` does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from tfdp_layers.caller import warn

__all__ = ["own_fit"]

_KERAS = Path(keras.__file__).parent


def own_fit(model: Any) -> Callable[..., Any]:
    """Keras' `fit` of a model, which does what was looked at; warns where another one is in its place.

    What stands there gets callbacks, data and losses behind all checks: a tool that logs by itself kept the weights of
    the epoch of the best loss, which carries no noise, saved every trial of a search, and read data without an end.

    Raises: ValueError where Keras' own is nowhere to be found.
    """
    found = [one for one in (vars(kind).get("fit") for kind in keras.Model.__mro__) if one is not None]
    own = next((one for one in found if _is_keras(one)), None)
    if own is None:
        raise ValueError(
            f"Keras' own Model.fit was replaced ({_name(found[0])}), and a private training runs no other: what that"
            " does with the records nobody checked. Undo that before training."
        )
    if own is not found[0]:
        warn(
            f"keras.Model.fit was replaced ({_name(found[0])}), as mlflow.autolog() and its like do. A private training"
            " runs Keras' own: what others add to it (checkpoints chosen by losses without noise, files of every"
            " trial, digests of the data) nobody checked. Log with a callback in its place, which is watched:"
            " fit(..., callbacks=[mlflow.tensorflow.MlflowCallback()]) say."
        )
    return functools.partial(own, model)


def _is_keras(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(_KERAS)


def _name(method: Any) -> str:
    code = getattr(method, "__code__", None)
    return f"by {getattr(method, '__module__', None)!r}" if code is None else f"by a function of {code.co_filename}"
