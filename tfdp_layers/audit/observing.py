"""Looking at what a model's steps release, from inside them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["ScoreKeeper", "observed"]

Observer = Callable[[list[tf.Tensor]], None]


@contextlib.contextmanager
def observed(model: Any, observer: Observer) -> Iterator[None]:
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


class ScoreKeeper(keras.callbacks.Callback):
    """Keeps one number for each step, computed inside it from what it released.

    Args:
        score: the released means (aligned with the trainable variables, then statistics) -> () float32.
    """

    def __init__(self, score: Callable[[list[tf.Tensor]], tf.Tensor]) -> None:
        super().__init__()
        self._score = score
        with tf.init_scope():
            self._last = tf.Variable(0.0, trainable=False, name="last_score")
        self.scores: list[float] = []

    def observe(self, means: list[tf.Tensor]) -> None:
        """Called inside the step."""
        self._last.assign(tf.cast(self._score(means), tf.float32))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.scores.append(float(self._last.numpy()))

    def array(self) -> np.ndarray:
        """(steps,) float64."""
        return np.asarray(self.scores, np.float64)
