"""Random numbers that are the same for every record, and in every call: what a measurement of layers that draw needs.

Keras' own layers are switched off by their rates. A layer of one's own that draws, as the sampling of a variational
autoencoder does, cannot be: a record would get other numbers in a batch than alone, and a difference would say nothing.
"""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src import backend

__all__ = ["standing_numbers"]

_DRAWS = ("normal", "uniform", "truncated_normal", "randint")
_SEED = 7
_lock, _here = threading.Lock(), threading.local()
_inside: list[dict[str, Callable[..., Any]]] = []
"""What Keras draws by, while anybody is inside; then one entry for each of them."""


@contextlib.contextmanager
def standing_numbers() -> Iterator[None]:
    """Inside, what layers draw by `keras.random`, operation by operation, is one row of numbers for all rows.

    Masks of dropout let everything pass. In this thread alone: another one may be training. And not where operations
    are traced: a function that is traced here may be called in a step, whose numbers nobody is to know.
    """
    outer, _here.standing = getattr(_here, "standing", False), True
    with _lock:
        if not _inside:
            _inside.append({name: getattr(backend.random, name) for name in (*_DRAWS, "dropout")})
            for name, draw in _inside[0].items():
                setattr(backend.random, name, functools.wraps(draw)(functools.partial(_stood_in_for, draw)))
        _inside.append({})
    try:
        yield
    finally:
        _here.standing = outer
        with _lock:
            _inside.pop()
            if len(_inside) == 1:
                for name, draw in _inside.pop().items():
                    setattr(backend.random, name, draw)


def _stood_in_for(draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function of Keras' draws; of standing numbers, one row as often as there are to be."""
    if not getattr(_here, "standing", False) or not tf.executing_eagerly():
        return draw(*args, **kwargs)
    given = inspect.signature(draw).bind(*args, **kwargs).arguments
    if "shape" not in given:
        return given["inputs"]
    shape = [int(size) for size in given["shape"]]
    row = draw(**(given | {"shape": (1, *shape[1:]) if shape else (), "seed": _SEED}))
    return tf.repeat(row, shape[0], axis=0) if shape else row
