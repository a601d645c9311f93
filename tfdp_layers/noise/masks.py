"""Random numbers of layers, such as the masks of dropout: in a training they come from seeds that nobody knows.

What a record adds to a sum depends on its row's mask. That is its own as long as masks are unknown: rows are drawn in
random order, so another record's mask says nothing of it. Keras makes masks of a seed and a count of draws, which a
user may have set (`keras.utils.set_random_seed`) and every file of the weights holds. To whoever knows both, a mask is
a constant of its row; and one record more or less moves other records to other rows: a record without any gradient
moved a sum by twice its bound, and one that has one moves it by up to three times.

So every call of a step gets seeds of the operating system, 62 bits for each variable of seeds, and none is left after
it: the variable then holds what it would hold in Keras, its own seed and the count.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.structure import held_by

__all__ = ["secret_seeds"]

_BELOW = 2**31 - 2
"""Keras takes each of the two numbers of a seed modulo this."""


@contextlib.contextmanager
def secret_seeds(
    variables: Sequence[Any], scope: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Iterator[None]:
    """Inside, these variables of seeds, (2,) integers each, hold fresh ones; after it their own, and the draws count.

    Args:
        variables: Keras variables of one type, at least one.
        scope: entered around each round of assignments: of the strategy that holds the variables.
    """
    own = _read(variables)
    fresh = np.array([[secrets.randbelow(_BELOW) for _ in one] for one in own], own.dtype)
    with scope():
        _assign(variables, fresh)
    try:
        yield
    finally:
        own[:, 1] += (_read(variables) - fresh)[:, 1]
        with scope():
            _assign(variables, own)


def _read(variables: Sequence[Any]) -> np.ndarray:
    """(variables, 2); of copies on replicas the first."""
    if any(map(_is_copied, variables)):
        return np.array([variable.numpy() for variable in variables])
    # The operations alone: every step waits for them.
    held = [held_by(variable) for variable in variables]
    return np.array(tf.stack([tf.raw_ops.ReadVariableOp(resource=one.handle, dtype=one.dtype) for one in held]))


def _assign(variables: Sequence[Any], values: np.ndarray) -> None:
    for variable, value in zip(variables, tf.unstack(tf.constant(values)), strict=True):
        if _is_copied(variable):
            variable.assign(value)
        else:
            tf.raw_ops.AssignVariableOp(resource=held_by(variable).handle, value=value)


def _is_copied(variable: Any) -> bool:
    return isinstance(held_by(variable), tf.distribute.DistributedValues)
