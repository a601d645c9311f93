"""Numbers of the training records that a callback, or the body of a loop, asks the model itself for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.batches.texts import text_tensors
from tfdp_layers.models.fit_arguments import shares_records
from tfdp_layers.models.run import PrivacyState
from tfdp_layers.structure import KerasMixin

__all__ = ["Looking"]


def noted(name: str) -> Callable[..., Any]:
    """Keras' method of this name, which notes where a watched callback or loop gives it the training records."""
    method = getattr(keras.Model, name)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        state: PrivacyState = self._privacy
        if state.run is not None and state.watch is not None and state.watch.running:
            x = args[0] if args else kwargs.get("x")
            if shares_records(state.run.batches, x if isinstance(x, tf.data.Dataset) else (x,)):
                state.watch.asked(f"{name}() of the training records")
        if args:
            args = (text_tensors(args[0]), *args[1:])
        elif "x" in kwargs:
            kwargs |= {"x": text_tensors(kwargs["x"])}
        return getattr(super(Looking, self), name)(*args, **kwargs)

    return call


class Looking(KerasMixin):
    """Mixin for Keras models: what `evaluate` and `predict` say of training records is private, as the logs are."""

    evaluate = noted("evaluate")
    predict = noted("predict")
    predict_on_batch = noted("predict_on_batch")
    test_on_batch = noted("test_on_batch")
