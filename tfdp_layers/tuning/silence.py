"""Nothing that a trial prints, logs or names may tell how many there were."""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator

import tensorflow as tf
from keras.src.backend.common import global_state

__all__ = ["counting_nothing", "silence"]

_NAMES = "object_name_uids"

# TensorFlow says from time to time, in whatever the process does next, how often it traced the last functions.
_COUNTED = "triggered tf.function retracing"


class _NotOfTracings(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return _COUNTED not in str(record.msg)


_not_of_tracings = _NotOfTracings()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Inside, nothing written by Python reaches the terminal, the logs or whoever catches warnings.

    From then on TensorFlow's warnings of frequent retracing, which count the trials, are hidden for good.
    """
    tf.get_logger().addFilter(_not_of_tracings)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        nowhere = io.StringIO()
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def counting_nothing() -> Iterator[Callable[[], None]]:
    """Yields a function to call before each trial: Keras then names its layers as it names those of the first.

    Keras numbers layers without a name through a process: the names of the best model would tell which trial it was,
    and those of the next layer how many there were.
    """
    before = copy.copy(global_state.get_global_attribute(_NAMES))

    def fresh() -> None:
        global_state.set_global_attribute(_NAMES, copy.copy(before))

    try:
        yield fresh
    finally:
        fresh()
