"""Pipelines in which a record decides which others stay bring a warning."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers import grain_like
from tfdp_layers.batches.choices import choice_in

Data = tf.data.Dataset
X = np.arange(48, dtype="float32").reshape(24, 2)
ROWS = Data.from_tensor_slices((X, X[:, :1]))
GRAIN = grain_like.source([*zip(X, X[:, :1], strict=True)])
OTHERS = grain_like.source([*zip(X, X[:, :1], strict=True)])
FEW, MANY = ROWS.take(6), ROWS.skip(6)


def positive(x, y):
    return y[0] > 9


def parity(x, y):
    return tf.cast(y[0] % 2, tf.int64)


CHOSEN = {
    "a split of what is shuffled": (ROWS.shuffle(24, seed=1, reshuffle_each_iteration=False).skip(4), r"\.skip behind"),
    "its other side": (ROWS.shuffle(24, seed=1).map(lambda x, y: (x, y)).take(4), r"\.take behind \.shuffle"),
    "batches of what is shuffled": (ROWS.shuffle(24).batch(4).take(2).unbatch(), r"\.take behind \.shuffle"),
    "the first ones of a filter": (ROWS.filter(positive).take(4), r"\.take behind \.filter"),
    "a shard": (ROWS.shard(3, 0), r"\.shard that counts places"),
    "turns that end": (Data.sample_from_datasets([FEW, MANY], stop_on_empty_dataset=True), "stop_on_empty_dataset"),
    "whole batches": (ROWS.batch(5, drop_remainder=True).unbatch(), "drop_remainder=True"),
    "whole batches, by a flat map": (
        ROWS.batch(5, drop_remainder=True).flat_map(lambda x, y: Data.from_tensor_slices((x, y))),
        "drop_remainder=True",
    ),
    "whole groups": (
        ROWS.group_by_window(parity, lambda _, group: group.batch(5, drop_remainder=True), 5).unbatch(),
        "groups whose last batch",
    ),
    "the first of each group": (
        ROWS.group_by_window(parity, lambda _, group: group.take(3), window_size=12),
        r"\.take in the groups of \.group_by_window",
    ),
    "a part of what a function shuffles": (
        Data.range(2).flat_map(lambda part: ROWS.shuffle(24).skip(4).shard(2, part)),
        r"\.skip behind \.shuffle, in a function of it",
    ),
    "windows that leave some out": (
        ROWS.window(3, shift=4).flat_map(lambda *one: Data.zip(one)),
        r"\.window\(3, shift=4\) whose windows are taken apart",
    ),
    "the first of each window": (
        ROWS.window(4).flat_map(lambda *one: Data.zip(one).take(3)),
        r"\.take in the windows of \.window",
    ),
    "Grain, shuffled": (grain_like.cut(grain_like.Shuffle(GRAIN), 0, 9), r"a slice behind \.shuffle"),
    "Grain, every third": (grain_like.cut(GRAIN, 0, 24, 3), "a slice that counts places"),
    "Grain, a mix": (grain_like.Mixed(GRAIN, OTHERS, length=30), "a mix that ends"),
}
EACH = {
    "all": ROWS.shuffle(24),
    "the first ones of a fixed order": ROWS.take(9),
    "a filter": ROWS.filter(positive),
    "all of what is shuffled": ROWS.shuffle(24).take(-1).skip(0).shard(1, 0),
    "shuffled behind it": ROWS.take(9).shuffle(9),
    "groups": ROWS.group_by_window(parity, lambda _, group: group.take(-1).shuffle(9), window_size=12),
    "the first ones that a function reads": Data.range(2).flat_map(
        lambda part: Data.from_tensor_slices((X, X[:, :1])).shard(2, part).take(9).shuffle(9)
    ),
    "turns that go on": Data.sample_from_datasets([FEW, MANY]),
    "all batches": ROWS.batch(5).unbatch(),
    "windows as records": ROWS.window(3, shift=4, drop_remainder=True).flat_map(lambda x, y: x.batch(3, True)),
    "all of each window": ROWS.window(4).flat_map(lambda *one: Data.zip(one)),
    "some files": Data.range(4).shuffle(4, seed=1).take(2).flat_map(lambda part: ROWS.take(12)),
    "files of a shard": Data.range(4).shard(2, 0).interleave(lambda part: ROWS.take(6)),
    "Grain": grain_like.Shuffle(grain_like.cut(GRAIN, 0, 9)),
    "Grain, all of what is shuffled": grain_like.cut(grain_like.Shuffle(GRAIN), 0, 24),
    "Grain, one behind the other": grain_like.Concatenate(GRAIN, OTHERS, length=48),
    "Grain, a mix of all": grain_like.Mixed(GRAIN, OTHERS, length=48),
    "a list": [*X],
}


@pytest.mark.parametrize("name", CHOSEN)
def test_where_a_record_decides_about_others_a_warning_says_so(name):
    source, says = CHOSEN[name]
    with pytest.warns(
        UserWarning, match=rf"depends on the others: .*{says}.*held_out\(ids, share\).*nothing is lost\.$"
    ):
        tfdp.records(source)


@pytest.mark.parametrize("name", EACH)
def test_elsewhere_there_is_none(name):
    assert choice_in(EACH[name]) == ""
    if "files" not in name and name != "windows as records":  # which these tests repeat, and which are batches
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tfdp.records(EACH[name])
