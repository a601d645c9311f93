"""Numbers and classes drawn by parameters of records: proved where those are the record's own, as kernels draw them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.proof import prove

ops, random = keras.ops, keras.random
X = tf.TensorSpec((None, 4))


ROWS = {
    "gamma": lambda x, s: x * random.gamma(ops.shape(x), 2.0, seed=s),
    "gamma of records": lambda x, s: x * random.gamma(ops.shape(x), ops.exp(x), seed=s),
    "gamma for each feature": lambda x, s: x * random.gamma(ops.shape(x), ops.arange(1.0, 5.0), seed=s),
    "beta": lambda x, s: x * random.beta(ops.shape(x), 2.0, ops.exp(x), seed=s),
    "classes": lambda x, s: x + ops.one_hot(random.categorical(x, 1, seed=s)[:, 0], 4),
    "classes of a sequence": lambda x, s: ops.reshape(random.categorical(ops.reshape(x, (-1, 2)), 2, seed=s), (-1, 4)),
}
COMMON = {
    "gamma": (lambda x, s: x * random.gamma((4,), 2.0, seed=s), "StatelessRandomGammaV3"),
    "classes": (
        lambda x, s: x + ops.cast(random.categorical(ops.zeros((1, 4)), 1, seed=s), x.dtype),
        "StatelessMultinomial",
    ),
    "a parameter": (
        lambda x, s: x * random.gamma(ops.shape(x), random.uniform((), 1.0, 2.0, seed=s), seed=s),
        "StatelessRandomUniformV2",
    ),
    "regions of a pool": (
        lambda x, s: (
            x
            * tf.reduce_sum(
                tf.raw_ops.FractionalMaxPool(value=tf.ones((1, 4, 4, 1)), pooling_ratio=[1.0, 1.5, 1.5, 1.0])[0]
            )
        ),
        "FractionalMaxPool",
    ),
}


def report_of(function: Callable[..., Any]) -> Any:
    seeds = random.SeedGenerator(1)

    def sums(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cast(function(x, seeds), tf.float32) + 0.0 * x
        return tf.reduce_sum(tape.gradient(y, x) + y, axis=0)

    return prove(tf.function(sums, autograph=False).get_concrete_function(X), secret=[seeds.state])


@pytest.mark.parametrize("name", ROWS)
def test_what_is_drawn_by_a_records_own_parameters_is_its_own(name: str) -> None:
    report = report_of(ROWS[name])
    assert report.proved, report
    assert not report.common


@pytest.mark.parametrize("name", COMMON)
def test_what_is_drawn_once_is_named_and_seeds_are_no_parameters(name: str) -> None:
    function, kind = COMMON[name]
    report = report_of(function)
    assert report.proved, report
    assert {one.type for one in report.common} == {kind}


NOT_KNOWN = {
    "three classes for each row": lambda x, s: x + ops.cast(random.categorical(x, 3, seed=s)[:, :1], x.dtype),
    "binomial": lambda x, s: x * random.binomial(ops.shape(x), 5.0, ops.sigmoid(x), seed=s),
}


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_what_kernels_draw_from_numbers_of_other_rows_is_not_proved(name: str) -> None:
    assert not report_of(NOT_KNOWN[name]).proved


SEED = tf.constant([5, 6])
KERNELS = {
    "gamma": lambda p: tf.random.stateless_gamma(p.shape, SEED, tf.exp(p)),
    "classes": lambda p: tf.random.stateless_categorical(p, 2, SEED),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_each_row_numbers_of_its_own_whatever_the_others_parameters_are(name: str) -> None:
    drawn, rng = KERNELS[name], np.random.default_rng(0)
    before = rng.normal(size=(9, 6)).astype("float32")
    plain = np.asarray(drawn(tf.constant(before)))
    assert len(np.unique(np.asarray(drawn(tf.zeros((9, 6)))), axis=0)) == 9
    for value in (-30.0, -1.0, 5.0, 30.0):
        other = before.copy()
        other[4] = value * rng.random(6)
        after = np.asarray(drawn(tf.constant(other)))
        assert (np.delete(after, 4, 0) == np.delete(plain, 4, 0)).all()


@pytest.mark.parametrize("several", [1, 2])
def test_threads_draw_no_class_from_the_numbers_of_another_row(several: int) -> None:
    """Of as many rows as all threads share: of three classes or more, runs of a row's come again in another one."""
    drawn = np.asarray(tf.random.stateless_categorical(tf.zeros((2000, 1024)), several, SEED)).reshape(-1)
    runs = np.lib.stride_tricks.sliding_window_view(drawn, 8)
    assert len(np.unique(runs, axis=0)) == len(runs)
