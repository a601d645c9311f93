"""Pipelines of tf.data whose batches are declared to be drawn: what `replayed` sees of loaders is seen of them."""

from __future__ import annotations

import collections
import itertools
import threading
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.batches.passes import digest_of
from tfdp_layers.batches.replayed import LONGEST, NUMBERS, Drawn, Reading, Rows

__all__ = ["watched"]

_READINGS = 64
"""Readings that are told apart at one time: of an older one that goes on what it had seen is forgotten."""


def watched(batches: tf.data.Dataset, drawn: Drawn) -> tf.data.Dataset:
    """The batches over and over, each looked at as it is read; what they hold goes into digests, by TensorFlow.

    Python code gets a few whole numbers of each. Both take about 0.2 ms of a processor for 64 x 784 numbers, 0.3 to 0.6
    for 64 x 32 x 32 x 3, beside what trains: of the first 4,096 batches of a pass, and none once a word was said, or
    enough was read without one (`Reading.over`). A pass of the pipeline ends where its elements do; one that the caller
    repeats below other steps is one long pass, and a loop in it that is longer than that is not seen.

    TensorFlow never frees a function of Python: this one has a weak reference to what it tells, and the dataset, which
    its iterators and what is made of it hold, a strong one.

    Args:
        batches: tuples of dense tensors of known rank.
    """
    readings = _Readings(drawn)
    reference = weakref.ref(readings)

    def read(numbers: np.ndarray) -> np.int64:
        known = reference()
        return np.int64(_Readings.OVER) if known is None else known.read(numbers)

    @tf.autograph.experimental.do_not_convert
    def look(reading: tf.Tensor, element: Any) -> Any:
        place, batch = element

        def seen() -> tf.Tensor:
            numbers = tf.stack([reading, place, *_rows_of(batch), _digest(batch)])
            return tf.ensure_shape(tf.numpy_function(read, [numbers], tf.int64), [])

        unread = (reading == _Readings.OVER) | (place >= LONGEST)
        after = tf.cond(unread, lambda: reading, seen)
        return after, batch

    looked_at = batches.enumerate().repeat().scan(tf.constant(_Readings.NEW, tf.int64), look)
    looked_at.draws_from = readings
    return looked_at


class _Readings:
    """The readings that go on, by numbers that the pipeline keeps."""

    NEW, OVER = -1, -2

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self._known: collections.OrderedDict[int, Reading] = collections.OrderedDict()
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def read(self, numbers: np.ndarray) -> np.int64:
        """Looks at a batch: of which reading, its place in a pass, its rows, and a digest. The reading's number."""
        which, place, rows, counted, between, alike, digest = numbers.tolist()
        if self._drawn.done:
            return np.int64(self.OVER)
        with self._lock:
            if which not in self._known:
                which = next(self._numbers)
                self._known[which] = Reading(self._drawn)
                if len(self._known) > _READINGS:
                    self._known.popitem(last=False)
            reading = self._known[which]
        if place == 0 and reading.begun:
            reading.ended()
        if not reading.over:
            reading.see(digest, Rows(rows, counted, bool(between), bool(alike)))
            return np.int64(which)
        with self._lock:
            self._known.pop(which, None)
        return np.int64(self.OVER)


def _rows_of(batch: Any) -> tuple[tf.Tensor, ...]:
    """What `Rows` holds, int64."""
    leaves = keras.tree.flatten(batch)
    rows = tf.shape(leaves[0], tf.int64)[0]
    places = (tf.zeros([], tf.int64), rows // 2, tf.maximum(rows - 1, 0))
    first, middle, last = (digest_of([leaf[place : place + 1] for leaf in leaves]) for place in places)
    alike = tf.cast((first == middle) & (first == last), tf.int64)
    if len(batch) < 3:
        return rows, rows, tf.zeros([], tf.int64), alike
    there = tf.reshape(leaves[-1], [-1]) != tf.zeros([], leaves[-1].dtype)
    counted = tf.reduce_max(tf.concat([[0], tf.where(there)[:, 0] + 1], 0))
    return rows, counted, tf.cast(tf.math.count_nonzero(there) < counted, tf.int64), alike


def _digest(batch: Any) -> tf.Tensor:
    """Of numbers of each tensor, evenly spaced, int64."""
    parts = []
    for leaf in keras.tree.flatten(batch):
        apart = tf.bitwise.bitwise_or((tf.size(leaf) + NUMBERS - 1) // NUMBERS, 1)
        parts.append(tf.reshape(leaf, [-1])[::apart])
    return digest_of(parts)
