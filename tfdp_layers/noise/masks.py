"""Random numbers of layers, such as the masks of dropout: in a training they come from seeds that nobody knows.

What a record adds to a sum depends on its row's mask. That is its own as long as masks are unknown: rows are drawn in
random order, so another record's mask says nothing of it. Keras makes masks of a seed and a count of draws, which a
user may have set (`keras.utils.set_random_seed`) and every file of the weights holds. To whoever knows both, a mask is
a constant of its row; and one record more or less moves other records to other rows: a record without any gradient
moved a sum by twice its bound, and one that has one moves it by up to three times.

So every call of a step gets seeds of the operating system, 62 bits for each variable of seeds. It draws from
`HiddenSeeds`, stand-ins that no file holds and no other thread sees, which it fills by itself from one key; on several
devices each has numbers of its own, or row 5 of one would share its mask with row 5 of another. Generators that Keras
does not know of keep their own variables: `secret_seeds` exchanges their numbers around each call, and none is left
after it. Either way the variables then hold what they would hold in Keras, their own seeds and the counts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.structure import held_by

__all__ = ["HiddenSeeds", "secret_seeds"]

STANDS_FOR = "stands_for"
"""An attribute of a stand-in: whose place it takes."""

_BELOW = 2**31 - 2
"""Keras takes each of the two numbers of a seed modulo this."""


class _OneThreads(keras.Variable):
    """A variable to the thread that uses it by `here`; to all others the one that it stands for."""

    def __init__(self, own: Any) -> None:
        self._own, self._threads = own, threading.local()
        super().__init__(np.zeros(2), dtype=own.dtype, trainable=False, name="seed_generator_state")
        setattr(self, STANDS_FOR, own)

    @property
    def _value(self) -> Any:  # what Keras reads and assigns
        return self._hidden if getattr(self._threads, "uses", False) else self._own._value

    @_value.setter
    def _value(self, value: Any) -> None:
        self._hidden = value

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        before = getattr(self._threads, "uses", False)
        self._threads.uses = True
        try:
            yield
        finally:
            self._threads.uses = before


class HiddenSeeds:
    """Stand-ins for the seeds of a model's generators: what is traced with them in place draws from them ever after.

    Nobody but this object holds them, or in an eager step the generators: a thread that reads or saves the model while
    a step runs sees the layers' own.

    Args:
        generators: the `keras.random.SeedGenerator`s, at least one.
        replicas: how many devices a step runs on, each with a copy of the stand-ins.
        scope: entered where they are made: of the strategy that has these devices.

    Attributes:
        own: their own variables, in which steps are counted.
    """

    def __init__(
        self,
        generators: Sequence[Any],
        replicas: int = 1,
        scope: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._generators, self._replicas = list(generators), replicas
        self.own = [generator.state for generator in self._generators]
        with tf.init_scope():
            self._key = tf.Variable(drawn_key(), trainable=False, name="key_of_seeds")
            with scope():
                self._states = [_OneThreads(one) for one in self.own]

    @property
    def held(self) -> list[Any]:
        """What holds the numbers of the stand-ins, in TensorFlow."""
        return [one._hidden for one in self._states]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the generators draw from the stand-ins, in this thread."""
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.state = state
        try:
            with self._here():
                yield
        finally:
            for generator, own in zip(self._generators, self.own, strict=True):
                generator.state = own

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for state in self._states:
                stack.enter_context(state.here())
            yield

    def rekey(self) -> None:
        """Before each call of a step: a key of the operating system."""
        tf.raw_ops.AssignVariableOp(resource=self._key.handle, value=tf.constant(drawn_key()))

    def fresh(self) -> tf.Tensor:
        """Numbers of a step, made of the key, which moves on: (replicas, generators, 2) int64."""
        shape = (self._replicas * len(self._states) + 1, 2)
        after, numbers = tf.split(
            tf.random.stateless_uniform(shape, self._key, maxval=_BELOW, dtype=tf.int64), [1, shape[0] - 1]
        )
        self._key.assign(after[0])
        return tf.reshape(numbers, (self._replicas, len(self._states), 2))

    @contextlib.contextmanager
    def filled(self, numbers: tf.Tensor) -> Iterator[None]:
        """Inside a step, on one device, the stand-ins hold its numbers (generators, 2)."""
        fresh = tf.unstack(numbers, num=len(self._states))
        with self._here():
            for state, number in zip(self._states, fresh, strict=True):
                state.assign(tf.cast(number, state.dtype))
            try:
                yield
            finally:
                for state in self._states:
                    state.assign(tf.zeros_like(state.value))

    def count(self) -> None:
        """Counts a step in the generators' own variables, and nothing else.

        How often a step draws from a generator is not for them to tell: it grows with the pieces that records fill.
        """
        for own in self.own:
            own.assign(own.value + tf.constant([0, 1], own.dtype))


def drawn_key() -> np.ndarray:
    """A key of the operating system: (2,) int64."""
    return np.frombuffer(os.urandom(16), np.int64)


@contextlib.contextmanager
def secret_seeds(
    variables: Sequence[Any], scope: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Iterator[None]:
    """Inside, these variables of seeds, (2,) integers each, hold fresh ones; after it their own, which count one more.

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
        own[:, 1] += 1  # not how often it drew: see `HiddenSeeds.count`
    finally:
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
