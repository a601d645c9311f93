"""Pipelines that give the same batches in each pass are no draws, whatever made these; what draws is not told of."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers import declare_sampling
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

Data = tf.data.Dataset
SIZE, RECORDS = 8, 40
X = np.random.default_rng(0).normal(size=(RECORDS, 2)).astype(np.float32)
Y = X[:, :1]
STACKED = Data.from_tensor_slices((X.reshape(-1, SIZE, 2), Y.reshape(-1, SIZE, 1)))
TABLE = tf.constant(np.random.default_rng(1).permutation(RECORDS).reshape(-1, SIZE))
WHOLE = Data.from_tensors((X, Y))
WEIGHT, CHOSEN = tf.Variable(2.0), tf.Variable(np.arange(SIZE))
ENDLESS, HALVES = Data.counter(), Data.from_tensor_slices((X.reshape(2, -1, 2), Y.reshape(2, -1, 1)))
MEANS = np.linspace(0.5, 1.0, 2, dtype=np.float32)
LAYER = keras.layers.GaussianNoise(0.1)
GENERATOR = tf.random.Generator.from_seed(1)


def rows(places: Any) -> Any:
    return tf.gather(X, places), tf.gather(Y, places)


def by_table(i: Any) -> Any:
    return rows(TABLE[i])


def by_seed(i: Any, *batch: Any) -> Any:
    return rows(tf.random.stateless_uniform([SIZE], [i, 0], 0, RECORDS, tf.int32))


def sliced(i: Any) -> Any:
    start = tf.cast(i, tf.int32) * SIZE
    return tf.slice(tf.constant(X), [start, 0], [SIZE, 2]), tf.slice(tf.constant(Y), [start, 0], [SIZE, 1])


def drawn(*batch: Any) -> Any:
    return rows(tf.random.shuffle(tf.range(RECORDS))[:SIZE])


def by_python(i: Any) -> Any:
    places = tf.numpy_function(lambda i: np.random.permutation(RECORDS)[:SIZE], [i], tf.int64)
    return rows(tf.ensure_shape(places, [SIZE]))


def noisy(x: Any, y: Any) -> Any:
    return x + tf.random.normal(tf.shape(x)), y


def noisy_by(batch: Any, i: Any) -> Any:
    return batch[0] + tf.random.stateless_normal((SIZE, 2), [i, 0]), batch[1]


def normed(x: Any, y: Any) -> Any:
    return (x + tf.random.normal((SIZE, 2)) - MEANS) * MEANS, y


def turned(x: Any, y: Any) -> Any:
    order = tf.random.shuffle(tf.range(SIZE))
    return tf.cond(tf.random.uniform(()) < 0.5, lambda: tf.reverse(x, [1]), lambda: tf.gather(x, order)), y


def checked(x: Any, y: Any) -> Any:
    tf.print("a batch", output_stream="file:///dev/null")
    tf.debugging.assert_all_finite(x, "not finite")
    tf.debugging.assert_greater(tf.reduce_max(x), -99.0)
    return tf.debugging.check_numerics(x, "not finite"), y


def by_product(i: Any) -> Any:
    chosen = tf.one_hot(tf.random.uniform([SIZE], 0, RECORDS, tf.int32), RECORDS)
    return chosen @ X, chosen @ Y


def either(i: Any) -> Any:
    return tf.cond(tf.random.uniform(()) < 0.5, lambda: tf.constant(X[:SIZE]), lambda: tf.constant(X[-SIZE:])), Y[:SIZE]


def shuffled(x: Any, y: Any) -> Any:
    order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
    return tf.ensure_shape(tf.gather(x, order), x.shape), tf.ensure_shape(tf.gather(y, order), y.shape)


def first(x: Any, y: Any) -> Any:
    return x[:SIZE], y[:SIZE]


def some(x: Any, y: Any) -> Any:
    kept = tf.random.uniform([RECORDS]) < 0.2
    return tf.boolean_mask(x, kept), tf.boolean_mask(y, kept)


SAME: dict[str, Callable[[], Data]] = {
    "stacked": lambda: STACKED,
    "stacked, shuffled": lambda: STACKED.shuffle(5),
    "stacked, shuffled and repeated": lambda: STACKED.shuffle(5).repeat().prefetch(2),
    "stacked, one of each shuffle": lambda: STACKED.shuffle(5).take(1).repeat(),
    "stacked, by turns": lambda: Data.sample_from_datasets([STACKED.take(2), STACKED.skip(2)]),
    "stacked, with weights of a network": lambda: STACKED.map(lambda x, y: (x * WEIGHT, y)),
    "stacked, numbered": lambda: STACKED.shuffle(5).enumerate().map(lambda _, batch: batch),
    "stacked, one behind the other": lambda: STACKED.take(2).concatenate(STACKED.skip(2)).shuffle(5),
    "each a data set": lambda: Data.range(5).flat_map(lambda i: Data.from_tensors(by_table(i))),
    "slices": lambda: Data.range(5).map(sliced),
    "a table that was drawn once": lambda: Data.range(5).shuffle(5).map(by_table),
    "a table beside each other": lambda: Data.from_tensor_slices(TABLE).map(rows),
    "seeds of a count": lambda: Data.range(5).map(by_seed),
    "seeds of a count, over all": lambda: WHOLE.repeat(5).enumerate().map(by_seed),
    "one seed": lambda: WHOLE.repeat(5).map(lambda *one: by_seed(3)),
    "a filter by seeds": lambda: (
        Data.from_tensor_slices((X, Y))
        .enumerate()
        .filter(lambda i, _: tf.random.stateless_uniform((), [i, 0]) < 0.2)
        .map(lambda _, one: one)
        .batch(SIZE)
    ),
    "stacked, changed at random": lambda: STACKED.map(noisy),
    "stacked, turned at random": lambda: STACKED.shuffle(5).map(turned).repeat(),
    "stacked, changed and normed": lambda: STACKED.map(normed),
    "stacked, changed by a layer": lambda: STACKED.map(lambda x, y: (LAYER(x, training=True), y)),
    "stacked, changed by a generator": lambda: STACKED.map(lambda x, y: (x + GENERATOR.normal((SIZE, 2)), y)),
    "stacked, and checked": lambda: STACKED.map(checked),
    "stacked, kept and changed": lambda: STACKED.repeat().enumerate().map(lambda i, one: noisy_by(one, i)),
    "stacked, changed by an endless count": lambda: Data.zip((STACKED.repeat(), ENDLESS)).map(noisy_by),
    "stacked, changed by two endless counts": lambda: Data.zip((STACKED.repeat(), (ENDLESS, ENDLESS))).map(
        lambda one, seeds: noisy_by(one, seeds[0] + seeds[1])
    ),
    "stacked, beside what is left out": lambda: Data.zip((STACKED.repeat(), Data.random())).map(lambda one, r: one),
    "a table, and changed": lambda: Data.range(5).map(by_table).map(noisy),
    "a table in rounds": lambda: ENDLESS.map(lambda i: by_table(i % 5)),
    "seeds of random numbers that come again": lambda: Data.random(seed=3).take(5).map(by_seed).repeat(),
    "rows by seeds, apart": lambda: Data.range(9).map(by_seed).unbatch().batch(SIZE),
}
DRAWS: dict[str, Callable[[], Data]] = {
    "rows of all": lambda: WHOLE.repeat().map(drawn),
    "rows of all, so many steps": lambda: Data.range(5).map(drawn),
    "rows of stacked ones": lambda: STACKED.map(drawn),
    "Python": lambda: Data.range(5).map(by_python),
    "a generator": lambda: Data.from_generator(
        lambda: iter([drawn()]), output_signature=(tf.TensorSpec((SIZE, 2)), tf.TensorSpec((SIZE, 1)))
    ),
    "seeds of an endless count": lambda: Data.counter().map(by_seed),
    "seeds of an endless count beside": lambda: Data.zip((WHOLE.repeat(), Data.counter())).map(
        lambda batch, i: by_seed(i)
    ),
    "seeds of an endless count, over all": lambda: WHOLE.repeat().enumerate().map(by_seed),
    "seeds of random numbers": lambda: Data.random().map(by_seed),
    "seeds of new random numbers": lambda: Data.random(rerandomize_each_iteration=True).take(5).map(by_seed),
    "indices, then their rows, changed": lambda: (
        WHOLE.repeat().map(lambda x, y: tf.random.uniform([SIZE], 0, RECORDS, tf.int32)).map(rows).map(noisy)
    ),
    "a count of its own": lambda: WHOLE.repeat().scan(tf.constant(0), lambda i, _: (i + 1, by_seed(i))),
    "a product": lambda: Data.range(5).map(by_product),
    "one of two": lambda: Data.range(5).map(either),
    "a mask of all": lambda: WHOLE.repeat().map(some),
    "the first of an order": lambda: WHOLE.repeat().map(shuffled).map(first),
    "the first of an order of a half": lambda: HALVES.repeat().map(shuffled).map(first),
    "a few of a half": lambda: HALVES.repeat().map(lambda x, y: (tf.random.shuffle(x)[:SIZE], y[:SIZE])),
    "what a variable says": lambda: WHOLE.repeat().map(lambda *one: rows(CHOSEN)),
    "a generator of TensorFlow": lambda: WHOLE.repeat().map(
        lambda x, y: rows(GENERATOR.uniform([SIZE], 0, RECORDS, dtype=tf.int32))
    ),
    "the first rows of a shuffle": lambda: Data.from_tensor_slices((X, Y)).shuffle(RECORDS).take(SIZE).batch(SIZE),
    "the first rows of a shuffle within": lambda: Data.range(5).flat_map(
        lambda _: Data.from_tensor_slices((X, Y)).shuffle(RECORDS).take(SIZE).batch(SIZE)
    ),
    "two orders beside each other": lambda: Data.zip((Data.range(5).shuffle(5), Data.range(5).shuffle(5))).map(
        lambda i, j: rows(tf.concat([TABLE[i][:4], TABLE[j][4:]], 0))
    ),
}


def told(dataset: Data, sampling: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        declare_sampling(dataset, sampling, examples=RECORDS)
    return [str(one.message) for one in caught if "is declared as" in str(one.message)]


@pytest.mark.few(60)
@pytest.mark.parametrize("name", SAME)
def test_the_same_batches_in_each_pass_are_no_draws(name: str) -> None:
    (message,) = told(SAME[name](), FixedSize(SIZE))
    assert "nothing in it draws" in message
    assert f"declare Partition({SIZE})" in message


@pytest.mark.few(60)
@pytest.mark.parametrize("name", DRAWS)
def test_what_draws_is_not_told_of(name: str) -> None:
    assert told(DRAWS[name](), FixedSize(SIZE)) == []


def test_batches_that_are_kept_and_then_changed_are_no_draws() -> None:
    (message,) = told(Data.range(5).map(drawn).cache().map(noisy).repeat(), FixedSize(SIZE))
    assert ".cache keeps its batches" in message
    assert told(Data.range(5).cache().map(drawn).map(noisy), FixedSize(SIZE)) == []


def test_of_which_draws_it_is_told() -> None:
    several = STACKED.map(lambda x, y: (tf.ensure_shape(x[: tf.size(x)], (None, 2)), y[: tf.size(y)]))
    several = several.map(lambda x, y: (tf.boolean_mask(x, x[:, 0] > -9.0), tf.boolean_mask(y, x[:, 0] > -9.0)))
    assert told(several, Poisson(SIZE))
    assert told(several, TruncatedPoisson(SIZE, 20))
    assert told(STACKED, Partition(SIZE)) == []
    assert told(WHOLE.repeat(), FixedSize(RECORDS)) == []
