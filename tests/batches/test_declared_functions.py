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


def less_the_mean(x, y):
    return x - tf.reduce_mean(x, 0), y


def doubled(x, y):
    return 2.0 * x, y


def halves(make):
    return [make(ROWS.take(32)), make(ROWS.skip(32))]


TURNS = {
    "sampled": lambda parts: Data.sample_from_datasets(parts, seed=1),
    "chosen": lambda parts: Data.choose_from_datasets(parts, Data.range(2).repeat(2)),
    "within each other": lambda parts: Data.sample_from_datasets([Data.sample_from_datasets(parts[:1]), parts[1]]),
}


def declared_four(pipeline):
    said = declared_as_it_is(pipeline.apply(tf.data.experimental.assert_cardinality(4)))
    return [one for one in said if one.startswith("Records may meet")]


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("name", TURNS)
def test_batches_that_take_turns_are_looked_at_as_each_is(name, drop):
    """They passed for flat maps, and nothing below them was looked at (one record moved 16 rows)."""

    def batches(function):
        return lambda rows: rows.batch(SIZE, drop_remainder=drop).map(function)

    for made in (
        TURNS[name](halves(batches(less_the_mean))),
        TURNS[name](halves(lambda rows: rows.batch(SIZE, drop_remainder=drop))).map(less_the_mean),
    ):
        assert [" makes a row out of several records" in one for one in declared_four(made)] == [True]
        with pytest.raises(ValueError, match=r"Records meet in this pipeline: .*Mean over the records"):
            tfdp.records(made.unbatch())
    assert declared_four(TURNS[name](halves(batches(doubled)))) == []
    rows = TURNS[name](halves(lambda rows: rows.map(lambda x, y: (x - tf.reduce_mean(x), y))))
    assert declared_four(rows.batch(SIZE, drop_remainder=drop).map(doubled)) == []


def of_records(pipeline):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.records(pipeline)
    return [text for one in caught if "records meet" in (text := str(one.message))]


@pytest.mark.parametrize("drop", [True, False])
def test_what_may_be_beyond_a_type_is_never_certain(drop):
    """All grays of bytes lie within the type, which the proof does not see: they were refused as mixed."""
    grays = PICTURES.batch(SIZE, drop_remainder=drop).map(lambda x, y: (tf.image.rgb_to_grayscale(x), y))
    for said in (declared_as_it_is(grays), of_records(grays.unbatch())):
        assert ["is not understood: a real number beyond the type" in one for one in said] == [True]
    colors = grays.map(lambda x, y: (tf.image.grayscale_to_rgb(x), y))
    assert len(declared_as_it_is(colors)) == 1  # of the first function alone
    beside = PICTURES.batch(SIZE, drop_remainder=drop).map(
        lambda x, y: (tf.image.rgb_to_grayscale(x), tf.cast(y, tf.float32) - tf.reduce_mean(tf.cast(y, tf.float32)))
    )
    assert [" makes a row out of several records" in one for one in declared_as_it_is(beside)] == [True]
    source = Data.from_tensor_slices((IMAGES[..., :1], Y)).batch(SIZE, drop_remainder=drop)
    assert declared_as_it_is(source.map(lambda x, y: (tf.image.grayscale_to_rgb(x), y))) == []


def named(rows):
    """Pipelines of numbers that hand on what they hold."""
    changed, batches = rows.map(doubled), rows.batch(SIZE, drop_remainder=True)
    return {
        "shards, changed": Data.range(2).interleave(lambda k: rows.shard(2, k).map(doubled)).batch(SIZE),
        "shards of what was changed": Data.range(2).interleave(lambda k: changed.shard(2, k).map(doubled)).batch(SIZE),
        "epochs": Data.range(2).flat_map(lambda _: rows.shuffle(64).batch(SIZE)),
        "epochs of batches": Data.range(2).flat_map(lambda _: batches.map(doubled)),
        "epochs, their batches changed": Data.range(2).flat_map(lambda _: batches).map(doubled),
        "epochs of records": Data.range(2).flat_map(lambda _: changed.shuffle(64)).batch(SIZE),
    }


def test_what_flat_maps_of_numbers_hand_on_is_looked_at_as_in_the_pipeline():
    kept = [name for name in named(ROWS) if name != "epochs of batches"]  # a function within is not followed
    for name in kept:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_mixing(named(ROWS)[name])
    for name in ("shards, changed", "shards of what was changed"):
        assert of_records(named(ROWS)[name].unbatch()) == []
    mixed = ROWS.batch(SIZE, drop_remainder=True).map(less_the_mean)
    for made in (
        Data.range(2).flat_map(lambda _: mixed),
        Data.range(2).flat_map(lambda _: mixed.shuffle(4).take(4).prefetch(1)),
        Data.range(2).interleave(lambda k: mixed.shard(2, k)),
    ):
        assert [" makes a row out of several records" in one for one in declared_four(made)] == [True]
    for made in (
        Data.range(2).interleave(lambda k: ROWS.shard(2, k).batch(SIZE).map(less_the_mean)),
        Data.range(2).interleave(lambda k: mixed.shard(2, k).map(less_the_mean)),
        Data.range(2).flat_map(lambda _: mixed.unbatch().shuffle(64).batch(SIZE)),
    ):
        assert ["reads another data set" in one for one in declared_four(made)] == [True]
    again = Data.range(2).flat_map(lambda _: ROWS)
    assert ["comes several times" in one for one in of_records(again)] == [True]
    beside = Data.from_tensor_slices(X).flat_map(lambda x: ROWS.take(1))
    assert ["holds a data set" in one for one in declared_four(beside.batch(SIZE))] == [True]


GRAYS = keras.layers.RandomGrayscale()
DRAWN = {
    "noise of the batch's shape": (ROWS, lambda x, y: (x + 0.1 * tf.random.normal(x.shape), y)),
    "one number a record": (ROWS, lambda x, y: (x * tf.random.uniform((SIZE, 1)), y)),
    "a mask beside zeros": (ROWS, lambda x, y: (tf.where(tf.random.uniform(x.shape) < 0.1, tf.zeros_like(x), x), y)),
    "zeros": (ROWS, lambda x, y: (tf.where(tf.random.uniform(tf.shape(x)) < 0.1, tf.zeros_like(x), x), y)),
    "as wide as long": (ROWS, lambda x, y: (x[:, :SIZE] + tf.random.normal((SIZE, SIZE)), tf.ones_like(y))),
    "a projection": (ROWS, lambda x, y: (x @ tf.random.normal((32, SIZE)), y)),
    "a layer": (PICTURES, lambda x, y: (GRAYS(tf.cast(x, tf.float32), training=True), y)),
}
PLACES = RNG.random((SIZE, 32), np.float32)
NOT_DRAWN = {
    "a constant by place": lambda x, y: (x + PLACES + tf.random.normal(x.shape), y),
    "a mean": lambda x, y: (x - tf.reduce_mean(x, 0) * tf.random.normal(x.shape), y),
    "noise added up": lambda x, y: (x + tf.cumsum(tf.random.normal(x.shape), 0), y),
    "the same noise at a place": lambda x, y: (x + tf.random.stateless_normal(x.shape, (1, 2)), y),
    "records in a random order": lambda x, y: (tf.gather(x, tf.argsort(tf.random.uniform((SIZE,)))), y),
}


@pytest.mark.parametrize("name", slow_but([*DRAWN][:5], DRAWN))
def test_random_rows_of_a_size_that_is_written_are_each_records_own(name):
    assert declared(*DRAWN[name]) == []


@pytest.mark.parametrize("name", NOT_DRAWN)
def test_random_rows_hide_nothing_that_is_the_same_in_each_batch(name):
    assert len(declared(ROWS, NOT_DRAWN[name])) == 1


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("within", [Data.from_tensors, Data.from_tensor_slices])
def test_how_often_rows_come_may_not_depend_on_records(within, drop):
    """A batch that came twice where one record was large brought no word."""
    batches, rows = ROWS.batch(SIZE, drop_remainder=drop), within is Data.from_tensor_slices

    def made(count):
        found = batches.flat_map(lambda x, y: within((x, y)).repeat(count(x)))
        return found.batch(SIZE) if rows else found

    said = declared_four(made(lambda x: 1 + tf.cast(tf.reduce_max(x) > 10, tf.int64)))
    assert ["how often rows come depends on what records hold" in one for one in said] == [True]
    for count in (lambda x: 2, lambda x: tf.shape(x, tf.int64)[0]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_mixing(made(count))


def test_one_record_alone_meets_no_other():
    ones = ROWS.batch(1, drop_remainder=True).map(less_the_mean)
    assert of_records(ones.unbatch()) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mixing(ones)
    with pytest.raises(ValueError, match="Mean over the records"):
        tfdp.records(ones.unbatch().batch(SIZE, drop_remainder=True).map(less_the_mean).unbatch())


@pytest.mark.parametrize(
    "step",
    [
        lambda counts, label: counts.interleave(lambda i: Data.from_tensors(label(i)), cycle_length=1),
        lambda counts, label: counts.scan(tf.constant(0, tf.int64), lambda state, i: (state, label(i))),
        lambda counts, label: counts.filter(lambda i: label(i) > 3),
    ],
)
def test_what_functions_make_of_a_count_is_no_count(step):
    """The label of another record passed for a number beside the batch."""
    labels = step(Data.range(64), lambda i: tf.gather(tf.constant(Y), i))
    beside = Data.zip((ROWS.batch(SIZE), labels))
    with pytest.warns(UserWarning, match="Records may meet"):
        warn_of_mixing(beside.map(lambda one, other: (one[0] + tf.cast(other, tf.float32), one[1])))
