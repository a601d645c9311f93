"""What data give a model, looked at as it goes by: some of it is there only once."""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

__all__ = ["shown_by", "x_of"]

_FIRST = 4


def shown_by(given: Any, look_at: Callable[[Any], Any], passing_by: bool) -> tuple[Any, Any]:
    """What is to be given in the place of data, and rows of them to look at now, where these are no arrays.

    Of a `PyDataset` that is its first batch. The first batches of what gives them once, as generators and pipelines do,
    are looked at as they go by; those of pipelines where `passing_by` says so.
    """
    if isinstance(given, tf.data.Dataset):
        return looked_through(given, look_at) if passing_by else given, given
    if isinstance(given, keras.utils.PyDataset):
        with contextlib.suppress(Exception):  # an empty one, say: Keras says so
            return given, x_of(given[0])
        return given, None
    if not isinstance(given, types.GeneratorType):
        return given, given

    def passing() -> Iterator[Any]:
        for number, batch in enumerate(given):
            if number < _FIRST:
                look_at(x_of(batch))
            yield batch

    return passing(), None


def looked_through(pipeline: tf.data.Dataset, look_at: Callable[[Any], Any]) -> tf.data.Dataset:
    """The same pipeline, the inputs of whose first batches are shown as they are drawn."""
    spec, numbers = pipeline.element_spec, itertools.count()
    if not all(isinstance(one, tf.TensorSpec) for one in tf.nest.flatten(x_of(spec))):
        return pipeline

    def see(*leaves: Any) -> None:
        if next(numbers) < _FIRST:
            look_at([one.numpy() for one in leaves])

    def passing(*parts: Any) -> Any:
        leaves = tf.nest.flatten(parts)
        count = len(tf.nest.flatten(x_of(spec)))
        with tf.control_dependencies([tf.py_function(see, leaves[:count], [])]):
            return tf.nest.pack_sequence_as(spec, [*map(tf.identity, leaves[:count]), *leaves[count:]])

    with contextlib.suppress(Exception):  # of a pipeline that can't be mapped
        return pipeline.map(passing)
    return pipeline


def x_of(batch: Any) -> Any:
    return batch[0] if isinstance(batch, tuple | list) and batch else batch
