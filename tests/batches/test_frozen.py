"""Random numbers in the maps of a pipeline are drawn once, and a warning says so; other pipelines bring none."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X = np.random.default_rng(0).random((20, 4, 4, 3)).astype("float32")
Y = np.arange(20)


def base():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def older(seed):
    return tf.raw_ops.StatelessRandomNormal(shape=(4, 4, 3), seed=tf.cast(tf.stack(seed), tf.int64))


def in_a_loop(x, y):
    return tf.map_fn(lambda row: row + tf.random.normal(tf.shape(row)), x), y


def noisy(x, y):
    return x + tf.random.normal(()), y


def same(x, y):
    return x, y


def layer(one):
    return lambda x, y: (one(x, training=True), y)


RANDOM = {
    "image": lambda: base().map(lambda x, y: (tf.image.random_flip_left_right(x), y)),
    "crop": lambda: base().map(lambda x, y: (tf.image.random_crop(x, (2, 2, 3)), y)),
    "stateless": lambda: base().map(lambda x, y: (x + tf.random.stateless_normal((4, 4, 3), [1, y]), y)),
    "stateless, older": lambda: base().map(lambda x, y: (x + older([y, y]), y)),
    "beside a constant": lambda: base().map(lambda x, y: noisy(x + older([1, 2]), y)),
    "a generator": lambda: base().map(lambda x, y: (x + GENERATOR.normal((4, 4, 3)), y)),
    "a layer": lambda: base().map(layer(keras.layers.RandomRotation(0.1))),
    "within a loop": lambda: base().map(in_a_loop),
    "before others": lambda: base().map(noisy).prefetch(1).map(same).take(9),
}
GENERATOR = tf.random.Generator.from_seed(1)
QUIET = {
    "plain": lambda: base().map(lambda x, y: (x / 2.0, y), num_parallel_calls=2),
    "shuffled": lambda: base().shuffle(20),
    "constants": lambda: base().map(lambda x, y: (x + tf.random.stateless_normal((4, 4, 3), [1, 2]), y)),
    "constants, older": lambda: base().map(lambda x, y: (x + older([1, 2]), y)),
    "chosen among data sets": lambda: tf.data.Dataset.sample_from_datasets([base(), base()]),
    "called random": lambda: base().map(lambda x, y: (tf.identity(x, name="Random"), y)),
    "a layer": lambda: base().map(layer(keras.layers.Rescaling(2.0))),
}


def warned(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.records(make())
    return [str(one.message) for one in caught if "every epoch sees the same draws" in str(one.message)]


@pytest.mark.parametrize("case", RANDOM)
def test_random_maps_bring_a_warning(case):
    (said,) = warned(RANDOM[case])
    assert "tfdp.records(source, transform)" in said


@pytest.mark.parametrize("case", QUIET)
def test_others_bring_none(case):
    assert not warned(QUIET[case])


def test_what_it_says_is_so():
    drawn = tfdp.PrivateBatches(tfdp.records(RANDOM["before others"]()), sampling=tfdp.sampling.Partition(9))
    batches = drawn.dataset().take(2).as_numpy_iterator()
    first, second = ({int(y): x for x, y in zip(*batch[:2], strict=True)} for batch in batches)
    assert all(np.array_equal(first[y], second[y]) for y in range(9))
