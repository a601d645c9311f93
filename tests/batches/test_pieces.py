"""Batches that would pass for records bring a warning, and the shape error names .batch."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers import grain_like
from tfdp_layers.batches.pieces import elements_of

Data = tf.data.Dataset
X = np.arange(48, dtype="float32").reshape(24, 2)
ROWS = Data.from_tensor_slices((X, X[:, :1]))
GRAIN = grain_like.source([*zip(X, X[:, :1], strict=True)])
BATCHES = ROWS.batch(4, drop_remainder=True)


def grouped(reduce):
    return ROWS.group_by_window(lambda x, y: tf.cast(y[0] % 2, tf.int64), reduce, 4)


SIZES = {
    "batch": (BATCHES, 4),
    "before other steps": (BATCHES.map(lambda x, y: (x, y[0])).shuffle(9).prefetch(1), 4),
    "padded": (ROWS.padded_batch(6, drop_remainder=True), 6),
    "in one branch of a zip": (Data.zip((BATCHES, Data.range(6))), 4),
    "batches of batches": (BATCHES.batch(3).unbatch().batch(2, drop_remainder=True), 2),
    "groups": (grouped(lambda _, group: group.batch(4, drop_remainder=True)), None),
    "Grain": (grain_like.Map(grain_like.Batch(GRAIN, batch_size=4, length=6)), 4),
    "of one": (ROWS.batch(1), 1),
    "taken apart": (ROWS.batch(4).unbatch(), 1),
    "taken apart by a flat map": (BATCHES.flat_map(lambda x, y: Data.from_tensor_slices((x, y))), 1),
    "windows": (Data.from_tensor_slices(X).window(4).flat_map(lambda rows: rows.batch(4)), 4),
    "turns are drawn in batches": (Data.sample_from_datasets([ROWS.take(9), ROWS.skip(9)]), 1),
    "single records": (ROWS.map(lambda x, y: (x, y)), 1),
    "Grain, single records": (grain_like.Shuffle(GRAIN), 1),
    "a list": ([*X], 1),
}


@pytest.mark.parametrize("name", SIZES)
def test_how_many_elements_a_batch_put_into_a_record(name):
    source, size = SIZES[name]
    assert elements_of(source) == size


SERIES = keras.Sequential([keras.Input((4, 2)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])


@pytest.mark.parametrize("name", ["batch", "padded", "Grain"])
def test_records_that_are_batches_bring_a_warning(name):
    source, size = SIZES[name]
    with pytest.warns(UserWarning, match=rf"a batch of {size} elements.*leave \.batch out.*nothing is lost\.$"):
        tfdp.records(source)
    if name == "Grain":
        with pytest.warns(UserWarning, match="a batch of 4 elements"):
            tfdp.PrivateBatches(source, sampling=tfdp.sampling.Poisson(3))


@pytest.mark.parametrize("name", ["taken apart", "single records", "Grain, single records"])
def test_others_do_not(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.records(SIZES[name][0])
    assert not [str(one.message) for one in caught]


def test_the_error_about_their_shape_names_the_batch():
    model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    with pytest.warns(UserWarning, match="a batch of 4"):
        records = tfdp.records(BATCHES)
    with pytest.raises(ValueError, match=r"\.batch\(4\).*this looks like batches: leave \.batch out"):
        model.fit(records, batch_size=3, verbose=0)
    with pytest.raises(ValueError, match=r"x has shape \(records, 3\)") as raised:
        model.fit(np.zeros((9, 3)), np.zeros(9), batch_size=3, verbose=0)
    assert ".batch" not in str(raised.value)
    assert not model.ledger.entries
