"""Records that are padded to the longest bring a warning; those of a public length don't."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches.mixing import meetings
from tfdp_layers.batches.padding import warn_of_padding

RNG = np.random.default_rng(0)
LENGTHS = [*RNG.integers(2, 30, 200), 40]
SERIES = [RNG.normal(size=(one, 3)).astype("float32") for one in LENGTHS]
TOKENS = [RNG.integers(1, 50, one) for one in LENGTHS]
pad = keras.utils.pad_sequences
LONGEST = {
    "series, padded before": pad(SERIES, dtype="float32"),
    "series, padded behind": pad(SERIES, dtype="float32", padding="post"),
    "by another number": pad(SERIES, dtype="float32", value=-1.0),
    "tokens": pad(TOKENS),
    "tokens, padded behind": pad(TOKENS, padding="post", value=-1),
    "two visits of one person": (pad([*SERIES, SERIES[-1]], dtype="float32"), np.array([*range(201), 200])),
    "one step longer": pad([*TOKENS[:-1], TOKENS[-1][:30]], padding="post"),
}
PUBLIC = {
    "cut": pad(SERIES, maxlen=20, dtype="float32"),
    "longer than all": pad(TOKENS, maxlen=64),
    "two people of that length": pad([*TOKENS, TOKENS[-1]]),
    "visits of two people": (pad([*SERIES, SERIES[-1]], dtype="float32"), np.arange(202)),
    "no padding": RNG.normal(size=(200, 24, 3)),
    "a rare flag": np.concatenate([RNG.integers(0, 2, (200, 20)), np.eye(1, 200, 3, dtype=int).T], axis=1),
    "one-hot columns": np.eye(20, dtype=int)[np.r_[RNG.integers(0, 19, 199), 19]],
    "images": np.pad(RNG.random((200, 20, 20)), ((0, 0), (4, 4), (4, 4))),
    "a table": np.where(RNG.random((200, 9)) < 0.3, 1.0, 0.0),
    "all alike": np.zeros((200, 9, 2)),
    "a table of whole numbers": np.c_[np.eye(1, 200, 7, dtype=int)[0], 20 + RNG.integers(0, 3, (200, 3))],
    "few": pad(TOKENS[-3:]),
    "texts": np.array([["a", "b"]] * 20),
}


def said(do):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    return [str(one.message) for one in caught if "padded to the longest" in str(one.message)]


@pytest.mark.parametrize("name", [*LONGEST, *PUBLIC])
def test_arrays_of_the_longest_length_are_told_of(name):
    given = (LONGEST | PUBLIC)[name]
    x, positions = given if isinstance(given, tuple) else (given, None)
    found = said(lambda: warn_of_padding([x], positions))
    assert len(found) == (name in LONGEST)
    if found:
        assert "pad_sequences(series, maxlen=200)" in found[0]


def singles(static=False):
    signature = tf.TensorSpec((4 if static else None, 3)), tf.TensorSpec((1,))
    data = tf.data.Dataset.from_generator(lambda: ((one, [1.0]) for one in SERIES[:16]), output_signature=signature)
    return data.apply(tf.data.experimental.assert_cardinality(16))


def bucketed(**options):
    return singles().bucket_by_sequence_length(lambda x, y: tf.shape(x)[0], [10, 20], [4, 4, 4], **options)


def ragged(shape=None):
    return singles().ragged_batch(4).map(lambda x, y: (x.to_tensor(shape=shape), y))


PIPELINES = {
    "padded_batch": (lambda: singles().padded_batch(4), True),
    "padded_batch, behind a map": (lambda: singles().padded_batch(4).map(lambda x, y: (2.0 * x, y)), True),
    "one axis open": (lambda: singles().padded_batch(4, padded_shapes=([None, 3], [1])), True),
    "ragged": (ragged, True),
    "buckets": (bucketed, True),
    "a public length": (lambda: singles().padded_batch(4, padded_shapes=([40, 3], [1])), False),
    "one length": (lambda: singles(static=True).padded_batch(4), False),
    "ragged, of a public length": (lambda: ragged((None, 40, 3)), False),
    "batch": (lambda: singles(static=True).batch(4), False),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_that_pad_to_the_longest_are_told_of(name):
    make, expected = PIPELINES[name]
    assert any("longest" in one.reason for one in meetings(make(), batched=True)) == expected
    data = make().apply(tf.data.experimental.assert_cardinality(4))
    found = said(lambda: tfdp.declare_sampling(data, tfdp.sampling.Partition(4), examples=16))
    assert len(found) == expected
    if expected:
        assert "padded_shapes" in found[0]
    if "ragged" not in name:
        assert any("longest" in one.reason for one in meetings(make().unbatch(), batched=False)) == expected


def test_fit_says_it_before_anything_is_spent():
    model = tfdp.PrivateSequential([keras.Input((None, 3)), keras.layers.LSTM(2), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    x = LONGEST["series, padded behind"]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Of these records of 40 steps all end")
        with pytest.raises(UserWarning, match="padded to the longest"):
            model.fit(x, np.ones((201, 1)), batch_size=8, verbose=0)
    assert model.ledger.steps == 0
