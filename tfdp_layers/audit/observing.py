"""Looking at what a model's steps release, from inside them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

__all__ = ["observed"]

Observer = Callable[[list[tf.Tensor]], None]


@contextlib.contextmanager
def observed(model: "PrivateTraining", observer: Observer) -> Iterator[None]:
    """Lets `observer` see what each step of `fit` releases; see `PrivateOptimizer.observe`.

    The step is compiled anew, with the observer in it, and again without it afterwards.
    """
    model.optimizer.observe(observer)
    model.train_function = None
    try:
        yield
    finally:
        model.optimizer.observe(None)
        model.train_function = None
