"""tf.data pipelines from Python functions, freed with what they draw from."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def alive(reference: weakref.ref[Any]) -> Any:
    """What the reference refers to. Raises RuntimeError where it is gone."""
    found = reference()
    if found is None:
        raise RuntimeError("The records of this dataset are gone: keep the dataset as long as it is iterated over.")
    return found


def generated(owner: Any, stream: Callable[[Any], Iterator[Any]], signature: Any) -> tf.data.Dataset:
    """A dataset of `stream(owner)`, started afresh for each iterator; it keeps `owner` alive, and nothing else does.

    TensorFlow never frees what a generator of `from_generator` refers to: every training would keep its records. So
    the generator only has a weak reference, and the dataset (which its iterators and what is made of it hold) a
    strong one.

    tf.data's autotuner is off: nothing here is tuned, and an iterator that ends waits for the autotuner's next tick,
    10 ms times a power of two after its start. A training would last up to twice as long.
    """
    reference = weakref.ref(owner)

    def elements() -> Iterator[Any]:
        return stream(alive(reference))

    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_generator(elements, output_signature=signature).with_options(options)
    dataset.draws_from = owner
    return dataset
