"""Checksums by which workers compare what their steps read; `test_replicas.py` has real processes."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.models.workers import checksums, comparable

KINDS = ["float16", "float32", "float64", "int32", "int64", "bool", ml_dtypes.bfloat16]


def of(*arrays):
    return tuple(int(one) for one in checksums(map(tf.constant, arrays)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_checksums_tell_one_other_number(kind):
    one = np.arange(7).astype(kind)
    other = one.copy()
    other[0] = 1
    assert of(one) == of(one.copy()) != of(other)
    assert all(0 <= value < 2**20 for value in of(one))
    assert comparable(tf.Variable(one))


def test_checksums_tell_the_smallest_step_of_a_weight_and_exchanged_tensors():
    one = np.random.default_rng(0).normal(size=(300, 40)).astype("float32")
    other = one.copy()
    other[17, 3] = np.nextafter(other[17, 3], np.inf, dtype="float32")
    assert of(one) != of(other)
    assert of(one, other) != of(other, one)
    assert of(one) != of(-one)


def test_seeds_are_each_replicas_own_and_texts_are_not_compared():
    assert not comparable(tf.Variable([1, 2], dtype=tf.uint32))
    assert not comparable(tf.Variable(["word"]))
