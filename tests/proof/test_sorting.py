"""Sorts, largest entries and medians within a record: their gradients are proved row by row, and are so in numbers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfdp_layers as tfdp
from helpers.proof.provable import private, sums_proof
from helpers.variants import slow_but
from tfdp_layers.proof import prove_rows

WIDE, UNKNOWN = tf.TensorSpec((None, 4, 6)), tf.TensorSpec((None, None, 6))
SORTS: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: tf.sort(x, axis=-1),
    "descending": lambda x: tf.sort(x, axis=1, direction="DESCENDING"),
    "keras sort": lambda x: ops.sort(x, axis=1),
    "largest": lambda x: tf.math.top_k(x, 3).values,
    "keras largest": lambda x: ops.top_k(x, 1)[0],
    "median": lambda x: ops.median(x, axis=(1, 2)),
    "quantile": lambda x: ops.quantile(x, 0.3, axis=2),
    "by argsort": lambda x: ops.take_along_axis(x, ops.argsort(x, axis=1), axis=1),
    "middle of a sorted window": lambda x: tf.sort(tf.stack([x, tf.roll(x, 1, 1), tf.roll(x, 2, 1)], -1), -1)[..., 1],
}


def gradient(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def of(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.tanh(function(x)) ** 2)
        return tape.gradient(total, x)

    return of


@pytest.mark.parametrize("name", slow_but(["sort", "median"], SORTS))
def test_gradients_of_sorts_within_a_record(name: str) -> None:
    found = tf.function(gradient(SORTS[name]), autograph=False).get_concrete_function(WIDE)
    report = prove_rows(found)
    assert report.proved, report
    x = np.random.default_rng(3).normal(size=(5, 4, 6)).astype("float32")
    x[0] = 1.0  # all equal
    alone = np.concatenate([found(x[i : i + 1]) for i in range(5)])
    np.testing.assert_array_equal(found(x), alone)


def test_of_sequences_of_unknown_length() -> None:
    for axis in (1, 2):
        report = prove_rows(tf.function(gradient(lambda x, a=axis: tf.sort(x, axis=a))).get_concrete_function(UNKNOWN))
        assert report.proved, report


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["sort", "largest"])
def test_sums_of_a_network_that_sorts(layer: str) -> None:
    x = keras.Input((5, 3))
    y = keras.layers.Dense(4)(x)
    y = ops.sort(y, axis=1) if layer == "sort" else ops.top_k(y, 2)[0]
    model = keras.Model(x, keras.layers.Dense(2)(keras.layers.Flatten()(y)))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0)
    report = sums_proof(private(model, optimizer))
    assert report.proved, report
