"""Functions on batches of declared pipelines: what is not proved of them brings a warning, as sure as it is."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.batches.mixing import warn_of_mixing

Data, SIZE = tf.data.Dataset, 16
RNG = np.random.default_rng(0)
X, Y = RNG.random((64, 32), np.float32), np.arange(64) % 16
IMAGES = RNG.integers(0, 255, (64, 8, 8, 3)).astype(np.uint8)
ROWS, PICTURES = Data.from_tensor_slices((X, Y)), Data.from_tensor_slices((IMAGES, Y))
WORDS = Data.from_tensor_slices((np.array([f"w{i % 7} w{i}" for i in range(64)]), Y))
TURNED = np.eye(SIZE, dtype=np.float32)[::-1].copy()
COUNTS = Data.zip((Data.counter(), Data.counter()))


def declared(source, function, drop=True):
    """Declares what a function makes of batches; what was said, and the pipeline."""
    made = source.shuffle(64).batch(SIZE, drop_remainder=drop)
    return declared_as_it_is(made.map(function))


def declared_as_it_is(pipeline):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.declare_sampling(pipeline, tfdp.sampling.Partition(SIZE), examples=64)
    return [str(one.message) for one in caught]


def resized(x, y):
    mean = tf.reduce_mean(tf.cast(x, tf.float32), 0)
    return tf.image.resize(tf.cast(x, tf.float32) - mean, [32, 32]), y


MIXING = {
    "a mean before a reshape": (ROWS, lambda x, y: (tf.reshape(x - tf.reduce_mean(x, 0), (-1, 32)), y)),
    "a mean before a resize": (PICTURES, resized),
    "a largest number": (ROWS, lambda x, y: (tf.reshape(x / tf.reduce_max(x), (-1, 4, 8)), tf.one_hot(y, 16))),
    "a deviation": (ROWS, lambda x, y: (x / tf.math.reduce_std(x, 0), tf.one_hot(y, 16))),
    "products of records": (ROWS, lambda x, y: (x @ tf.transpose(x) @ x, tf.one_hot(y, 32))),
    "records in order": (ROWS, lambda x, y: (tf.sort(x, 0), tf.one_hot(y, 16))),
    "the records before": (ROWS, lambda x, y: (tf.cumsum(x, 0), tf.one_hot(y, 16))),
}


@pytest.mark.parametrize("name", slow_but([*MIXING][:4], MIXING))
def test_numbers_elsewhere_in_a_function_hide_no_mixing(name):
    """A size of a picture that is a multiple of the batch size silenced it (one record moved a sum by 18 bounds)."""
    source, function = MIXING[name]
    said = declared(source, function)
    assert [" makes a row out of several records" in one for one in said] == [True], said
    with pytest.raises(ValueError, match=r"Records meet in this pipeline: .* makes a row out of several records"):
        tfdp.records(source.batch(SIZE, drop_remainder=True).map(function).unbatch())


def where_known(x, y):
    return (x - tf.reduce_mean(x, 0) if x.shape[0] == SIZE else x), tf.one_hot(y, 16)


def turned_where_known(x, y):
    return (TURNED @ x if x.shape[0] == SIZE else x), y


@tf.function
def mean_of_16(x):
    return x - tf.reduce_mean(tf.reshape(x, (16, 32)), 0)


DOUBTS = {
    "no rule": (ROWS, lambda x, y: (tf.linalg.sqrtm(tf.linalg.diag(x[:, :2])), y), "is not understood"),
    "no rule, any size": (ROWS, lambda x, y: (tf.linalg.sqrtm(tf.linalg.diag(x[:, :2])), y), "is not understood"),
    "another trace": (ROWS, turned_where_known, "a fixed size does what may depend on that size"),
    "within a function": (ROWS, lambda x, y: (mean_of_16(x), y), "may make a row out of several records"),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_what_is_not_proved_is_said(name):
    source, function, words = DOUBTS[name]
    said = declared(source, function, drop="any size" not in name)
    assert ["Records may meet in this pipeline" in one and words in one for one in said] == [True], said


def test_what_a_function_does_where_the_size_is_known_is_said():
    said = declared(ROWS, where_known)
    assert [" makes a row out of several records" in one for one in said] == [True], said


def test_ragged_and_sparse_batches_are_not_followed_and_that_is_said():
    ragged = Data.from_tensor_slices((tf.ragged.constant([[1.0] * (i % 5 + 1) for i in range(64)]), Y))
    sparse = Data.from_tensor_slices((tf.sparse.from_dense(X), Y))
    for source, dense in (
        (ragged, lambda x, y: (x.to_tensor(shape=(None, 8)) - tf.reduce_mean(x.to_tensor(shape=(None, 8))), y)),
        (sparse, lambda x, y: (tf.sparse.to_dense(x) - tf.reduce_mean(tf.sparse.to_dense(x), 0), y)),
    ):
        assert ["ragged or sparse tensors" in one for one in declared(source, dense)] == [True]


FLIPS = keras.Sequential(
    [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1), keras.layers.RandomContrast(0.1)]
)
FLIPS(tf.zeros((1, 8, 8, 3)))
TABLE = tf.range(16.0)
SCALE, NORM = keras.layers.Rescaling(1 / 127.5, -1), keras.layers.Normalization(mean=0.5, variance=2.0)
NORM(X)
LOOKUP, HASH = keras.layers.StringLookup(vocabulary=["w0", "w1"]), keras.layers.Hashing(16)
TOKENS = keras.layers.TextVectorization(vocabulary=["w0", "w1"], output_sequence_length=16)
EXAMPLES = Data.from_tensor_slices(
    [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=row[:16])),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
                }
            )
        ).SerializeToString()
        for row in X
    ]
)


def parsed(text):
    spec = {"x": tf.io.FixedLenFeature([16], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    found = tf.io.parse_example(text, spec)
    return found["x"], found["y"]


ORDINARY = {
    "resized to 224": (PICTURES, lambda x, y: (tf.image.resize(x, [224, 224]) / 255.0, y)),
    "flat": (PICTURES, lambda x, y: (tf.reshape(x, (-1, 192)), y)),
    "flat, by the number of records": (PICTURES, lambda x, y: (tf.reshape(x, (tf.shape(x)[0], 192)), y)),
    "a picture of 32": (ROWS, lambda x, y: (tf.reshape(x, (-1, 4, 8, 1)), y)),
    "each standardized": (PICTURES, lambda x, y: (tf.image.per_image_standardization(x), y)),
    "one hot, of 16": (ROWS, lambda x, y: (x, tf.one_hot(y, 16))),
    "cast": (PICTURES, lambda x, y: (tf.cast(x, tf.float32) / 255.0, tf.cast(y, tf.float32)[:, None])),
    "flips": (PICTURES, lambda x, y: (tf.image.random_flip_left_right(x), y)),
    "layers": (PICTURES, lambda x, y: (FLIPS(x, training=True), y)),
    "rescaled": (PICTURES, lambda x, y: (SCALE(x), y)),
    "normalized": (ROWS, lambda x, y: (NORM(x), y)),
    "words": (WORDS, lambda x, y: (LOOKUP(x), y)),
    "tokens": (WORDS, lambda x, y: (TOKENS(x), y)),
    "hashes": (WORDS, lambda x, y: (HASH(x), y)),
    "split": (WORDS, lambda x, y: (tf.strings.split(x).to_tensor("", shape=(None, 16)), y)),
    "parsed": (EXAMPLES, parsed),
    "a spectrogram": (ROWS, lambda x, y: (tf.abs(tf.signal.stft(x, 16, 16)), y)),
    "padded": (PICTURES, lambda x, y: (tf.pad(x, [[0, 0], [4, 4], [4, 4], [0, 0]]), y)),
    "channels": (PICTURES, lambda x, y: (tf.concat([x, 255 - x], -1), y)),
    "a dictionary": (ROWS, lambda x, y: ({"a": x[:, :16], "b": tf.one_hot(y, 16)}, y)),
    "a shape": (PICTURES, lambda x, y: (tf.ensure_shape(x, (None, 8, 8, 3)), y)),
    "weights": (ROWS, lambda x, y: (x, y, tf.where(y == 0, 2.0, 1.0))),
    "noise": (ROWS, lambda x, y: (x + tf.random.normal(tf.shape(x)), y)),
    "masked": (ROWS, lambda x, y: (tf.where(tf.random.uniform(tf.shape(x)) < 0.2, 0.0, x), y)),
    "a table": (ROWS, lambda x, y: (x, tf.gather(TABLE, y))),
    "patches": (PICTURES, lambda x, y: (tf.image.extract_patches(x, [1, 4, 4, 1], [1, 4, 4, 1], [1] * 4, "VALID"), y)),
    "a product": (ROWS, lambda x, y: (x @ tf.ones((32, 16)), y)),
    "one by one": (ROWS, lambda x, y: (tf.map_fn(lambda one: one / tf.norm(one), x), y)),
    "a first token": (ROWS, lambda x, y: (tf.concat([tf.ones((tf.shape(x)[0], 1)), x], 1), y)),
    "cropped": (PICTURES, lambda x, y: (tf.image.random_crop(x, (tf.shape(x)[0], 4, 4, 3)), y)),
}


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize(
    "name", slow_but(["resized to 224", "flat", "one hot, of 16", "noise", "layers", "parsed", "a product"], ORDINARY)
)
def test_what_is_proved_is_taken_without_a_word(name, drop):
    assert declared(*ORDINARY[name], drop=drop) == []


def draw(number):
    places = tf.random.uniform((SIZE,), 0, 64, tf.int32)
    return tf.gather(tf.constant(X), places), tf.gather(tf.constant(Y), places)


def seeded(x, seed):
    return x + tf.random.stateless_normal(tf.shape(x), seed)


@pytest.mark.parametrize("drop", [True, False])
def test_numbers_beside_batches_are_constants(drop):
    """Of a count, or seeds; those of a source may be of another record, and no number hides a mean."""
    batches = ROWS.shuffle(64).batch(SIZE, drop_remainder=drop)
    beside = Data.zip((batches, COUNTS))
    assert declared_as_it_is(batches.enumerate().map(lambda i, one: one)) == []
    assert declared_as_it_is(beside.map(lambda one, seed: (seeded(one[0], seed), one[1]))) == []
    mixed = beside.prefetch(1).map(lambda one, seed: (one[0] - tf.reduce_max(one[0], 0), one[1]))
    assert [" makes a row out of several records" in one for one in declared_as_it_is(mixed)] == [True]
    others = Data.zip((ROWS.batch(SIZE, drop_remainder=drop), Data.from_tensor_slices(np.arange(64))))
    with pytest.warns(UserWarning, match="numbers beside rows"):
        warn_of_mixing(others.map(lambda one, other: (one[0] + tf.cast(other, tf.float32), one[1])))


def test_a_function_that_draws_by_a_number_has_no_batch_to_mix():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mixing(Data.counter().map(draw))
        warn_of_mixing(Data.counter().map(draw).map(lambda x, y: (2.0 * x, y)))
    with pytest.warns(UserWarning, match="Records may meet"):
        warn_of_mixing(Data.counter().map(draw).map(lambda x, y: (x - tf.reduce_mean(x, 0), y)))
