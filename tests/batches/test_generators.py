"""Trainings free the records that they were given: TensorFlow keeps generators for ever."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches import stores
from tfdp_layers.batches.generators import generated

X, Y = np.zeros((64, 3), "float32"), np.zeros(64, "int64")


def array_kept_by(give):
    """A weak reference to the records after a `fit` on give(x, y), all else of which is gone."""
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0, 1.0), loss)
    x = X.copy()
    model.fit(**give(x, Y.copy()), verbose=0)
    return weakref.ref(x)


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [False, True], ids=["tensors", "rows"])
def test_fit_frees_the_arrays(rows, monkeypatch):
    if rows:
        monkeypatch.setattr(stores, "COPY_BYTES", 0)
    kept = array_kept_by(lambda x, y: {"x": x, "y": y, "batch_size": 16})
    gc.collect()
    assert kept() is None


def test_fit_frees_a_declared_pipeline():
    def declared(x, y):
        pieces = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
        return {"x": tfdp.declare_sampling(pieces, tfdp.sampling.Partition(16), examples=64)}

    kept = array_kept_by(declared)
    gc.collect()
    assert kept() is None


class Numbers:
    def __iter__(self):
        yield from range(100)


def test_a_dataset_keeps_what_it_draws_from():
    dataset = generated(Numbers(), iter, tf.TensorSpec((), tf.int64)).map(lambda n: n + 1).prefetch(2)
    gc.collect()
    numbers = iter(dataset)
    del dataset
    gc.collect()
    assert [int(next(numbers)) for _ in range(50)] == list(range(1, 51))


def test_an_iterator_that_ends_does_not_wait_for_the_autotuner():
    """It would wait for the tuner's next tick: up to as long as the training has lasted."""
    dataset = generated(Numbers(), iter, tf.TensorSpec((), tf.int64)).flat_map(tf.data.Dataset.from_tensors).prefetch(2)
    assert dataset.options().autotune.enabled is False
