"""Blank records in raw units before a normalization are warned of; others are not."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

RNG = np.random.default_rng(0)
SLICES = RNG.normal(0.0, 300.0, (12, 6, 6, 1)).astype("float32")
BLANK = np.where(np.arange(12)[:, None, None, None] < 4, -1024.0, SLICES).astype("float32")
COLOURED = np.broadcast_to(np.array([255, 254, 40], "uint8"), (12, 6, 6, 3)).copy()
Y = np.zeros((12, 1), "float32")


def fit(x, *layers, **options):
    model = tfdp.make_private(keras.Sequential([keras.Input(x.shape[1:]), *layers, keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=2.0), "mse")
    model.fit(x, Y, batch_size=4, verbose=0, **options)
    return model


def normalized():
    return keras.layers.Conv2D(2, 3), keras.layers.GroupNormalization(-1), keras.layers.Flatten()


WARNED = {
    "blank slices": lambda: fit(BLANK, *normalized()),
    "bytes of one colour": lambda: fit(COLOURED, *normalized()),
    "CT numbers": lambda: fit(BLANK.astype("int16"), *normalized()),
    "blank series": lambda: fit(BLANK[:, 0], keras.layers.LayerNormalization(), keras.layers.Flatten()),
    "in pieces that fill no panel": lambda: fit(BLANK, *normalized(), physical_batch_size=10),
    "in pieces of several heights": lambda: fit(BLANK, *normalized(), physical_batch_size=48),
    "blank rows of a table": lambda: fit(BLANK.reshape(12, 36), keras.layers.LayerNormalization()),
}
TAKEN = {
    "slices": lambda: fit(SLICES, *normalized()),
    "in pieces of one height": lambda: fit(BLANK, *normalized(), physical_batch_size=24),
    "scaled ones": lambda: fit(BLANK / 1024.0, *normalized()),
    "no normalization": lambda: fit(BLANK, keras.layers.Flatten()),
    "one of them": lambda: fit(np.where(np.arange(12)[:, None, None, None] < 1, -1024.0, SLICES), *normalized()),
    "each computed by itself": lambda: fit(BLANK, *normalized(), physical_batch_size=1),
    "words": lambda: fit(
        np.full((12, 5), 47, "int32"),
        keras.layers.Embedding(50, 4),
        keras.layers.LayerNormalization(),
        keras.layers.Flatten(),
    ),
    "a column": lambda: fit(BLANK.reshape(12, 36)[:, :1], keras.layers.LayerNormalization()),
}


@pytest.mark.parametrize("name", WARNED)
def test_blank_records_in_raw_units_are_warned_of(name):
    with pytest.warns(UserWarning, match="hold one number at all positions"):
        WARNED[name]()


@pytest.mark.parametrize("name", TAKEN)
def test_others_are_taken_without_a_word(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*hold one number")
        assert TAKEN[name]().ledger.steps == 3
