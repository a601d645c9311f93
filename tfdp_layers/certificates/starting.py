"""Calls that are compared: each starts from the state that the others started from, and from the same seeds."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tfdp_layers.structure import SEEDS

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining


@contextlib.contextmanager
def same_state(model: "PrivateTraining", seed: int, left: list[Any] | None = None) -> Iterator[None]:
    """Inside, the random numbers of Keras' layers start from the seed; after it all that layers write is put back.

    So each batch finds what the others found: SpectralNormalization writes its vectors at each call, whatever the
    records are, and a layer may count its calls.

    Args:
        left: takes what is put back, but for seeds: what the block left behind.
    """
    seeds = [v for v in model.non_trainable_variables if SEEDS in v.path]
    written = [v for layer in model._flatten_layers() for v in layer._non_trainable_variables]  # no frozen weights
    states = list({id(v): v for v in (*seeds, *written)}.values())
    before = [np.array(v) for v in states]
    for number, variable in enumerate(seeds):
        variable.assign(tf.cast([seed, number], variable.dtype))
    try:
        yield
    finally:
        if left is not None:
            left.append([np.array(v) for v in written if SEEDS not in v.path])
        for variable, value in zip(states, before, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def same_global_seed(seed: int) -> Iterator[None]:
    """Inside, TensorFlow's own random numbers start from the seed; after it as if there had been none."""
    ambient = vars(context.context())
    kept = {name: ambient[name] for name in ("_seed", "_rng") if name in ambient}
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        ambient.pop("_rng", None)
        ambient.update(kept)


@contextlib.contextmanager
def untouched_state(model: "PrivateTraining") -> Iterator[Any]:
    """Yields a function that names the non-trainable weights changed inside the block; they are put back."""
    weights = [v for v in model.non_trainable_variables if SEEDS not in v.path]
    before = [np.array(v.numpy()) for v in weights]
    changed: list[str] = []
    yield lambda: changed
    for variable, value in zip(weights, before, strict=True):
        if not np.array_equal(variable.numpy(), value, equal_nan=value.dtype.kind == "f"):
            changed.append(variable.path)
            variable.assign(value)


def exchanged(pair: list[Any], place: int, rows: int) -> list[Any]:
    """Two batches with one row of the one in the other."""
    here = tf.range(rows) == place

    def merged(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.reshape(here, [-1] + [1] * (len(a.shape) - 1)), b, a)

    return [keras.tree.map_structure(merged, *ordered) for ordered in (pair, pair[::-1])]


def alike(found: Sequence[Sequence[np.ndarray]]) -> bool:
    """Whether calls left the same state behind, but for rounding."""
    return all(
        np.allclose(a, b, 1e-3, 1e-6, equal_nan=True) if a.dtype.kind in "fc" else np.array_equal(a, b)
        for later in found[1:]
        for a, b in zip(found[0], later, strict=True)
    )
