"""Checksums by which workers compare what their steps read; `test_replicas.py` has real processes."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.models import checksums as room
from tfdp_layers.models.checksums import checksums
from tfdp_layers.models.workers import comparable

KINDS = ["float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64", "bool"]
KINDS += [ml_dtypes.bfloat16]


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


def test_checksums_tell_numbers_and_rows_that_are_exchanged_and_signs_that_are_turned():
    one = np.random.default_rng(0).normal(size=(300, 64)).astype("float32")  # above and below the size of a block
    for size in 7, 300:
        table = one[:size]
        turned, signs = table.copy(), table.copy()
        turned[[0, 5]], turned[:, [1, 2]] = turned[[5, 0]], turned[:, [2, 1]]
        signs[:4, 1] *= -1
        rows = table[[5, 1, 2, 3, 4, 0, *range(6, size)]]
        assert len({of(table), of(turned), of(signs), of(rows), of(table.ravel()[::-1])}) == 5
    eye = np.eye(80, dtype="float32")  # the same sums of rows and of columns
    assert of(eye) != of(eye[::-1])


def test_checksums_tell_texts_and_what_is_not_sent():
    assert of(["word", "other"]) == of(["word", "other"]) != of(["other", "word"])
    for kind in "uint32", "uint64", "complex64", "complex128":
        assert of(np.arange(3).astype(kind)) != of(np.array([0, 1, 3]).astype(kind))
        assert not comparable(tf.Variable(np.zeros(2, kind)))
    assert not comparable(tf.Variable(["word"]))


@pytest.mark.parametrize("kind", [*KINDS, "complex64"], ids=str)
def test_checksums_are_the_same_where_there_are_gpus(kind, monkeypatch):
    one = np.random.default_rng(0).normal(size=(3, 4100)).astype(kind)
    found = of(one, one[0, :7])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    assert room.integers(tf.constant(one)).dtype == tf.int64
    assert of(one, one[0, :7]) == found
